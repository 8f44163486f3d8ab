"""What a correction saw and what it did: sums that merge exactly, kept where the batch lives until they are read."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Self

import numpy as np

from samepolicy.arrays import Array, array_namespace, is_torch, to_numpy
from samepolicy.corrections.sums import GROUPS
from samepolicy.errors import InputError


@dataclass(frozen=True)
class Raw:
    """Statistics of the ratios as they came, before any step; NaN where nothing was measured.

    Attributes:
        tokens: sampled tokens with both log-probs finite; the count of the token statistics.
        sequences: sequences with such a token; the count of the others.
        ess_token: effective share of the tokens, (Σρ)²/(n Σρ²).
        ess_sequence: the same of the sequences' geometric mean ratios.
        ess_sequence_product: the same of their products.
        ratio_mean: mean ρ of the tokens.
        ratio_max: largest ρ.
        ratio_min: smallest ρ.
    """

    tokens: int
    sequences: int
    ess_token: float
    ess_sequence: float
    ess_sequence_product: float
    ratio_mean: float
    ratio_max: float
    ratio_min: float


@dataclass(frozen=True)
class Applied:
    """Statistics of the weights after all steps, over what was kept; NaN where nothing was.

    Attributes:
        tokens: tokens kept.
        sequences: sequences with a token kept.
        ess_token: effective share of the *sampled* tokens, (Σw)²/(n Σw²) with n of `Raw`: a dropped token counts
            as lost.
        ess_sequence: the same of each sequence's mean weight over its sampled tokens.
        weight_mean: mean weight of the kept tokens.
        weight_max: largest weight.
        weight_min: smallest weight of a kept token.
    """

    tokens: int
    sequences: int
    ess_token: float
    ess_sequence: float
    weight_mean: float
    weight_max: float
    weight_min: float


@dataclass(frozen=True)
class Dropped:
    """What one mask step took out of what the steps before it had left.

    Attributes:
        step: the step.
        tokens: tokens.
        sequences: sequences that lost their last token.
    """

    step: str
    tokens: int
    sequences: int


@dataclass(frozen=True, eq=False)
class Stats:
    """Statistics of one correction over a batch, or of several batches added up. Reading one moves a small vector.

    Attributes:
        table: one row of sums per block of tokens, where the batch lives.
        fields: the name of each column of it.
        masks: the mask steps, in order.

    >>> from samepolicy.corrections import Correction, Truncate
    >>> logp = np.log([[0.5, 0.5]])
    >>> stats = Correction(Truncate(2.0))(trainer=logp, rollout=logp - np.log([[4.0, 1.0]]), mask=np.ones((1, 2))).stats
    >>> stats.clipped, round(stats.raw.ess_token, 3), round((stats + stats).applied.ess_token, 3)
    (0.5, 0.735, 0.9)
    """

    table: Array
    fields: tuple[str, ...]
    masks: tuple[str, ...] = ()

    def __add__(self, other: Self) -> Self:
        """The statistics of both, which must come from the same correction."""
        if (self.fields, self.masks) != (other.fields, other.masks):
            raise InputError("Statistics of two different corrections cannot be added; keep one sum for each.")
        if is_torch(self.table) != is_torch(other.table):
            return type(self)(to_numpy(self.table), self.fields, self.masks) + type(self)(
                to_numpy(other.table), self.fields, self.masks
            )
        return type(self)(array_namespace(self.table).concat([self.table, other.table]), self.fields, self.masks)

    @cached_property
    def sums(self) -> Mapping[str, float]:
        """Every sum by name, merged over blocks and batches."""
        return _merged(self.fields, to_numpy(self.table).astype(np.float64))

    @cached_property
    def raw(self) -> Raw:
        """The ratios before any step."""
        s = self.sums
        n, sequences = int(s["raw_token.n"]), int(s["raw_geometric.n"])
        return Raw(
            tokens=n,
            sequences=sequences,
            ess_token=self._ess("raw_token", n),
            ess_sequence=self._ess("raw_geometric", sequences),
            ess_sequence_product=self._ess("raw_product", sequences),
            ratio_mean=self._mean("raw_token"),
            ratio_max=_exp(s["raw_token.top"]) if n else math.nan,
            ratio_min=_exp(s["raw_least"]) if n else math.nan,
        )

    @cached_property
    def applied(self) -> Applied:
        """The weights after all steps."""
        s = self.sums
        n = int(s["applied_token.n"])
        return Applied(
            tokens=n,
            sequences=int(s["applied_sequence.n"]),
            ess_token=self._ess("applied_token", int(s["raw_token.n"])),
            ess_sequence=self._ess("applied_sequence", int(s["raw_geometric.n"])),
            weight_mean=self._mean("applied_token"),
            weight_max=_exp(s["applied_token.top"]) if n else math.nan,
            weight_min=s["applied_least"] if n else math.nan,
        )

    @property
    def sequences(self) -> int:
        """Sequences, with those that have no sampled token."""
        return int(self.sums["sequences"])

    @property
    def tokens(self) -> int:
        """Tokens under the mask."""
        return int(self.sums["tokens"])

    @property
    def nonfinite(self) -> int:
        """Tokens under the mask whose log-ratio is NaN or infinite."""
        return int(self.sums["tokens"] - self.sums["raw_token.n"])

    @property
    def clamped(self) -> int:
        """Values that a step's safety clamp changed, over all steps."""
        return int(self.sums.get("clamped", 0))

    @property
    def clipped(self) -> float:
        """Share of the measured tokens whose ratio the weight step's bounds changed or zeroed."""
        return _share(self.sums.get("clipped_tokens", 0), self.raw.tokens)

    @property
    def clipped_sequences(self) -> float:
        """Share of the sequences that hold such a token."""
        return _share(self.sums.get("clipped_sequences", 0), self.raw.sequences)

    @property
    def kept(self) -> float:
        """Share of the tokens under the mask that the correction keeps."""
        return _share(self.applied.tokens, self.tokens)

    @property
    def kept_sequences(self) -> float:
        """Share of the sequences with sampled tokens that keep at least one."""
        return _share(self.applied.sequences, int(self.sums["filled"]))

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """What each mask step took out, in order."""
        s = self.sums
        return tuple(
            Dropped(name, int(s[f"step{i}.tokens"]), int(s[f"step{i}.sequences"])) for i, name in enumerate(self.masks)
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything that can be read, by name."""
        names = (
            "sequences",
            "tokens",
            "nonfinite",
            "clamped",
            "clipped",
            "clipped_sequences",
            "kept",
            "kept_sequences",
        )
        counts = {n: getattr(self, n) for n in names}
        return {
            "raw": asdict(self.raw),
            "applied": asdict(self.applied),
            **counts,
            "dropped": [asdict(d) for d in self.dropped],
        }

    def flat(self, names: str = "samepolicy") -> dict[str, float]:
        """Flat names for a logger: our own, or those of a framework whose flags the correction was built from.

        Raises:
            InputError: the framework logs nothing that this correction has.
        """
        if names != "samepolicy":
            return _framework_names(self, names)
        found = self.as_dict()
        nested = {f"{side}/{k}": v for side in ("raw", "applied") for k, v in found.pop(side).items()}
        drops = {f"dropped/{i}_{d['step'].partition('(')[0]}": d["tokens"] for i, d in enumerate(found.pop("dropped"))}
        return {f"samepolicy/correction/{k}": v for k, v in (nested | found | drops).items()}

    def __str__(self) -> str:
        """What was kept and what that cost."""
        lines = [
            f"{self.applied.tokens} of {self.tokens} kept ({self.kept:.2%}; sequences {self.kept_sequences:.2%})",
            f"{self.clipped:.2%} clipped, {self.clamped} clamped, {self.nonfinite} not finite",
            f"ESS token {self.raw.ess_token:.4f} raw, {self.applied.ess_token:.4f} applied; sequence "
            f"{self.raw.ess_sequence:.4f} raw, {self.applied.ess_sequence:.4f} applied",
            f"weight mean {self.applied.weight_mean:.4g}, max {self.applied.weight_max:.4g}",
        ]
        return "\n".join([*lines, *(f"{d.step} dropped {d.tokens} tokens" for d in self.dropped)])

    def _ess(self, group: str, n: int) -> float:
        """(Σw)²/(n Σw²)."""
        first, second = self.sums[f"{group}.first"], self.sums[f"{group}.second"]
        return first * first / (n * second) if n and second > 0 else math.nan

    def _mean(self, group: str) -> float:
        """Mean weight."""
        n, first = self.sums[f"{group}.n"], self.sums[f"{group}.first"]
        return _exp(self.sums[f"{group}.top"]) * first / n if n and first else 0.0 if n else math.nan


def _merged(fields: tuple[str, ...], table: np.ndarray) -> dict[str, float]:
    """Sums of all rows, weights relative to the common largest one and with the scale of their batch applied."""
    column = dict(zip(fields, table.T, strict=True))
    scale = column.pop("scale", np.ones(len(table)))
    with np.errstate(divide="ignore", invalid="ignore"):
        for group in ("applied_token", "applied_sequence"):
            column[f"{group}.top"] = column[f"{group}.top"] - np.log(scale)
        column["applied_least"] = column["applied_least"] / scale
    found = {n: float(c.min(initial=math.inf) if n.endswith("_least") else c.sum()) for n, c in column.items()}
    for group in GROUPS:
        top = column[f"{group}.top"]
        best = float(top.max(initial=-math.inf))
        share = np.exp(top - best) if math.isfinite(best) else np.ones_like(top)
        found[f"{group}.top"] = best
        found[f"{group}.first"] = float((column[f"{group}.first"] * share).sum())
        found[f"{group}.second"] = float((column[f"{group}.second"] * share * share).sum())
    return found


def _framework_names(stats: Stats, names: str) -> dict[str, float]:
    """A framework's own keys, from the module of its flags."""
    from samepolicy.corrections.frameworks import all_frameworks

    logging = {n for n, m in all_frameworks().items() if hasattr(m, "flat")}
    if names not in logging:
        raise InputError(f"Statistics have no names {names!r}; choose samepolicy, {', '.join(sorted(logging))}.")
    found: dict[str, float] = import_module(f"samepolicy.corrections.frameworks.{names}").flat(stats)
    return found


def _exp(x: float) -> float:
    """exp(x), inf where it overflows."""
    return math.exp(x) if x < 709 else math.inf


def _share(part: float, whole: float) -> float:
    """part/whole, NaN where there is nothing."""
    return part / whole if whole else math.nan
