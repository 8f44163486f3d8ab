"""attach on real `GRPOTrainer`s where something is missing, fails or has moved: it is said, and training goes on."""

import logging
from dataclasses import dataclass

import pytest

from samepolicy import Correction, Monitor
from samepolicy.corrections.base import MaskStep
from samepolicy.errors import InputError
from samepolicy.integrations import trl, trl_doctor
from tests.integrations.trl_trainers import Engine, logged, said, trainer

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("trl"), pytest.mark.filterwarnings("ignore")]


def test_an_engine_without_log_probs_is_skipped_counted_and_said_once(tmp_path, caplog):
    made = trainer(tmp_path / "t", Engine(silent=True))
    attached = trl.attach(made, rollout_importance_sampling_mode="token_mask")
    with caplog.at_level(logging.ERROR):
        made.train()
    attached.detach()
    assert [entry["samepolicy/trl/skipped"] for entry in logged(made)] == [1, 2]
    assert not any(name.startswith("rollout_correction") for name in logged(made)[0])
    assert len([r for r in caplog.records if "Rollout log-probs are missing" in r.getMessage()]) == 1


@dataclass(frozen=True)
class Broken(MaskStep):
    """A step of somebody's that fails."""

    def keep(self, work):
        raise RuntimeError("no such thing")


def test_what_fails_is_counted_and_said_once_and_training_goes_on(tmp_path, caplog):
    made = trainer(tmp_path / "t", Engine())
    attached = trl.attach(made, correction=Correction(Broken()))
    made.train()
    attached.detach()
    assert [entry["samepolicy/trl/failed"] for entry in logged(made)] == [1, 2]
    assert len([line for line in said(caplog) if "no such thing" in line]) == 1


def test_a_call_site_that_moved_is_said_and_training_goes_on_without_the_correction(tmp_path, caplog, monkeypatch):
    places = {**trl_doctor.PLACES, "_compute_loss": ("compute_loss", ("ratio_of_tomorrow",))}
    monkeypatch.setattr(trl_doctor, "PLACES", places)
    made = trainer(tmp_path / "t", Engine(spread=0.1), max_steps=1)
    attached = trl.attach(made, rollout_importance_sampling_mode="token_mask")
    made.train()
    attached.detach()
    assert attached.correction is None
    assert any("does not know 'ratio_of_tomorrow'" in line for line in said(caplog))
    assert any("correction is off" in line for line in said(caplog))
    assert logged(made)[0]["rollout_correction/k3_kl"] > 0
    assert "rollout_correction/ess" not in logged(made)[0]


def test_a_trl_that_lacks_a_place_or_keeps_its_metrics_elsewhere_trains_on(tmp_path, caplog, monkeypatch):
    from trl.trainer.grpo_trainer import GRPOTrainer

    monkeypatch.delattr(GRPOTrainer, "get_off_policy_mask")
    made = trainer(tmp_path / "t", Engine(spread=0.1), max_steps=1)
    attached = trl.attach(made, rollout_importance_sampling_mode="token_mask")
    made.train()
    attached.detach()
    assert any("GRPOTrainer has no get_off_policy_mask" in line for line in said(caplog))
    assert logged(made)[0]["rollout_correction/k3_kl"] > 0
    assert attached.failed == 0
    for kept in ({"train": {}, "eval": {}}, None):
        made._metrics = kept
        attached._log({"samepolicy/k3/mean": 1.0})
    assert len([line for line in said(caplog) if "keeps its metrics elsewhere" in line]) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rollout_is": "token"}, "no switch 'rollout_is'"),
        ({"rollout_importance_sampling_mode": "tokens"}, "cannot be 'tokens'"),
        ({"rollout_importance_sampling_mode": "token_mask", "correction": Correction()}, "given twice"),
        ({"rollout_importance_sampling_threshold": 0.0}, "must be above 0"),
    ],
)
def test_a_wrong_call_is_a_sentence_before_training(given, words, tmp_path):
    made = type("Trainer", (), {"use_vllm": False, "loss_type": "grpo", "_compute_loss": None})()
    with pytest.raises(InputError, match=words):
        trl.attach(made, **given)


def test_only_a_grpo_trainer_is_attached_to_and_only_once(tmp_path):
    with pytest.raises(InputError, match="object has none of the methods"):
        trl.attach(object())
    made = trainer(tmp_path / "t", Engine(), max_steps=1)
    attached = trl.attach(made)
    with pytest.raises(InputError, match="attached to already"):
        trl.attach(made)
    attached.detach()
    trl.attach(made).detach()


def test_off_costs_nothing_and_every_is_heeded(tmp_path, monkeypatch):
    made = trainer(tmp_path / "t", Engine(spread=0.1))
    attached = trl.attach(made, monitor=Monitor(every=2))
    scored = []
    monkeypatch.setattr(attached, "_score", lambda output: scored.append(1) or output["sampling_per_token_logps"])
    made.train()
    attached.detach()
    assert [any(name.startswith("samepolicy") for name in entry) for entry in logged(made)] == [False, True]
    assert scored == [1]


def test_vespo_takes_no_sequence_weights():
    made = type("Trainer", (), {"use_vllm": False, "loss_type": "vespo", "_compute_loss": None})()
    with pytest.raises(InputError, match="vespo"):
        trl.attach(made, rollout_importance_sampling_mode="sequence_mask")


def test_an_engine_too_old_for_processed_log_probs_is_refused(monkeypatch):
    from samepolicy.integrations import trl_sides

    made = type(
        "Trainer", (), {"use_vllm": True, "vllm_mode": "colocate", "loss_type": "grpo", "_compute_loss": None}
    )()
    monkeypatch.setattr(trl_sides, "version", lambda package: "0.9.2")
    with pytest.raises(InputError, match=r"vLLM 0\.10\.2 or newer, but this is vLLM 0\.9\.2"):
        trl.attach(made, rollout_importance_sampling_mode="token_mask")
