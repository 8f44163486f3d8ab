"""Watch the weights on their way from trainer to engine: did everything arrive, and was it new?"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from samepolicy.errors import InputError
from samepolicy.structure.fact import counted
from samepolicy.weights.relate import EPSILON
from samepolicy.weights.sample import WeightSample, live_source, sample


@dataclass(frozen=True, kw_only=True)
class SyncReport:
    """What one weight sync came to.

    Attributes:
        step: the training step, as it was given.
        alarms: what is wrong, in sentences; empty where nothing is.
        tensors: tensors that both sides have.
        wrong: those that the engine does not hold as they were sent.
        stale: by name, those among them that hold what was sent at an earlier step.
        missing: tensors of the trainer that the engine has not.
        changed: share of the looked-at trainer values that differ from the last sync; NaN at the first.
        visible: the same after rounding to the engine's dtype; NaN at the first.
        seconds: what the look took.
    """

    step: int | None
    alarms: tuple[str, ...]
    tensors: int
    wrong: tuple[str, ...] = ()
    stale: Mapping[str, int | None]
    missing: tuple[str, ...] = ()
    changed: float = float("nan")
    visible: float = float("nan")
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.alarms

    def metrics(self) -> dict[str, float]:
        """Flat numbers for a logger."""
        found = {
            "alarms": len(self.alarms),
            "wrong": len(self.wrong),
            "stale": len(self.stale),
            "missing": len(self.missing),
            "changed": self.changed,
            "visible": self.visible,
            "seconds": self.seconds,
        }
        return {f"samepolicy/weights/{name}": float(value) for name, value in found.items()}

    def __str__(self) -> str:
        """The alarms, or what arrived."""
        if self.alarms:
            return "\n".join(self.alarms)
        new = "" if np.isnan(self.visible) else f"; {self.visible:.0%} of the values looked at are new"
        return f"The engine holds what the trainer sent ({counted(self.tensors, 'tensor')}){new}."


@dataclass(frozen=True)
class _Sync:
    """What was seen at one sync."""

    step: int | None
    sent: WeightSample
    as_received: Mapping[str, np.ndarray]
    received: WeightSample


class WeightSync:
    """Checks each weight sync of a training run; call it after the sync, before the next rollout.

    It looks at a few values and the norm of every tensor, on the device, and brings them over in one small transfer;
    fused tensors are cut into what the trainer names. Where both models live in this process, give both. Where the
    engine lives elsewhere, take `sample(model)` in each process and hand both to `check`.

    A value that changed may be unseen by a sample; a tensor that was not sent is not. Rounding to the engine's dtype is
    allowed for, exactly.

    Args:
        trainer: the trainer's live model; None where samples are handed over.
        engine: the engine's.
        count: values per tensor.
        norms: compare norms, too, which catches what lies between the samples.
        history: earlier syncs that a stale tensor is held against.

    Raises:
        InputError: a model that cannot be watched; see `sample`.

    >>> import torch
    >>> trainer, engine = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).to(torch.bfloat16)
    >>> sync = WeightSync(trainer, engine)
    >>> _ = engine.load_state_dict(trainer.state_dict())
    >>> print(sync(step=1))
    The engine holds what the trainer sent (2 tensors).
    >>> with torch.no_grad():
    ...     _ = trainer.weight.mul_(2)
    >>> print(sync(step=2))
    The engine did not receive 1 of 2 tensors; 1 holds what was sent at step 1 (weight).
    What the engine holds is the same as at step 1, though the trainer sent something else.
    """

    def __init__(
        self, trainer: Any = None, engine: Any = None, *, count: int = 64, norms: bool = True, history: int = 4
    ) -> None:
        if not isinstance(history, int) or history < 1:
            raise InputError(f"history must be a whole number, 1 or more, but it is {history!r}.")
        for model in (trainer, engine):
            if model is not None:
                live_source(model)
        self._models, self._count, self._norms = (trainer, engine), count, norms
        self._past: deque[_Sync] = deque(maxlen=history)

    def __call__(self, *, step: int | None = None, updated: bool = True) -> SyncReport:
        """Look at both models and say what the last sync came to.

        Args:
            step: the training step, for sentences.
            updated: an optimizer step was taken since the last sync, so that something must have changed.

        Raises:
            InputError: the models were not given.
        """
        if any(model is None for model in self._models):
            raise InputError("This WeightSync was made without both models; give them, or hand their samples to check.")
        start = perf_counter()
        sent, received = (sample(model, count=self._count, norms=self._norms) for model in self._models)
        return self.check(sent, received, step=step, updated=updated, start=start)

    def check(
        self,
        sent: WeightSample,
        received: WeightSample,
        *,
        step: int | None = None,
        updated: bool = True,
        start: float | None = None,
    ) -> SyncReport:
        """Hold what the engine has against what the trainer has.

        Args:
            sent: the trainer's sample.
            received: the engine's, taken after the sync with the same count.
            step: the training step, for sentences.
            updated: an optimizer step was taken since the last sync.
            start: when the look began, by `time.perf_counter`.

        Returns:
            What is wrong, and what changed.

        Raises:
            InputError: the two have no tensor in common, or were taken with different counts.
        """
        begun = perf_counter() if start is None else start
        now = _Sync(step, sent, _lined_up(sent, received), received)
        last = self._past[-1] if self._past else None
        wrong = tuple(name for name in now.as_received if not _arrived(now, name))
        stale = {name: old for name in wrong for old in self._when(name, received)}
        missing = tuple(n for n in sent.values if n not in received.values and "lora_" not in n)
        changed = _share(sent.values, last.sent.values) if last else float("nan")
        visible = _share(now.as_received, last.as_received) if last else float("nan")
        alarms = [*_arrivals(now, wrong, stale, missing), *_numbers(now), *_repeats(now, last, updated)]
        self._past.append(now)
        return SyncReport(
            step=step,
            alarms=tuple(alarms),
            tensors=len(now.as_received),
            wrong=wrong,
            stale=stale,
            missing=missing,
            changed=changed,
            visible=visible,
            seconds=perf_counter() - begun,
        )

    def _when(self, name: str, received: WeightSample) -> Iterator[int | None]:
        """The step of the last earlier sync that sent what the engine holds; nothing where there is none."""
        for past in reversed(self._past):
            if name in past.as_received and np.array_equal(past.as_received[name], received.values[name]):
                yield past.step
                return


def _lined_up(sent: WeightSample, received: WeightSample) -> Mapping[str, np.ndarray]:
    """What was sent, in the engine's dtypes, for the names that both have."""
    found = sent.rounded(received)
    if not found:
        raise InputError("Trainer and engine have no tensor name in common; give two copies of one model.")
    odd = next((name for name, values in found.items() if len(values) != len(received.values[name])), None)
    if odd is not None:
        raise InputError(
            f"The samples of {odd} have {len(found[odd])} and {len(received.values[odd])} values; take both with one "
            "count, from models of one size."
        )
    return found


def _arrived(now: _Sync, name: str) -> bool:
    """Whether the engine holds a tensor as it was sent."""
    if not np.array_equal(now.as_received[name], now.received.values[name], equal_nan=True):
        return False
    one, other = now.sent.norms.get(name), now.received.norms.get(name)
    if one is None or other is None or not np.isfinite(one):
        return True
    rounding = max(EPSILON.get(sample.dtypes[name], 1e-6) for sample in (now.sent, now.received))
    return abs(one - other) <= max(rounding, 1e-5) * max(one, 1e-30)


def _arrivals(
    now: _Sync, wrong: tuple[str, ...], stale: Mapping[str, int | None], missing: tuple[str, ...]
) -> Iterator[str]:
    """What did not arrive."""
    if wrong:
        total = counted(len(now.as_received), "tensor")
        sentence = f"The engine did not receive {len(wrong)} of {total}"
        if stale:
            steps = sorted({"an earlier sync" if step is None else f"step {step}" for step in stale.values()})
            verb = "holds" if len(stale) == 1 else "hold"
            sentence += f"; {len(stale)} {verb} what was sent at {' and '.join(steps)}"
        yield f"{sentence} ({_some(tuple(stale) or wrong)})."
    if missing:
        yield f"The engine has no {_some(missing)}, which the trainer has ({counted(len(missing), 'tensor')})."


def _numbers(now: _Sync) -> Iterator[str]:
    """What is not a number."""
    for who, seen in (("trainer", now.sent), ("engine", now.received)):
        bad = tuple(
            name
            for name, values in seen.values.items()
            if not np.isfinite(seen.norms.get(name, 0.0)) or not np.isfinite(values).all()
        )
        if bad:
            yield f"The {who} holds values that are not finite in {counted(len(bad), 'tensor')} ({_some(bad)})."


def _repeats(now: _Sync, last: _Sync | None, updated: bool) -> Iterator[str]:
    """What should have changed and did not."""
    if last is None:
        return
    before = "the last sync" if last.step is None else f"step {last.step}"
    if updated and _alike(now.sent, last.sent):
        yield f"Nothing the trainer holds has changed since {before}, though an update was made."
    elif _alike(now.received, last.received) and _share(now.as_received, last.as_received) > 0:
        yield f"What the engine holds is the same as at {before}, though the trainer sent something else."


def _alike(one: WeightSample, other: WeightSample) -> bool:
    """Whether nothing differs in what was looked at."""
    return _share(one.values, other.values) == 0 and one.norms == other.norms


def _share(now: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray]) -> float:
    """The share of values that differ, over the names that both have; NaN where there are none."""
    pairs = [(now[name], before[name]) for name in now if name in before and len(now[name]) == len(before[name])]
    total = sum(len(one) for one, _ in pairs)
    return sum(int((one != other).sum()) for one, other in pairs) / total if total else float("nan")


def _some(names: tuple[str, ...], most: int = 3) -> str:
    """The first names, and how many more."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
