"""A run measured shard by shard is the run measured whole, in this process or in several, damaged or interrupted."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.errors import CorruptFileError, InputError, MissingColumnError, SamePolicyError
from samepolicy.fleet import Plan, in_turn, measure_files, plan_of, processes
from samepolicy.fleet.plan import _order
from samepolicy.records import arrow, shards
from samepolicy.records.where import Where
from tests.fleet.folders import Cores, bits, deadly, part, write
from tests.records.test_reading import spoil


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "run", steps=5)


def agree(found: sp.Summary, whole: sp.Summary) -> None:
    """Counts, extremes and quantiles exactly, the rest to rounding."""
    assert found.counts == whole.counts
    assert found.missing == whole.missing
    assert found.metrics.keys() == whole.metrics.keys()
    for name, readouts in whole.metrics.items():
        for key, value in readouts.items():
            exact = key in ("min", "max", "count", "p50", "p90", "p99", "p99.9")
            loose = 1e-9 if key in ("std", "pearson") else 1e-11  # a small spread is what is left of large squares
            tolerance = {"rel": 0, "abs": 0} if exact else {"rel": loose, "abs": 1e-14}
            assert found[name][key] == pytest.approx(value, nan_ok=True, **tolerance), (name, key)


# ------------------------------------------------------------------------------------------------- the same numbers


@pytest.mark.parametrize("by", [None, "step", "position", "finish_reason"])
def test_a_run_in_shards_is_the_run_as_a_whole(folder: Path, by: str | None):
    found, run = measure_files(folder, by=by), sp.read(folder)
    agree(found.summary, sp.measure(run))
    groups = sp.measure_by(run, by) if by else {}
    assert list(found.groups) == list(groups)
    for label, group in groups.items():
        agree(found.groups[label], group)


def test_a_framework_has_its_own_names(folder: Path):
    found, whole = measure_files(folder, names="verl").summary, sp.measure(sp.read(folder), names="verl")
    agree(found, whole)
    assert found.flat("verl") == pytest.approx(whole.flat("verl"), rel=1e-11)


def test_a_choice_is_that_of_the_whole_run(folder: Path):
    chosen = {"steps": [1, 3], "samples": [0, 2, 4], "finish_reasons": ["stop"]}
    found = measure_files(folder, where=Where.of(**chosen))
    agree(found.summary, sp.measure(sp.read(folder, **chosen)))
    assert 0 < found.summary.counts.sequences < 30


def test_columns_that_only_some_steps_have(folder: Path):
    more = part(9)
    sp.write(more.with_columns(trainer_entropy=[np.ones(n) for n in more.lengths]), folder, step=9)
    sp.write(more.without("trainer_logp").with_columns(step=[10] * 6), folder, step=10)
    found = measure_files(folder).summary
    agree(found, sp.measure(sp.read(folder)))
    assert found["surprisal_gap"]["count"] == more.tokens
    assert found.counts.missing == more.tokens


def test_ids_that_only_the_trainer_has_are_aligned(tmp_path: Path):
    for step in (1, 2):
        run = sp.Run.from_lists(
            response_ids=[[5, 6, 7], [1, 2]],
            rollout_logp=[[-1.0, -2.0, -3.0], [-0.5, -0.25]],
            trainer_response_ids=[[5, 7], [1, 2]],
            trainer_logp=[[-1.5, -3.5], [-0.5, -0.25 * step]],
        )
        sp.write(run, tmp_path, step=step)
    found = measure_files(tmp_path).summary
    agree(found, sp.measure(sp.read(tmp_path)))
    assert (found.counts.tokens, found.counts.unaligned) == (8, 2)


def test_a_large_file_is_cut_between_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arrow, "GROUP_TOKENS", 2000)
    sp.write(part(1, rows=90), tmp_path)
    plan = plan_of(tmp_path)
    assert len(plan.shards) > 2
    assert {len(shard.groups or ()) for shard in plan.shards[:-1]} == {shards.GROUPS}
    agree(plan.run(in_turn).summary, sp.measure(sp.read(tmp_path)))
    monkeypatch.setattr(shards, "MANY", 1)
    assert len(plan_of(tmp_path).shards) == 1
    monkeypatch.setattr(shards, "MANY", 256)
    (only,) = plan_of(tmp_path, where=Where.of(steps=None, samples=range(50), finish_reasons=None)).shards
    assert only.groups is None


def test_a_dump_of_another_program_is_one_shard(tmp_path: Path):
    file = tmp_path / "a.jsonl"
    rows = [{"rollout_logp": [-1, -i], "trainer_logp": [-1.5, -i], "sample": i} for i in (1, 2)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    agree(measure_files(file).summary, sp.measure(sp.read(file)))
    assert measure_files(file, where=Where.of(steps=None, samples=[2], finish_reasons=None)).summary.counts.tokens == 2


def test_only_the_columns_that_are_measured_are_read(folder: Path):
    assert plan_of(folder).task.source.needed == {"rollout_logp", "trainer_logp", "mask"}
    assert plan_of(folder, by="step").task.source.needed == {"rollout_logp", "trainer_logp", "mask", "step"}


def test_groups_are_in_rising_order():
    labels = ["3-6", "not recorded", "0", "15-30", "length", "-2", "1e-05-0.5", "7-14"]
    assert sorted(labels, key=_order) == ["-2", "0", "1e-05-0.5", "3-6", "7-14", "15-30", "length", "not recorded"]


# ------------------------------------------------------------------------------------------------ several processes


def test_two_workers_give_the_bits_of_one(folder: Path):
    plan, told = plan_of(folder, by="step"), []
    two = plan.run(processes(2), tell=lambda *what: told.append(what))
    assert bits(two) == bits(plan.run(in_turn)) == bits(plan.run(processes(1)))
    assert told == [(f"measuring {folder}", n, 5) for n in range(1, 6)]


def test_no_more_workers_than_shards(folder: Path):
    plan = plan_of(folder, where=Where.of(steps=[0, 1], samples=None, finish_reasons=None))
    assert bits(plan.run(processes(10**30))) == bits(plan.run(in_turn))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_keeps_to_one_core(folder: Path, workers: int):
    plan = plan_of(folder)
    found = processes(workers)(Cores(**vars(plan.task)), list(enumerate(plan.shards)))
    assert [measured.skipped for _, measured in found] == [("1",)] * len(plan.shards)


def test_a_worker_that_dies_is_one_sentence_and_what_was_done_is_kept(folder: Path, tmp_path: Path):
    plan, kept, marker = plan_of(folder), tmp_path / "kept", tmp_path / "marker"
    mortal = deadly(plan, victim="part-00000003-000000.parquet", marker=marker)
    with pytest.raises(SamePolicyError, match="A worker process died before its shard was measured") as died:
        mortal.run(processes(2), resume=kept)
    assert "\n" not in str(died.value)
    assert kept.exists()
    before = len(marker.read_text().splitlines())
    found = mortal.run(in_turn, resume=kept)
    assert bits(found) == bits(plan.run(in_turn))
    assert len(marker.read_text().splitlines()) - before < 5  # those that were done are not done again
    assert not kept.exists()


def test_an_error_of_a_worker_arrives_as_it_was_raised(folder: Path):
    spoil(folder / "part-00000002-000000.parquet")
    with pytest.raises(CorruptFileError, match=r"part-00000002-000000\.parquet is truncated or damaged"):
        plan_of(folder).run(processes(2))


# --------------------------------------------------------------------------------------------------------- going on


def interrupted(plan: Plan, kept: Path, *, after: int) -> None:
    """Measure some shards, the last ones first, then be interrupted."""

    def way(task, numbered):
        for number, shard in numbered[::-1][:after]:
            yield number, task(shard)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.run(way, resume=kept)


@pytest.mark.parametrize("after", [1, 3, 5])
def test_an_interrupted_measurement_goes_on(folder: Path, tmp_path: Path, after: int):
    spoil(folder / "part-00000004-000000.parquet")
    said: list[str] = []
    plan, kept = plan_of(folder, by="finish_reason", on_bad=lambda e: said.append(str(e))), tmp_path / "kept"
    interrupted(plan, kept, after=after)
    begun: list[int] = []

    def way(task, numbered):
        for number, shard in numbered:
            begun.append(number)
            yield number, task(shard)

    found = plan.run(way, resume=kept)
    assert begun == list(range(5 - after))
    assert bits(found) == bits(plan.run(in_turn))
    assert (len(found.skipped), len(set(said))) == (1, 1)
    assert not kept.exists()


@pytest.mark.parametrize("change", ["grown", "rewritten", "other rows", "other groups", "other names"])
def test_what_was_kept_of_another_measurement_is_refused(folder: Path, tmp_path: Path, change: str):
    kept = tmp_path / "kept"
    interrupted(plan_of(folder), kept, after=2)
    content = kept.read_bytes()
    if change == "grown":
        sp.write(part(7), folder, step=7)
    elif change == "rewritten":
        file = folder / "part-00000001-000000.parquet"
        file.write_bytes(file.read_bytes())
    asked = {
        "other rows": {"where": Where.of(steps=None, samples=[1], finish_reasons=None)},
        "other groups": {"by": "step"},
        "other names": {"names": "verl"},
    }
    with pytest.raises(InputError, match="was kept for another measurement, or the run has changed since"):
        plan_of(folder, **asked.get(change, {})).run(in_turn, resume=kept)
    assert kept.read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format": "x", "nodes": []}', b"\x93NUMPY", b"[" * 9999])
def test_a_file_of_something_else_is_refused_and_kept(folder: Path, tmp_path: Path, content: bytes):
    kept = tmp_path / "kept"
    kept.write_bytes(content)
    with pytest.raises(InputError, match="kept"):
        plan_of(folder).run(in_turn, resume=kept)
    assert kept.read_bytes() == content


def test_a_kept_number_that_is_damaged_is_never_taken(folder: Path, tmp_path: Path):
    kept = tmp_path / "kept"
    interrupted(plan_of(folder), kept, after=2)
    content = kept.read_bytes()
    damaged = content.replace(b'"tokens": ', b'"tokens": 9', 1)
    assert damaged != content
    kept.write_bytes(damaged)
    with pytest.raises(InputError, match="kept is damaged"):
        plan_of(folder).run(in_turn, resume=kept)
    assert kept.read_bytes() == damaged


def test_a_folder_cannot_keep_what_is_measured(folder: Path, tmp_path: Path):
    with pytest.raises(InputError, match="is no file that --resume wrote"):
        plan_of(folder).run(in_turn, resume=tmp_path)


def test_a_place_where_nothing_can_be_kept_is_said_at_once(folder: Path, tmp_path: Path):
    with pytest.raises(InputError, match="Nothing can be written in .*nowhere"):
        plan_of(folder).run(in_turn, resume=tmp_path / "nowhere" / "kept")


# -------------------------------------------------------------------------------------------------------- bad files


@pytest.mark.parametrize("how", ["footer", "data"])
def test_a_bad_file_is_named_counted_and_left_out_as_a_whole(folder: Path, how: str):
    bad = folder / "part-00000002-000000.parquet"
    if how == "footer":
        bad.write_bytes(bad.read_bytes()[:-1])
    else:
        spoil(bad)
    with pytest.raises(CorruptFileError, match=bad.name):
        measure_files(folder)
    said: list[CorruptFileError] = []
    found = measure_files(folder, on_bad=said.append)
    assert [bad.name in str(error) for error in said] == [True]
    agree(found.summary, sp.measure(sp.read(folder, on_bad=lambda _: None)))


def test_a_large_bad_file_is_left_out_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arrow, "GROUP_TOKENS", 2000)
    spoil(sp.write(part(1, rows=90), tmp_path, step=1))
    sp.write(part(2), tmp_path, step=2)
    found = measure_files(tmp_path, on_bad=lambda _: None)
    agree(found.summary, sp.measure(part(2)))


def test_nothing_that_can_be_read_is_an_error_all_the_same(folder: Path):
    for file in folder.glob("*.parquet"):
        spoil(file)
    with pytest.raises(CorruptFileError, match="None of the files of .* can be read; the first says: "):
        measure_files(folder, on_bad=lambda _: None)


def test_a_run_that_grows_is_measured_as_it_was_when_it_was_opened(folder: Path):
    plan, whole = plan_of(folder), sp.measure(sp.read(folder))
    sp.write(part(7), folder, step=7)
    agree(plan.run(in_turn).summary, whole)


def test_a_file_that_is_gone_is_said(folder: Path):
    plan = plan_of(folder)
    (folder / "part-00000002-000000.parquet").unlink()
    with pytest.raises(InputError, match="is gone since the folder was listed"):
        plan.run(in_turn)


def test_a_side_that_is_missing_is_said(tmp_path: Path):
    sp.write(sp.Run.from_lists(rollout_logp=[[-1.0]]), tmp_path)
    with pytest.raises(MissingColumnError, match="Measuring needs trainer_logp and rollout_logp"):
        measure_files(tmp_path)


def test_sides_that_declare_different_things_are_said(folder: Path):
    plan = plan_of(folder)
    source = replace(plan.task.source, about={**plan.task.source.about, "rollout": {"dtype": "float16"}})
    with pytest.raises(InputError, match=r"part-00000000-000000\.parquet: The rollout side declares dtype"):
        replace(plan, task=replace(plan.task, source=source)).run(in_turn)
