"""Each response counts once: the last writing of a step, and one copy of what overlapping parts share."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import samepolicy as sp
from samepolicy.errors import CorruptFileError
from samepolicy.records import overlap
from samepolicy.records.source import open_source
from tests.records.shards import part


def test_of_a_step_that_was_written_again_the_last_writing_counts(tmp_path: Path) -> None:
    for attempt, steps in ((10, (1, 2, 3)), (20, (2, 3))):
        for step in steps:
            sp.write(part(step, seed=attempt, attempt=[attempt] * 3), tmp_path, step=step)
    run = sp.read(tmp_path)
    assert (
        list(zip(run["step"].tolist(), run["attempt"].tolist(), strict=True))
        == [(1, 10)] * 3 + [(2, 20)] * 3 + [(3, 20)] * 3
    )
    assert sp.Run.concat(list(sp.stream(tmp_path))) == run
    assert sum(piece.responses for piece in open_source(tmp_path).pieces) == 9
    sp.write(part(2, samples=(5,)), tmp_path, step=2)  # who writes no attempt is not judged by it
    assert sp.read(tmp_path, columns=["sample"], steps=[2])["sample"].tolist() == [0, 1, 2, 5]


def test_attempts_within_one_part(tmp_path: Path) -> None:
    both = sp.Run.concat([part(1, attempt=[10] * 3), part(1, seed=1, attempt=[20] * 3), part(2, attempt=[10] * 3)])
    sp.write(both, tmp_path)
    assert sp.read(tmp_path) == both.select([3, 4, 5, 6, 7, 8])


def test_an_attempt_that_is_text_is_somebody_elses_column(tmp_path: Path) -> None:
    for attempt in ("a", "b"):
        sp.write(part(1, attempt=[attempt] * 3, samples=(0, 1, 2)), tmp_path, step=1)
    assert sp.read(tmp_path)["attempt"].tolist() == ["a"] * 3 + ["b"] * 3


@pytest.mark.parametrize("name", ["group", "rollout_logp"])
def test_a_bad_part_among_overlapping_ones_is_left_out(tmp_path: Path, name: str) -> None:
    files = [sp.write(part(1, group=[0, 0, 0]), tmp_path, step=1) for _ in range(3)]
    table = pq.read_table(files[1])
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, pa.array([0.5] * 3)), files[1])
    with pytest.raises(CorruptFileError, match=f"its contents are wrong .Column {name} must hold"):
        sp.read(tmp_path)
    said: list[CorruptFileError] = []
    assert sp.read(tmp_path, on_bad=said.append)["sample"].tolist() == [0, 1, 2]
    assert [files[1].name in str(error) for error in said] == [True]


def test_overlapping_shards_are_said_and_counted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sp.write(part(1, samples=(0, 1, 2)), tmp_path, step=1)
    sp.write(part(1, samples=(2, 3)), tmp_path, step=1)
    sp.write(part(2, samples=(0, 1)), tmp_path, step=2)
    run = sp.read(tmp_path)
    assert (run["step"].tolist(), run["sample"].tolist()) == ([1, 1, 1, 1, 2, 2], [0, 1, 2, 3, 0, 1])
    message = "1 responses stand in more than one part ("
    assert [r.getMessage().startswith(message) for r in caplog.records] == [True]
    assert sp.Run.concat(list(sp.stream(tmp_path, columns=["rollout_logp"])))["rollout_logp"].lengths.tolist() == [
        5, 6, 7, 8, 5, 6,
    ]  # fmt: skip


def test_a_copied_part_is_counted_once_and_other_values_are_kept(tmp_path: Path) -> None:
    file = sp.write(part(1, group=["a", "b", "b"]), tmp_path, step=1)
    shutil.copy(file, file.with_name("part-00000001-000007.parquet"))
    assert len(sp.read(tmp_path)) == 3
    sp.write(part(1, seed=1, group=["a", "b", "b"]), tmp_path, step=1)  # same numbers, other tokens
    sp.write(part(1, group=["c", "c", "c"]), tmp_path, step=1)  # same tokens, other prompts
    assert len(sp.read(tmp_path)) == 9


def test_parts_whose_numbers_cannot_meet_are_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (0, 1):
        for samples in ((0, 1), (2, 3)):
            sp.write(part(1, samples=samples, rank=[rank] * 2), tmp_path, step=1)
    looked = []
    whole = overlap.index
    monkeypatch.setattr(overlap, "index", lambda place, names: looked.append(str(place)) or whole(place, names))
    assert len(sp.read(tmp_path)) == 8
    assert looked == []
    sp.write(part(1, samples=(3, 9), rank=[1] * 2), tmp_path, step=1)
    run = sp.read(tmp_path)
    assert list(zip(run["rank"].tolist(), run["sample"].tolist(), strict=True)) == [
        (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (1, 9),
    ]  # fmt: skip
    assert {name[-14:] for name in looked} == {"000003.parquet", "000004.parquet"}
    sp.write(part(1, samples=(0,), rank=[0]), tmp_path / "many", step=1)
    sp.write(part(1, samples=(0, 1), rank=[0, 1]), tmp_path / "many", step=1)
    assert sp.read(tmp_path / "many")["sample"].tolist() == [0, 1]


def test_without_a_sample_number_nothing_is_taken_for_a_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        sp.write(part(1).without("sample"), tmp_path, step=1)
    assert len(sp.read(tmp_path)) == 6
    assert not caplog.records
