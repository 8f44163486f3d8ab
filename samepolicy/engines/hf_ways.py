"""Ways from ids to log-probs through a transformers model, to compare with each other: padding side, and packing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines.head import Ask, read_out
from samepolicy.engines.hf import HuggingFace
from samepolicy.records.side import Sampling

ROWS = 8
"""Sequences of a batch or of a pack."""


def ways(engine: HuggingFace) -> Mapping[str, Callable[[Ragged, Ragged], Ragged]]:
    """The ways by name; each takes prompts and responses and gives neutral log-probs, one per response token.

    Args:
        engine: the engine; its own `score` pads on the right.
    """
    return {"padded left": _Way(engine, _padded_left), "packed": _Way(engine, _packed)}


class _Way:
    """Score in groups of rows, laid out in some way."""

    def __init__(self, engine: HuggingFace, lay: Callable[[Any, Sequence[np.ndarray]], Iterator[Any]]) -> None:
        self.engine, self.lay = engine, lay

    def __call__(self, prompts: Ragged, responses: Ragged) -> Ragged:
        """Log-probs of the response tokens; NaN for a first token after an empty prompt."""
        import torch

        found: list[np.ndarray] = []
        for start in range(0, len(responses), ROWS):
            pairs = [(prompts[i], responses[i]) for i in range(start, min(start + ROWS, len(responses)))]
            whole = [np.concatenate(pair).astype(np.int64) for pair in pairs]
            with torch.inference_mode():
                hidden = list(self.lay(self.engine._network, whole))
                found += [self._read(h, p, r) for h, (p, r) in zip(hidden, pairs, strict=True)]
        values = np.concatenate(found) if found else np.zeros(0, np.float32)
        return responses.with_values(values)

    def _read(self, hidden: Any, prompt: np.ndarray, response: np.ndarray) -> np.ndarray:
        """Log-probs from the hidden states of one whole sequence."""
        import torch

        first = 0 if len(prompt) else 1
        out = np.full(len(response), np.nan, np.float32)
        if len(response) > first:
            place = slice(len(prompt) - 1 + first, len(prompt) - 1 + len(response))
            ids = torch.from_numpy(response[first:].astype(np.int64)).to(hidden.device)
            out[first:] = read_out(self.engine._network.head, hidden[place], ids, Ask(Sampling())).logp
        return out


def _padded_left(network: Any, whole: Sequence[np.ndarray]) -> Iterator[Any]:
    """One batch whose sequences all end in the last column; positions count from each one's own start."""
    import torch

    longest, device = max(map(len, whole)), network.model.device
    ids = torch.zeros(len(whole), longest, dtype=torch.int64)
    attention = torch.zeros_like(ids)
    for row, sequence in enumerate(whole):
        ids[row, longest - len(sequence) :] = torch.from_numpy(sequence)
        attention[row, longest - len(sequence) :] = 1
    positions = (attention.cumsum(-1) - 1).clamp(min=0)
    given = {"attention": attention.to(device), "positions": positions.to(device)}
    hidden, _ = network.forward(ids.to(device), **given)
    for row, sequence in enumerate(whole):
        yield hidden[row, longest - len(sequence) :]


def _packed(network: Any, whole: Sequence[np.ndarray]) -> Iterator[Any]:
    """All sequences one after another in one row, each attending to itself only."""
    import torch

    device, lengths = network.model.device, [len(s) for s in whole]
    ids = torch.from_numpy(np.concatenate(whole))[None].to(device)
    positions = torch.cat([torch.arange(n) for n in lengths])[None].to(device)
    owner = torch.repeat_interleave(torch.arange(len(whole)), torch.tensor(lengths))
    allowed = (owner[:, None] == owner[None]) & torch.ones(len(owner), len(owner), dtype=torch.bool).tril()
    lowest = torch.finfo(network.model.dtype).min
    mask = torch.zeros(allowed.shape, dtype=network.model.dtype).masked_fill(~allowed, lowest)
    hidden, _ = network.forward(ids, attention=mask[None, None].to(device), positions=positions)
    yield from hidden[0].split(lengths)
