"""Corrections built from verl's flags against verl's own function, on ragged batches with extreme ratios."""

import numpy as np
import pytest

from samepolicy import Correction
from samepolicy.corrections.frameworks.verl import REJECTIONS
from tests.oracles.correction_batches import correction_batch

pytestmark = pytest.mark.full

PENALTIES = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "k1+": "k1+", "k3+": "k3+"}
K1 = ("0.5_2.0", "0.8_1.1", 1.3)
K2, K3 = (0.02, 0.2, "1.0"), (0.02, 0.2, "1.0")


def both(seed, *, junk=0.0, dtype=np.float64, **flags):
    """Weights (None without) and mask of verl, and what the correction of the same flags gives."""
    import torch
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    data = {n: x.astype(dtype) for n, x in correction_batch(seed, junk=junk).items() if n in ("trainer", "rollout")}
    data["mask"] = correction_batch(seed)["mask"]
    tensors = {n: torch.from_numpy(x) for n, x in data.items()}
    weights, mask, _ = compute_rollout_correction_and_rejection_mask(
        tensors["trainer"], tensors["rollout"], tensors["mask"].to(tensors["trainer"].dtype), **flags
    )
    theirs = None if weights is None else weights.batch["rollout_is_weights"].numpy()
    return theirs, mask.numpy().astype(bool), data, Correction.from_verl(**flags)(**data)


@pytest.mark.parametrize("junk", [0.0, 1e10, np.nan])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("threshold", [2.0, 1.2, "3.5", "0.5_2.0", "0.9_1.1"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_weights_are_those_of_verl(level, threshold, normalise, junk):
    flags = {"rollout_is": level, "rollout_is_threshold": threshold, "rollout_is_batch_normalize": normalise}
    for seed in range(3):
        weights, _, data, found = both(seed, junk=junk, **flags)
        mask = data["mask"]
        np.testing.assert_allclose(found.weights[mask], weights[mask], rtol=1e-6, atol=1e-12)
        assert (found.weights[~mask] == 0).all()  # verl leaves NaN · 0 there where the junk is NaN
        assert (found.keep == mask).all()


@pytest.mark.parametrize("junk", [0.0, 1e10, np.nan])
@pytest.mark.parametrize("option", REJECTIONS)
def test_rejections_are_those_of_verl(option, junk):
    dropped = 0
    for seed in range(3):
        for threshold in {"k1": K1, "k2": K2, "k3": K3}[option[-2:]]:
            _, mask, data, found = both(seed, junk=junk, rollout_rs=option, rollout_rs_threshold=threshold)
            np.testing.assert_array_equal(found.keep, mask & data["mask"])
            np.testing.assert_array_equal(found.weights, found.keep)
            dropped += (data["mask"] & ~mask).sum()
    assert dropped


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_chained_rejections_with_weights_are_those_of_verl(level):
    flags = {
        "rollout_is": level,
        "rollout_is_batch_normalize": True,
        "rollout_rs": "token_k1, seq_mean_k3,seq_max_k2,token_k1",
        "rollout_rs_threshold": "0.4_2.5,0.3,2.0",
    }
    for seed in range(3):
        weights, mask, _, found = both(seed, **flags)
        np.testing.assert_array_equal(found.keep, mask)
        np.testing.assert_allclose(found.weights, weights * mask, rtol=1e-6)


def test_float32_batches_agree_to_float32():
    for level in ("token", "sequence"):
        weights, _, data, found = both(4, dtype=np.float32, rollout_is=level, rollout_is_threshold=2.0)
        assert found.weights.dtype == np.float32
        np.testing.assert_allclose(found.weights[data["mask"]], weights[data["mask"]], rtol=2e-6)


def test_exception_k1_bounds_as_documented_differ_from_the_code():
    flags = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_1.1"}
    _, _, data, found = both(0, **flags)
    documented = Correction.from_verl(**flags, k1_bounds="documented")(**data)
    ratio = np.exp(data["trainer"] - data["rollout"])
    np.testing.assert_array_equal(documented.keep, data["mask"] & (ratio >= 0.5) & (ratio <= 1.1))
    np.testing.assert_array_equal(found.keep, data["mask"] & (1 / ratio >= 0.5) & (1 / ratio <= 1.1))
    assert (documented.keep != found.keep).any()


def test_bypass_mode_rejects_by_the_current_policy_and_weighs_only_reinforce():
    flags = {"rollout_is": "token", "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.3, "bypass_mode": True}
    data = correction_batch(5)
    batch = {"trainer": data["current"], "rollout": data["rollout"], "mask": data["mask"]}
    clipped = Correction.from_verl(**flags)(**batch)
    plain = Correction.from_verl(**flags, loss_type="reinforce")(**batch)
    assert set(np.unique(clipped.weights)) == {0.0, 1.0}
    np.testing.assert_array_equal(clipped.keep, plain.keep)
    assert len(np.unique(plain.weights)) > 2


@pytest.mark.parametrize(
    "average", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
)
def test_losses_are_averaged_as_verl_does(average):
    import torch
    from verl.trainer.ppo.core_algos import agg_loss

    from samepolicy.kl import average_loss

    data = correction_batch(6)
    ours = average_loss(data["trainer"], data["mask"], average)
    theirs = agg_loss(torch.from_numpy(data["trainer"]), torch.from_numpy(data["mask"]).double(), average)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-7)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("k1", "kl"), ("k2", "mse"), ("k3", "low_var_kl"), ("k3+", "k3+"), ("k1+", "k1+")]
)
def test_penalties_and_their_gradients_are_those_of_verl(ours, theirs):
    import torch
    from verl.trainer.ppo.core_algos import kl_penalty as by_verl

    from samepolicy.kl import kl_values

    data = correction_batch(7)
    inside = data["mask"].copy()
    inside[-1] = False  # verl clamps the penalty of ratios as extreme as the last row's
    current, reference = (torch.from_numpy(data[n][inside]) for n in ("trainer", "rollout"))
    gradients = []
    for call in (
        lambda x: kl_values(current=x, reference=reference, kind=ours),
        lambda x: by_verl(x, reference, theirs),
    ):
        x = current.clone().requires_grad_()
        values = call(x)
        values.sum().backward()
        gradients.append((values.detach(), x.grad))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-6, atol=1e-9)
