"""The hidden states that predict the response tokens of a run, from a transformers model, in any layout."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from samepolicy.arrays import Array, Ragged
from samepolicy.engines.hf_network import Network
from samepolicy.engines.hf_score import batches
from samepolicy.engines.layout import Layout, Plan, plans
from samepolicy.engines.states import States


def states_of(network: Network, prompts: Ragged, responses: Ragged, layout: Layout, *, batch_tokens: int) -> States:
    """Run the body over all sequences and keep one hidden state per response token.

    Args:
        network: the model.
        prompts: prompt ids.
        responses: response ids.
        layout: how sequences are laid out.
        batch_tokens: tokens of a batch, padding included.
    """
    import torch

    rows = list(plans(prompts, responses, layout))
    lengths = np.array([len(row.ids) for row in rows], dtype=np.int64)
    hidden: Any = None
    with torch.inference_mode():
        for batch in batches(lengths, batch_tokens):
            part = _forward(network, [rows[r] for r in batch])
            for at, r in enumerate(batch):
                found = part[at, torch.from_numpy(rows[r].read)]
                if hidden is None:
                    hidden = found.new_zeros(len(responses.values), found.shape[-1])
                hidden[torch.from_numpy(rows[r].tokens)] = found

    def logits(tokens: np.ndarray) -> Array:
        with torch.inference_mode():
            return network.head.logits(hidden[torch.from_numpy(tokens)])

    read = np.concatenate([np.zeros(0, np.int64), *(row.tokens for row in rows)])
    return States(prompts, responses, network.vocabulary, logits, read)


def _forward(network: Network, rows: Sequence[Plan]) -> Any:
    """Hidden states of a batch, padded on the right, [batch, longest, width]."""
    import torch

    longest, device = max(len(row.ids) for row in rows), network.model.device
    ids, seen = (torch.zeros(len(rows), longest, dtype=torch.int64) for _ in range(2))
    positions = torch.zeros_like(ids)
    for at, row in enumerate(rows):
        size = len(row.ids)
        ids[at, :size] = torch.from_numpy(row.ids)
        seen[at, :size] = torch.from_numpy(row.seen.astype(np.int64))
        positions[at, :size] = torch.from_numpy(row.positions)
    given = {"attention": seen.to(device), "positions": positions.to(device)}
    return network.forward(ids.to(device), **given)[0]
