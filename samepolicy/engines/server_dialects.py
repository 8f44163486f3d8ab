"""What each kind of server is asked and how its answers are read, by token ids.

vLLM's dialect is tested against the real server. SGLang's and llama.cpp's follow their source and are tested against
small stand-ins only, not against the real servers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Scores
from samepolicy.engines.folder import told_apart
from samepolicy.engines.rollout import Response
from samepolicy.engines.server_fields import as_response, first_in, is_id, list_in, number_of, same_ids, same_length
from samepolicy.engines.server_journal import Call, Json
from samepolicy.errors import EngineError
from samepolicy.records.side import Sampling


@dataclass(frozen=True, kw_only=True)
class Line:
    """What a server says about each response token: log-prob, and the most likely ids with theirs."""

    logp: list[float]
    top: list[list[tuple[int, float]]]


class Dialect(Protocol):
    """A kind of server."""

    name: str

    @property
    def scores(self) -> bool:
        """Whether it gives the log-probs of given ids."""
        ...

    @property
    def prompt(self) -> Sequence[int]:
        """A prompt to probe with: ids that every vocabulary has, and after which no token is certain."""
        return (1, 2, 3)

    def sample(self, ids: Sequence[int], sampling: Sampling | None, *, model: str, seed: int, most: int) -> Call:
        """Ask for a response of at most `most` tokens; without `sampling` the server's own defaults apply."""
        ...

    def sampled(self, reply: Json) -> Response:
        """Read a response."""
        ...

    def score(self, prompt: Sequence[int], response: Sequence[int], *, model: str, top: int) -> Call:
        """Ask for the log-probs of given ids."""
        ...

    def scored(self, reply: Json, prompt: Sequence[int], response: Sequence[int], top: int) -> Line:
        """Read them; NaN for the first token after an empty prompt."""
        ...


class VLLMServer(Dialect):
    """vLLM's /v1/completions, which takes and returns token ids."""

    name = "vllm"
    scores = True

    def sample(self, ids: Sequence[int], sampling: Sampling | None, *, model: str, seed: int, most: int) -> Call:
        """See `Dialect.sample`."""
        told = {} if sampling is None else {**told_apart(sampling), "presence_penalty": 0.0, "frequency_penalty": 0.0}
        body = {"model": model, "prompt": list(ids), "max_tokens": most, "seed": seed, "logprobs": 0, **told}
        return Call("/v1/completions", {**body, "return_token_ids": True, "skip_special_tokens": False})

    def sampled(self, reply: Json) -> Response:
        """See `Dialect.sampled`."""
        choice = first_in(reply, "choices")
        ids = list_in(choice, "token_ids", "start a vLLM that knows return_token_ids")
        logp = list_in(choice.get("logprobs") or {}, "token_logprobs", "start the server with log-probs allowed")
        return as_response(ids, logp, choice.get("finish_reason") == "stop", choice.get("text"))

    def score(self, prompt: Sequence[int], response: Sequence[int], *, model: str, top: int) -> Call:
        """See `Dialect.score`."""
        body = {"model": model, "prompt": [*prompt, *response], "max_tokens": 1, "prompt_logprobs": top}
        return Call("/v1/completions", {**body, "temperature": 1.0, "return_token_ids": True})

    def next(self, before: Sequence[int], token: int, sampling: Sampling, *, model: str) -> Call:
        """Ask for the processed log-prob of one id after all that stands before it."""
        body = self.sample(before, sampling, model=model, seed=0, most=1).body
        return Call(
            "/v1/completions", {**body, "logprobs": 1, "logprob_token_ids": [token], "return_tokens_as_token_ids": True}
        )

    def read_next(self, reply: Json, token: int) -> float:
        """Read that log-prob."""
        listed = list_in(first_in(reply, "choices").get("logprobs") or {}, "top_logprobs", "use vLLM 0.32 or later")
        name = f"token_id:{token}"
        if len(listed) != 1 or name not in listed[0]:
            raise EngineError(
                f"The server gave no log-prob of id {token}; it needs a vLLM that knows logprob_token_ids."
            )
        return number_of(listed[0][name])

    def scored(self, reply: Json, prompt: Sequence[int], response: Sequence[int], top: int) -> Line:
        """See `Dialect.scored`."""
        choice = first_in(reply, "choices")
        places = list_in(choice, "prompt_logprobs", "start the server with prompt log-probs allowed")
        whole = [*prompt, *response]
        same_ids(choice.get("prompt_token_ids"), whole)
        same_length(places, whole, "prompt log-probs")
        own, best = [], []
        for place, token in list(zip(places, whole, strict=True))[len(prompt) :]:
            entries = {int(i): number_of(entry["logprob"]) for i, entry in (place or {}).items()}
            own.append(entries.get(token, float("nan")))
            best.append(_best(entries, top))
        return Line(logp=own, top=best)


class SGLangServer(Dialect):
    """SGLang's /generate, as its source answers; not run against the real server."""

    name = "sglang"
    scores = True

    def sample(self, ids: Sequence[int], sampling: Sampling | None, *, model: str, seed: int, most: int) -> Call:
        """See `Dialect.sample`."""
        told = {} if sampling is None else told_apart(sampling)
        if "top_k" in told:
            told["top_k"] = told["top_k"] or -1
        params = {**told, "max_new_tokens": most, "sampling_seed": seed, "skip_special_tokens": False}
        return Call("/generate", {"input_ids": list(ids), "sampling_params": params, "return_logprob": True})

    def sampled(self, reply: Json) -> Response:
        """See `Dialect.sampled`."""
        meta = reply.get("meta_info") or {}
        entries = list_in(meta, "output_token_logprobs", "ask a server that returns log-probs")
        ids = [entry[1] for entry in entries]
        told = reply.get("output_ids")
        if told is not None and list(told) not in (ids, ids[:-1]):  # some versions leave the end token out
            raise EngineError("The server gave log-probs of other ids than it says it sampled; see its log.")
        reason = meta.get("finish_reason")
        reason = reason.get("type") if isinstance(reason, dict) else reason
        return as_response(ids, [entry[0] for entry in entries], reason == "stop", reply.get("text"))

    def score(self, prompt: Sequence[int], response: Sequence[int], *, model: str, top: int) -> Call:
        """See `Dialect.score`."""
        body: Json = {"input_ids": [*prompt, *response], "return_logprob": True, "logprob_start_len": 0}
        params = {"max_new_tokens": 0, "temperature": 1.0}
        return Call("/generate", {**body, "top_logprobs_num": top, "sampling_params": params})

    def scored(self, reply: Json, prompt: Sequence[int], response: Sequence[int], top: int) -> Line:
        """See `Dialect.scored`."""
        meta, whole = reply.get("meta_info") or {}, [*prompt, *response]
        entries = list_in(meta, "input_token_logprobs", "ask a server that returns log-probs")
        same_length(entries, whole, "input log-probs")
        same_ids([entry[1] for entry in entries], whole)
        tops = meta.get("input_top_logprobs") or [None] * len(whole)
        same_length(tops, whole, "lists of likely tokens")
        best = [_best({e[1]: number_of(e[0]) for e in place or []}, top) for place in tops[len(prompt) :]]
        return Line(logp=[number_of(entry[0]) for entry in entries[len(prompt) :]], top=best)


class LlamaServer(Dialect):
    """llama.cpp's /completion, as its source answers; not run against the real server.

    It samples, but gives no log-probs of a prompt. Its own order of samplers cuts before it applies the temperature, so
    the order is said, too. A token after which the text ends within a character has no log-prob there: NaN here.
    """

    name = "llamacpp"
    scores = False

    def sample(self, ids: Sequence[int], sampling: Sampling | None, *, model: str, seed: int, most: int) -> Call:
        """See `Dialect.sample`."""
        told = {} if sampling is None else told_apart(sampling)
        if told:
            told = {**told, "repeat_penalty": told.pop("repetition_penalty"), "repeat_last_n": -1}
            told |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "mirostat": 0, "dynatemp_range": 0.0}
            told["samplers"] = ["penalties", "temperature", "top_k", "top_p", "min_p"]
        body = {"prompt": list(ids), "n_predict": most, "seed": seed, "n_probs": 1, "return_tokens": True, **told}
        return Call("/completion", {**body, "cache_prompt": False, "post_sampling_probs": False})

    def sampled(self, reply: Json) -> Response:
        """See `Dialect.sampled`."""
        entries = list_in(reply, "completion_probabilities", "ask a llama.cpp server that knows n_probs")
        given = [entry["id"] for entry in entries]
        ids = reply.get("tokens") or given
        places = _places(given, ids)
        logp = [None if place is None else entries[place]["logprob"] for place in places]
        return as_response(ids, logp, reply.get("stop_type") in ("eos", "word"), reply.get("content"))

    def score(self, prompt: Sequence[int], response: Sequence[int], *, model: str, top: int) -> Call:
        """It cannot; see the class."""
        raise EngineError("llama.cpp's server gives no log-probs of given ids; score with the hf engine.")

    def scored(self, reply: Json, prompt: Sequence[int], response: Sequence[int], top: int) -> Line:
        """It cannot; see the class."""
        raise EngineError("llama.cpp's server gives no log-probs of given ids; score with the hf engine.")


DIALECTS: dict[str, Dialect] = {d.name: d for d in (VLLMServer(), SGLangServer(), LlamaServer())}
"""The kinds of server, by name."""


def as_scores(responses: Ragged, lines: Sequence[Line | None], top: int) -> Scores:
    """Lines as columns; NaN and -1 where nothing is known."""
    logp = np.full(len(responses.values), np.nan, np.float32)
    ids = np.full((len(logp), top), -1, np.int64)
    best = np.full((len(logp), top), np.nan, np.float32)
    for row, line in enumerate(lines):
        if line is None:
            continue
        start = int(responses.offsets[row])
        logp[start : start + len(line.logp)] = line.logp
        for at, entries in enumerate(line.top if top else []):
            if entries:
                ids[start + at], best[start + at] = zip(*entries, strict=True)
    scores = Scores(logp=responses.with_values(logp))
    if not top:
        return scores
    return replace(scores, top_ids=responses.with_values(ids), top_logp=responses.with_values(best))


def _places(given: Sequence[int], ids: Sequence[int]) -> list[int | None]:
    """Where each id's entry is among `given`, which may lack some of them; refused where that is not certain."""
    found = []
    for direction in (1, -1):
        rest = list(range(len(given)))[::direction]
        places: list[int | None] = []
        for token in ids[::direction]:
            places.append(rest.pop(0) if rest and given[rest[0]] == token else None)
        found.append(places[::direction] if not rest else None)
    if found[0] is None or found[0] != found[1]:
        raise EngineError(
            f"The server gave {len(given)} log-probs for {len(ids)} tokens, so nothing says which belong together; "
            "llama.cpp leaves out tokens that end within a character."
        )
    return found[0]


def _best(entries: dict[int, float], top: int) -> list[tuple[int, float]]:
    """The `top` most likely ids with their log-probs, most likely first; none where the server lists none."""
    wrong = [i for i in entries if not is_id(i)]
    if wrong or 0 < len(entries) < top:
        what = "an id that no vocabulary has" if wrong else f"{len(entries)} likely tokens where {top} were asked for"
        raise EngineError(f"The server lists {what}; see its log, or ask with a smaller top=.")
    return sorted(entries.items(), key=lambda item: (item[1] != item[1], -item[1]))[:top]
