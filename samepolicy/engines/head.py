"""The output head in chunks: from hidden states to the log-probs of given ids, never with all logits at once.

For N tokens and a vocabulary of V, all logits take 4·N·V bytes in float32 and their log-softmax as much again; a chunk
of tokens needs a fixed few megabytes, and log Σ exp, the id's logit, entropy and top-k are all that is kept of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from samepolicy.arrays import Array
from samepolicy.engines import sampling as arithmetic
from samepolicy.records.side import Sampling

CHUNK = 6_000_000
"""Logits held at once, in elements."""

_OPTIONAL = ("entropy", "top_ids", "top_logp")


@dataclass(frozen=True)
class Head:
    """What turns a hidden state into logits.

    Attributes:
        module: the output projection, a torch module.
        scale: logits are multiplied by it.
        cap: logits are squashed to (-cap, cap) by cap · tanh(logits / cap); None does not.
    """

    module: Any
    scale: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, model: Any) -> "Head":
        """The head of a transformers model, with the scale and cap that its config names."""
        config = model.config.get_text_config()
        scale = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1.0)
        return cls(model.get_output_embeddings(), scale, getattr(config, "final_logit_softcapping", None))

    def logits(self, hidden: Array) -> Array:
        """Logits in float32, [rows, vocab], computed in the head's own dtype."""
        import torch

        weight = next(self.module.parameters(), None)
        logits = self.module(hidden if weight is None else hidden.to(weight.dtype))
        if self.scale != 1:
            logits = logits * self.scale
        if self.cap:
            logits = torch.tanh(logits / self.cap) * self.cap
        return logits.float()

    def cast(self, dtype: str) -> "Head":
        """A copy of the head in another dtype."""
        import copy

        import torch

        return replace(self, module=copy.deepcopy(self.module).to(getattr(torch, dtype)))


@dataclass(frozen=True)
class Ask:
    """What is wanted of every token: under which sampling, and with entropy and top-k or not."""

    sampling: Sampling
    entropy: bool = False
    top: int = 0

    @property
    def plain(self) -> bool:
        """True where the model's own log-probs are asked for, so that nothing reshapes the logits."""
        return self.sampling.logprobs == "raw" or not set(self.sampling.changed) - _inert(self.sampling)


@dataclass(frozen=True)
class Answer:
    """What a head says of N tokens, NumPy: logp [N], and where asked entropy [N], top_ids and top_logp [N, top]."""

    logp: np.ndarray
    entropy: np.ndarray | None = None
    top_ids: np.ndarray | None = None
    top_logp: np.ndarray | None = None


def read_out(head: Head, hidden: Array, ids: Array, ask: Ask, seen: Callable[[slice], Array] | None = None) -> Answer:
    """Read log-probs (entropy, top-k) of given ids from hidden states, chunk by chunk.

    Args:
        head: the output head.
        hidden: hidden states that predict the ids, [N, width].
        ids: the ids, int64 [N].
        ask: what is wanted.
        seen: gives for a slice of tokens which ids stood before each, bool [rows, vocab]; for a repetition penalty.

    Returns:
        Nats, float32.
    """
    rows = max(1, CHUNK // _width(head, hidden))
    parts = []
    for start in range(0, len(ids), rows):
        part = slice(start, start + rows)
        parts.append(_read_chunk(head.logits(hidden[part]), ids[part], ask, seen(part) if seen else None))
    return Answer(np.concatenate([p.logp for p in parts]), *(_joined(parts, name) for name in _OPTIONAL))


def _read_chunk(logits: Array, ids: Array, ask: Ask, seen: Array) -> Answer:
    """The answer for one chunk of logits."""
    if ask.plain and not ask.entropy:
        total = logits.logsumexp(-1, keepdim=True)
        own = logits.gather(1, ids[:, None]) - total
        best = logits.topk(ask.top) if ask.top else None
        top = (best.indices, best.values - total) if best else (None, None)
        return Answer(_host(own[:, 0]), None, *map(_host, top))
    logp = arithmetic.log_probs(logits, ask.sampling, seen)
    top = arithmetic.most_likely(logp, ask.top) if ask.top else (None, None)
    entropy = arithmetic.entropy(logp) if ask.entropy else None
    return Answer(_host(logp.gather(1, ids[:, None])[:, 0]), *map(_host, (entropy, *top)))


def _host(values: Array) -> Any:
    """A tensor as NumPy; None stays None."""
    return None if values is None else values.cpu().numpy()


def _joined(parts: list[Answer], name: str) -> np.ndarray | None:
    """One optional array of several answers, put together; None where it was not asked for."""
    arrays = [getattr(part, name) for part in parts]
    return None if arrays[0] is None else np.concatenate(arrays)


def _width(head: Head, hidden: Array) -> int:
    """Size of the vocabulary, or of the hidden state where that is wider."""
    return max(int(hidden.shape[-1]), int(getattr(head.module, "out_features", 1)))


def _inert(sampling: Sampling) -> set[str]:
    """The changed settings that do not reach a log-prob: all but the penalty when sampling is greedy."""
    return {"temperature", "top_p", "top_k", "min_p"} if sampling.temperature == 0 else set()
