"""Pruning: what stays is what was promised, a dry run touches nothing, and a killed one loses nothing that stays."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records.places import Place
from samepolicy.records.prune import prune
from samepolicy.records.source import Source, open_source


def make(folder: Path, steps: range = range(1, 8), rows: int = 6, tokens: int = 40) -> None:
    for step in steps:
        rng = np.random.default_rng(step)
        r = -rng.exponential(1, (rows, tokens)).astype(np.float32)
        t = np.minimum(r + 0.05 * rng.standard_normal((rows, tokens), dtype=np.float32), 0)
        sp.write(
            sp.Run.from_lists(rollout_logp=list(r), trainer_logp=list(t), sample=list(range(rows))), folder, step=step
        )


def gaps(run: sp.Run) -> np.ndarray:
    """Mean abs d of each response, by a loop."""
    pairs = zip(run["trainer_logp"], run["rollout_logp"], strict=True)
    return np.array([np.mean(np.abs(t.astype(float) - r.astype(float))) for t, r in pairs])


def promised(run: sp.Run, every: int, worst: int) -> sp.Run:
    """The rows that must stay, by a loop."""
    far, step = gaps(run), run["step"]
    keep = (step % every == 0) | (step == step.max())
    for s in np.unique(step):
        rows = np.flatnonzero(step == s)
        keep[rows[np.argsort(-far[rows], kind="stable")[:worst]]] = True
    return run.select(keep)


def contents(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir()}


@pytest.mark.parametrize(("every", "worst"), [(3, 2), (1, 0), (100, 0), (2, 99)])
def test_what_stays_is_what_was_promised(tmp_path: Path, every: int, worst: int) -> None:
    make(tmp_path)
    before, expected = contents(tmp_path), promised(sp.read(tmp_path), every, worst)
    plan = prune(tmp_path, every=every, worst=worst)
    assert contents(tmp_path) == before
    done = prune(tmp_path, every=every, worst=worst, write=True)
    assert sp.read(tmp_path) == expected
    assert (plan.kept, plan.responses, plan.done) == (len(expected), 42, False)
    assert {**plan.as_dict(), "done": True} == done.as_dict()
    assert done.bytes_after == sum(f.stat().st_size for f in tmp_path.glob("*.parquet"))
    assert done.bytes_before == sum(len(data) for name, data in before.items() if name.endswith(".parquet"))
    again = prune(tmp_path, every=every, worst=worst, write=True)
    assert (again.rewritten, again.removed, sp.read(tmp_path)) == (0, 0, expected)


def test_a_part_of_several_steps_and_responses_without_a_step(tmp_path: Path) -> None:
    make(tmp_path / "a")
    whole = sp.read(tmp_path / "a")
    sp.write(whole, tmp_path / "b")
    prune(tmp_path / "b", every=3, worst=1, write=True)
    assert sp.read(tmp_path / "b") == promised(whole, 3, 1)
    sp.write(whole.without("step"), tmp_path / "c")
    assert prune(tmp_path / "c", every=3, worst=0, write=True).kept == 42
    assert sp.read(tmp_path / "c") == whole.without("step")


def test_shards_of_a_step_are_judged_together(tmp_path: Path) -> None:
    make(tmp_path / "a", range(1, 3))
    whole = sp.read(tmp_path / "a")
    for rows in (range(2), range(2, 6)):
        sp.write(whole.select(whole["step"] == 1).select(list(rows)), tmp_path / "b")
    sp.write(whole.select(whole["step"] == 2), tmp_path / "b")
    prune(tmp_path / "b", every=10, worst=2, write=True)
    assert sp.read(tmp_path / "b") == promised(whole, 10, 2)


def test_bad_values_and_the_newest_writing_stay(tmp_path: Path) -> None:
    odd = [[-1.0, np.nan], [-1.0, 0.5], [-1.0, -1.0], [-1.0, -1.0]]
    run = sp.Run.from_lists(rollout_logp=odd, trainer_logp=[[-1.0, -1.0]] * 4, mask=[[1, 1]] * 3 + [[1, 0]])
    for attempt in (1, 2):
        sp.write(run.with_columns(attempt=[attempt] * 4), tmp_path, step=1)
    sp.write(run.with_columns(attempt=[1] * 4), tmp_path, step=2)
    done = prune(tmp_path, every=10, worst=0, write=True)
    left = sp.read(tmp_path)
    assert list(zip(left["step"].tolist(), left["attempt"].tolist(), strict=True)) == [(1, 2)] * 2 + [(2, 1)] * 4
    assert (done.removed, done.rewritten, done.responses) == (1, 1, 8)


KILLED = """
import sys
from pathlib import Path
from samepolicy.records.prune import prune
print("go", flush=True)
prune(Path(sys.argv[1]), every=10, worst=1, write=True)
"""


@pytest.mark.parametrize("wait", [0.005, 0.05])
def test_a_killed_pruning_loses_nothing_that_stays(tmp_path: Path, wait: float) -> None:
    make(tmp_path, range(1, 31), rows=4, tokens=300)
    whole = sp.read(tmp_path)
    expected = promised(whole, 10, 1)
    with subprocess.Popen([sys.executable, "-c", KILLED, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        while process.poll() is None and not any(f.name.startswith(".part") for f in tmp_path.iterdir()):
            time.sleep(0.0005)
        time.sleep(wait)
        process.kill()
    left = sp.read(tmp_path)
    have = {(s, i): v.tobytes() for s, i, v in zip(left["step"], left["sample"], left["rollout_logp"], strict=True)}
    must = {
        (s, i): v.tobytes()
        for s, i, v in zip(expected["step"], expected["sample"], expected["rollout_logp"], strict=True)
    }
    assert must.items() <= have.items()
    assert len(have) == len(left) <= len(whole)
    prune(tmp_path, every=10, worst=1, write=True)
    assert sp.read(tmp_path) == expected


def test_a_new_file_that_does_not_read_back_never_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    before = contents(tmp_path)

    def wrong(run: sp.Run, file: object) -> None:
        from samepolicy.records.arrow import write_table

        write_table(run.with_columns(rollout_logp=run["trainer_logp"]), file)  # type: ignore[arg-type]

    monkeypatch.setattr("samepolicy.records.prune.write_table", wrong)
    with pytest.raises(InputError, match="does not read back as it was written, so the old file stays"):
        prune(tmp_path, every=3, worst=2, write=True)
    assert contents(tmp_path) == before


def test_what_cannot_be_pruned(tmp_path: Path) -> None:
    make(tmp_path, range(1, 3))
    with pytest.raises(InputError, match="every must be 1 or more"):
        prune(tmp_path, every=0)
    with pytest.raises(InputError, match="is not on this machine"):
        prune("file:///somewhere", every=2)
    part = next(tmp_path.glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    before = contents(tmp_path)
    with pytest.raises(CorruptFileError, match=part.name):
        prune(tmp_path, every=2, write=True)
    assert contents(tmp_path) == before


def test_parts_that_come_meanwhile_are_left_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)

    def grown(place: Place) -> Source:
        source = open_source(place)
        make(tmp_path, range(8, 10))
        return source

    monkeypatch.setattr("samepolicy.records.prune.open_source", grown)
    prune(tmp_path, every=3, worst=0, write=True)
    steps, responses = np.unique(sp.read(tmp_path)["step"], return_counts=True)
    assert steps.tolist() == [3, 6, 7, 8, 9]
    assert responses.tolist() == [6] * 5
