"""What is seen of a run folder: every state that it can be in while others write, copy, damage or delete it."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.records.store import write
from samepolicy.report.packed import unpacked
from samepolicy.serve import watch as watching
from samepolicy.serve.steps import NO_STEP, Row
from samepolicy.serve.watch import Watch
from tests.serve.conftest import record

pytestmark = pytest.mark.full


@pytest.fixture
def watch(folder: Path) -> Watch:
    return Watch(folder, title="run")


def settle(watch: Watch) -> dict[int, Row]:
    """Look until nothing waits; the rows."""
    while watch.look():
        pass
    return dict(watch.history.rows())


def part(step: int, *, number: int = 0) -> str:
    return f"part-{step:08d}-{number:06d}.parquet"


def run_of(rollout: list[list[float]], **columns: object) -> sp.Run:
    trainer = [[value - 0.125 for value in row] for row in rollout]
    return sp.Run.from_lists(rollout_logp=rollout, trainer_logp=trainer, **columns)


def test_steps_are_those_of_read_and_measure(watch: Watch, folder: Path):
    record(folder, {1: 0.01, 2: 0.3})
    rows = settle(watch)
    assert list(rows) == [1, 2]
    for step, row in rows.items():
        expected = sp.measure(sp.read(folder, steps=[step]))
        assert (row.responses, row.tokens) == (4, expected.counts.measured)
        for metric, readouts in expected.metrics.items():
            for name, value in readouts.items():
                if name != "count":
                    assert np.array_equal(row.values[f"{metric}.{name}"], value, equal_nan=True)


def test_each_part_is_measured_once(watch: Watch, folder: Path):
    record(folder, {1: 0.01, 2: 0.01})
    settle(watch)
    assert watch.measurer.read == 2
    record(folder, {3: 0.01})
    settle(watch)
    settle(watch)
    assert watch.measurer.read == 3


def test_a_second_rank_adds_to_its_step_and_reads_no_part_again(watch: Watch, folder: Path):
    for rank in range(3):
        write(run_of([[-1.0 - rank, -2.0]], sample=[rank], rank=[rank]), folder, step=5)
        rows = settle(watch)
    assert (rows[5].responses, rows[5].parts, watch.measurer.read) == (3, 3, 3)


def test_of_a_resumed_step_the_last_attempt_counts(watch: Watch, folder: Path):
    record(folder, {7: 0.01})
    before = settle(watch)[7]
    record(folder, {7: 0.5})
    after = settle(watch)[7]
    assert after.responses == 4
    assert after.values["k3.mean"] == sp.measure(sp.read(folder))["k3"]["mean"] > before.values["k3.mean"]


def test_overlapping_parts_count_once(watch: Watch, folder: Path):
    run = run_of([[-1.0, -2.0], [-3.0, -0.5]], sample=[0, 1])
    write(run, folder, step=1)
    write(run, folder, step=1)
    assert settle(watch)[1].responses == 2 == len(sp.read(folder))


def test_a_part_of_many_steps_and_one_of_none(watch: Watch, folder: Path):
    write(run_of([[-1.0], [-2.0, -3.0], [-1.0]], step=[4, 5, 5]), folder)
    rows = settle(watch)
    assert {step: row.responses for step, row in rows.items()} == {4: 1, 5: 2}
    write(run_of([[-1.0]]), folder)
    settle(watch)
    assert watch.history.steps() == [NO_STEP, 4, 5]


def test_a_part_that_is_being_written_is_counted_and_not_read(watch: Watch, folder: Path):
    record(folder, {1: 0.01})
    hidden = folder / f".{part(2)}.tmp"
    hidden.write_bytes(b"PAR1 half of")
    assert list(settle(watch)) == [1]
    assert (watch.history.state.writing, watch.history.state.damaged) == (1, {})
    hidden.unlink()
    settle(watch)
    assert watch.history.state.writing == 0


def test_a_part_that_is_copied_slowly_comes_when_it_is_whole(watch: Watch, folder: Path, monkeypatch):
    record(folder, {1: 0.01, 2: 0.01})
    whole = (folder / part(2)).read_bytes()
    (folder / part(2)).write_bytes(whole[: len(whole) // 2])
    rows = settle(watch)
    assert (rows[2].responses, rows[2].damaged) == (0, 1)
    assert list(watch.history.state.damaged) == [part(2)]
    assert str(folder) not in watch.history.state.damaged[part(2)]
    monkeypatch.setattr(watching, "SETTLED", 0.0)  # what grows does not change the folder's own time
    with (folder / part(2)).open("ab") as file:
        file.write(whole[len(whole) // 2 :])
    rows = settle(watch)
    assert (rows[2].responses, rows[2].damaged, watch.history.state.damaged) == (4, 0, {})


def test_a_flipped_byte_is_damage_and_the_other_steps_stay(watch: Watch, folder: Path):
    record(folder, {1: 0.01, 2: 0.01})
    content = bytearray((folder / part(1)).read_bytes())
    content[len(content) // 3] ^= 0xFF
    (folder / part(1)).write_bytes(content)
    rows = settle(watch)
    assert (rows[1].damaged, rows[2].damaged) == (1, 0)
    assert len(watch.history.state.damaged) == 1


def test_a_step_keeps_its_good_parts(watch: Watch, folder: Path):
    write(run_of([[-1.0]], sample=[0]), folder, step=1)
    write(run_of([[-2.0]], sample=[1]), folder, step=1)
    (folder / part(1, number=1)).write_bytes(b"not parquet at all")
    row = settle(watch)[1]
    assert (row.responses, row.parts, row.damaged) == (1, 2, 1)


def test_links_and_pipes_are_not_followed(watch: Watch, folder: Path, tmp_path: Path):
    record(folder, {1: 0.01})
    outside = tmp_path / "outside.parquet"
    shutil.copy(folder / part(1), outside)
    (folder / part(2)).symlink_to(outside)
    os.mkfifo(folder / part(3))
    (folder / part(4)).mkdir()
    rows = settle(watch)
    assert [rows[s].responses for s in (1, 2, 3, 4)] == [4, 0, 0, 0]
    assert "is a link" in watch.history.state.damaged[part(2)]
    assert "no plain file" in watch.history.state.damaged[part(3)]


def test_a_linked_header_is_not_followed(watch: Watch, folder: Path, tmp_path: Path):
    record(folder, {1: 0.01})
    (folder / "run.json").rename(tmp_path / "run.json")
    (folder / "run.json").symlink_to(tmp_path / "run.json")
    assert settle(watch) == {}
    assert "is a link" in watch.history.state.problem
    (folder / "run.json").unlink()
    (tmp_path / "run.json").rename(folder / "run.json")
    assert list(settle(watch)) == [1]
    assert watch.history.state.problem == ""


def test_a_damaged_header_is_said_and_waited_for(watch: Watch, folder: Path):
    record(folder, {1: 0.01})
    good = (folder / "run.json").read_bytes()
    (folder / "run.json").write_bytes(good[:20])
    assert settle(watch) == {}
    assert (watch.history.state.waiting, "damaged" in watch.history.state.problem) == (1, True)
    (folder / "run.json").write_bytes(good)
    assert list(settle(watch)) == [1]


def test_a_part_of_another_run_is_said(watch: Watch, folder: Path, tmp_path: Path):
    record(folder, {1: 0.01})
    write(sp.Run.from_lists(rollout_logp=[[-1.0]], rollout=sp.Side(engine="other")), tmp_path / "other", step=2)
    shutil.copy(tmp_path / "other" / part(2), folder)
    assert settle(watch)[2].damaged == 1
    assert "runs of different sides do not mix" in watch.history.state.damaged[part(2)]


def test_a_deleted_folder_is_said_and_may_come_back(watch: Watch, folder: Path):
    record(folder, {1: 0.01, 2: 0.01})
    settle(watch)
    folder.rename(folder.with_name("away"))
    assert list(settle(watch)) == [1, 2]
    assert watch.history.state.there is False
    folder.with_name("away").rename(folder)
    epoch = watch.history.epoch
    assert list(settle(watch)) == [1, 2]
    assert (watch.history.state.there, watch.history.epoch) == (True, epoch)
    (folder / part(1)).unlink()
    assert list(settle(watch)) == [2]
    assert watch.history.epoch != epoch


def test_a_run_without_a_trainer_is_counted(watch: Watch, folder: Path):
    write(sp.Run.from_lists(rollout_logp=[[-1.0, -2.0]]), folder, step=1)
    row = settle(watch)[1]
    assert (row.responses, dict(row.values)) == (1, {})


def test_nothing_is_written(watch: Watch, folder: Path):
    record(folder, {1: 0.01})
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    settle(watch)
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before


def test_a_step_of_any_size_keeps_its_number(watch: Watch, folder: Path):
    steps = [1, 2**31 - 1, 2**31, 1_700_000_000_001]
    record(folder, dict.fromkeys(steps, 0.01))
    assert list(settle(watch)) == steps
    assert unpacked(watch.history.everything([])["rows"]["steps"]).tolist() == steps


def test_the_newest_steps_come_first(watch: Watch, folder: Path, monkeypatch):
    record(folder, dict.fromkeys(range(6), 0.01))
    monkeypatch.setattr(watching, "SLICE", 0.0)
    seen = []
    while watch.look():
        seen.append(watch.history.steps())
    assert seen[:3] == [[5], [4, 5], [3, 4, 5]]


def test_a_page_is_told_only_what_is_new(watch: Watch, folder: Path):
    record(folder, {1: 0.01})
    settle(watch)
    everything = watch.history.everything(["k3.mean"])
    epoch, revision = everything["epoch"], everything["revision"]
    assert watch.history.since(epoch, revision, ["k3.mean"]) is None
    record(folder, {2: 0.02})
    row = settle(watch)[2]
    new = watch.history.since(epoch, revision, ["k3.mean"])
    assert new["rows"] == [[2, 4, 48, 1, 0, len(row.outside), row.values["k3.mean"]]]
    assert watch.history.since("another", 0, [])["again"] is True


def test_a_failure_of_a_round_is_said(watch: Watch, monkeypatch):
    def fail() -> bool:
        watch._end.set()
        raise RuntimeError("out of luck")

    monkeypatch.setattr(watch, "look", fail)
    watch.interval = 0.0
    watch._run()
    assert "out of luck" in watch.history.state.problem
