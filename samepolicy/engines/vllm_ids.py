"""Requests to vLLM by token ids, and the log-probs read back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Scores
from samepolicy.engines.folder import told_apart
from samepolicy.errors import EngineError
from samepolicy.records.side import Sampling


@dataclass(frozen=True)
class Request:
    """One request: prompt ids, and `vllm.SamplingParams`."""

    ids: list[int]
    params: Any


@dataclass(frozen=True, kw_only=True)
class Way:
    """A path from ids to log-probs.

    Attributes:
        sampling: what is applied to the log-probs, on the next-token path only.
        step: a request per token that ends before it, instead of one prefill per sequence.
        fresh: leave the prefix cache alone, on the next-token path; a prefill that gives log-probs always does.
        chunk: tokens of a prefill chunk; 0 leaves it to vLLM.
    """

    sampling: Sampling = Sampling()
    step: bool = False
    fresh: bool = False
    chunk: int = 0


def sample_requests(
    prompts: Sequence[np.ndarray], seeds: Sequence[int], sampling: Sampling, *, stops: list[int], limit: int
) -> list[Request]:
    """One request per response, every setting said, with the sampled token's log-prob."""
    import vllm

    return [
        Request(
            prompt.tolist(),
            vllm.SamplingParams(
                **told_apart(sampling),
                max_tokens=min(sampling.max_tokens, limit - len(prompt)),
                seed=seed,
                logprobs=0,
                stop_token_ids=stops,
                detokenize=False,
            ),
        )
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]


def prefill_requests(prompts: Ragged, responses: Ragged, top: int) -> list[Request]:
    """One request per sequence that has a token which something predicts, for the log-probs of its prompt."""
    import vllm

    params = vllm.SamplingParams(temperature=1.0, max_tokens=1, prompt_logprobs=top, detokenize=False)
    rows = zip(prompts, responses, strict=True)
    return [Request([*p.tolist(), *r.tolist()], params) for p, r in rows if _is_asked(p, r)]


def next_requests(prompts: Ragged, responses: Ragged, way: Way, *, top: int | None) -> list[Request]:
    """One request per response token, its prompt all that stands before it.

    Args:
        prompts: prompt ids.
        responses: response ids.
        way: the settings.
        top: ask for so many most likely tokens; None asks for the response's own token.
    """
    import vllm

    shared = {**told_apart(way.sampling), "max_tokens": 1, "detokenize": False}
    if way.fresh:
        shared["skip_reading_prefix_cache"] = True
    found = []
    for prompt, response in zip(prompts, responses, strict=True):
        whole = [*prompt.tolist(), *response.tolist()]
        for place in range(max(len(prompt), 1), len(whole)):
            asked = {"logprobs": top} if top else {"logprobs": 1, "logprob_token_ids": [whole[place]]}
            try:
                params = vllm.SamplingParams(**shared, **asked)
            except TypeError as error:
                raise EngineError(
                    f"vLLM {vllm.__version__} cannot give the log-prob of a chosen id ({error}); "
                    'score with logprobs="raw", or install vLLM 0.32 or later.'
                ) from error
            found.append(Request(whole[:place], params))
    return found


def read_rows(prompts: Ragged, responses: Ragged, rows: Sequence[Any], top: int, *, own: bool = True) -> Scores:
    """Log-probs per response token from per-place mappings of id to an object with `logprob` and `rank`.

    Args:
        prompts: prompt ids.
        responses: response ids.
        rows: one list per sequence that was asked for (of all sequences on the next-token path), as long as prompt
            and response; None or a mapping at each place.
        top: tokens to list per place.
        own: whether the response's own token is in every mapping.
    """
    logp = np.full(len(responses.values), np.nan, np.float32)
    ids = np.full((len(logp), top), -1, np.int64)
    best = np.full((len(logp), top), np.nan, np.float32)
    answers = iter(rows)
    every = len(rows) == len(prompts)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        if not every and not _is_asked(prompt, response):
            continue
        places = next(answers)
        _check_length(places, len(prompt) + len(response), row)
        for i, token in enumerate(response.tolist()):
            found = places[len(prompt) + i]
            if found is None:
                continue
            at = responses.offsets[row] + i
            if own:
                logp[at] = found[token].logprob
            if top:
                ids[at], best[at] = _most_likely(found, top)
    scores = Scores(logp=responses.with_values(logp))
    if not top:
        return scores
    return Scores(logp=scores.logp, top_ids=responses.with_values(ids), top_logp=responses.with_values(best))


def step_rows(prompts: Ragged, responses: Ragged, outputs: Sequence[Any]) -> list[Any]:
    """Answers to next-token requests as one list per sequence, as long as prompt and response together."""
    found = iter(outputs)
    rows = []
    for prompt, response in zip(prompts, responses, strict=True):
        known = 0 if len(prompt) else 1
        steps = [next(found).outputs[0].logprobs[0] for _ in response[known:]]
        rows.append([None] * (len(prompt) + min(known, len(response))) + steps)
    return rows


def _is_asked(prompt: np.ndarray, response: np.ndarray) -> bool:
    """Whether any token of the response is predicted by something."""
    return len(response) > 0 and len(prompt) + len(response) > 1


def _most_likely(found: Mapping[int, Any], top: int) -> tuple[list[int], list[float]]:
    """The `top` most likely ids and their log-probs, most likely first."""
    ordered = sorted(found.items(), key=lambda item: -item[1].logprob)[:top]
    return [token for token, _ in ordered], [entry.logprob for _, entry in ordered]


def _check_length(places: Any, expected: int, row: int) -> None:
    """Refuse an answer that has another length than what was asked for."""
    if places is None or len(places) != expected:
        got = "none" if places is None else len(places)
        raise EngineError(
            f"vLLM gave {got} prompt log-probs for the {expected} tokens of sequence {row}, so they cannot be told "
            "apart; this is a fault of the engine, load it again."
        )
