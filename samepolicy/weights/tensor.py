"""The fingerprint of one tensor: hashes of its values and of their casts, norm, extremes, and a small sketch."""

import base64
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from samepolicy.arrays import Array
from samepolicy.errors import CorruptFileError
from samepolicy.summary import json_number
from samepolicy.weights.hashing import Digest, Hasher, Hashes
from samepolicy.weights.sketch import Sketch

BLOCK = 1 << 18
"""Values that are looked at together."""

CASTS = {
    "float64": ("float32", "bfloat16", "float16"),
    "float32": ("bfloat16", "float16"),
    "bfloat16": ("float16",),
    "float16": ("bfloat16",),
}
"""By dtype, what else a tensor's values are hashed as."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorPrint:
    """What is kept of one tensor: about two kilobytes.

    Attributes:
        shape: its shape.
        dtype: the dtype it is kept in, such as "bfloat16".
        digest: hash of its values, whatever the dtype: bfloat16 numbers kept in float32 hash as in bfloat16; -0 is 0.
        hashes: hashes that know rows and columns: of its values under "", of their casts under the dtype; empty where
            only equality was asked for.
        norm: square root of the sum of squares of the finite values.
        low: least finite value; NaN where there is none.
        high: largest finite value; NaN where there is none.
        nans: values that are NaN.
        infinities: values that are infinite.
        sketch: sums with random signs, float32 [256].
        transient: it is computed or kept by one framework only, such as rotary tables; files do not hold it.
    """

    shape: tuple[int, ...]
    dtype: str
    digest: int
    hashes: Mapping[str, Hashes]
    norm: float
    low: float
    high: float
    nans: int
    infinities: int
    sketch: np.ndarray
    transient: bool = False

    @property
    def zero(self) -> bool:
        """Whether every value is 0."""
        return self.low == self.high == 0 and not self.nans + self.infinities

    @property
    def constant(self) -> bool:
        """Whether all values are one number."""
        return self.low == self.high

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "digest": f"{self.digest:016x}",
            "hashes": {name: [f"{value:016x}" for value in hashes] for name, hashes in self.hashes.items()},
            **{name: json_number(getattr(self, name)) for name in ("norm", "low", "high", "nans", "infinities")},
            "sketch": base64.b64encode(self.sketch.astype("<f4").tobytes()).decode(),
            "transient": self.transient,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "TensorPrint":
        """The fingerprint that `as_dict` gave.

        Raises:
            CorruptFileError: something is missing or of another kind.
        """
        try:
            sketch = np.frombuffer(base64.b64decode(content["sketch"]), dtype="<f4")
            numbers = {name: _number(content[name]) for name in ("norm", "low", "high")}
            return cls(
                shape=tuple(map(int, content["shape"])),
                dtype=str(content["dtype"]),
                digest=int(content["digest"], 16),
                hashes={str(name): _unhex(hashes) for name, hashes in content["hashes"].items()},
                **numbers,
                nans=int(content["nans"]),
                infinities=int(content["infinities"]),
                sketch=sketch.reshape(256),
                transient=bool(content["transient"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptFileError(f"A fingerprint is not readable ({error!r}); write it again.") from error


def take(tensor: Array, *, transient: bool = False, hashes: Collection[str] | None = None) -> TensorPrint:
    """The fingerprint of a tensor, taken on its own device, in blocks of a few megabytes.

    Args:
        tensor: a torch tensor of floats, integers or booleans, any shape.
        transient: see `TensorPrint`.
        hashes: what to hash by rows and columns: "" for its values, dtypes for their casts; None is all there is.

    Returns:
        Its fingerprint.
    """
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    digest, sketch, tally = Digest(), Sketch(), _Tally()
    with torch.inference_mode():
        for block in _blocks(_matrix(tensor.detach())):
            values = plain(block)
            digest.add(values)
            sketch.add(tally.add(values if values.is_floating_point() else values.to(torch.float64)))
    return TensorPrint(
        shape=tuple(tensor.shape),
        dtype=dtype,
        digest=digest.value(),
        hashes=hash_all(tensor, ("", *CASTS.get(dtype, ())) if hashes is None else hashes),
        sketch=sketch.values(),
        transient=transient,
        **tally.found(),
    )


def hash_all(tensor: Array, dtypes: Collection[str]) -> dict[str, Hashes]:
    """The hashes by rows and columns of a tensor ("") and of its casts to these dtypes."""
    import torch

    matrix = _matrix(tensor.detach())
    hashers = {name: Hasher(len(matrix), matrix.shape[1], matrix.device) for name in dtypes}
    with torch.inference_mode():
        for block in _blocks(matrix) if hashers else ():
            for name, hasher in hashers.items():
                hasher.add(bits(plain(block.to(getattr(torch, name)) if name else block)))
    return {name: hasher.hashes() for name, hasher in hashers.items()}


def plain(values: Array) -> Array:
    """Values as float32 where that holds all of them exactly, else as float64; whole numbers as int64; -0 as 0."""
    import torch

    if not values.is_floating_point():
        return values.to(torch.int64)
    single = values.to(torch.float32) + 0.0
    if values.dtype != torch.float64 or bool(((single == values) | (values != values)).all()):
        return single
    return values + 0.0


def bits(values: Array) -> Array:
    """The bits of what `plain` gives, int64: of float32 those of its four bytes."""
    import torch

    if values.dtype == torch.float32:
        return values.view(torch.int32).to(torch.int64)
    return values.view(torch.int64)


@dataclass
class _Tally:
    """Norm, extremes and counts of blocks."""

    squares: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")
    nans: int = 0
    infinities: int = 0

    def add(self, block: Array) -> Array:
        """Take a block in; gives it with every value that is not finite put to 0."""
        import torch

        flat = block.flatten()
        squares = float(flat @ flat)  # a norm in float32 is right to six digits only
        if squares - squares != 0:  # something is not finite, or squares too large
            finite = torch.isfinite(block)
            nans = int(torch.isnan(block).sum())
            self.nans += nans
            self.infinities += int((~finite).sum()) - nans
            kept = block[finite].to(torch.float64)
            squares, block = float(kept @ kept), torch.where(finite, block, torch.zeros_like(block))
        else:
            kept = block
        if kept.numel():
            low, high = torch.aminmax(kept)
            self.low, self.high = min(self.low, float(low)), max(self.high, float(high))
        self.squares += squares
        return block

    def found(self) -> dict[str, Any]:
        """The numbers by the names of `TensorPrint`."""
        none = self.low > self.high
        return {
            "norm": self.squares**0.5,
            "low": float("nan") if none else self.low,
            "high": float("nan") if none else self.high,
            "nans": self.nans,
            "infinities": self.infinities,
        }


def _matrix(tensor: Array) -> Array:
    """A tensor as a matrix: its last axis across, one column where it has a single axis."""
    if tensor.ndim < 2:
        return tensor.reshape(-1, 1)
    return tensor if tensor.ndim == 2 else tensor.flatten(0, -2)


def _blocks(matrix: Array) -> Iterator[Array]:
    """Rows in blocks that depend on nothing but the shape."""
    count = max(1, BLOCK // max(1, matrix.shape[1]))
    for start in range(0, len(matrix), count):
        yield matrix[start : start + count].contiguous()


def _unhex(values: list[str]) -> Hashes:
    return Hashes(*(int(value, 16) for value in values))


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
