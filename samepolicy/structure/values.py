"""What the log-probs themselves show: placeholders, a shift, values that are no log-probs, a copy."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float

from samepolicy.arrays import Ragged
from samepolicy.records.declared import samplings, scored_here
from samepolicy.records.run import Run
from samepolicy.structure.fact import Fact, Test, counted
from samepolicy.structure.ids import ragged

SURE = -0.05
"""A log-prob that is exactly 0 is odd only where another source puts it below this, nats."""

MANY = 0.05
"""Without a reference, odd zeros are a failure only beyond this share of the tokens."""

PLACEHOLDER = -1000.0
"""A finite log-prob at or below this stands for a value that does not exist."""

LEAVE_OUT = "set the mask to 0 where there is no log-prob, or record the log-prob of the sampled token"

LAGS = (-3, -2, -1, 0, 1, 2, 3)
FEWEST_PAIRS = 20
CLEAR = 0.2
"""By how much the correlation at another lag must exceed that at lag 0."""


def placeholders(run: Run) -> Iterator[Fact]:
    """Exact constants where a log-prob should be."""
    for side in ("rollout", "trainer"):
        if f"{side}_logp" in run:
            yield from _zeros(run, side)
            yield from _sentinels(run, side)


def shift(run: Run) -> Fact:
    """Whether the two series line up best where they stand: T[i] against R[i + lag] over all tokens."""
    it = Test("shift", "shift")
    lacking = [f"{side}_logp" for side in ("rollout", "trainer") if f"{side}_logp" not in run]
    if lacking:
        why = f"the run has no {' and no '.join(lacking)}"
        return it.unchecked(why)
    found = {lag: _correlation(run, lag) for lag in LAGS}
    pairs = found[0][1]
    known = {lag: r for lag, (r, _) in found.items() if np.isfinite(r)}
    if pairs < FEWEST_PAIRS or 0 not in known:
        why = f"{pairs} comparable tokens that vary are too few to see a shift; it takes {FEWEST_PAIRS}"
        return it.unchecked(why)
    best = max(known, key=lambda lag: known[lag])
    text = f"the correlation of trainer and rollout is {known[0]:.3f} in place"
    if best and known[best] - known[0] > max(CLEAR, 5 / np.sqrt(pairs)):
        why = f"{text} but {known[best]:.3f} with the trainer's column moved by {best:+d}"
        fix = "read response token i from the logits at position m-1+i, with m the length of the prompt"
        return it.broken(why, fix=fix)
    if known[0] < 0.5:
        why = f"{text} and no better at a lag of up to {LAGS[-1]}; re-scoring with a moved slice would tell"
        return it.unchecked(why)
    return it.passed(f"{text}, the best of all lags up to {LAGS[-1]}")


def numbers(run: Run) -> Iterator[Fact]:
    """Every value under the mask must be a log-prob: finite, and not above 0."""
    sides = [side for side in ("rollout", "trainer") if f"{side}_logp" in run]
    bad = [text for side in sides for text in _bad_values(side, under_mask(run, f"{side}_logp"))]
    if bad:
        why = f"under the mask, {'; '.join(bad)}"
        fix = (
            "look at the first such token: a mask over tokens without a value, a kept set (top-p, top-k) that leaves a "
            "sampled token out, or an overflow"
        )
        yield Test("log-probs", "numerics").broken(why, fix=fix)
    elif sides:
        why = f"every value of the {' and the '.join(sides)} under the mask is finite and at most 0"
        yield Test("log-probs", "numerics").passed(why)


def copy(run: Run) -> Iterator[Fact]:
    """Two engines never agree to the last bit everywhere: that is one column written twice."""
    if "rollout_logp" not in run or "trainer_logp" not in run:
        return
    with np.errstate(over="ignore"):
        rollout, trainer = (under_mask(run, f"{side}_logp").astype(np.float32) for side in ("rollout", "trainer"))
    if not len(rollout) or not np.array_equal(rollout, trainer, equal_nan=True):
        return
    equal = f"the trainer's log-probs equal the rollout's bit by bit on all {counted(len(rollout), 'token')}"
    aligned = any(side.extra.get("bitwise_aligned") for side in (run.rollout, run.trainer))
    if aligned or scored_here(run, "trainer_logp"):
        how = "as declared" if aligned else "and both were computed here, each by its own engine"
        yield Test("copy", "numerics").passed(f"{equal}, {how}")
    else:
        why = f"{equal}, so one is a copy of the other"
        fix = (
            "turn off the mode that reuses the rollout's log-probs for one step, or have the trainer score the run; if "
            "both sides are bitwise aligned by design, declare extra['bitwise_aligned']"
        )
        yield Test("copy", "numerics").failed(why, fix=fix)


def under_mask(run: Run, name: str) -> Float[np.ndarray, " tokens"]:
    """The values of a per-token column where the mask is 1."""
    values: np.ndarray = ragged(run, name).values[run.mask.values]
    return values


def _zeros(run: Run, side: str) -> Iterator[Fact]:
    """Exact zeros that the other side, and the reference where there is one, do not explain."""
    other = f"{'trainer' if side == 'rollout' else 'rollout'}_logp"
    values = under_mask(run, f"{side}_logp")
    odd = values == 0
    for source in (other, f"{side}_reference_logp"):
        if source in run:
            odd &= under_mask(run, source) < SURE
    count, known = int(odd.sum()), f"{side}_reference_logp" in run
    if not count or not (known or other in run):
        return
    text = f"{count} of {len(values)} log-probs of the {side} are exactly 0 where the token is not certain"
    few, truncates = count <= MANY * len(values), _truncates(run, side)
    honest = (not known and (few or truncates)) or (few and truncates)  # at the edge of a kept set sides may differ
    if honest:
        why = f"{text}: truncated sampling makes such zeros, and so do filled-in values; a reference engine would tell"
        yield Test(f"{side} zeros", "tokens").unchecked(why)
    else:
        why = f"{text}: they stand for no value"
        yield Test(f"{side} zeros", "tokens").broken(why, fix=LEAVE_OUT)


def _sentinels(run: Run, side: str) -> Iterator[Fact]:
    """Values such as -9999 or -1e10 stand for a log-prob that does not exist."""
    values = under_mask(run, f"{side}_logp")
    count = int((np.isfinite(values) & (values <= PLACEHOLDER)).sum())
    if count:
        why = f"{count} of {len(values)} log-probs of the {side} are {PLACEHOLDER:g} or less: they stand for no value"
        yield Test(f"{side} placeholders", "tokens").broken(why, fix=LEAVE_OUT)


def _truncates(run: Run, side: str) -> bool:
    """Whether the side declares a sampling under which a likely token can get probability 1."""
    sampling = samplings(run)[side == "trainer"]
    return sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0 or sampling.temperature < 0.5


def _correlation(run: Run, lag: int) -> tuple[float, int]:
    """Pearson correlation of T[i] with R[i + lag] inside the sequences, and over how many pairs."""
    rollout, trainer = ragged(run, "rollout_logp"), ragged(run, "trainer_logp")
    here, there = _pairs(rollout, lag)
    x, y = trainer.values[here].astype(np.float64), rollout.values[there].astype(np.float64)
    good = _comparable(run, "trainer_logp")[here] & _comparable(run, "rollout_logp")[there]
    x, y = x[good], y[good]
    if len(x) < 2 or x.std() == 0 or y.std() == 0:
        return float("nan"), len(x)
    return float(np.corrcoef(x, y)[0, 1]), len(x)


def _pairs(column: Ragged, lag: int) -> tuple[np.ndarray, np.ndarray]:
    """Packed indices i and i + lag of all tokens that have a partner in their own sequence."""
    here = np.arange(len(column.values))
    row = np.repeat(np.arange(len(column)), column.lengths)
    there = here + lag
    inside = (there >= column.offsets[row]) & (there < column.offsets[row + 1])
    return here[inside], there[inside]


def _comparable(run: Run, name: str) -> Bool[np.ndarray, " tokens"]:
    """Where a value counts: under the mask, finite and no placeholder."""
    values = ragged(run, name).values
    good: np.ndarray = run.mask.values & np.isfinite(values) & (values > PLACEHOLDER)
    return good


def _bad_values(side: str, values: Float[np.ndarray, " tokens"]) -> Iterator[str]:
    """What is wrong with a side's values, in words."""
    kinds = {"NaN": np.isnan(values), "infinite": np.isinf(values), "above 0": np.isfinite(values) & (values > 0)}
    for what, found in kinds.items():
        if found.any():
            yield f"{int(found.sum())} of {len(values)} values of the {side} are {what}"
