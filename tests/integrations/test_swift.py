"""What attaches to ms-swift's trainers, with numbers that its own functions gave; real runs are in `test_swift_e2e`."""

import math

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.errors import InputError, MissingDependencyError
from samepolicy.integrations import swift
from samepolicy.records.store import read
from tests.integrations.swift_trainers import Fused, Trainer, micro_batches
from tests.oracles.test_swift_correction import CASES

pytestmark = pytest.mark.full

WEIGHTS = [c for c in CASES if c["kind"] == "weights" and c["junk"] == 0]
METRICS = [c for c in CASES if c["kind"] == "metrics" and c["junk"] == 0]
PREFIX = "rollout_correction/"


def flags(case):
    return {
        "rollout_importance_sampling_mode": case["mode"],
        "rollout_importance_sampling_threshold": case["threshold"],
    }


def kept(trainer):
    return {name: float(values[-1]) for name, values in trainer._metrics["train"].items()}


@pytest.mark.parametrize("cut", [None, 3])
@pytest.mark.parametrize("case", METRICS, ids=lambda case: str(case["seed"]))
def test_the_metrics_are_those_of_swift_however_a_batch_is_cut(case, cut):
    trainer = Trainer(micro_batches(case["seed"], cut=cut, junk=1e10))
    attached = swift.attach(trainer)
    trainer._generate_and_score_completions([])
    found = kept(trainer)
    for name, value in case["logged"].items():
        assert found[PREFIX + name] == pytest.approx(value, rel=1e-6, abs=1e-12), name
    assert (attached.failed, found["samepolicy/swift/failed"]) == (0, 0)


@pytest.mark.parametrize("kind", [Trainer, Fused])
@pytest.mark.parametrize("case", WEIGHTS, ids=lambda case: f"{case['seed']}-{case['mode']}-{case['threshold']}")
def test_the_loss_gets_the_weights_of_swift(case, kind):
    (batch,) = micro_batches(case["seed"])
    trainer = kind([batch])
    swift.attach(trainer, correction=sp.Correction.from_swift(**flags(case)))
    logged = trainer.compute_loss(batch["grpo_batch"])
    (weights,) = trainer.asked
    mask = batch["grpo_batch"].completion_mask
    np.testing.assert_allclose(weights[mask].numpy(), case["weights"], rtol=1e-6, atol=1e-12)
    if kind is Trainer:
        for name, value in case["logged"].items():
            assert logged[name].item() == pytest.approx(value, rel=1e-6), name
        assert kept(trainer)["samepolicy/correction/raw/tokens"] == int(mask.sum())


def test_steps_that_swift_has_not_reach_its_loss():
    (batch,) = micro_batches(0)
    correct = sp.Correction(sp.Band(0.5, 2.0), sp.Reject("abs_prob_diff", above=0.1), sp.Veto(below=1e-3))
    trainer = Trainer([batch])
    swift.attach(trainer, correction=correct)
    logged = trainer.compute_loss(batch["grpo_batch"])
    held = batch["grpo_batch"]
    expected, _, stats = correct(
        trainer=held.old_per_token_logps, rollout=held.rollout_per_token_logps, mask=held.completion_mask
    )
    np.testing.assert_array_equal(trainer.asked[0].numpy(), expected.numpy())
    assert 0 < stats.kept < 1
    mean = expected.numpy()[held.completion_mask.numpy()].mean()
    assert logged["is_weight_mean"].item() == pytest.approx(mean, rel=1e-6)


def test_without_a_correction_the_methods_of_the_loss_are_not_touched_and_detach_gives_all_back(tmp_path):
    trainer = Trainer(micro_batches(0))
    attached = swift.attach(trainer, monitor=tmp_path / "run")
    assert {name for name in vars(trainer) if name.startswith("_") and callable(vars(trainer)[name])} == {
        "_generate_and_score_completions"
    }
    assert trainer.rollout_importance_sampling_mode is None
    with pytest.raises(InputError, match="attached to already"):
        swift.attach(trainer)
    trainer._generate_and_score_completions([])
    attached.detach()
    assert "_generate_and_score_completions" not in vars(trainer)
    run = read(tmp_path / "run")
    held = trainer.batches[0]["grpo_batch"]
    mask = held.completion_mask.numpy()
    assert set(run["step"].tolist()) == {5}
    np.testing.assert_allclose(
        np.concatenate([*run["trainer_logp"]]), held.old_per_token_logps.numpy()[mask], rtol=1e-6
    )
    ids = trainer.batches[0]["model_inputs"]["input_ids"].numpy()[:, 2:][mask]
    np.testing.assert_array_equal(np.concatenate([*run["response_ids"]]), ids)


def test_a_correction_is_taken_away_again():
    trainer = Trainer(micro_batches(0))
    attached = swift.attach(trainer, correction=sp.Correction(sp.Truncate(2.0)))
    assert trainer.rollout_importance_sampling_mode is not None
    attached.detach()
    assert trainer.rollout_importance_sampling_mode is None
    assert not {"_apply_rollout_importance_sampling", "_compute_is_correction_metrics"} & {*vars(trainer)}


def test_where_swift_logs_its_own_keys_ours_stay_out_of_them():
    trainer = Trainer(micro_batches(0), log=True)
    swift.attach(trainer)
    trainer._generate_and_score_completions([])
    assert not [name for name in trainer._metrics["train"] if name.startswith(PREFIX)]
    assert "samepolicy/swift/failed" in trainer._metrics["train"]
    assert len(trainer._metrics["train"]) > 20


def test_the_numbers_below_rollout_correction_are_what_each_trainer_can_stack():
    import torch

    trainer = Trainer(micro_batches(0))
    swift.attach(trainer)
    trainer._generate_and_score_completions([])
    held = [v for name, v in trainer._metrics["train"].items() if name.startswith(PREFIX)]
    assert torch.stack([torch.stack(v) for v in held]).shape == (len(held), 1)  # what its `log` does


def test_a_batch_without_rollout_log_probs_is_counted_and_said_and_training_goes_on(caplog):
    batches = micro_batches(0, cut=3)
    batches[1]["grpo_batch"].rollout_per_token_logps = None
    trainer = Trainer(batches)
    swift.attach(trainer)
    assert trainer._generate_and_score_completions([]) is batches
    assert kept(trainer)["samepolicy/monitor/skipped"] == 1
    assert not any(math.isfinite(v) for n, v in kept(trainer).items() if n.startswith(PREFIX))


@pytest.mark.parametrize("mode", [None, "token_mask"])
def test_a_fault_leaves_the_loss_to_swift_is_counted_and_said_once(mode, caplog):
    (batch,) = micro_batches(0)
    trainer = Trainer([batch], mode=mode)
    attached = swift.attach(trainer, correction=sp.Correction(sp.Truncate(2.0)))
    held = batch["grpo_batch"]
    held.rollout_per_token_logps = held.rollout_per_token_logps.clone()
    attached.correction = sp.Correction(sp.OffPolicyMask(0.1))  # needs what is not there
    for _ in range(2):
        trainer.compute_loss(held)
    assert attached.failed == 2
    assert [float(w.unique()) for w in trainer.asked] == [1.0 if mode is None else 0.5] * 2
    assert len([r for r in caplog.records if "training goes on" in r.message]) == 1


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (sp.OffPolicyMask(0.1), "off_policy_sequence_mask_delta"),
        (sp.SecondMoment(0.04), "needs|whole batch"),
    ],
)
def test_steps_that_cannot_be_given_are_refused(step, sentence):
    with pytest.raises(InputError, match=sentence):
        swift.attach(Trainer(micro_batches(0)), correction=sp.Correction(step))
    with pytest.raises(InputError, match="0.10.2"):
        swift.attach(Trainer(micro_batches(0), disabled=True), correction=sp.Correction(sp.Truncate(2.0)))
    with pytest.raises(InputError, match="GRPO trainer"):
        swift.attach(object())


def test_evaluation_and_steps_between_are_not_measured():
    trainer = Trainer(micro_batches(0))
    swift.attach(trainer, monitor=sp.Monitor(every=2))
    trainer._generate_and_score_completions([])  # step 5
    assert not trainer._metrics["train"]
    trainer.state.global_step = 5
    trainer.model.training = False
    trainer._generate_and_score_completions([])
    assert not trainer._metrics["eval"]
    trainer.model.training = True
    trainer._generate_and_score_completions([])
    assert trainer._metrics["train"]


def test_the_megatron_trainer_is_read_where_it_keeps_things(monkeypatch):
    """Its ranks gather over Megatron's group, which does not install here: with one rank there is nothing to gather."""
    from samepolicy.integrations import swift_hook

    monkeypatch.setattr(swift_hook, "gathered", lambda trainer, mine: mine)
    trainer = Trainer(micro_batches(0), megatron=True)
    attached = swift.attach(trainer)
    trainer._generate_and_score_completions([])
    assert attached.monitor.trainer.engine == "megatron"
    found = trainer._metrics["train"]
    assert {type(v[0]) for v in found.values()} == {float}
    for name, value in METRICS[0]["logged"].items():
        assert found[PREFIX + name][0] == pytest.approx(value, rel=1e-6, abs=1e-12), name


def test_the_settings_are_judged(caplog):
    trainer = Trainer(micro_batches(0))
    trainer.args.top_p = 0.9
    swift.attach(trainer)
    trainer._generate_and_score_completions([])
    assert "top_p" in caplog.text


def test_without_swift_one_sentence_says_what_to_install():
    with pytest.raises(MissingDependencyError, match="pip install ms-swift"):
        swift.register()
