"""What each kind of server is asked and how its answers are read, all by token ids.

vLLM's dialect is tested against the real server. SGLang's and llama.cpp's follow their source and are tested against
small stand-ins only, not against the real servers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from samepolicy.engines.folder import told_apart
from samepolicy.engines.rollout import Response
from samepolicy.engines.server_journal import Call, Json
from samepolicy.errors import EngineError
from samepolicy.records.side import Sampling

LARGEST_ID = 2**31 - 1
"""Ids are checked against this where the server's vocabulary is not known; the server refuses the rest."""

ABSENT = -9999.0
"""What vLLM's server writes for minus infinity, which JSON lacks."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """What a server says about each response token: log-prob, and the most likely ids with theirs."""

    logp: list[float]
    top: list[list[tuple[int, float]]]


class Dialect(Protocol):
    """A kind of server."""

    name: str
    scores: bool

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
        choice = _first(reply, "choices")
        ids = _listed(choice, "token_ids", "start a vLLM that knows return_token_ids")
        logp = _listed(choice.get("logprobs") or {}, "token_logprobs", "start the server with log-probs allowed")
        return _response(ids, logp, choice.get("finish_reason") == "stop", choice.get("text"))

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
        listed = _listed(_first(reply, "choices").get("logprobs") or {}, "top_logprobs", "use vLLM 0.32 or later")
        name = f"token_id:{token}"
        if len(listed) != 1 or name not in listed[0]:
            raise EngineError(
                f"The server gave no log-prob of id {token}; it needs a vLLM that knows logprob_token_ids."
            )
        return _number(listed[0][name])

    def scored(self, reply: Json, prompt: Sequence[int], response: Sequence[int], top: int) -> Line:
        """See `Dialect.scored`."""
        choice = _first(reply, "choices")
        places = _listed(choice, "prompt_logprobs", "start the server with prompt log-probs allowed")
        whole = [*prompt, *response]
        _same_ids(choice.get("prompt_token_ids"), whole)
        _same_length(places, whole, "prompt log-probs")
        own, best = [], []
        for place, token in list(zip(places, whole, strict=True))[len(prompt) :]:
            entries = {int(i): _number(entry["logprob"]) for i, entry in (place or {}).items()}
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
        entries = _listed(meta, "output_token_logprobs", "ask a server that returns log-probs")
        ids = [entry[1] for entry in entries]
        told = reply.get("output_ids")
        if told is not None and list(told) not in (ids, ids[:-1]):  # some versions leave the end token out
            raise EngineError("The server gave log-probs of other ids than it says it sampled; see its log.")
        reason = meta.get("finish_reason")
        reason = reason.get("type") if isinstance(reason, dict) else reason
        return _response(ids, [entry[0] for entry in entries], reason == "stop", reply.get("text"))

    def score(self, prompt: Sequence[int], response: Sequence[int], *, model: str, top: int) -> Call:
        """See `Dialect.score`."""
        body: Json = {"input_ids": [*prompt, *response], "return_logprob": True, "logprob_start_len": 0}
        params = {"max_new_tokens": 0, "temperature": 1.0}
        return Call("/generate", {**body, "top_logprobs_num": top, "sampling_params": params})

    def scored(self, reply: Json, prompt: Sequence[int], response: Sequence[int], top: int) -> Line:
        """See `Dialect.scored`."""
        meta, whole = reply.get("meta_info") or {}, [*prompt, *response]
        entries = _listed(meta, "input_token_logprobs", "ask a server that returns log-probs")
        _same_length(entries, whole, "input log-probs")
        _same_ids([entry[1] for entry in entries], whole)
        tops = (meta.get("input_top_logprobs") or [None] * len(whole))[len(prompt) :]
        best = [_best({e[1]: _number(e[0]) for e in place or []}, top) for place in tops]
        return Line(logp=[_number(entry[0]) for entry in entries[len(prompt) :]], top=best)


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
        entries = _listed(reply, "completion_probabilities", "ask a llama.cpp server that knows n_probs")
        given = [entry["id"] for entry in entries]
        ids = reply.get("tokens") or given
        places = _places(given, ids)
        logp = [None if place is None else entries[place]["logprob"] for place in places]
        return _response(ids, logp, reply.get("stop_type") in ("eos", "word"), reply.get("content"))

    def score(self, prompt: Sequence[int], response: Sequence[int], *, model: str, top: int) -> Call:
        """It cannot; see the class."""
        raise EngineError("llama.cpp's server gives no log-probs of given ids; score with the hf engine.")

    def scored(self, reply: Json, prompt: Sequence[int], response: Sequence[int], top: int) -> Line:
        """It cannot; see the class."""
        raise EngineError("llama.cpp's server gives no log-probs of given ids; score with the hf engine.")


DIALECTS: dict[str, Dialect] = {d.name: d for d in (VLLMServer(), SGLangServer(), LlamaServer())}
"""The kinds of server, by name."""


def _response(ids: Sequence[Any], logp: Sequence[Any], stopped: bool, text: Any) -> Response:
    """A response whose ids and log-probs line up."""
    _same_length(logp, ids, "log-probs")
    finish: Literal["stop", "length"] = "stop" if stopped else "length"
    values = [_number(value) for value in logp]
    wrong = [i for i in ids if not isinstance(i, int) or not 0 <= i <= LARGEST_ID]
    if wrong:
        raise EngineError(f"The server says that it sampled {wrong[0]!r}, which is no token id; see its log.")
    return Response(ids=list(ids), logp=values, finish=finish, text=text if isinstance(text, str) else None)


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


def _first(reply: Json, name: str) -> Json:
    """The first entry of a list in a reply."""
    listed = _listed(reply, name, "is this the right server?")
    if not listed or not isinstance(listed[0], dict):
        raise EngineError(f"The server's answer has an empty {name}; see its log.")
    found: Json = listed[0]
    return found


def _listed(reply: Json, name: str, fix: str) -> list[Any]:
    """A list in a reply."""
    found = reply.get(name)
    if not isinstance(found, list):
        raise EngineError(f"The server's answer has no {name}, so there is no log-prob to compare; {fix}.")
    return found


def _same_length(found: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    """Refuse another number of values than of ids: nothing says which one is missing."""
    if len(found) != len(expected):
        raise EngineError(
            f"The server gave {len(found)} {what} for {len(expected)} tokens, so nothing says which belong together; "
            "this is a fault of the server."
        )


def _same_ids(found: Any, expected: Sequence[int]) -> None:
    """Refuse an answer about other ids than were sent."""
    if found is not None and list(found) != list(expected):
        raise EngineError("The server answered about other ids than it was sent; send ids to the server directly.")


def _number(value: Any) -> float:
    """A log-prob from JSON: null is NaN, and the stand-ins of vLLM and llama.cpp are minus infinity."""
    if value is None:
        return float("nan")
    if isinstance(value, bool | str):
        raise EngineError(f"The server gave the log-prob {value!r}, which is no number; see its log.")
    number = float(value)
    return float("-inf") if number <= ABSENT else number


def _best(entries: dict[int, float], top: int) -> list[tuple[int, float]]:
    """The `top` most likely ids with their log-probs, most likely first."""
    return sorted(entries.items(), key=lambda item: -item[1])[:top]
