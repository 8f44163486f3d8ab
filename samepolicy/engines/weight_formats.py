"""Formats that weights of linear layers are kept in, and what a weight comes to in one of them.

A format more is one entry of `FORMATS`; the cause `quantised_rollout` tries them all.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float

from samepolicy.arrays import Array, array_namespace
from samepolicy.kinds import choose


@dataclass(frozen=True, kw_only=True)
class Format:
    """One format.

    Attributes:
        levels: integer steps on either side of zero; None for floats of eight bits (e4m3).
        scale: what shares one scale: an output channel, a group of so many of its inputs, the whole tensor, or nothing.
    """

    levels: int | None = None
    scale: Literal["channel", "tensor", "none"] | int = "channel"


FORMATS = {
    "int8": Format(levels=127),
    "fp8": Format(),
    "fp8_tensor": Format(scale="tensor"),
    "fp8_unscaled": Format(scale="none"),
    "int6": Format(levels=31),
    "int4": Format(levels=7),
    "int4_g128": Format(levels=7, scale=128),
    "int4_g32": Format(levels=7, scale=32),
}
"""The formats by name, mild ones first: absolute maximum scaling, symmetric, round to nearest."""

MOST, FINEST, MANTISSA = 448.0, -6, 3
"""The largest e4m3 number, the exponent of the smallest normal one, and bits of the mantissa."""


def rounded(weight: Float[Array, "out width"], form: str) -> Float[Array, "out width"]:
    """A weight as it comes out of a format: scaled, rounded, scaled back.

    Where groups do not divide the width, a channel is one group, as no engine could hold it otherwise.

    Args:
        weight: one row for each output channel, float32, NumPy or torch.
        form: a name in `FORMATS`.

    Raises:
        InputError: there is no such format.

    >>> import numpy as np
    >>> rounded(np.array([[0.7, 0.04, -0.26]], dtype=np.float32), "int4").round(3).tolist()
    [[0.699999988079071, 0.0, -0.30000001192092896]]
    """
    xp, told = array_namespace(weight), FORMATS[choose("a weight format", form, tuple(FORMATS))]
    grouped = isinstance(told.scale, int) and weight.shape[-1] % told.scale == 0
    parts = xp.reshape(weight, (-1, told.scale)) if grouped else weight
    top = MOST if told.levels is None else float(told.levels)
    scale = 1.0
    if told.scale != "none":
        largest = xp.max(xp.abs(parts)) if told.scale == "tensor" else xp.max(xp.abs(parts), axis=-1, keepdims=True)
        scale = xp.clip(largest, 1e-12, None) / top
    whole = _e4m3(parts / scale) if told.levels is None else xp.round(parts / scale)
    return xp.reshape(whole * scale, weight.shape)


def _e4m3(values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The nearest eight-bit floats."""
    xp = array_namespace(values)
    exponent = xp.clip(xp.floor(xp.log2(xp.clip(xp.abs(values), 2.0**FINEST, MOST))), FINEST, None)
    step = 2.0 ** (exponent - MANTISSA)
    return xp.clip(xp.round(values / step) * step, -MOST, MOST)
