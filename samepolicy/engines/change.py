"""Ways in which a model can be another than it declares: other weights, other config fields, rounded weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Change:
    """What to change about an engine's model; the default changes nothing.

    Attributes:
        weights: take the weights from here: a model folder of the same architecture; for the toy "stale=0.05".
        tensors: take only tensors whose names match one of these patterns (as file names are matched); () takes all.
        adapter: False leaves an adapter out.
        config: (field, value) pairs that replace those of the config; a dot goes into a nested field.
        quantise: round the weights of linear layers as this format of `weight_formats.FORMATS` would, such as "int8".
        train: run in training mode, with dropout.
    """

    weights: str | None = None
    tensors: tuple[str, ...] = ()
    adapter: bool = True
    config: tuple[tuple[str, Any], ...] = ()
    quantise: str | None = None
    train: bool = False

    @property
    def same_weights(self) -> bool:
        """Whether all weights stay what they are."""
        return self.weights is None and self.adapter and self.quantise is None


UNCHANGED = Change()
"""The model as it is."""


@dataclass(frozen=True, kw_only=True)
class Changeable:
    """What a `Change` of an engine's model can name.

    Attributes:
        config: the config fields that act on positions and scales, with their values; a dot goes into a nested field.
        tensors: names of the weights.
        adapter: whether there is an adapter to leave out.
        limit: longest sequence in tokens; None where there is none.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()
    adapter: bool = False
    limit: int | None = None
