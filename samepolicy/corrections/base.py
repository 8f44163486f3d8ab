"""What a correction step is, what it is given to work on, and how the steps of this package are found."""

import math
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Any, Literal

import numpy as np

from samepolicy.arrays import Array, array_namespace, is_torch
from samepolicy.corrections.spans import Groups, Over, group_of
from samepolicy.errors import InputError

Among = Literal["sampled", "kept"]
"""Which tokens a span pools: those under the mask, or those that earlier steps have left."""


@dataclass(frozen=True)
class Step:
    """One part of a correction. Subclass a kind of it below, as a frozen dataclass, in a module of this package."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns that the step reads."""
        return ("trainer", "rollout")

    def __str__(self) -> str:
        """The step as one would write it, without what is at its default."""
        shown = [
            (name if field.kw_only else "", value)
            for name, field in self.__dataclass_fields__.items()
            if (value := getattr(self, name)) != field.default
        ]
        shown.sort(key=lambda pair: bool(pair[0]))
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' if n else repr(v) for n, v in shown)})"


@dataclass(frozen=True)
class WeightStep(Step):
    """A step that gives each token its weight and leaves the mask alone."""

    def weigh(self, work: "Work") -> Array:
        """The weight of each token, the columns' shape; what it is outside the mask does not matter."""
        raise NotImplementedError


@dataclass(frozen=True)
class MaskStep(Step):
    """A step that says which tokens to keep; a token that an earlier step dropped stays dropped whatever it says."""

    def keep(self, work: "Work") -> Array:
        """Whether to keep each token, bool of a shape that broadcasts to the columns'."""
        raise NotImplementedError


@dataclass(frozen=True)
class BatchMaskStep(MaskStep):
    """A mask step whose bound depends on the whole batch: every block is surveyed before any is masked."""

    def survey(self, work: "Work") -> Array:
        """What the bound depends on, from one block."""
        raise NotImplementedError

    def settle(self, surveyed: Sequence[Array]) -> Array:
        """The bound, from every block's survey; `keep` finds it as `work.settled[self]`."""
        raise NotImplementedError


@dataclass(frozen=True)
class ScaleStep(Step):
    """A step that divides the weights of the whole batch by one number: a mean, taken where it stands in the order."""

    def total(self, work: "Work") -> tuple[Any, Any]:
        """A sum and a count from one block; the weights are divided by the whole batch's sum over its count."""
        raise NotImplementedError


@dataclass(frozen=True)
class WatchStep(Step):
    """A step that changes nothing and adds sums to the statistics: what a framework logs at this place."""

    def watch(self, work: "Work") -> Mapping[str, Any]:
        """Sums from one block by name; they are found again as `stats.sums`."""
        raise NotImplementedError


class Work:
    """One block of whole sequences while steps work on it. Steps read it; only the correction changes it.

    Attributes:
        columns: each column's values, [rows, time] or [tokens]; `advantage` and `turn` among them where given.
        mask: tokens that the policy sampled, as given.
        sampled: those of them that take part; non-finite ones do not.
        log_ratio: d of each token; 0 where it does not take part.
        keep: what the steps so far have left.
        weight: what the weight step gave, or None.
        settled: what batch-wide steps found before.
        counts: what was counted on the way; each value a number or a scalar where the block lives.
    """

    def __init__(
        self,
        columns: Mapping[str, Array],
        mask: Array,
        sampled: Array,
        log_ratio: Array,
        sequences: Groups,
        settled: Mapping[Step, Any],
    ) -> None:
        self.columns, self.mask, self.sampled, self.log_ratio = columns, mask, sampled, log_ratio
        self.sequences, self.settled = sequences, settled
        self.keep: Array = sampled
        self.weight: Array | None = None
        self.counts: dict[str, Any] = {}

    @cached_property
    def ratio(self) -> Array:
        """ρ of each token; 1 where it does not take part."""
        return array_namespace(self.log_ratio).exp(self.log_ratio)

    @cached_property
    def lengths(self) -> Array:
        """Tokens of each sequence that take part."""
        return self.sequences.pool(self.sampled)

    @cached_property
    def log_ratio_sum(self) -> Array:
        """Σ d of each sequence, in float64 on the host."""
        return self.sequences.pool(self.log_ratio if is_torch(self.log_ratio) else self.log_ratio.astype(np.float64))

    @property
    def left(self) -> Array:
        """Tokens of each sequence that the steps so far have left."""
        return self.lengths if self.keep is self.sampled else self.sequences.pool(self.keep)

    def add(self, name: str, value: Any) -> None:
        """Count something."""
        self.counts[name] = self.counts.get(name, 0) + value

    def count(self, name: str, flags: Array) -> None:
        """Count true flags."""
        self.add(name, array_namespace(flags).count_nonzero(flags))

    def clamp(self, values: Array, bound: float | None) -> Array:
        """Values held to [-bound, bound], the changed ones counted; as they are where there is no bound."""
        if bound is None:
            return values
        xp = array_namespace(values)
        held = xp.clip(values, -bound, bound)
        self.count("clamped", held != values)
        return held

    def groups(self, over: Over) -> Groups:
        """How a span cuts the tokens."""
        return group_of(over, self.sequences, self.mask, self.columns.get("turn"))

    def pooled(
        self, over: Over, *, clamp: float | None = None, clamp_at: str = "token", among: Among = "sampled"
    ) -> tuple[Groups, Array, Array]:
        """The groups of a span, the log-ratio of each, and how many tokens each has."""
        groups = self.groups(over)
        if among == "sampled" and groups is self.sequences:
            tokens, sums = self.lengths, self.log_ratio_sum
        else:
            tokens = groups.pool(self.sampled if among == "sampled" else self.keep)
            sums = None
        if sums is None or (clamp is not None and clamp_at == "token"):
            held = self.clamp(self.log_ratio, clamp if clamp_at == "token" else None)
            sums = groups.pool(held if among == "sampled" else array_namespace(held).where(self.keep, held, 0.0))
        xp = array_namespace(sums)
        found = sums if over == "sequence" else sums / xp.clip(tokens, 1, None)
        return groups, self.clamp(found, clamp if clamp_at == "span" else None), tokens

    def note_clipped(self, groups: Groups | None, clipped: Array) -> None:
        """Count tokens, and sequences with such tokens, whose ratio a weight step's bounds changed."""
        tokens = (clipped if groups is None else groups.spread(clipped)) & self.sampled
        self.count("clipped_tokens", tokens)
        per_sequence = self.sequences.pool(tokens) > 0 if groups is not self.sequences else clipped & (self.lengths > 0)
        self.count("clipped_sequences", per_sequence)


def check_bounds(step: str, below: float | None, above: float | None, *, lowest: float = 0.0) -> None:
    """Refuse bounds that are not above `lowest`, are no numbers, or have nothing between them.

    Raises:
        InputError: with the bounds in the sentence.
    """
    given = [b for b in (below, above) if b is not None]
    if not given:
        raise InputError(f"{step} needs a bound; give below=, above= or both.")
    if any(isinstance(b, bool) or not isinstance(b, int | float) or math.isnan(b) for b in given):
        raise InputError(f"The bounds of {step} must be numbers, but they are {below!r} and {above!r}.")
    if any(b <= lowest for b in given):
        raise InputError(f"The bounds of {step} must be above {lowest:g}, but they are {below!r} and {above!r}.")
    if below is not None and above is not None and below > above:
        raise InputError(f"The lower bound of {step}, {below:g}, is above its upper one, {above:g}; swap them.")


def check_choice(step: str, name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse a value that is none of the choices.

    Raises:
        InputError: with the choices in the sentence.
    """
    if value not in choices:
        raise InputError(f"{step} has no {name}={value!r}; choose {', '.join(map(str, choices))}.")


@cache
def all_steps() -> dict[str, type[Step]]:
    """Every step of this package by name.

    >>> all_steps()["Truncate"].__name__
    'Truncate'
    """
    import samepolicy.corrections as package

    modules = [import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    found = {
        name: c
        for m in modules
        for name, c in vars(m).items()
        if isinstance(c, type)
        and issubclass(c, Step)
        and c.__module__ == m.__name__ != __name__
        and not c.__subclasses__()
    }
    return dict(sorted(found.items()))
