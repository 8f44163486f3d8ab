"""Ids that one side's sampler could not choose, or favoured."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

from samepolicy.arrays import Ragged
from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import FAR, Evidence
from samepolicy.causes.making import TOKENS, toy, toy_run
from samepolicy.causes.settings import Settings
from samepolicy.engines.states import Forbidden
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

MOST = 12
"""Ids that are forbidden at most; a grammar forbids more, and its mask cannot be guessed."""

SHORTLIST = 48
"""Ids that are looked at closely in each round."""

WORTH = 0.01
"""An id is added if it takes this share of the error."""

NEVER = 3
"""Tokens that must speak for a biased id."""

FACTOR = 200.0
"""A bias multiplies odds by at most this, or divides them."""

GRID = (-4.0, -2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Biases that every frequent id is tried with."""

HELPS = 0.9
"""A bias is fitted where one on the grid takes the error below this share of what it was."""


class ForbiddenTokens(Cause):
    """Some ids could not be sampled, or were favoured, and only one side's log-probs know of it.

    What happens    The sampler masks ids (min_tokens and ignore_eos suppress end tokens, bad_words, suppressed stop
                    tokens, a grammar) or adds a logit bias, and records log-probs after that; the trainer scores over
                    all ids.
    How it shows    One-sided: every recorded value is higher by -log(1 - forbidden mass), large where the mask bites
                    and zero elsewhere; the engine's value is finite where the trainer's favourite was forbidden.
    How to confirm  Sample one batch with min_tokens=0, without bad_words, logit_bias and structured output.
    How to fix      Sample without masks, or apply the same mask in the trainer: processed log-probs and the replayed
                    support on both sides. vLLM: min_tokens=0, bad_words=None, logit_bias=None, no structured_outputs;
                    return_sampling_mask to replay. SGLang: min_new_tokens=0, no logit_bias, no regex or json_schema.
                    verl: rollout.ignore_eos=False. TRL: generation_kwargs without min_tokens and guided decoding.
                    ms-swift: no --structured_outputs_regex. Megatron: add the mask to the logits before the softmax.
    References      vLLM logprobs_mode (raw is before bad words and the like, processed after); TRL pull request 7269
                    (return_sampling_mask); DeepSeek-V3.2 (2025), keep sampling mask
    """

    rung = Rung.SAMPLING
    separate = "sample one batch with min_tokens=0, without bad words, logit bias and structured output"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """Ids whose mass is missing, each up to some place of the response; then one biased id."""
        if evidence.known.arrays or evidence.mode == "pair":
            evidence.error(Settings(bias=((0, 0.0),)))  # says what it takes where there is no model
            return
        mass = np.exp(evidence.reference.full(evidence.side, evidence.known, evidence.probe))
        found = _missing(evidence, mass)
        if found:
            yield _forbidding(found)
        yield from _biased(evidence, mass)

    def reproduce(self, rng: Generator) -> Run:
        """Three letters cannot be sampled, and the recorded log-probs are over the other ids."""
        return without(toy_run(rng), rng, (66, 70, 80), last=None)


def _missing(evidence: Evidence, mass: Float[np.ndarray, "n vocab"]) -> list[Forbidden]:
    """Ids and where they end, most telling first, chosen one by one by what they take off the absolute error."""
    tokens = evidence.probe
    above = _above(evidence)
    place, end = evidence.position[tokens], _first_sampled(evidence, mass.shape[1])
    taken, start = np.zeros(len(tokens)), np.abs(above).sum()
    found: list[Forbidden] = []
    while len(found) < MOST:
        left = np.clip(1 - np.exp(-np.clip(above, 0, 20)) - taken, 0, 1)
        score = (left @ mass) ** 2 / np.maximum((mass**2).sum(axis=0), 1e-12)
        score[[ban.ids[0] for ban in found]] = 0
        short = np.argsort(-np.where(end > 0, score, -1))[:SHORTLIST]
        gains = [_gain(above, taken, mass[:, v], place, int(end[v])) for v in short.tolist()]
        best = int(np.argmax([gain for gain, _ in gains]))
        gain, last = gains[best]
        if gain < WORTH * start:
            break
        identity = int(short[best])
        found.append(Forbidden((identity,), 0, last))
        taken = taken + mass[:, identity] * (place < (np.inf if last is None else last))
    return found


def _above(evidence: Evidence) -> Float[np.ndarray, " n"]:
    """How far what was recorded at the probe lies above the prediction, at most `FAR`; 0 where either is no number."""
    with np.errstate(invalid="ignore"):
        above = evidence.residual[evidence.probe]
    found: np.ndarray = np.where(np.isnan(above), 0.0, np.clip(above, -FAR, FAR))
    return found


def _gain(
    above: np.ndarray, taken: np.ndarray, mass: np.ndarray, place: np.ndarray, end: int
) -> tuple[float, int | None]:
    """What forbidding an id takes off the absolute error, and the place before which it is best to stop."""
    before, after = (np.abs(above + np.log(np.maximum(1 - m, 1e-9))) for m in (taken, taken + mass))
    steps = np.bincount(place, weights=before - after)[:end]
    total = np.cumsum(steps)
    if not len(total) or not total.max() > 0:  # nothing gained, or values that are no number
        return 0.0, None
    most, longest = float(total.max()), int(place.max()) + 1
    if len(total) == longest and total[-1] >= 0.98 * most:
        return float(total[-1]), None
    good = np.flatnonzero(total >= 0.98 * most) + 1
    return most, int(min(good.tolist(), key=lambda k: (-_zeros(k), abs(k - int(total.argmax()) - 1))))


def _zeros(number: int) -> int:
    """How round a number is: 2 for a multiple of 10, 1 for one of 5."""
    return 2 if number % 10 == 0 else int(number % 5 == 0)


def _first_sampled(evidence: Evidence, vocabulary: int) -> np.ndarray:
    """The first place at which each id was sampled anywhere, int64 [vocab]; very large where it never was."""
    found = np.full(vocabulary, np.iinfo(np.int64).max)
    ids, fine = evidence.run["response_ids"].values.astype(np.int64), evidence.comparable
    np.minimum.at(found, ids[fine], evidence.position[fine])
    capped: np.ndarray = np.minimum(found, 2**31)
    return capped


def _forbidding(found: list[Forbidden]) -> Undone:
    """Forbidden ids with the places that they are forbidden at."""
    ends = {ban.last for ban in found}
    parameters: dict[str, Any] = {"ids": [ban.ids[0] for ban in found]}
    if ends != {None}:
        parameters["first_places"] = [ban.last for ban in found]
    where = "everywhere" if ends == {None} else "at the first places of a response"
    ids = f"{len(found)} id{'s' * (len(found) > 1)}"
    return Undone(
        settings=Settings(forbidden=tuple(found)),
        parameters=parameters,
        sentence=f"with {ids} forbidden {where} the reference gives what was recorded",
    )


def _biased(evidence: Evidence, mass: Float[np.ndarray, "n vocab"]) -> Iterator[Undone]:
    """One id whose logit is raised or lowered: the best pair of id and bias on a grid, then fitted."""
    tokens = evidence.probe
    above = _above(evidence)
    ids = evidence.run["response_ids"].values[tokens].astype(np.int64)
    least, identity = HELPS * np.abs(above).sum(), -1
    for one in np.flatnonzero(np.bincount(ids) >= NEVER).tolist():
        for bias in GRID:
            moved = bias * (ids == one) - np.log1p(mass[:, one] * np.expm1(bias))
            if np.abs(above - moved).sum() < least:
                least, identity = np.abs(above - moved).sum(), one
    if identity < 0:
        return
    factor = evidence.fit(lambda f: Settings(bias=((identity, float(np.log(f))),)), 1 / FACTOR, FACTOR)
    bias = float(np.log(factor))
    bias = evidence.rounded(bias, lambda value: evidence.error(Settings(bias=((identity, value),))))
    if abs(bias) > 0.02:
        yield Undone(
            settings=Settings(bias=((identity, bias),)),
            parameters={"id": identity, "bias": bias},
            sentence=f"with {bias:+.3g} added to the logit of id {identity} the reference gives what was recorded",
        )


def without(run: Run, rng: Generator, ids: tuple[int, ...], *, last: int | None) -> Run:
    """A toy run sampled anew with ids forbidden before some place, log-probs recorded over the rest.

    Args:
        run: gives prompts and declarations.
        rng: draws the tokens.
        ids: what cannot be sampled.
        last: the place before which that ends; None is the end.
    """
    one, size = toy(), toy().describe(Sampling()).extra["vocab_size"]
    rows: list[list[int]] = [[] for _ in range(len(run))]
    values: list[list[float]] = [[] for _ in range(len(run))]
    for place in range(TOKENS):
        seen = [np.r_[prompt, np.array(row, np.int64)] for prompt, row in zip(run["prompt_ids"], rows, strict=True)]
        blank = Ragged.from_lists([[0]] * len(run), dtype=np.int64)
        scores = one.score(Ragged.from_lists(seen, dtype=np.int64), blank, top=size)
        assert scores.top_ids is not None
        assert scores.top_logp is not None
        for row, (order, logp) in enumerate(zip(scores.top_ids.values, scores.top_logp.values, strict=True)):
            free = ~np.isin(order, ids) if last is None or place < last else np.ones(size, bool)
            chance = np.exp(logp[free].astype(np.float64))
            drawn = int(rng.choice(free.sum(), p=chance / chance.sum()))
            rows[row].append(int(order[free][drawn]))
            values[row].append(float(logp[free][drawn] - np.log(chance.sum())))
    responses = Ragged.from_lists(rows, dtype=np.int64)
    logp = one.score(run["prompt_ids"], responses).logp
    columns = {"response_ids": responses, "rollout_logp": Ragged.from_lists(values, dtype=np.float32)}
    kept = {name: run[name] for name in ("prompt_ids", "group", "sample")}
    return Run({**kept, **columns, "trainer_logp": logp}, rollout=run.rollout, trainer=run.trainer, info=run.info)
