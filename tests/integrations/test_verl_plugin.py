"""The plugin in the real verl: it loads, costs nothing while off, stays beside verl's numbers, and never raises."""

import importlib
import json
import logging
import random
import subprocess
import sys

import numpy as np
import pytest

from samepolicy.records.store import read
from tests.integrations.batches import SHAPE, Trainer, by_loop, config, proto, tensors

pytestmark = pytest.mark.full


@pytest.fixture
def metrics(monkeypatch):
    """verl's module with the function of verl alone; a hook of its own is put around it."""
    import torch  # noqa: F401
    from verl.utils.debug import metrics

    from samepolicy.integrations import verl_hook

    hook = verl_hook.Hook()
    original = metrics.calculate_debug_metrics
    while hasattr(original, "__wrapped__"):
        original = original.__wrapped__
    monkeypatch.setattr(metrics, "calculate_debug_metrics", verl_hook._measured(original, hook))
    metrics.hook, metrics.original = hook, original
    yield metrics
    hook.flush()
    for claim in [hook._claim, *(hook._monitor._claims.values() if hook._monitor else ())]:
        if claim is not None:
            claim.release()
    if hook._writer:
        hook._writer.close()
    if hook._monitor:
        hook._monitor.close()
    del metrics.hook, metrics.original


def step(number=3, **trainer):
    return Trainer(config=config(**trainer), global_steps=number)


def numpys():
    """The state of NumPy's one global generator."""
    return np.random.get_state()[1].tolist()  # noqa: NPY002 - the one that others' code may use


def said(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "samepolicy.monitor"]


def test_verl_loads_it_in_a_new_process_and_only_then_its_trainers_bind_the_function():
    code = (
        "import verl, sys, json\n"
        "from verl.utils.debug import metrics\n"
        "from verl.utils import config\n"
        "import samepolicy.integrations.verl as ours\n"
        "heavy = [m for m in ('pyarrow', 'plotly', 'rich', 'scipy.stats') if m in sys.modules]\n"
        "print(json.dumps([hasattr(metrics.calculate_debug_metrics, 'samepolicy_hook'),"
        " hasattr(config.validate_config, 'samepolicy_hook'),"
        " metrics.calculate_token_level_prob_diff is ours.calculate_token_level_prob_diff, ours.attach(), heavy]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [True, True, True, False, []]


def test_the_plugins_own_modules_import_no_torch():
    code = "import samepolicy.integrations.verl_hook, sys\nprint('torch' in sys.modules, 'verl' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_with_the_switches_off_verls_own_dict_comes_back_and_no_random_state_moves(metrics, monkeypatch):
    import torch

    from samepolicy.integrations import verl_hook

    made = {"training/rollout_probs_diff_valid": 1}
    monkeypatch.setattr(metrics, "calculate_debug_metrics", verl_hook._measured(lambda data: made, metrics.hook))
    states = random.getstate(), numpys(), torch.get_rng_state().tolist()
    assert step().fit(proto(tensors())) is made
    assert states == (random.getstate(), numpys(), torch.get_rng_state().tolist())


def clean(seed=0):
    held = tensors(seed)
    off = held["response_mask"] == 0
    for name in ("old_log_probs", "rollout_log_probs"):
        held[name][off] = 0.0
    return held


@pytest.mark.parametrize("on", [False, True])
def test_verls_own_numbers_are_unchanged(metrics, on):
    held = clean()
    found = step(enable_token_level_prob_diff=on).fit(proto(held))
    own = metrics.original(proto(held))
    assert {name: found[name] for name in own} == own
    grid = {name for name in found if "/s" in name}
    assert bool(grid) is on
    assert set(found) == {*own, *grid}


def test_the_grid_follows_the_switches(metrics):
    held = clean()
    on = {"enable_token_level_prob_diff": True}
    found = step(**on, prob_diff_token_max_print=3, prob_diff_sample_max_print=2).fit(proto(held))
    diff = by_loop(held)
    wanted = {
        f"training/rollout_probs_diff/s{s}_p{p:04d}": diff[s, p]
        for s in range(2)
        for p in range(3)
        if held["response_mask"][s, p]
    }
    assert {n: v for n, v in found.items() if "/s" in n} == pytest.approx(wanted, abs=1e-6)


def test_the_files_are_written_with_the_trainers_step_though_the_batch_is_reused(metrics, tmp_path):
    held = clean()
    on = {"enable_token_level_prob_diff": True, "prob_diff_save_dir": str(tmp_path / "pd")}
    step(11, **on).fit(proto(held))
    wanted = by_loop(held)
    held["old_log_probs"].zero_()
    metrics.hook.flush()
    np.testing.assert_allclose(np.load(tmp_path / "pd" / "prob_diff_step_11.npy"), wanted, atol=1e-6)
    assert np.load(tmp_path / "pd" / "prob_mask_step_11.npy").shape == SHAPE
    assert read(tmp_path / "pd").tokens == int(held["response_mask"].sum())


def test_the_whole_monitor_writes_a_run_and_logs_our_names(metrics, tmp_path):
    data = proto(clean())
    data.non_tensor_batch["uid"] = np.array(list("aabbc"), dtype=object)
    found = step(5, samepolicy={"save_dir": str(tmp_path / "run")}).fit(data)
    metrics.hook.flush()
    assert 0 < found["samepolicy/ess_token/ess"] <= 1
    assert found["rollout_corr/k3_kl"] > 0
    assert found["samepolicy/monitor/failed"] == 0
    run = read(tmp_path / "run")
    assert run["group"].tolist() == list("aabbc")
    assert run["step"].tolist() == [5] * 5
    assert (run.rollout.engine, run.rollout.dtype, run.rollout.sampling.top_k) == ("vllm", "bfloat16", 0)
    assert run["prompt_ids"].lengths.tolist() == [3] * 5


@pytest.mark.parametrize(
    ("trainer", "words", "level"),
    [
        ({"log_probs": False}, "calculate_log_probs=True", logging.WARNING),
        ({"bypass": True}, "copy of the rollout's", logging.ERROR),
    ],
)
def test_what_cannot_be_given_is_said_once(metrics, caplog, trainer, words, level):
    from samepolicy.integrations import verl_hook

    made = config(enable_token_level_prob_diff=True, **trainer)
    validate = verl_hook._checked(lambda config, use_critic: use_critic, metrics.hook)
    assert [validate(made, True), validate(config=made, use_critic=True)] == [True, True]
    assert len(said(caplog)) == 1
    assert words in said(caplog)[0]
    assert caplog.records[-1].levelno == level


def test_in_bypass_mode_no_perfect_score_is_reported(metrics, caplog):
    held = clean()
    held["old_log_probs"] = held["rollout_log_probs"].clone()
    found = step(enable_token_level_prob_diff=True, bypass=True).fit(proto(held))
    assert set(found) == set(metrics.original(proto(held)))
    assert len(said(caplog)) == 1


def test_nothing_is_said_where_nothing_is_asked_for(metrics, caplog):
    metrics.hook.check(config(log_probs=False, bypass=True))
    assert said(caplog) == []


@pytest.mark.parametrize("why", ["mask", "setting", "no method", "folder"])
def test_it_never_raises_into_a_step_and_says_why_once(metrics, caplog, why, tmp_path):
    held, on = clean(), {"enable_token_level_prob_diff": True}
    if why == "mask":
        held["response_mask"] = held["response_mask"] * 3
    if why == "setting":
        on = {"samepolicy": {"save": "x"}}
    if why == "folder":
        (tmp_path / "file").write_text("x")
        on["prob_diff_save_dir"] = str(tmp_path / "file" / "below")
    call = metrics.calculate_debug_metrics if why == "no method" else step(**on).fit
    for _ in range(2):
        found = call(proto(held))
        metrics.hook.flush()
        assert {"training/rollout_probs_diff_valid"} <= set(found)
    assert len(said(caplog)) == 1
    if why == "folder":
        assert step(**on).fit(proto(held))["samepolicy/monitor/prob_diff_failed"] >= 2


def test_what_could_not_be_measured_is_counted_and_costs_the_other_part_nothing(metrics, tmp_path, caplog):
    on = {"enable_token_level_prob_diff": True}
    found = step(**on, samepolicy={"names": "unheard"}).fit(proto(clean()))
    assert found["samepolicy/monitor/prob_diff_skipped"] == 1
    assert len([name for name in found if "/s" in name and "_p" in name]) > 10
    held = clean()
    del held["rollout_log_probs"]
    assert metrics.hook.step(proto(held), step(**on)) == {"samepolicy/monitor/prob_diff_skipped": 2}
    assert metrics.hook.step(proto(clean()), step(**on))["samepolicy/monitor/prob_diff_skipped"] == 2
    assert any("no names 'unheard'" in line for line in said(caplog))


def test_a_verl_without_its_check_of_the_configuration_is_measured_and_said(monkeypatch, caplog):
    from verl.utils import config as checks
    from verl.utils.debug import metrics

    from samepolicy.integrations import verl_hook

    for module, name in ((metrics, "calculate_debug_metrics"), (metrics, "calculate_token_level_prob_diff")):
        monkeypatch.setattr(module, name, lambda data: {}, raising=False)
    monkeypatch.delattr(checks, "validate_config")
    assert verl_hook.attach()
    assert hasattr(metrics.calculate_debug_metrics, verl_hook.MARK)
    assert any("has no validate_config" in line for line in said(caplog))


def test_a_verl_without_the_function_is_said_by_the_plugin(monkeypatch, caplog):
    from verl.utils.debug import metrics

    monkeypatch.delattr(metrics, "calculate_debug_metrics")
    monkeypatch.delitem(sys.modules, "samepolicy.integrations.verl_plugin", raising=False)
    with pytest.raises(AttributeError):  # which verl hides where it loads plugins
        importlib.import_module("samepolicy.integrations.verl_plugin")
    assert any("could not be attached to" in r.getMessage() for r in caplog.records)


def test_the_callers_batch_is_not_kept_alive(metrics):
    import gc
    import weakref

    class Big:
        pass

    def fit(self, data):
        big = Big()
        ref = weakref.ref(big)
        metrics.calculate_debug_metrics(data)
        del big
        gc.collect()
        return ref()

    assert fit(step(enable_token_level_prob_diff=True), proto(clean())) is None
