"""Sampling from a transformers model: prefill, then one token at a time with a key-value cache."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from samepolicy.arrays import Array
from samepolicy.engines import sampling as arithmetic
from samepolicy.engines.hf_network import Network
from samepolicy.engines.rollout import Response
from samepolicy.records.side import Sampling


def respond(
    network: Network,
    prompts: Sequence[np.ndarray],
    chances: Sequence[np.ndarray],
    *,
    sampling: Sampling,
    stops: frozenset[int],
) -> list[Response]:
    """Sample one response to each prompt of a batch, padded on the left.

    Args:
        network: the model.
        prompts: ids of each prompt.
        chances: random numbers in [0, 1) of each response, float32 [max_tokens]; token i is drawn with the i-th, so a
            response depends on the rest of the batch through rounding only.
        sampling: how tokens are drawn and which log-prob is recorded.
        stops: ids that end a response; the end token belongs to the response.

    Returns:
        Ids, log-probs and finish reason of each response.
    """
    import torch

    device = network.model.device
    ids, attention = (torch.from_numpy(x).to(device) for x in _pad_left(prompts))
    positions = (attention.cumsum(-1) - 1).clamp(min=0)
    seen = _seen(ids, attention, network.vocabulary)
    draws = torch.from_numpy(np.stack(chances)).to(device)
    limit = network.limit or ids.shape[1] + draws.shape[1]
    room = np.array([min(limit - len(prompt), draws.shape[1]) for prompt in prompts])
    chosen: list[np.ndarray] = []
    logps: list[np.ndarray] = []
    ended = np.zeros(len(prompts), dtype=bool)
    cache: Any = None
    for step in range(room.max()):
        hidden, cache = network.forward(ids, attention=attention, positions=positions, cache=cache, keep=True)
        ids, logp = _pick(network.head.logits(hidden[:, -1]), seen, draws[:, step], sampling)
        chosen.append(ids.cpu().numpy())
        logps.append(logp.cpu().numpy())
        ended |= np.isin(chosen[-1], list(stops)) | (room == step + 1)
        if ended.all():
            break
        seen.scatter_(1, ids[:, None], True)
        ids, positions = ids[:, None], (positions[:, -1:] + 1).clamp(max=limit - 1)
        attention = torch.cat([attention, attention.new_ones(len(prompts), 1)], dim=1)
    return [_cut(c[:r], p[:r], stops) for c, p, r in zip(np.stack(chosen, 1), np.stack(logps, 1), room, strict=True)]


def _pick(logits: Array, seen: Array, chance: Array, sampling: Sampling) -> tuple[Array, Array]:
    """The next id of each row and its recorded log-prob."""
    processed = arithmetic.processed_log_probs(logits, sampling, seen)
    ids = processed.argmax(-1) if sampling.temperature == 0 else arithmetic.draw(processed, chance)
    recorded = processed if sampling.logprobs == "processed" else arithmetic.log_softmax(logits)
    return ids, recorded.gather(1, ids[:, None])[:, 0]


def _pad_left(prompts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Ids and attention of prompts that all end in the last column, int64 [batch, longest]."""
    longest = max(map(len, prompts))
    ids = np.zeros((len(prompts), longest), dtype=np.int64)
    attention = np.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        attention[row, longest - len(prompt) :] = 1
    return ids, attention


def _seen(ids: Array, attention: Array, vocabulary: int) -> Array:
    """Which ids stand in each prompt, bool [batch, vocab]."""
    import torch

    counts = torch.zeros(len(ids), vocabulary, dtype=torch.int64, device=ids.device)
    return counts.scatter_add_(1, ids, attention) > 0


def _cut(ids: np.ndarray, logp: np.ndarray, stops: frozenset[int]) -> Response:
    """One response up to and with its first end token."""
    ends = np.flatnonzero(np.isin(ids, list(stops)))
    length = int(ends[0]) + 1 if len(ends) else len(ids)
    return Response(ids=ids[:length].tolist(), logp=logp[:length].tolist(), finish="stop" if len(ends) else "length")
