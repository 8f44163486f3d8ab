"""Numbers under verl's names against the functions of the installed verl themselves."""

import numpy as np
import pytest

from samepolicy import measure_batch
from samepolicy.names import FRAMEWORKS
from tests.oracles.batches import batch

pytestmark = pytest.mark.full


def by_verl(data: dict[str, np.ndarray]) -> dict[str, float]:
    import torch
    from verl import DataProto
    from verl.trainer.ppo.rollout_corr_helper import compute_offpolicy_metrics
    from verl.utils.debug.metrics import calculate_debug_metrics

    trainer, rollout, mask = (torch.from_numpy(data[n]) for n in ("trainer", "rollout", "mask"))
    tensors = {"old_log_probs": trainer, "rollout_log_probs": rollout, "response_mask": mask, "responses": mask.long()}
    found = calculate_debug_metrics(DataProto.from_dict(tensors=tensors))
    off_policy = compute_offpolicy_metrics(trainer, rollout, mask.float())
    return found | {f"rollout_corr/{k}": v for k, v in off_policy.items()}


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("spread", [0.05, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_verl_and_samepolicy_log_the_same_numbers(seed, spread, empty):
    data = batch(seed, spread=spread, empty=empty)
    data["trainer"] = np.nan_to_num(data["trainer"])
    data["rollout"] = np.maximum(data["rollout"], -30)
    ours = measure_batch(**data, names="verl").flat("verl")
    for key, value in by_verl(data).items():
        assert ours[key] == pytest.approx(value, rel=2e-4, abs=2e-6), key


def test_extreme_ratios_are_clamped_as_verl_does_and_counted():
    data = batch(0, spread=0.01, empty=False)
    data["trainer"] = np.nan_to_num(data["trainer"])
    data["rollout"] = np.maximum(data["rollout"], -30)
    data["rollout"][0, 0] = -60.0
    data["trainer"][0, 0] = -1.0
    found = measure_batch(**data, names="verl")
    verl = by_verl(data)
    for key in ("chi2_token", "chi2_seq"):
        assert found.flat("verl")[f"rollout_corr/{key}"] == pytest.approx(verl[f"rollout_corr/{key}"], rel=1e-4)
    assert found.counts.clamped == 2


def test_an_empty_mask_is_not_valid():
    data = batch(0)
    data["mask"] = np.zeros_like(data["mask"])
    flat = measure_batch(**data, names="verl").flat("verl")
    assert flat["training/rollout_probs_diff_valid"] == 0
    assert all(np.isnan(v) for k, v in flat.items() if not k.endswith("_valid"))


def test_every_verl_key_is_checked():
    data = batch(0, empty=False)
    data["trainer"] = np.nan_to_num(data["trainer"])
    expected = set(by_verl(data)) | {"debug/consistency_rel_diff"}
    table = FRAMEWORKS["verl"]
    assert set(table.keys) | {table.valid} == expected
