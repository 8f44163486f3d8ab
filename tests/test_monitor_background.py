"""The monitor's writer, what the end of a process leaves of it, and its alarms."""

import logging
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from samepolicy import Monitor, Side, measure_batch, read
from samepolicy.health import THRESHOLDS
from samepolicy.monitor import writer as background
from samepolicy.monitor.alarms import Alarms, History
from samepolicy.monitor.folders import Claim
from samepolicy.monitor.writer import Once, Writer, words
from tests.monitoring import clean, own, said


@pytest.mark.parametrize("when_full", ["wait", "drop"])
def test_a_full_queue_waits_or_drops_and_counts(when_full):
    writer, gate, ran = Writer(limit=2, when_full=when_full), threading.Event(), []
    writer.submit(gate.wait)
    writer.submit(lambda: ran.append(1))
    if when_full == "drop":
        assert not writer.submit(lambda: ran.append(2))
        gate.set()
    else:
        threading.Timer(0.1, gate.set).start()
        assert writer.submit(lambda: ran.append(2))
    writer.close()
    assert (ran, writer.dropped) == (([1], 1) if when_full == "drop" else ([1, 2], 0))


def test_a_flush_with_too_little_time_says_so():
    writer, gate = Writer(), threading.Event()
    writer.submit(gate.wait)
    assert not writer.flush(0.02)
    gate.set()
    assert writer.flush(5)
    writer.close()


SCRIPT = """
    import os, signal, sys, time
    import numpy as np
    from samepolicy import Monitor
    from samepolicy.monitor import records
    real = records.write_run
    def slow(*args, **kwargs):
        time.sleep(0.3)
        return real(*args, **kwargs)
    records.write_run = slow
    {before}
    monitor = Monitor(save_dir=sys.argv[1], queue=8)
    logp = -np.ones((2, 3))
    for step in range(3):
        monitor(step=step, trainer=logp, rollout=logp, mask=logp < 0)
    {after}
"""
ENDS = {
    "exit": ("pass", "pass", 0),
    "exception": ("pass", "raise RuntimeError('training broke')", 1),
    "SIGTERM": ("pass", "os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", -signal.SIGTERM),
    "SIGTERM with a handler of its own": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))",
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)",
        7,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_waits_is_written_when_the_process_ends(end, tmp_path):
    before, after, code = ENDS[end]
    script = textwrap.dedent(SCRIPT).format(before=before, after=after)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, check=False)
    assert done.returncode == code, done.stderr.decode()
    assert np.unique(read(tmp_path / "run")["step"]).tolist() == [0, 1, 2]


def test_a_killed_process_loses_what_waited_and_nothing_else(tmp_path):
    first = "os.listdir(sys.argv[1]) if os.path.isdir(sys.argv[1]) else ()"
    after = f"while not any(f.startswith('part') for f in ({first})): time.sleep(0.01)"
    script = textwrap.dedent(SCRIPT).format(before="pass", after=after) + "\nos.kill(os.getpid(), signal.SIGKILL)\n"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert np.unique(read(tmp_path / "run")["step"]).tolist() == [0]
    claim = Claim(tmp_path / "run", Once())
    assert claim.folder() == tmp_path / "run"  # the system let go of the lock
    claim.release()


def test_a_forked_process_does_not_wait_for_its_parents_writer(tmp_path):
    fork = "started = time.monotonic(); child = os.fork(); child or sys.exit(int(time.monotonic() - started > 5))"
    after = f"{fork}; assert os.waitpid(child, 0)[1] == 0"
    script = textwrap.dedent(SCRIPT).format(before="pass", after=after)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert np.unique(read(tmp_path / "run")["step"]).tolist() == [0, 1, 2]


def test_a_wrong_temperature_raises_the_alarm_at_the_first_step_and_says_it_once(caplog):
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((1, 400, 20))
    raw = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    warm = logits / 1.5 - np.log(np.exp(logits / 1.5).sum(-1, keepdims=True))
    ids = np.array([[rng.choice(20, p=np.exp(row)) for row in warm[0]]])[..., None]
    rollout, trainer = (np.take_along_axis(side, ids, -1)[..., 0] for side in (warm, raw))
    monitor = Monitor()
    found = [monitor(step=step, trainer=trainer, rollout=rollout, mask=rollout < 0) for step in (1, 2)]
    assert "prob_diff mean" in monitor.alarms
    assert own(found[0])["alarms"] == own(found[1])["alarms"] == own(found[1])["alarms_raised"] >= 1
    assert len([line for line in said(caplog) if "prob_diff mean" in line]) == 1


def test_a_healthy_pair_raises_none(caplog):
    found = Monitor(rollout=Side(dtype="bfloat16"), trainer=Side(dtype="bfloat16"))(step=1, **clean(spread=0.003))
    assert (own(found)["alarms"], said(caplog)) == (0, [])


def test_an_alarm_needs_every_range_of_a_metric_to_be_left():
    k3 = sorted(t.high for t in THRESHOLDS if t.metric == "k3")
    monitor, data = Monitor(), clean(spread=0.2)
    found = monitor(step=1, **data)
    assert k3[0] < found["samepolicy/k3/mean"] < k3[1]
    assert "k3 mean" not in monitor.alarms


def test_without_alarms_none_are_counted():
    assert "alarms" not in own(Monitor(calm=0)(step=1, **clean(spread=1.0)))


def test_a_value_that_hovers_is_one_alarm_until_it_is_calm():
    alarms = Alarms(Once(), calm=3)
    pattern = [1, 0, 1, 0, 0, 1, 0, 0, 0, 1]
    states = []
    for step, outside in enumerate(pattern):
        alarms.update({"x": "high"} if outside else {}, step=step)
        states.append(bool(alarms.active))
    assert states == [True] * 8 + [False, True]
    assert alarms.raised == 2


def test_a_change_of_level_in_the_runs_own_history_is_found_once():
    history, found = History(), []
    for step in range(40):
        history.add(measure_batch(**clean(step, spread=0.02 if step < 20 else 0.2)), step=step)
        if work := history.look(lambda *what: found.append((step, *what))):  # noqa: B023 - called at once
            work()
    names = [name for _, name, _ in found]
    assert "ess" in names
    assert len(names) == len(set(names))
    assert min(step for step, *_ in found) < 32


def test_a_steady_history_raises_nothing():
    history, found = History(), []
    for step in range(64):
        history.add(measure_batch(**clean(step)), step=step)
        if work := history.look(lambda *what: found.append(what)):
            work()
    assert found == []


def test_the_log_holds_each_sentence_once(caplog):
    say = Once()
    for _ in range(3):
        say("a sentence.")
        say("another.", key="other", level=logging.ERROR)
    assert said(caplog) == ["samepolicy: a sentence.", "samepolicy: another."]


# ------------------------------------------------------------------------------------------------ nothing stops it


class WordlessError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [ValueError("down"), SystemExit(3), KeyboardInterrupt(), WordlessError()])
def test_whatever_a_job_raises_the_thread_goes_on_and_nobody_waits_for_it(error, caplog):
    def job():
        raise error

    writer = Writer(limit=1)
    for _ in range(3):
        assert writer.submit(job)
    assert writer.flush(5)
    assert (writer.failed, writer.done) == (3, 3)
    assert said(caplog) == [f"samepolicy: could not write ({words(error)}); training goes on."]
    writer.close()


def test_a_job_that_never_ends_costs_records_and_not_the_training(monkeypatch, caplog):
    monkeypatch.setattr(background, "PATIENCE", 0.2)
    writer, gate, ran = Writer(limit=1), threading.Event(), []
    writer.submit(gate.wait)
    began = time.monotonic()
    assert [writer.submit(lambda: ran.append(1)) for _ in range(20)] == [False] * 20
    assert 0.2 < time.monotonic() - began < 2  # the first waits, and the others know by then
    assert (writer.dropped, ran) == (20, [])
    assert 0.2 < writer.waited < 2
    gate.set()
    writer.flush(5)
    assert writer.submit(lambda: ran.append(2))
    writer.close()
    assert ran == [2]
    assert len(said(caplog)) == 1


def test_every_logger_that_raises_is_counted_and_said_and_the_others_get_the_step(caplog):
    def one(seen):
        raise ValueError("one is down")

    def two(seen):
        raise SystemExit

    steps = []
    with Monitor(loggers=(one, two, lambda seen: steps.append(seen.step)), calm=0) as monitor:
        for step in (1, 2):
            monitor(step=step, **clean())
        monitor.flush()
        assert own(monitor(step=3, **clean()))["failed"] == 4
    assert steps == [1, 2, 3]
    assert [line for line in said(caplog) if "one is down" in line or "SystemExit" in line] == said(caplog)
    assert len(said(caplog)) == 2


def test_the_same_reason_with_other_numbers_is_said_once_and_another_one_too(caplog):
    say = Once()
    for text in ("shape 3 is not 4", "shape 5 is not 6", "a mask of 2"):
        say.because(ValueError(text), "lost ({}).")
    assert said(caplog) == ["samepolicy: lost (shape 3 is not 4).", "samepolicy: lost (a mask of 2)."]


def test_a_forked_process_that_measures_writes_to_a_folder_of_its_own(tmp_path):
    after = "monitor.flush(); child = os.fork(); monitor(step=7 + (child > 0), trainer=logp, rollout=logp, mask=logp<0)"
    after += "; child or (monitor.close(), os._exit(0)); assert os.waitpid(child, 0)[1] == 0"
    script = textwrap.dedent(SCRIPT).format(before="pass", after=after)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert np.unique(read(tmp_path / "run")["step"]).tolist() == [0, 1, 2, 8]
    assert np.unique(read(tmp_path / "run-2")["step"]).tolist() == [7]
