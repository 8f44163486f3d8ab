"""What a network's body has computed for the tokens of a run, kept so that only the head runs again.

Temperature, kept sets, penalties, biases and forbidden tokens all act behind the body; with its states at hand, each of
them costs one pass of the head, on all tokens or on a few.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from samepolicy.arrays import Array, Ragged, array_namespace
from samepolicy.engines import sampling as arithmetic
from samepolicy.records.side import Sampling

CHUNK = 6_000_000
"""Logits held at once, in elements."""


@dataclass(frozen=True)
class Forbidden:
    """Ids that the sampler could not choose at some places of a response.

    Attributes:
        ids: the ids.
        first: the first place, from 0.
        last: the place before which it ends; None is the end of the response.
    """

    ids: tuple[int, ...]
    first: int = 0
    last: int | None = None


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """All that reshapes logits: biases, forbidden ids, penalties, then temperature and kept set.

    Attributes:
        sampling: repetition penalty, temperature, top-k, top-p, min-p; raw leaves the logits alone.
        presence_penalty: taken off the logits of ids that the response holds already.
        frequency_penalty: taken off once for each time it holds them.
        bias: (id, value) pairs added to the logits.
        forbidden: ids that cannot be sampled.
    """

    sampling: Sampling = Sampling()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    forbidden: tuple[Forbidden, ...] = ()

    @property
    def cuts(self) -> bool:
        """Whether a kept set acts, which needs the log-probs of all ids."""
        idle = self.sampling.logprobs == "raw" or self.sampling.temperature == 0
        return not idle and not {*self.sampling.changed}.isdisjoint({"top_k", "top_p", "min_p"})

    @property
    def temperature(self) -> float:
        """The temperature that reaches a log-prob."""
        neutral = self.sampling.logprobs == "raw" or self.sampling.temperature == 0
        return 1.0 if neutral else self.sampling.temperature


NEUTRAL = Shaping()
"""The model's own distribution."""


class States:
    """The body's states for every response token of some sequences.

    Attributes:
        prompts: prompt ids of the sequences.
        responses: response ids.
        vocabulary: ids the model has.
    """

    def __init__(
        self,
        prompts: Ragged,
        responses: Ragged,
        vocabulary: int,
        logits: Callable[[np.ndarray], Array],
        read: Int[np.ndarray, " known"],
    ) -> None:
        """Keep the way from tokens to logits.

        Args:
            prompts: prompt ids.
            responses: response ids.
            vocabulary: ids the model has.
            logits: gives the float32 logits [rows, vocab] of some of the packed response tokens.
            read: the packed response tokens that something predicts.
        """
        self.prompts, self.responses, self.vocabulary = prompts, responses, vocabulary
        self._predicted = read
        self._compute = logits
        self._kept: dict[bytes, Array] = {}

    def keep(self, tokens: Int[np.ndarray, " n"]) -> None:
        """Keep the logits of these tokens in memory, since they will be asked for again and again."""
        parts = {part.tobytes(): part for part in _chunks(self._known(tokens), self._rows)}
        if self._kept.keys() != parts.keys():
            self._kept = {key: self._compute(part) for key, part in parts.items()}

    def forget(self) -> None:
        """Let go of kept logits."""
        self._kept = {}

    def logp(self, shaping: Shaping, tokens: Int[np.ndarray, " n"] | None = None) -> Float[np.ndarray, " n"]:
        """Log-probs of the response tokens at these packed indices (all by default), nats, float64.

        NaN for a token that nothing predicts, -inf outside a kept set.
        """
        return np.asarray(self._read(shaping, tokens, self._own))

    def entropy(self, shaping: Shaping, tokens: Int[np.ndarray, " n"] | None = None) -> Float[np.ndarray, " n"]:
        """Entropy of the shaped distribution at these tokens, nats, float64."""
        return np.asarray(self._read(shaping, tokens, lambda part, s: arithmetic.entropy(self.full(part, s))))

    def full(self, tokens: Int[np.ndarray, " n"], shaping: Shaping = NEUTRAL) -> Array:
        """Log-probs of every id at these tokens, [n, vocab], NumPy or torch as the engine computes."""
        done = replace(shaping.sampling, repetition_penalty=1.0)
        return arithmetic.log_probs(self._shaped(tokens, shaping), done)

    def cross_entropy(
        self, shaping: Shaping, sampler: Shaping, tokens: Int[np.ndarray, " n"] | None = None
    ) -> Float[np.ndarray, " n"]:
        """-Σ q log p at these tokens, with q the sampler's distribution and p the shaped one, nats, float64."""

        def of(part: np.ndarray, shape: Shaping) -> Array:
            p, q = self.full(part, shape), self.full(part, sampler)
            xp = array_namespace(p)
            there = (q > -xp.inf) & (p > -xp.inf)
            return -xp.sum(xp.where(there, xp.exp(q) * xp.where(there, p, xp.zeros_like(p)), xp.zeros_like(p)), axis=-1)

        return np.asarray(self._read(shaping, tokens, of))

    def _read(self, shaping: Shaping, tokens: np.ndarray | None, of: Callable[[np.ndarray, Shaping], Array]) -> Any:
        """Values of tokens, chunk by chunk; NaN where nothing predicts a token."""
        index = np.arange(len(self.responses.values)) if tokens is None else tokens
        out = np.full(len(self.responses.values), np.nan)
        for part in _chunks(self._known(index), self._rows):
            out[part] = _host(of(part, shaping))
        return out[index]

    @property
    def _rows(self) -> int:
        """Tokens of a chunk."""
        return max(1, CHUNK // self.vocabulary)

    def _known(self, tokens: np.ndarray) -> np.ndarray:
        """Those of the tokens that something predicts, in order, each once."""
        return np.intersect1d(tokens, self._predicted)

    def _logits(self, tokens: np.ndarray) -> Array:
        """Logits of a chunk of tokens, kept or computed."""
        found = self._kept.get(tokens.tobytes())
        return self._compute(tokens) if found is None else found

    def _own(self, tokens: np.ndarray, shaping: Shaping) -> Array:
        """Log-probs of the tokens' own ids."""
        ids = self.responses.values[tokens].astype(np.int64)
        if shaping.cuts:
            return _pick(self.full(tokens, shaping), ids)
        logits = self._shaped(tokens, shaping)
        if shaping.temperature != 1:
            logits = logits / shaping.temperature
        xp = array_namespace(logits)
        top = xp.max(logits, axis=-1)
        return _pick(logits, ids) - top - xp.log(xp.sum(xp.exp(logits - top[:, None]), axis=-1))

    def _shaped(self, tokens: np.ndarray, shaping: Shaping) -> Array:
        """Logits with biases, forbidden ids and penalties applied; the model's own where raw is asked for."""
        logits, penalty = self._logits(tokens), shaping.sampling.repetition_penalty
        added = bool(shaping.presence_penalty or shaping.frequency_penalty)
        if shaping.sampling.logprobs == "raw" or not (added or shaping.bias or shaping.forbidden or penalty != 1):
            return logits
        logits = logits + 0.0  # a copy
        for identity, value in shaping.bias:
            logits[:, identity] += value
        if added:
            *at, counts = (_like(logits, part) for part in self._seen(tokens, prompt=False))
            logits[*at] -= shaping.presence_penalty + shaping.frequency_penalty * counts
        place = tokens - self.responses.offsets[self._row(tokens)]
        for ban in shaping.forbidden:
            rows = np.flatnonzero((place >= ban.first) & (place < (np.inf if ban.last is None else ban.last)))
            logits[_like(logits, rows[:, None]), _like(logits, np.array(ban.ids))] = -np.inf
        if penalty != 1:
            at = [_like(logits, part) for part in self._seen(tokens, prompt=True)[:2]]
            logits[*at] = arithmetic.penalised(logits[*at], penalty)
        return logits

    def _seen(self, tokens: np.ndarray, *, prompt: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which ids stand before which token, in the response and, if asked, in the prompt: place, id, how often."""
        found = [np.zeros(0, np.int64)]
        for token, row in zip(tokens.tolist(), self._row(tokens).tolist(), strict=True):
            before = self.responses.values[self.responses.offsets[row] : token]
            found.append(np.concatenate([self.prompts[row], before]) if prompt else before)
        place = np.repeat(np.arange(len(tokens)), [len(ids) for ids in found[1:]])
        pairs, counts = np.unique(np.concatenate(found) + place * self.vocabulary, return_counts=True)
        return pairs // self.vocabulary, pairs % self.vocabulary, counts.astype(np.float32)

    def _row(self, tokens: np.ndarray) -> np.ndarray:
        """The sequence that each token belongs to."""
        row: np.ndarray = np.searchsorted(self.responses.offsets, tokens, side="right") - 1
        return row


def _chunks(index: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """An array in pieces."""
    for start in range(0, len(index), size):
        yield index[start : start + size]


def _pick(rows: Array, ids: np.ndarray) -> Array:
    """One value of each row."""
    if isinstance(rows, np.ndarray):
        return rows[np.arange(len(ids)), ids]
    return rows.gather(1, _like(rows, ids[:, None]))[:, 0]


def _like(values: Array, other: np.ndarray) -> Array:
    """A NumPy array where `values` lives."""
    if isinstance(values, np.ndarray):
        return other
    import torch

    return torch.from_numpy(other).to(values.device)


def _host(values: Array) -> np.ndarray:
    """Values as NumPy float64."""
    found: np.ndarray = (values if isinstance(values, np.ndarray) else values.cpu().numpy()).astype(np.float64)
    return found
