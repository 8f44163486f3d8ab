"""A correction: steps in order, applied to a batch block by block."""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from samepolicy.arrays import Array, array_namespace, is_torch, on_host, to_bool, vector, view
from samepolicy.blocks import Batch
from samepolicy.corrections.base import BatchMaskStep, MaskStep, ScaleStep, Step, WatchStep, WeightStep, Work
from samepolicy.corrections.spans import sequences_of
from samepolicy.corrections.statistics import Stats
from samepolicy.corrections.sums import block_state
from samepolicy.errors import InputError, MissingColumnError, ShapeError
from samepolicy.ratio import log_ratio

COLUMNS = ("current", "advantage", "turn")
THREADS = min(4, os.cpu_count() or 1)
"""Threads that share the blocks of a batch in host memory; NumPy computes outside the interpreter's lock."""


class Corrected(NamedTuple):
    """What a correction gives back.

    Attributes:
        weights: factor of each token's loss, detached; 0 where the token is masked or dropped.
        keep: the new mask, bool.
        stats: what was seen and done.
    """

    weights: Array
    keep: Array
    stats: Stats


class _Builders(type):
    """Gives `Correction.from_<framework>` for every module of `corrections/frameworks`."""

    def __getattr__(cls, name: str) -> Callable[..., "Correction"]:
        if not name.startswith("from_"):
            raise AttributeError(f"Correction has no {name!r}.")
        from samepolicy.corrections.frameworks import all_frameworks, builder

        if name.removeprefix("from_") not in all_frameworks():
            raise AttributeError(f"Correction has no {name!r}; there are from_{', from_'.join(all_frameworks())}.")
        return builder(name.removeprefix("from_"))


@dataclass(frozen=True, init=False)
class Correction(metaclass=_Builders):
    """Steps that turn the gap between trainer and rollout into a weight and a mask, in order.

    At most one step gives weights (`Truncate`, `Band`), `Normalise` may follow it, and any number of steps say what to
    keep (`Reject`, `Veto`, `OffPolicyMask`, `SecondMoment`). Without a weight step the weight is 1. Statistics of the
    ratios are taken before any step.

    Attributes:
        steps: the steps in order.
        missing: a token without a log-ratio (NaN) is dropped with weight 0 ("drop"), or taken for one on which the
            policies agree ("agree", what TRL does). Infinite log-probs are always dropped.

    Raises:
        InputError: two weighting steps, `Normalise` without one, or something that is no step.

    >>> correct = Correction.from_verl(rollout_is="token", rollout_is_threshold=2.0)
    >>> print(correct)
    Correction(Truncate(2.0, clamp=20.0))
    """

    steps: tuple[Step, ...]
    missing: Literal["drop", "agree"] = "drop"

    def __init__(self, *steps: Step, missing: Literal["drop", "agree"] = "drop") -> None:
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "missing", missing)
        _check(steps, missing)

    def __str__(self) -> str:
        """As one would write it."""
        parts = [*map(str, self.steps), *(["missing='agree'"] if self.missing == "agree" else [])]
        return f"Correction({', '.join(parts)})"

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns that the steps read."""
        return tuple(sorted({n for step in self.steps for n in step.needs} | {"trainer"}))

    def __call__(
        self, *, trainer: Array, rollout: Array | None, mask: Array, offsets: Any = None, **columns: Array
    ) -> Corrected:
        """Correct one batch of NumPy arrays or torch tensors, where it lives.

        Args:
            trainer: log-probs under the policy that is trained, float [batch, time], or [tokens] with offsets.
            rollout: log-probs under the policy that sampled, same shape; None only where no step reads it.
            mask: 1 where the policy sampled the token, same shape, any dtype (bool spares a device the check).
            offsets: where each packed sequence begins and the last ends (`cu_seqlens`), int [sequences + 1].
            **columns: what steps need besides: current [same shape], advantage [same shape] or [sequences], turn
                [same shape].

        Returns:
            weights [same shape], float32 (float64 for float64 input), detached; keep [same shape], bool; stats.

        Raises:
            MissingColumnError: a step needs a column that was not given.
            ShapeError: shapes differ; nothing is broadcast.
            MaskError: the mask holds other values than 0 and 1.
        """
        given = {k: v for k, v in {"trainer": trainer, "rollout": rollout, **columns}.items() if v is not None}
        self._check_columns(given)
        per_sequence = {n: c for n, c in given.items() if n == "advantage" and _is_per_sequence(c, mask)}
        batch = Batch({n: c for n, c in given.items() if n not in per_sequence}, mask, offsets)
        _check_advantage(per_sequence, batch)
        with np.errstate(all="ignore"):
            return _Pass(self, batch, per_sequence).run()

    def _check_columns(self, given: Mapping[str, Array]) -> None:
        """Refuse unknown columns, and missing ones with the step that needs them."""
        unknown = set(given) - {"trainer", "rollout", *COLUMNS}
        if unknown:
            raise InputError(f"No step needs a column {sorted(unknown)[0]!r}; they need {', '.join(COLUMNS)}.")
        for step in self.steps:
            lacking = [n for n in step.needs if n not in given]
            if lacking:
                raise MissingColumnError(f"{step} needs the column {lacking[0]!r}; hand it over as {lacking[0]}=….")


def _check(steps: tuple[Step, ...], missing: str) -> None:
    """Refuse steps that do not go together."""
    odd = [s for s in steps if not isinstance(s, Step)]
    if odd:
        raise InputError(f"A correction is made of steps, and {odd[0]!r} is none; use Truncate(…) or such.")
    if missing not in ("drop", "agree"):
        raise InputError(f"There is no missing={missing!r}; choose drop or agree.")
    weighing = [i for i, s in enumerate(steps) if isinstance(s, WeightStep)]
    scaling = [i for i, s in enumerate(steps) if isinstance(s, ScaleStep)]
    if len(weighing) > 1:
        first, second = (steps[i] for i in weighing[:2])
        raise InputError(f"Only one step can give the weight, but there are {first} and {second}; leave one out.")
    if len(scaling) > 1 or (scaling and (not weighing or scaling[0] < weighing[0])):
        raise InputError("Normalise goes once, behind the step that gives the weight.")


def _is_per_sequence(column: Array, mask: Array) -> bool:
    """Whether a column has one value per sequence, not one per token."""
    return tuple(column.shape) != tuple(mask.shape) and len(column.shape) == 1


def _check_advantage(per_sequence: Mapping[str, Array], batch: Batch) -> None:
    """Refuse advantages per sequence that are not as many as the sequences."""
    sequences = batch.mask.shape[0] if batch.offsets is None else len(batch.offsets) - 1
    for name, column in per_sequence.items():
        if column.shape[0] != sequences:
            raise ShapeError(
                f"Column {name!r} has {column.shape[0]} values for {sequences} sequences of shape "
                f"{list(batch.mask.shape)}; give one per sequence or one per token."
            )


class _Pass:
    """One batch on its way through a correction."""

    def __init__(self, correction: Correction, batch: Batch, per_sequence: Mapping[str, Array]) -> None:
        self.correction, self.batch, self.per_sequence = correction, batch, per_sequence
        self.settled: dict[Step, Any] = {}
        self.cuts = list(_cuts(batch))
        self.threads = min(THREADS, len(self.cuts) // 4) if on_host(batch.mask) else 1
        like = batch.columns["trainer"]
        xp = array_namespace(like)
        kept_type = xp.float64 if like.dtype == xp.float64 else xp.float32
        where = {"device": like.device} if is_torch(like) else {}
        self.weights = xp.empty(batch.mask.shape, dtype=kept_type, **where)
        self.keep = xp.empty(batch.mask.shape, dtype=xp.bool, **where)

    def run(self) -> Corrected:
        """Survey where a step wants the whole batch, then work through the blocks, then scale."""
        for step in self.correction.steps:
            if isinstance(step, BatchMaskStep):
                self.settled[step] = step.settle(self._each(partial(self._survey, step)))
        states = self._each(self._block)
        xp = array_namespace(*(s[1] for s in states))
        table = xp.stack([s[1] for s in states])
        fields = states[0][0]
        if any(isinstance(s, ScaleStep) for s in self.correction.steps):
            total, count = (xp.sum(table[:, fields.index(f"scale.{part}")]) for part in ("sum", "count"))
            mean = total / xp.clip(count, 1.0, None)
            scale = xp.where(mean > 1e-8, mean, xp.ones_like(mean))
            self.weights /= scale if is_torch(self.weights) and is_torch(scale) else float(scale)
            table = xp.concat([table, xp.broadcast_to(scale, (table.shape[0], 1))], axis=1)
            fields = (*fields, "scale")
        masks = tuple(str(s) for s in self.correction.steps if isinstance(s, MaskStep))
        return Corrected(self.weights, self.keep, Stats(table, fields, masks))

    def _each(self, function: Callable[[Any], Any]) -> list[Any]:
        """The function of every cut, shared among threads on the host."""
        if self.threads < 2:
            return [function(cut) for cut in self.cuts]
        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(lambda cut: _quietly(function, cut), self.cuts))

    def _survey(self, step: BatchMaskStep, cut: Any) -> Array:
        """What a batch-wide step wants to know of one block."""
        return step.survey(self._work(*cut)[0])

    def _work(self, rows: slice, offsets: Any, inside: slice) -> tuple[Work, Array]:
        """One block, and its tokens with both log-probs finite."""
        mask = to_bool(view(self.batch.mask[rows]))
        columns = {n: _floating(view(c[rows])) for n, c in self.batch.columns.items()}
        sequences = sequences_of(mask, offsets)
        for name, column in self.per_sequence.items():
            values = _floating(view(column[inside]))
            columns[name] = array_namespace(values).broadcast_to(sequences.spread(values), mask.shape)
        difference = log_ratio(trainer=columns["trainer"], rollout=columns.get("rollout", columns["trainer"]))
        xp = array_namespace(difference)
        measured = mask & xp.isfinite(difference)
        sampled = measured
        if self.correction.missing == "agree":
            sampled = mask & (measured | xp.isnan(difference))
        d = xp.where(measured, difference, 0.0)
        if "rollout" not in columns:
            measured = xp.zeros_like(mask)
        return Work(columns, mask, sampled, d, sequences, self.settled), measured

    def _block(self, cut: Any) -> tuple[tuple[str, ...], Array]:
        """Apply every step to one block, write its weights and mask, and give its sums."""
        rows = cut[0]
        work, measured = self._work(*cut)
        masks = 0
        for step in self.correction.steps:
            if isinstance(step, WeightStep):
                work.weight = step.weigh(work)
            elif isinstance(step, MaskStep):
                _drop(work, step, masks)
                masks += 1
            elif isinstance(step, ScaleStep):
                for part, value in zip(("sum", "count"), step.total(work), strict=True):
                    work.add(f"scale.{part}", value)
            elif isinstance(step, WatchStep):
                for name, value in step.watch(work).items():
                    work.add(name, value)
        xp = array_namespace(work.keep)
        weight = xp.ones_like(work.log_ratio) if work.weight is None else work.weight
        weight = xp.where(work.keep, weight, 0.0)
        view(self.weights)[rows], view(self.keep)[rows] = weight, work.keep
        state = block_state(work, weight, measured)
        return tuple(state), vector(work.log_ratio, list(state.values()))


def _cuts(batch: Batch) -> Iterator[tuple[slice, Any, slice]]:
    """Where to cut blocks: rows or tokens, the offsets within, and the sequences; one empty block of an empty batch."""
    first, found = 0, False
    for rows, offsets in batch.cuts():
        count = rows.stop - rows.start if offsets is None else len(offsets) - 1
        yield rows, offsets, slice(first, first + count)
        first, found = first + count, True
    if not found:
        yield slice(0, 0), None if batch.offsets is None else np.zeros(1, np.int64), slice(0, 0)


def _drop(work: Work, step: MaskStep, index: int) -> None:
    """Take what a mask step drops out of what is left, and count it."""
    left = work.keep & step.keep(work)
    xp = array_namespace(left)
    before = work.left
    work.keep = left
    after = work.left
    work.add(f"step{index}.tokens", xp.sum(before) - xp.sum(after))
    work.add(f"step{index}.sequences", xp.count_nonzero((before > 0) & (after == 0)))


def _floating(values: Array) -> Array:
    """Half precision as float32; anything else as it is."""
    if is_torch(values) and values.dtype.is_floating_point and values.dtype.itemsize < 4:
        return values.float()
    return values.astype(np.float32) if not is_torch(values) and values.dtype == np.float16 else values


def _quietly(function: Callable[[Any], Any], cut: Any) -> Any:
    """A thread's own silence about overflow, which is counted instead."""
    with np.errstate(all="ignore"):
        return function(cut)
