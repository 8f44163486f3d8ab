"""The one switch that asks for a correction in verl, written out in verl's own configuration; and loggers by switch."""

import json
import subprocess
import sys

import pytest

from samepolicy.errors import InputError
from samepolicy.integrations import verl_loss_config as settings
from tests.integrations.batches import Trainer, config, proto, tensors

pytestmark = pytest.mark.full


def whole_config(*overrides):
    """verl's real configuration of a training run with overrides, as its command line composes it."""
    from pathlib import Path

    import verl.trainer
    from hydra import compose, initialize_config_dir

    folder = str(Path(verl.trainer.__file__).parent / "config")
    with initialize_config_dir(folder, version_base=None):
        return compose("ppo_trainer", ["actor_rollout_ref.rollout.calculate_log_probs=True", *overrides])


def test_one_switch_makes_verls_own_actor_configuration_carry_the_correction():
    from verl.utils.config import omega_conf_to_dataclass

    config = whole_config(
        "+trainer.samepolicy.correction=[{step: Truncate, above: 3.0}, {step: Veto, below: 0.001}]",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
    )
    assert settings.expand(config)
    assert settings.expand(config), "a second time finds what the first one wrote"
    found = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    asked = settings.read(found.policy_loss)
    assert (str(asked.correction), asked.loss) == ("Correction(Truncate(3.0), Veto(below=0.001))", "gspo")
    assert found.policy_loss.loss_mode == "samepolicy"
    assert config.algorithm.rollout_correction.rollout_is == "token"
    assert config.algorithm.rollout_correction.rollout_is_threshold == settings.UNBOUNDED
    assert config.actor_rollout_ref.model.external_lib == [settings.LIBRARY]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["+trainer.samepolicy.correction=tiz"], "no correction 'tiz'"),
        (["+trainer.samepolicy.correction=m2po"], "looks at the whole batch"),
        (["+trainer.samepolicy.correction=[{step: Trunc}]"], "no step of"),
        (["+trainer.samepolicy.correction=[{step: Truncate, abov: 3}]"], "Truncate cannot be made of"),
        (["+trainer.samepolicy.correction={from: swiftly}"], "no from: 'swiftly'"),
        (["+trainer.samepolicy.correction=3"], "is no correction"),
        (["+trainer.samepolicy.correction=tis", "algorithm.rollout_correction.rollout_is=sequence"], "both weigh"),
        (["+trainer.samepolicy.correction=tis", "algorithm.rollout_correction.bypass_mode=True"], "count twice"),
        (
            ["+trainer.samepolicy.correction=tis", "actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean"],
            "no weights",
        ),
        (
            ["+trainer.samepolicy.correction=tis", "actor_rollout_ref.rollout.calculate_log_probs=False"],
            "which are off",
        ),
    ],
)
def test_a_correction_that_cannot_be_given_is_refused_before_anything_is_trained(overrides, sentence):
    with pytest.raises(InputError, match=sentence):
        settings.expand(whole_config(*overrides))


def test_without_the_switch_nothing_is_changed():
    config = whole_config("+trainer.samepolicy.save_dir=run")
    before = str(config)
    assert not settings.expand(config)
    assert str(config) == before


def test_verls_own_check_expands_the_switch_and_its_workers_find_the_loss():
    """In a new process, as a worker is one: verl's own loading of `external_lib` registers the loss."""
    code = (
        "import json, verl\n"
        "from verl.utils import config as checks\n"
        "from verl.utils.import_utils import import_external_libs\n"
        "from tests.integrations.test_verl_loss_config import whole_config\n"
        "config = whole_config('+trainer.samepolicy.correction=tis', 'data.train_batch_size=8',\n"
        "    'actor_rollout_ref.actor.ppo_mini_batch_size=8',\n"
        "    'actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1',\n"
        "    'actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1')\n"
        "checks.validate_config(config=config, use_reference_policy=False, use_critic=False)\n"
        "import_external_libs(list(config.actor_rollout_ref.model.external_lib))\n"
        "from verl.trainer.ppo.core_algos import get_policy_loss_fn\n"
        "print(json.dumps([get_policy_loss_fn(config.actor_rollout_ref.actor.policy_loss.loss_mode).__module__]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == ["samepolicy.integrations.verl_loss"]


def test_loggers_by_switch_get_each_step_and_one_that_cannot_be_made_is_said(tmp_path, caplog):
    from samepolicy.integrations import verl_hook

    hook = verl_hook.Hook()
    asked = {"loggers": {"jsonl": {"folder": str(tmp_path / "log")}, "jsonm": None}}
    found = hook.step(proto(tensors()), Trainer(config=config(samepolicy=asked), global_steps=3))
    hook.flush()
    (line,) = (tmp_path / "log" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] == 3
    assert json.loads(line)["histograms"]
    assert not json.loads(line)["metrics"], "verl's own logger has the numbers"
    assert found["samepolicy/monitor/failed"] == 0
    assert "logger jsonm could not be made" in caplog.text
    hook._monitor.close()
    for made in hook._monitor.loggers:
        made.close()


@pytest.mark.parametrize(("settings_", "monitored"), [({"correction": "tis"}, False), ({"enable": True}, True)])
def test_a_correction_alone_asks_for_no_monitor(settings_, monitored):
    from samepolicy.integrations.verl_switches import read

    assert (read(config(samepolicy=settings_)).monitor is not None) is monitored
