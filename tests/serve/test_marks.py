"""Alarms and changes of level: those that the monitor itself raised while it recorded the run."""

from pathlib import Path

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.monitor.alarms import LOOK_EVERY
from samepolicy.serve.marks import STORE_EVERY, Replay
from samepolicy.serve.steps import Row
from samepolicy.serve.watch import Watch
from tests.serve.conftest import SIDES, batch

pytestmark = pytest.mark.full


def test_marks_are_what_the_monitor_said(folder: Path):
    events: list[str] = []
    with sp.Monitor(save_dir=folder, grid=None, loggers=(lambda seen: events.extend(seen.events),), **SIDES) as monitor:
        for step in range(32):
            monitor(step=step, **batch(step, spread=0.01 if step < 16 else 0.4))
            if step % LOOK_EVERY == LOOK_EVERY - 1:
                monitor.flush()  # the change that is looked for now is known before the next step
    watch = Watch(folder, title="run")
    while watch.look():
        pass
    said = watch.history.everything([])["marks"]
    assert said["active"] == sorted(name.replace(" ", ".") for name in monitor.alarms)
    alarms = [sentence for kind, _, _, sentence in said["listed"] if kind == "alarm"]
    assert [e.removeprefix("alarm: ") for e in events if "is high" in e or "is low" in e] == alarms
    changes = [(step, sentence.split()[1]) for kind, step, _, sentence in said["listed"] if kind == "change"]
    theirs = [e for e in events if "changed its level" in e]
    assert sorted(changes) == sorted(
        (int(e.split("at step ")[1].split()[0]), e.split("from ")[1].split()[0]) for e in theirs
    )
    assert alarms
    assert changes


def rows(count: int, seed: int = 0) -> list[tuple[int, Row]]:
    """Steps of which some raise alarms, with a level that changes every now and then."""
    rng = np.random.default_rng(seed)
    ess = 0.9 - 0.2 * (np.arange(count) // 90 % 2) + rng.normal(0, 0.01, count)
    outside = [{"k3 mean": f"k3 at {i}"} if flag else {} for i, flag in enumerate(rng.random(count) < 0.1)]
    return [(i, Row(1, 1, {"ess_token.ess": float(ess[i])}, outside[i], 1, 0)) for i in range(count)]


def test_going_on_is_the_same_as_going_through_all():
    all_rows = rows(2 * STORE_EVERY + 40)
    replay = Replay()
    for end in (10, 11, STORE_EVERY + 3, len(all_rows)):
        assert replay.marks(all_rows[:end]) == Replay().marks(all_rows[:end])
    changed = [*all_rows]
    changed[STORE_EVERY + 50] = (STORE_EVERY + 50, Row(1, 1, {}, {"k1 mean": "k1 is high"}, 1, 0))
    assert replay.marks(changed) == Replay().marks(changed)
    assert replay.new(changed) == 0
    assert replay.marks(all_rows[5:]) == Replay().marks(all_rows[5:])
    kinds = {mark.kind for mark in replay.marks(all_rows)}
    assert kinds == {"alarm", "change"}
