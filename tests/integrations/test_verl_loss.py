"""Our policy loss in verl's own registry, against verl's own losses and its own correction, on batches with junk."""

import logging
import math

import numpy as np
import pytest

from samepolicy.integrations import verl_loss_config as settings
from tests.oracles.correction_batches import correction_batch

pytestmark = pytest.mark.full

RATIOS = {"rollout_is": "token", "rollout_is_threshold": settings.UNBOUNDED}
VERL = {
    "token": {"rollout_is": "token", "rollout_is_threshold": 2.0},
    "sequence": {"rollout_is": "sequence", "rollout_is_threshold": 1.3},
    "band": {"rollout_is": "token", "rollout_is_threshold": "0.5_2.0"},
    "rejection": {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": "0.05"},
    "both": {"rollout_is": "token", "rollout_is_threshold": 2.0, "rollout_rs": "token_k1,seq_max_k2"}
    | {"rollout_rs_threshold": "0.5_2.0,0.4"},
}
"""verl's own presets, as its flags; each has a counterpart among our steps."""
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm", "token-sum")


@pytest.fixture(scope="module")
def verl():
    """verl's own module of losses, with ours in its registry."""
    import torch  # noqa: F401
    from verl.trainer.ppo import core_algos

    from samepolicy.integrations import verl_loss

    verl_loss.register()
    assert not verl_loss.register()
    return core_algos


def actor(*, correction=None, loss="vanilla", bypass=False, mode="token-mean", whole=None, **more):
    """verl's real configuration of an actor, made as its workers make it."""
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    held = (
        {"samepolicy": {"correction": correction, "loss": loss, "bypass": bypass}} if correction is not None else more
    )
    policy = {"_target_": "verl.workers.config.PolicyLossConfig", "loss_mode": "samepolicy", "rollout_correction": held}
    config = omega_conf_to_dataclass(
        OmegaConf.create(
            {
                "_target_": "verl.workers.config.FSDPActorConfig",
                "strategy": "fsdp",
                "rollout_n": 4,
                "ppo_micro_batch_size_per_gpu": 4,
                "loss_agg_mode": mode,
                "policy_loss": policy,
            }
        )
    )
    config.global_batch_info.update(whole or {})
    return config


def batch(seed, *, junk=0.0):
    """Tensors as verl's `ppo_loss` hands them to a policy loss, and the rollout's log-probs."""
    import torch

    data = correction_batch(seed, junk=junk)
    mask = torch.from_numpy(data["mask"])
    advantages = torch.from_numpy(data["advantage"])[:, None].expand(mask.shape).float()
    found = {n: torch.from_numpy(data[n]).float() for n in ("trainer", "rollout", "current")}
    return {
        "old_log_prob": found["trainer"],
        "log_prob": found["current"].requires_grad_(),
        "advantages": advantages,
        "response_mask": mask,
    }, found["rollout"]


def by_verl(args, rollout, **flags):
    """verl's own weights and mask of a batch."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    weights, mask, _ = compute_rollout_correction_and_rejection_mask(
        args["old_log_prob"], rollout, args["response_mask"].float(), **flags
    )
    return None if weights is None else weights.batch["rollout_is_weights"], mask.bool()


def run(function, args, config, **changes):
    """A loss, its gradient, and its metrics."""
    args = {**args, **changes}
    loss, metrics = function(loss_agg_mode=config.loss_agg_mode, config=config, **args)
    (gradient,) = __import__("torch").autograd.grad(loss, args["log_prob"])
    return loss.item(), gradient.numpy(), metrics


def whole(args, mode):
    """What verl's engines count of the whole batch beforehand, here of twice this one."""
    tokens = 2 * int(args["response_mask"].sum())
    return {"dp_size": 1, "batch_num_tokens": tokens, "global_batch_size": 2 * len(args["response_mask"])}


@pytest.mark.parametrize("loss", ["vanilla", "gspo", "cispo", "dppo_tv"])
@pytest.mark.parametrize("given", ["nothing", "no steps"])
def test_without_a_step_it_is_the_loss_beneath_bit_for_bit(verl, loss, given):
    args, rollout = batch(0, junk=1e10)
    ratios, _ = by_verl(args, rollout, **RATIOS)
    config = actor() if given == "nothing" else actor(correction="none", loss=loss)
    loss = "vanilla" if given == "nothing" else loss
    for weights in (None, ratios) if given == "nothing" else (ratios,):
        ours = run(verl.get_policy_loss_fn("samepolicy"), args, config, rollout_is_weights=weights)
        expected = weights if given == "nothing" else None
        theirs = run(verl.get_policy_loss_fn(loss), args, config, rollout_is_weights=expected)
        assert ours[0] == theirs[0]
        np.testing.assert_array_equal(ours[1], theirs[1])
        assert {k: v for k, v in ours[2].items() if k in theirs[2]} == theirs[2]


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("preset", VERL)
def test_verls_presets_as_our_steps_give_verls_own_loss(verl, preset, mode, counted):
    changed = 0
    for seed in range(3):
        args, rollout = batch(seed)
        total = whole(args, mode) if counted else None
        config = actor(correction={"from": "verl", **VERL[preset]}, mode=mode, whole=total)
        weights, mask = by_verl(args, rollout, **VERL[preset])
        theirs = run(verl.get_policy_loss_fn("vanilla"), args, config, rollout_is_weights=weights, response_mask=mask)
        ratios, _ = by_verl(args, rollout, **RATIOS)
        ours = run(verl.get_policy_loss_fn("samepolicy"), args, config, rollout_is_weights=ratios)
        assert ours[2]["samepolicy/correction/failed"] == 0
        assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5, atol=1e-7)
        plain = run(verl.get_policy_loss_fn("vanilla"), args, config, rollout_is_weights=None)
        changed += abs(plain[0] - theirs[0]) > 1e-4
    assert changed


@pytest.mark.parametrize("loss_type", ["ppo_clip", "reinforce"])
def test_bypass_mode_gives_verls_own_bypass_loss(verl, loss_type):
    flags = {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": "0.05"}
    if loss_type == "reinforce":
        flags |= VERL["token"]
    for seed in range(3):
        args, rollout = batch(seed)
        args["old_log_prob"] = rollout
        config = actor(loss_type=loss_type, **flags)
        theirs = run(verl.get_policy_loss_fn("bypass_mode"), args, config)
        beneath = "reinforce" if loss_type == "reinforce" else "vanilla"
        config = actor(correction={"from": "verl", **flags}, loss=beneath, bypass=True)
        ours = run(verl.get_policy_loss_fn("samepolicy"), args, config)
        assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5, atol=1e-7)


def test_steps_that_verl_has_not_are_those_of_the_correction(verl):
    """A probability-difference mask and an off-policy mask, which needs the current policy and the advantage."""
    from samepolicy import Correction, OffPolicyMask, Reject

    spec = [{"step": "Reject", "measure": "abs_prob_diff", "above": 0.1}, {"step": "OffPolicyMask", "above": 0.01}]
    args, rollout = batch(1)
    ratios, _ = by_verl(args, rollout, **RATIOS)
    config = actor(correction=spec)
    ours = run(verl.get_policy_loss_fn("samepolicy"), args, config, rollout_is_weights=ratios)
    found = Correction(Reject("abs_prob_diff", above=0.1), OffPolicyMask(0.01))(
        trainer=args["old_log_prob"],
        rollout=rollout,
        mask=args["response_mask"],
        current=args["log_prob"].detach(),
        advantage=args["advantages"],
    )
    assert 0 < found.stats.kept < 1
    theirs = run(verl.get_policy_loss_fn("vanilla"), args, config, response_mask=found.keep)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    assert ours[2]["samepolicy/correction/kept"] == pytest.approx(found.stats.kept)


def test_the_metrics_pass_verls_own_aggregation(verl):
    from verl.utils.metric import AggregationType, Metric

    found = []
    for seed in range(2):
        args, rollout = batch(seed)
        ratios, _ = by_verl(args, rollout, **RATIOS)
        config = actor(correction="tis")
        metrics = run(verl.get_policy_loss_fn("samepolicy"), args, config, rollout_is_weights=ratios)[2]
        found.append(Metric.from_dict(metrics, aggregation=AggregationType.MEAN))
    assert found[0].keys() == found[1].keys()
    for name, metric in found[0].items():
        metric.append(found[1][name])
        assert math.isfinite(metric.aggregate()), name


def test_everything_dropped_is_a_loss_of_zero_with_no_gradient(verl):
    args, rollout = batch(2)
    ratios, _ = by_verl(args, rollout, **RATIOS)
    config = actor(
        correction=[{"step": "Reject", "measure": "abs_prob_diff", "above": 1e-30}, {"step": "Veto", "below": 1e30}]
    )
    loss, gradient, metrics = run(verl.get_policy_loss_fn("samepolicy"), args, config, rollout_is_weights=ratios)
    assert (loss, np.abs(gradient).max(), metrics["samepolicy/correction/kept"]) == (0, 0, 0)


@pytest.mark.parametrize("why", ["no ratios", "unknown preset", "bad step"])
def test_a_fault_gives_verls_vanilla_loss_is_counted_and_said_once(verl, caplog, monkeypatch, why):
    from samepolicy.integrations import verl_loss
    from samepolicy.monitor.writer import Once

    monkeypatch.setattr(verl_loss, "_say", Once())
    args, rollout = batch(0)
    ratios, _ = by_verl(args, rollout, **RATIOS)
    spec = {"unknown preset": "tiz", "bad step": [{"step": "Truncate", "above": -1.0}]}.get(why, "tis")
    config = actor(correction=spec)
    weights = None if why == "no ratios" else ratios
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ours = run(verl.get_policy_loss_fn("samepolicy"), args, config, rollout_is_weights=weights)
    theirs = run(verl.get_policy_loss_fn("vanilla"), args, config, rollout_is_weights=None)
    assert ours[0] == theirs[0]
    np.testing.assert_array_equal(ours[1], theirs[1])
    assert ours[2]["samepolicy/correction/failed"] == 1
    assert len(caplog.records) == 1
    assert "vanilla loss" in caplog.text
