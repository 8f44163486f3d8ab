"""What a side may have done other than it declares, as one value that composes: `a | b` is both at once."""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from jaxtyping import Float, Int

from samepolicy.arrays import Ragged
from samepolicy.engines.change import Change
from samepolicy.engines.layout import Layout
from samepolicy.engines.states import Forbidden, Shaping
from samepolicy.errors import InputError
from samepolicy.records.side import Sampling

if TYPE_CHECKING:
    from samepolicy.causes.reference import Reference


@dataclass(frozen=True)
class Ids:
    """Token ids as a side read them.

    Attributes:
        rows: which responses of the run these are, int64 [rows].
        prompts: prompt ids, one sequence per row.
        responses: response ids.
        place: for every response token of the run's own rows, its index among `responses`; -1 where it is not there.
    """

    rows: np.ndarray
    prompts: Ragged
    responses: Ragged
    place: np.ndarray


class IdStep:
    """Other ids than the run's. Write a frozen dataclass, so that equal steps are one scoring.

    Steps with a lower `order` come first.
    """

    order: ClassVar[int] = 0

    def apply(self, ids: Ids, reference: "Reference") -> Ids:
        """The ids as the side read them; `reference` has the run and the engine's tokenizer."""
        raise NotImplementedError


class ArrayStep:
    """Array arithmetic on a predicted column. Write a frozen dataclass; lower `order` is first."""

    order: ClassVar[int] = 0

    def apply(self, predicted: Float[np.ndarray, " tokens"], reference: "Reference") -> Float[np.ndarray, " tokens"]:
        """What the side would have recorded, given what it should have; NaN where that cannot be said.

        Args:
            predicted: log-probs of the run's response tokens, nats [tokens]; NaN in rows that were not scored.
            reference: has the run.
        """
        raise NotImplementedError

    def needs(self, rows: np.ndarray, reference: "Reference") -> np.ndarray:
        """The rows that must be scored so that these rows can be predicted; the rows themselves unless overridden."""
        return rows

    def void(self, reference: "Reference") -> Int[np.ndarray, " n"]:
        """Tokens whose recorded value is that of no token at all, rising; none unless overridden."""
        return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a side may have done; None and () are "as declared".

    Attributes:
        temperature: logits are divided by it.
        top_p: kept set, as in `Sampling`.
        top_k: kept set.
        min_p: kept set.
        repetition_penalty: as in `Sampling`.
        presence_penalty: taken off the logits of ids that the response holds already.
        frequency_penalty: taken off once for each time it holds them.
        bias: (id, value) pairs added to the logits.
        forbidden: ids that could not be sampled at some places.
        layout: padding, packing, positions, hidden prompt.
        dtype: arithmetic; float32 unless a number format is tested.
        weights_dtype: dtype that the weights are rounded to first.
        change: other weights, config, adapter, quantisation.
        ids: other prompt or response ids.
        arrays: array arithmetic on the scored column.

    >>> both = Settings(temperature=0.7) | Settings(top_k=20)
    >>> both.temperature, both.top_k
    (0.7, 20)
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    bias: tuple[tuple[int, float], ...] = ()
    forbidden: tuple[Forbidden, ...] = ()
    layout: Layout | None = None
    dtype: str | None = None
    weights_dtype: str | None = None
    change: Change | None = None
    ids: tuple[IdStep, ...] = ()
    arrays: tuple[ArrayStep, ...] = ()

    def __or__(self, other: Self) -> Self:
        """Both at once.

        Raises:
            InputError: the two set one field to different values.
        """
        if clash := self.clashes(other):
            raise InputError(f"Two settings cannot be one: {' and '.join(clash)} would take two values.")
        return replace(self, **{f.name: _joined(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)})

    def clashes(self, other: Self) -> tuple[str, ...]:
        """The fields that both set, to different values."""
        found = []
        for f in fields(self):
            a, b = getattr(self, f.name), getattr(other, f.name)
            if isinstance(a, Layout | Change) and isinstance(b, Layout | Change):
                found += [n for n, v in _set(a).items() if n in _set(b) and _set(b)[n] != v]
            elif a is not None and b is not None and not isinstance(a, tuple) and a != b:
                found.append(f.name)
        return tuple(found)

    @property
    def body(self) -> "Settings":
        """The part that the network's body depends on."""
        kept = ("layout", "dtype", "weights_dtype", "change", "ids")
        return Settings(**{name: getattr(self, name) for name in kept})

    def shaping(self, declared: Sampling) -> Shaping:
        """The part that acts on logits, where the declared sampling (as it reaches a log-prob) is the rest."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        told = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return Shaping(
            sampling=replace(declared, **told),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            bias=self.bias,
            forbidden=self.forbidden,
        )

    @property
    def cost(self) -> int:
        """0 for array arithmetic, 1 for a pass of the head, 2 for one of the body, 3 for another model."""
        if self.dtype is not None or self.weights_dtype is not None or self.change is not None:
            return 3
        if self.ids or self.layout is not None:
            return 2
        return int(self != Settings(arrays=self.arrays))


DECLARED = Settings()
"""As declared."""


def _set(value: Any) -> dict[str, Any]:
    """The fields of a layout or a change that are not the default."""
    neutral = type(value)()
    return {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != getattr(neutral, f.name)}


def _joined(a: Any, b: Any) -> Any:
    """One field of both."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, tuple):
        both = dict.fromkeys([*a, *b])
        return tuple(sorted(both, key=lambda step: getattr(step, "order", 0)))
    return replace(a, **_set(b)) if isinstance(a, Layout | Change) else b
