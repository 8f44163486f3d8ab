"""What a comparison of two engines' layers says."""

from dataclasses import dataclass
from typing import Any, Literal

from samepolicy.errors import InputError
from samepolicy.layers import taps
from samepolicy.layers.judge import BEYOND
from samepolicy.layers.ledger import Ledger
from samepolicy.structure.fact import counted
from samepolicy.summary import json_number

Verdict = Literal["rounding only", "different", "inconclusive"]

EXIT = {"rounding only": 0, "different": 1, "inconclusive": 3}

CAUSES = {
    "embedding": ("partial_sync", "stale_weights"),
    "attention_norm": ("partial_sync", "rope"),
    "q": ("rope", "partial_sync", "stale_weights"),
    "k": ("rope", "partial_sync", "stale_weights"),
    "v": ("partial_sync", "stale_weights"),
    "attention": ("kernel",),
    "attention_block": ("partial_sync", "stale_weights", "kernel"),
    "middle": ("kernel",),
    "mlp_norm": ("partial_sync",),
    "router": ("partial_sync", "stale_weights"),
    "experts": ("router_flip",),
    "mlp": ("partial_sync", "stale_weights", "precision", "kernel"),
    "residual": ("kernel",),
    "final_norm": ("partial_sync",),
    "logits": ("partial_sync", "stale_weights", "precision"),
}
"""Causes that a step beyond rounding is a lead to, the likelier first; none of them is proved by it."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One tap.

    Attributes:
        tap: its name.
        relative: relative error of trainer against rollout in a plain forward, what came before included.
        cosine: the cosine between the two there.
        max_abs: the largest absolute difference there.
        outliers: share of channels whose error is 5 times the median channel's or more there.
        positions: relative error there by eighths of the longest sequence; NaN where there is no token.
        step: relative error of the step that ends here alone, both sides on the rollout's inputs.
        trainer: the trainer's rounding in that step, against a wider dtype.
        rollout: the rollout's error in that step, against the same.
        floor: what rounding explains of `step`.
        ratio: error over floor; more than 3 is beyond rounding.
        trainer_repeat: relative error of the trainer against itself at another batch shape; NaN if not measured.
        rollout_repeat: the same of the rollout.
    """

    tap: str
    relative: float
    cosine: float
    max_abs: float
    outliers: float
    positions: tuple[float, ...]
    step: float
    trainer: float
    rollout: float
    floor: float
    ratio: float
    trainer_repeat: float
    rollout_repeat: float

    @property
    def beyond(self) -> bool:
        """Whether rounding does not explain the step."""
        return not self.ratio <= BEYOND

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        numbers = {name: json_number(getattr(self, name)) for name in self.__dataclass_fields__ if name not in _OTHER}
        return {
            "tap": self.tap,
            **numbers,
            "beyond": self.beyond,
            "positions": [json_number(value) for value in self.positions],
        }


_OTHER = ("tap", "positions")


@dataclass(frozen=True, kw_only=True)
class Grafted:
    """A tap at which the other side's values were put in.

    Attributes:
        tap: where.
        left: mean absolute gap that is left with the rollout's values in the trainer's forward, nats per token.
        reverse: the same with the trainer's values in the rollout's forward; NaN where that was not run.
    """

    tap: str
    left: float
    reverse: float


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerComparison:
    """Two engines, tap by tap.

    Attributes:
        verdict: "rounding only", "different" or "inconclusive".
        first: the first tap beyond rounding; empty where there is none.
        confidence: of the verdict: the share of resamplings of tokens that give the same first tap; NaN where there
            is no such tap.
        reason: why it is inconclusive; empty otherwise.
        readings: all taps in the order of computation.
        gap: mean absolute trainer - rollout, nats per token; NaN where nats were not asked for.
        ledger: the gap by blocks; None where not asked for.
        grafts: taps beyond rounding, with what is left of the gap when each is put right.
        growth: exponent p of the stream's relative error along depth, error ∝ depth^p; NaN where it is 0 throughout.
        dtypes: of trainer and rollout.
        phase: what of the rollout was compared: "prefill" or "decode".
        tokens: tokens compared.
        longest: tokens of the longest sequence.
        notes: what a reader should know, in sentences.
    """

    verdict: Verdict
    first: str
    confidence: float
    reason: str
    readings: tuple[Reading, ...]
    gap: float
    ledger: Ledger | None
    grafts: tuple[Grafted, ...]
    growth: float
    dtypes: tuple[str, str]
    phase: str
    tokens: int
    longest: int
    notes: tuple[str, ...] = ()

    def __getitem__(self, tap: str) -> Reading:
        """The reading of this tap.

        Raises:
            InputError: there is no such tap.
        """
        for reading in self.readings:
            if reading.tap == tap:
                return reading
        raise InputError(f"There is no tap {tap!r}; the first is {self.readings[0].tap!r}.")

    @property
    def beyond(self) -> tuple[Reading, ...]:
        """The taps whose step rounding does not explain."""
        return tuple(reading for reading in self.readings if reading.beyond)

    @property
    def causes(self) -> tuple[str, ...]:
        """Causes of the catalogue that the first tap is a lead to, the likelier first."""
        return CAUSES[taps.part_of(self.first)] if self.first else ()

    @property
    def exit_code(self) -> int:
        """0 rounding only, 1 different, 3 inconclusive."""
        return EXIT[self.verdict]

    @property
    def sentence(self) -> str:
        """The verdict."""
        scope = f"{counted(len(self.readings), 'tap')}, {counted(self.tokens, 'token')}, {self.phase}"
        if self.verdict == "rounding only":
            worst = max(self.readings, key=lambda reading: reading.ratio)
            most = f"the largest is {worst.ratio:.1f} floors, at {worst.tap}"
            return f"Rounding only: no step is beyond its floor ({scope}; {most})."
        if self.verdict == "inconclusive":
            return f"Inconclusive: {self.reason} ({scope})."
        reading, others = self[self.first], len(self.beyond) - 1
        more = f"; {counted(others, 'later step')} beyond rounding, too" if others else ""
        size = "is no number" if reading.ratio != reading.ratio else f"is {reading.ratio:.3g} floors"
        return (
            f"The two sides part at {self.first}: the error of that step alone {size}, with confidence "
            f"{self.confidence:.2f}{more} ({scope})."
        )

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        book = self.ledger
        return {
            "schema": 1,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "first": self.first,
            "confidence": json_number(self.confidence),
            "reason": self.reason,
            "causes": list(self.causes),
            "gap": json_number(self.gap),
            "growth": json_number(self.growth),
            "dtypes": {"trainer": self.dtypes[0], "rollout": self.dtypes[1]},
            "phase": self.phase,
            "tokens": self.tokens,
            "longest": self.longest,
            "notes": list(self.notes),
            "ledger": [{**vars(row)} for row in book.rows] if book else [],
            "grafts": [
                {"tap": g.tap, "left": json_number(g.left), "reverse": json_number(g.reverse)} for g in self.grafts
            ],
            "taps": [reading.as_dict() for reading in self.readings],
        }

    def __str__(self) -> str:
        """The verdict, the taps beyond rounding, and the notes."""
        lines = [f"  {r.tap}: step {r.step:.2g}, floor {r.floor:.2g}, {r.ratio:.3g} floors" for r in self.beyond]
        return "\n".join([self.sentence, *lines, *(f"Note: {note}." for note in self.notes)])
