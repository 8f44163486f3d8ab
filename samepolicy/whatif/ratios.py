"""How the ratios are spread: counts in bins that are narrow near agreement and wide far from it."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from samepolicy.whatif.part import Part


@dataclass(frozen=True, eq=False)
class Ratios:
    """Counts of log-ratios in bins that are even in asinh(d / 0.01): as wide as 0.001 nats at 0, as 0.1 d further out.

    Attributes:
        tokens: d of the tokens, int [bins].
        sequences: mean d of the responses, int [bins].

    >>> float(Ratios.edges()[0].round(1)), float(Ratios.edges()[80].round(6)), Ratios.BINS
    (-22.0, 0.0, 160)
    """

    tokens: np.ndarray
    sequences: np.ndarray
    SCALE: ClassVar[float] = 0.01
    END: ClassVar[float] = 8.389
    BINS: ClassVar[int] = 160

    @classmethod
    def edges(cls) -> np.ndarray:
        """Where the bins begin and the last ends, nats [bins + 1]; what lies beyond is counted in the outer bins."""
        found: np.ndarray = cls.SCALE * np.sinh(np.linspace(-cls.END, cls.END, cls.BINS + 1))
        return found

    @classmethod
    def of(cls, part: Part) -> Self:
        """Those of one part."""
        measured = part.per_response(part.measured)
        means = part.per_response(part.log_ratio)[measured > 0] / measured[measured > 0]
        return cls(cls._count(part.log_ratio[part.measured]), cls._count(means))

    @classmethod
    def _count(cls, d: np.ndarray) -> np.ndarray:
        place = (np.arcsinh(d / cls.SCALE) + cls.END) * (cls.BINS / (2 * cls.END))
        return np.bincount(np.clip(place, 0, cls.BINS - 1).astype(np.int64), minlength=cls.BINS)

    def __add__(self, other: Self) -> Self:
        """Counts of both."""
        return type(self)(self.tokens + other.tokens, self.sequences + other.sequences)

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        edges = [float(f"{e:.6g}") for e in self.edges()]
        return {"log_ratio": edges, "tokens": self.tokens.tolist(), "sequences": self.sequences.tolist()}
