"""A trainer with ms-swift's method names that calls them in ms-swift's order, and answers with what ms-swift gave.

ms-swift wants another TRL than this project's, so its trainers cannot be imported here. What its own functions returned
for known batches is recorded in `tests/oracles/recorded/swift.json`; `swift_run` trains with the real trainer, in an
environment of its own.
"""

from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tests.oracles.correction_batches import correction_batch


@dataclass
class GRPOBatch:
    """The fields of ms-swift's class that are read."""

    completion_mask: Any
    old_per_token_logps: Any = None
    rollout_per_token_logps: Any = None
    ref_per_token_logps: Any = None
    advantages: Any = None
    logits_to_keep: int | None = None


def micro_batches(seed: int, *, cut: int | None = None, junk: float = 0.0) -> list[dict[str, Any]]:
    """A batch of the oracles as one micro-batch, or as two, the second of which is longer by padding."""
    import torch

    data = correction_batch(seed, junk=junk)
    rows = len(data["mask"])
    found = []
    for part in [slice(0, rows)] if cut is None else [slice(0, cut), slice(cut, rows)]:
        held = {n: torch.from_numpy(data[n][part]) for n in ("trainer", "rollout", "mask")}
        if part.start:
            held = {n: torch.nn.functional.pad(x, (3, 0)) for n, x in held.items()}
        batch = GRPOBatch(held["mask"], held["trainer"], held["rollout"], logits_to_keep=held["mask"].shape[1])
        batch.advantages = torch.from_numpy(data["advantage"][part])[:, None].expand(held["mask"].shape)
        ids = torch.arange(held["mask"].numel()).reshape(held["mask"].shape)
        found.append({"model_inputs": {"input_ids": torch.nn.functional.pad(ids, (2, 0))}, "grpo_batch": batch})
    return found


class Trainer:
    """Generates recorded batches; its loss asks for weights as ms-swift's does.

    Attributes:
        answers: what ms-swift's own function gives, by its name.
        asked: the weights that the loss was given.
    """

    def __init__(self, batches: list[dict[str, Any]], *, megatron: bool = False, **settings: Any) -> None:
        self.batches, self.asked = batches, []
        self.rollout_importance_sampling_mode = settings.pop("mode", None)
        self.log_rollout_offpolicy_metrics = settings.pop("log", False)
        self.disable_rollout_importance_sampling = settings.pop("disabled", False)
        self.args = SimpleNamespace(use_vllm=True, temperature=1.0, bf16=True, tuner_type="full")
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.temperature = 1.0
        network = SimpleNamespace(training=True, dtype="torch.float32")
        if megatron:
            self.unwrapped_models, self.state = [network], SimpleNamespace(iteration=4)
        else:
            self.model, self.state = network, SimpleNamespace(global_step=4)
            self.accelerator = SimpleNamespace(num_processes=1, is_main_process=True, device="cpu")

    def _generate_and_score_completions(self, inputs: Any) -> list[dict[str, Any]]:
        return self.batches

    def _compute_rollout_offpolicy_metrics(self, trainer: Any, rollout: Any, mask: Any) -> dict[str, Any]:
        return {"kl": (rollout - trainer)[mask].mean()}

    def _apply_rollout_importance_sampling(self, log_ratio: Any, mask: Any) -> Any:
        return log_ratio.new_full(log_ratio.shape, 0.5)  # told from ours at once

    def _compute_is_correction_metrics(self, log_ratio: Any, weights: Any, mask: Any) -> dict[str, Any]:
        return {"is_weight_mean": weights[mask].mean()}

    def compute_loss(self, batch: GRPOBatch) -> dict[str, Any]:
        """The order of calls in `_compute_loss_and_metrics` (Hugging Face) and `loss_func` (Megatron)."""
        if self.rollout_importance_sampling_mode is None and not self.log_rollout_offpolicy_metrics:
            return {}
        trainer, rollout, mask = batch.old_per_token_logps, batch.rollout_per_token_logps, batch.completion_mask
        logged = self._compute_rollout_offpolicy_metrics(trainer, rollout, mask)
        if self.rollout_importance_sampling_mode is not None:
            log_ratio = trainer - rollout
            weights = self._apply_rollout_importance_sampling(log_ratio, mask)
            logged.update(self._compute_is_correction_metrics(log_ratio, weights, mask))
            self.asked.append(weights)
        return logged


class Fused(Trainer):
    """The order of calls with `use_liger_loss`."""

    def _get_rollout_is_correction(self, trainer: Any, rollout: Any, mask: Any) -> Any:
        log_ratio = trainer - rollout
        return log_ratio, self._apply_rollout_importance_sampling(log_ratio, mask)

    def compute_loss(self, batch: GRPOBatch) -> dict[str, Any]:
        pair = batch.old_per_token_logps, batch.rollout_per_token_logps
        self.asked.append(self._get_rollout_is_correction(*pair, batch.completion_mask)[1])
        return {}
