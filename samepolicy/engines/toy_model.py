"""The toy's network: a two-layer transformer in NumPy whose every result is rounded to its dtype."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Self

import numpy as np
from jaxtyping import Float, Int

from samepolicy.engines.weight_formats import rounded

WIDTH, HEADS, LAYERS = 48, 4, 2
RANK, DROPPED = 4, 0.1


def to_bfloat16(x: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Round float32 values to the nearest bfloat16 (ties to even), kept in float32.

    >>> to_bfloat16(np.array([1.001, 1.007], np.float32)).tolist()
    [1.0, 1.0078125]
    """
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) & np.uint32(0xFFFF0000)).view(np.float32)


def _to_float16(x: np.ndarray) -> np.ndarray:
    """Round float32 values to float16, kept in float32."""
    return x.astype(np.float16).astype(np.float32)


def _to_float32(x: np.ndarray) -> np.ndarray:
    """Keep float32 values as they are."""
    return x.astype(np.float32, copy=False)


DTYPES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "float32": _to_float32,
    "bfloat16": to_bfloat16,
    "float16": _to_float16,
}


@dataclass
class Cache:
    """Keys and values of the tokens so far, one pair of [tokens, heads, width] arrays per layer."""

    keys: list[np.ndarray] = field(default_factory=lambda: [np.zeros((0, HEADS, WIDTH // HEADS), np.float32)] * LAYERS)
    values: list[np.ndarray] = field(
        default_factory=lambda: [np.zeros((0, HEADS, WIDTH // HEADS), np.float32)] * LAYERS
    )

    def extend(self, layer: int, key: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Append new tokens to a layer and give all of its keys and values."""
        self.keys[layer] = np.concatenate([self.keys[layer], key])
        self.values[layer] = np.concatenate([self.values[layer], value])
        return self.keys[layer], self.values[layer]


@dataclass(frozen=True)
class Laid:
    """Another layout than one sequence from position 0: int64 and bool [tokens]."""

    positions: np.ndarray
    seen: np.ndarray


@dataclass(frozen=True)
class Model:
    """Weights by name, and the dtype that every result is rounded to.

    Attributes:
        weights: arrays by name.
        dtype: every result is rounded to it.
        base: the base of the position features' rates.
        eps: what the norm adds to a mean square.
        noise: draws what dropout sets to 0, one in ten of what a layer adds; None is no dropout.
    """

    weights: Mapping[str, np.ndarray]
    dtype: str = "float32"
    base: float = 100.0
    eps: float = 1e-5
    noise: np.random.Generator | None = None

    @classmethod
    def random(cls, vocabulary: int, *, seed: int) -> Self:
        """Random weights; a bias gives space and lower-case letters a better chance."""
        rng = np.random.default_rng(seed)
        shapes: dict[str, tuple[int, ...]] = {"embed": (vocabulary, WIDTH), "head": (WIDTH, vocabulary)}
        for layer in range(LAYERS):
            shapes |= {f"{layer}.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value", "out")}
            shapes |= {f"{layer}.up": (WIDTH, 4 * WIDTH), f"{layer}.down": (4 * WIDTH, WIDTH)}
        weights = {n: (rng.normal(size=s) / np.sqrt(s[0])).astype(np.float32) for n, s in shapes.items()}
        weights["embed"] = weights["embed"] * np.float32(np.sqrt(vocabulary))
        weights["head"] = weights["head"] * np.float32(3.5)
        weights["bias"] = np.zeros(vocabulary, np.float32)
        weights["bias"][[1, *range(66, 92)]] = 3.0
        return cls(weights)

    def disturbed(self, share: float) -> Self:
        """The same model with every weight off by a random `share` of its matrix's size."""
        rng = np.random.default_rng(12345)
        noise = {n: rng.normal(size=w.shape) * (share * w.std()) for n, w in self.weights.items()}
        return replace(self, weights={n: (w + noise[n]).astype(np.float32) for n, w in self.weights.items()})

    def adapted(self, share: float) -> Self:
        """The same model with a low-rank update of its queries and values, `share` of their size."""
        rng, weights = np.random.default_rng(54321), dict(self.weights)
        for name in [n for n in weights if n.endswith((".query", ".value"))]:
            low, high = rng.normal(size=(WIDTH, RANK)), rng.normal(size=(RANK, WIDTH))
            update = share * weights[name].std() / np.sqrt(RANK) * (low @ high)
            weights[name] = (weights[name] + update).astype(np.float32)
        return replace(self, weights=weights)

    def quantised(self, form: str) -> Self:
        """The same model with the layers' weights rounded as a format of `weight_formats` would."""
        return replace(self, weights={n: rounded(w.T, form).T if "." in n else w for n, w in self.weights.items()})

    def swapped(self, other: Self, patterns: Sequence[str]) -> Self:
        """The same model with those tensors of another one whose names match a pattern (all where there is none)."""
        taken = {n for n in self.weights if not patterns or any(fnmatchcase(n, p) for p in patterns)}
        return replace(self, weights={n: (other if n in taken else self).weights[n] for n in self.weights})

    def fingerprint(self) -> str:
        """A hash of the weights' bytes."""
        digest = sha256()
        for name in sorted(self.weights):
            digest.update(self.weights[name].tobytes())
        return digest.hexdigest()[:16]

    def logits(
        self, ids: Int[np.ndarray, " new"], cache: Cache, *, hidden: int = 0, layout: Laid | None = None
    ) -> Float[np.ndarray, "new vocab"]:
        """Logits after each new token, which are appended to the cache.

        Args:
            ids: the new tokens; one at a time is decoding, all at once is prefill or scoring.
            cache: the tokens before them; extended in place.
            hidden: positions before this one are not attended to from it on (0 hides nothing).
            layout: positions, and what may be attended to, where that is another than usual; with an empty cache only.
        """
        position = len(cache.keys[0]) + np.arange(len(ids))
        seen = np.arange(len(cache.keys[0]) + len(ids))
        allowed = (seen[None] <= position[:, None]) & ((position[:, None] < hidden) | (seen[None] >= hidden))
        if layout is not None:
            allowed = (seen[None] <= position[:, None]) & (layout.seen[None] | (seen[None] == position[:, None]))
            position = layout.positions
        x = self._round(self.weights["embed"][ids] + _sinusoid(position, self.base))
        for layer in range(LAYERS):
            x = self._round(x + self._dropped(self._attend(x, layer, cache, allowed)))
            inner = self._times(self._norm(x), f"{layer}.up")
            x = self._round(x + self._dropped(self._times(self._round(np.tanh(inner)), f"{layer}.down")))
        return self._round(self._times(self._norm(x), "head") + self.weights["bias"])

    def _attend(self, x: np.ndarray, layer: int, cache: Cache, allowed: np.ndarray) -> np.ndarray:
        """Multi-head attention of the new tokens over everything allowed."""
        normed = self._norm(x)
        query, key, value = (
            self._times(normed, f"{layer}.{name}").reshape(len(x), HEADS, -1) for name in ("query", "key", "value")
        )
        keys, values = cache.extend(layer, key, value)
        scores = np.einsum("qhd,khd->hqk", query, keys) / np.float32(np.sqrt(WIDTH // HEADS))
        scores = np.where(allowed[None], scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", self._round(weights / weights.sum(axis=-1, keepdims=True)), values)
        return self._times(self._round(mixed).reshape(len(x), WIDTH), f"{layer}.out")

    def _times(self, x: np.ndarray, name: str) -> np.ndarray:
        """x @ weights, rounded; a single row is added up in two halves, as a decode kernel would."""
        weight = self.weights[name]
        if len(x) > 1 or self.dtype == "float32":
            return self._round(x @ weight)
        half = len(weight) // 2
        return self._round(self._round(x[:, :half] @ weight[:half]) + self._round(x[:, half:] @ weight[half:]))

    def _dropped(self, x: np.ndarray) -> np.ndarray:
        """What is left of a layer's output after dropout."""
        if self.noise is None:
            return x
        return np.where(self.noise.random(x.shape) < DROPPED, 0, x / np.float32(1 - DROPPED)).astype(np.float32)

    def _norm(self, x: np.ndarray) -> np.ndarray:
        """Root-mean-square norm."""
        return self._round(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(self.eps)))

    def _round(self, x: np.ndarray) -> np.ndarray:
        """Round to the model's dtype."""
        return DTYPES[self.dtype](x)


def cast(model: Model, dtype: str) -> Model:
    """The model with weights and arithmetic in another dtype."""
    return replace(model, weights={n: DTYPES[dtype](w) for n, w in model.weights.items()}, dtype=dtype)


def _sinusoid(position: Int[np.ndarray, " new"], base: float) -> Float[np.ndarray, "new width"]:
    """Sine and cosine features of absolute positions."""
    rates = 1 / base ** (np.arange(WIDTH // 2) / (WIDTH // 2))
    angles = position[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).astype(np.float32)
