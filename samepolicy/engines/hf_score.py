"""Scoring with a transformers model: batches of like lengths, one teacher-forced forward each, the head in chunks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from samepolicy.arrays import Array, Ragged
from samepolicy.engines import sampling as arithmetic
from samepolicy.engines.base import Scores
from samepolicy.engines.head import Answer, Ask, read_out
from samepolicy.engines.hf_network import Network


def score_all(network: Network, prompts: Ragged, responses: Ragged, ask: Ask, *, batch_tokens: int) -> Scores:
    """Score every response token after its prompt.

    Args:
        network: the model.
        prompts: prompt ids, one row per response.
        responses: response ids.
        ask: under which sampling, and with entropy and top-k or not.
        batch_tokens: tokens of a batch, padding included.

    Returns:
        Scores in the order of the responses; NaN for the first token after an empty prompt, which nothing predicts.
    """
    import torch

    answer = _blank(len(responses.values), ask)
    for rows in batches(prompts.lengths + responses.lengths, batch_tokens):
        scored = [r for r in rows if responses.lengths[r] > _unpredicted(prompts[r])]
        if scored:
            with torch.inference_mode():
                part = _score_batch(network, [prompts[r] for r in scored], [responses[r] for r in scored], ask)
            where = np.concatenate(
                [np.arange(responses.offsets[r] + _unpredicted(prompts[r]), responses.offsets[r + 1]) for r in scored]
            )
            _put(answer, where, part)
    return Scores(
        logp=responses.with_values(answer.logp),
        entropy=None if answer.entropy is None else responses.with_values(answer.entropy),
        top_ids=None if answer.top_ids is None else responses.with_values(answer.top_ids),
        top_logp=None if answer.top_logp is None else responses.with_values(answer.top_logp),
    )


def batches(lengths: np.ndarray, tokens: int) -> Iterator[list[int]]:
    """Cut rows into batches of like lengths, longest first, each of at most `tokens` tokens with its padding.

    A row that is longer than that makes a batch of its own.

    >>> list(batches(np.array([2, 5, 2, 4]), 10))
    [[1, 3], [0, 2]]
    """
    batch: list[int] = []
    for row in np.argsort(-lengths, kind="stable").tolist():
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _score_batch(network: Network, prompts: Sequence[np.ndarray], responses: Sequence[np.ndarray], ask: Ask) -> Answer:
    """One forward over prompts and responses padded on the right; response token i is read at place m - 1 + i."""
    import torch

    device = network.model.device
    ids, attention = (torch.from_numpy(x).to(device) for x in _pad_right(prompts, responses))
    positions = torch.arange(ids.shape[1], device=device).expand_as(ids)
    hidden, _ = network.forward(ids, attention=attention, positions=positions)
    firsts = [_unpredicted(p) for p in prompts]
    counts = np.array([len(r) - f for r, f in zip(responses, firsts, strict=True)])
    row = np.repeat(np.arange(len(prompts)), counts)
    place = np.concatenate(
        [np.arange(len(p) - 1 + f, len(p) - 1 + len(r)) for p, r, f in zip(prompts, responses, firsts, strict=True)]
    )
    wanted = np.concatenate([r[f:] for r, f in zip(responses, firsts, strict=True)]).astype(np.int64)
    hidden = hidden[torch.from_numpy(row).to(device), torch.from_numpy(place).to(device)]
    seen = _seen(network, prompts, responses, (row, place)) if ask.sampling.repetition_penalty != 1 else None
    return read_out(network.head, hidden, torch.from_numpy(wanted).to(device), ask, seen)


def _pad_right(prompts: Sequence[np.ndarray], responses: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Ids and attention of whole sequences that all begin in the first column, int64 [batch, longest]."""
    whole = [np.concatenate([p, r]) for p, r in zip(prompts, responses, strict=True)]
    ids = np.zeros((len(whole), max(map(len, whole))), dtype=np.int64)
    attention = np.zeros_like(ids)
    for row, sequence in enumerate(whole):
        ids[row, : len(sequence)] = sequence
        attention[row, : len(sequence)] = 1
    return ids, attention


def _seen(
    network: Network,
    prompts: Sequence[np.ndarray],
    responses: Sequence[np.ndarray],
    where: tuple[np.ndarray, np.ndarray],
) -> Callable[[slice], Any]:
    """For a slice of the tokens read at (row, place): which ids stood before each, bool [tokens, vocab]."""
    import torch

    vocabulary = network.vocabulary
    first = np.stack([arithmetic.first_seen(p, r, vocabulary) for p, r in zip(prompts, responses, strict=True)])
    row, place = where
    index = place - np.array([len(p) for p in prompts])[row] + 1

    def of(part: slice) -> Array:
        return torch.from_numpy(first[row[part]] <= index[part, None]).to(network.model.device)

    return of


def _unpredicted(prompt: np.ndarray) -> int:
    """How many response tokens nothing predicts: the first one if the prompt is empty."""
    return int(len(prompt) == 0)


def _blank(tokens: int, ask: Ask) -> Answer:
    """An answer that knows nothing yet."""
    return Answer(
        np.full(tokens, np.nan, np.float32),
        np.full(tokens, np.nan, np.float32) if ask.entropy else None,
        np.full((tokens, ask.top), -1, np.int64) if ask.top else None,
        np.full((tokens, ask.top), np.nan, np.float32) if ask.top else None,
    )


def _put(answer: Answer, where: np.ndarray, part: Answer) -> None:
    """Write a part of the tokens into the answer's arrays."""
    for name in ("logp", "entropy", "top_ids", "top_logp"):
        target = getattr(answer, name)
        if target is not None:
            target[where] = getattr(part, name)
