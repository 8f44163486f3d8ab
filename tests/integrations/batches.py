"""Batches of the real verl, and a trainer that calls verl's metrics as verl's own do."""

from types import SimpleNamespace
from typing import Any

import numpy as np

SHAPE = (5, 12)


def tensors(seed: int = 0, *, prompt: int = 3) -> dict[str, Any]:
    """Log-probs with junk outside a mask that has gaps, and one response without a token."""
    import torch

    rng = np.random.default_rng(seed)
    mask = np.arange(SHAPE[1]) < rng.integers(2, SHAPE[1] + 1, (SHAPE[0], 1))
    mask[:, 1] = False
    mask[3] = False
    rollout = -rng.exponential(1.0, SHAPE)
    trainer = np.minimum(rollout + 0.1 * rng.standard_normal(SHAPE), -1e-6)
    trainer[~mask], rollout[~mask] = np.nan, 1e9
    attention = np.concatenate([np.ones((SHAPE[0], prompt)), mask], axis=1)
    return {
        "old_log_probs": torch.tensor(trainer, dtype=torch.float32),
        "rollout_log_probs": torch.tensor(rollout, dtype=torch.float32),
        "response_mask": torch.tensor(mask).long(),
        "attention_mask": torch.tensor(attention).long(),
        "responses": torch.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE),
        "prompts": torch.ones((SHAPE[0], prompt), dtype=torch.long),
    }


def proto(held: dict[str, Any]) -> Any:
    """The real `DataProto`."""
    from verl import DataProto

    return DataProto.from_dict(tensors=held)


def by_loop(held: dict[str, Any]) -> np.ndarray:
    """The difference of each token, one by one, with Python's own numbers."""
    import math

    out = np.zeros(SHAPE)
    for i in range(SHAPE[0]):
        for t in range(SHAPE[1]):
            if held["response_mask"][i, t] == 1:
                both = (float(held[name][i, t]) for name in ("rollout_log_probs", "old_log_probs"))
                a, b = (math.exp(x) for x in both)
                out[i, t] = abs(a - b)
    return out


def config(**trainer: Any) -> Any:
    """A configuration as verl hands it to its trainers."""
    from omegaconf import OmegaConf

    rollout = {"calculate_log_probs": True, "name": "vllm", "dtype": "bfloat16", "temperature": 1.0, "top_k": -1}
    algorithm = {"rollout_correction": {"bypass_mode": trainer.pop("bypass", False)}}
    rollout["calculate_log_probs"] = trainer.pop("log_probs", True)
    made = OmegaConf.create(
        {
            "trainer": trainer,
            "algorithm": algorithm,
            "actor_rollout_ref": {"rollout": rollout, "model": {"path": "MODEL"}},
        }
    )
    OmegaConf.set_struct(made, True)
    return made


class Trainer(SimpleNamespace):
    """Calls verl's function from a method, as `PPOTrainer._compute_old_log_prob` and `RayPPOTrainer.fit` do."""

    def fit(self, data: Any) -> dict[str, Any]:
        from verl.utils.debug.metrics import calculate_debug_metrics

        found: dict[str, Any] = calculate_debug_metrics(data)
        return found
