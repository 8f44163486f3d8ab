"""What `samepolicy doctor verl` says about the real verl and about configurations."""

import json

import pytest

from samepolicy.cli.main import status
from samepolicy.integrations import verl_doctor
from samepolicy.integrations.verl_doctor import calls, examine

pytestmark = pytest.mark.full
ON = "+trainer.enable_token_level_prob_diff=True"
LOG = "actor_rollout_ref.rollout.calculate_log_probs=True"


def test_in_this_verl_everything_stands():
    found = {check.name: check.status for check in examine()}
    assert found.pop("switches") == "not checked"
    assert set(found.values()) == {"passed"}
    assert len([name for name in found if name.startswith("call site")]) == 5


@pytest.mark.parametrize(
    ("settings", "state", "words"),
    [
        ([LOG], "failed", "nothing asks"),
        ([ON], "failed", LOG),
        ([ON, LOG], "passed", "no files"),
        ([ON, LOG, "+trainer.prob_diff_save_dir=pd"], "passed", "files go to pd"),
        ([ON, LOG, "algorithm.rollout_correction.bypass_mode=True"], "failed", "copy"),
        (["+trainer.samepolicy.sav_dir=run", LOG], "failed", "no setting trainer.samepolicy.sav_dir"),
        (["+trainer.samepolicy.enable=True", LOG], "passed", "the monitor is on"),
        (["+trainer.samepolicy.names=unheard", LOG], "failed", "no names 'unheard'"),
        (["+trainer.samepolicy.queue=0", LOG], "failed", "A queue needs a limit"),
        (["+trainer.samepolicy.grid=[2,3]", LOG], "passed", "the monitor is on"),
        (["+trainer.samepolicy.loggers=unheard", LOG], "failed", "no logger 'unheard'"),
        (["+trainer.samepolicy.loggers=[jsonl]", LOG], "passed", "the monitor is on"),
    ],
)
def test_switches_are_checked(settings, state, words):
    found = examine(settings)[-1]
    assert found.status == state
    assert words in found.why


def test_a_file_and_overrides_are_merged(tmp_path):
    file = tmp_path / "verl.yaml"
    file.write_text("trainer:\n  enable_token_level_prob_diff: true\n")
    assert examine([str(file)])[-1].status == "failed"
    assert examine([str(file), LOG])[-1].status == "passed"


@pytest.mark.parametrize(("content", "words"), [(None, "neither a file"), ("a: [", "no YAML")])
def test_what_is_no_configuration_is_a_sentence(content, words, tmp_path, capsys):
    file = tmp_path / "verl.yaml"
    if content:
        file.write_text(content)
    assert status(["doctor", "verl", str(file)]) == 2
    assert words in capsys.readouterr().err


def test_a_moved_call_site_is_seen():
    method = "class A:\n def fit(self, b):\n  m.update(calculate_debug_metrics(b))\n"
    assert list(calls(method)) == [3]
    assert list(calls("def fit(b):\n  calculate_debug_metrics(b)\n")) == []
    assert list(calls(method.replace("(b))", "())"))) == []


def test_a_verl_without_the_function_or_its_callers_is_seen(monkeypatch, tmp_path):
    import verl
    from verl.utils.debug import metrics

    monkeypatch.delattr(metrics, "calculate_debug_metrics")
    found = next(check for check in examine() if check.name == "plugin")
    assert (found.status, "no verl.utils.debug.metrics.calculate_debug_metrics" in found.why) == ("failed", True)
    places = [*verl_doctor._call_sites(tmp_path)]
    assert {check.status for check in places} == {"failed"}
    assert "a correction cannot be given" in places[-1].why
    assert verl.__file__  # it was loaded with its own


def test_a_plugin_that_did_not_load_is_seen(monkeypatch):
    import verl  # noqa: F401 - loads the plugin before its mark is changed

    from samepolicy.integrations import verl_hook

    monkeypatch.setattr(verl_hook, "MARK", "something_else")
    assert "VERL_USE_EXTERNAL_PLUGINS" in next(c for c in examine() if c.name == "plugin").why
    monkeypatch.setattr(verl_doctor, "entry_points", lambda group: [])
    assert "entry point" in next(c for c in examine() if c.name == "plugin").why


def test_the_command_prints_and_returns_a_status(capsys):
    assert status(["doctor", "verl", ON, LOG]) == 0
    assert "call site" in capsys.readouterr().out
    assert status(["doctor", "verl", ON, "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["framework"] == "verl"
    assert [check["status"] for check in value["checks"]][-1] == "failed"
