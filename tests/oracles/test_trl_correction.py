"""Corrections built from TRL's flags against the importance-sampling ratio that TRL's own trainer computes.

The trainer's method runs whole, on an object that holds what it reads: generation, scoring and rewards are given.
"""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

from samepolicy import Correction
from tests.oracles.correction_batches import correction_batch

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]  # importing TRL warns about its own plans

BOUNDS = ((None, 3.0), (0.5, 2.0), (0.8, None), (None, 1.1))
ON = {"vllm_importance_sampling_correction": True}


def light(data, flags):
    """What `GRPOTrainer._generate_and_score_completions` reads of a trainer, with its models' results given."""
    import torch

    tensors = {n: torch.from_numpy(data[n]) for n in ("trainer", "rollout", "mask")}
    rows, time = data["mask"].shape
    tokens = [[5] * time] * rows
    mask = [[int(m) for m in row] for row in data["mask"]]
    sampled = [[None if np.isnan(x) else x for x in row] for row in data["rollout"].tolist()]
    generated = ([[3, 4]] * rows, tokens, mask, ["text"] * rows, sampled, {}, None, None)
    return SimpleNamespace(
        **ON | flags,
        use_vllm=True,
        accelerator=SimpleNamespace(device="cpu", gather=lambda x: x, process_index=0),
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
        args=SimpleNamespace(
            per_device_train_batch_size=rows,
            steps_per_generation=1,
            gradient_accumulation_steps=1,
            gradient_checkpointing_kwargs=None,
        ),
        _generate=lambda prompts: generated,
        _get_per_token_logps_and_entropies=lambda *a, **k: (tensors["trainer"], None, None),
        _calculate_rewards=lambda *a: torch.arange(rows, dtype=torch.float64)[:, None],
        _tokenizer=SimpleNamespace(pad_token_id=0),
        _metrics={"train": defaultdict(list)},
        _logs=defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list)),
        _pending_extra_logs={},
        _pending_metrics={},
        **dict.fromkeys(("environment_factories", "environments", "tools", "ref_model", "pad_to_multiple_of")),
        **dict.fromkeys(("mask_truncated_completions", "log_multimodal", "_is_vlm"), False),
        num_iterations=1,
        num_generations=rows,
        beta=0.0,
        reward_funcs=[None],
        reward_func_names=["given"],
        reward_weights=torch.ones(1),
        scale_rewards="group",
        multi_objective_aggregation="sum_then_normalize",
    )


def by_trl(data, flags):
    from trl.trainer.grpo_trainer import GRPOTrainer

    rows = [{"prompt": "question"} for _ in data["mask"]]
    found = GRPOTrainer._generate_and_score_completions(light(data, flags), rows)
    return np.broadcast_to(found["importance_sampling_ratio"].numpy(), data["mask"].shape)


def flags_of(mode, bounds):
    names = ("vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max")
    return {"vllm_importance_sampling_mode": mode, **dict(zip(names, bounds, strict=True))}


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_weights_are_those_of_trl(mode, bounds, missing):
    flags = flags_of(mode, bounds)
    for seed in range(3):
        data = correction_batch(seed)
        if missing:
            data["rollout"][0, 0] = np.nan
        batch = {n: data[n] for n in ("trainer", "rollout", "mask")}
        found = Correction.from_trl(**flags)(**batch)
        theirs = by_trl(data, flags)
        inside = data["mask"]
        np.testing.assert_allclose(found.weights[inside], theirs[inside], rtol=2e-6, atol=1e-12)
        assert (found.keep == inside).all()
        assert found.stats.nonfinite == missing


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.3])
def test_the_off_policy_mask_is_that_of_trl(threshold):
    import torch
    from trl.trainer.grpo_trainer import GRPOTrainer

    dropped = 0
    for seed in range(4):
        data = correction_batch(seed)
        data["rollout"][0, 0] = np.nan
        t = {n: torch.from_numpy(data[n]) for n in ("current", "rollout", "mask", "advantage")}
        keep = GRPOTrainer.get_off_policy_mask(
            t["advantage"][:, None], t["current"], t["rollout"], t["mask"].long(), threshold
        ).numpy()
        del data["turn"]
        flags = {"vllm_importance_sampling_correction": False, "off_policy_mask_threshold": threshold}
        found = Correction.from_trl(**flags)(**data)
        np.testing.assert_array_equal(found.keep, data["mask"] & keep.astype(bool))
        dropped += (keep == 0).sum()
    assert dropped


def test_defaults_are_those_of_trl():
    from dataclasses import fields
    from inspect import signature

    from trl import GRPOConfig

    from samepolicy.corrections.frameworks.trl import correction

    theirs = {f.name: f.default for f in fields(GRPOConfig)}
    assert {n: p.default for n, p in signature(correction).parameters.items()} == {
        n: theirs[n] for n in signature(correction).parameters
    }
