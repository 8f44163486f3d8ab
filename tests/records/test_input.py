"""What a run, a side or a stored run is made of: refused in one sentence where no reader could use it."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import samepolicy as sp
from samepolicy.errors import CorruptFileError, InputError, SamePolicyError, ShapeError
from tests.records.shards import part

LOGP = [[-1.0, -2.0], [-3.0]]
SIDES = '"rollout_logp": [-1.0], "trainer_logp": [-1.5]'


def refusal(error: type[SamePolicyError], what, *given: object, **named: object) -> str:
    """The sentence of a refusal."""
    with pytest.raises(error) as caught:
        what(*given, **named)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    return str(caught.value)


@pytest.fixture
def dump(tmp_path: Path):
    """Writes bytes as a .jsonl file."""

    def write(content: bytes | str) -> Path:
        path = tmp_path / "dump.jsonl"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_a_number_too_large_for_a_float():
    assert "must hold numbers" in refusal(InputError, sp.Run.from_lists, rollout_logp=[[-(10**400)]])


def test_a_masked_entry_of_a_masked_array_is_missing():
    column = np.ma.masked_array([[-1.0, -2.0]], mask=[[False, True]])
    np.testing.assert_array_equal(sp.Run.from_lists(rollout_logp=column)["rollout_logp"].values, [-1.0, np.nan])


@pytest.mark.parametrize("which", [[[0], [1]], True, [[True, False]]])
def test_a_selection_that_is_no_list(which: object):
    refusal(ShapeError, sp.Run.from_lists(rollout_logp=LOGP).select, which)


def test_an_advantage_of_each_response_is_repeated_over_its_tokens():
    spread = [[0.5, 0.5], [-1.0]]
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    padded = sp.Run.from_padded(mask=mask, rollout_logp=-np.ones((2, 3)), advantage=np.array([0.5, -1.0]))
    lists = sp.Run.from_lists(rollout_logp=LOGP, advantage=[0.5, -1.0])
    for run in (padded, lists, lists.without("advantage").with_columns(advantage=np.array([0.5, -1.0]))):
        assert [row.tolist() for row in run["advantage"]] == spread
    assert lists == sp.Run.from_lists(rollout_logp=LOGP, advantage=spread)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"advantage": [0.5]}, "how many tokens each has"),
        ({"advantage": [0.5], "reward": [1.0]}, "how many tokens each has"),
        ({"advantage": [0.5], "rollout_logp": LOGP}, "one entry per response"),
        ({"trainer_entropy": [0.5, 0.1], "rollout_logp": LOGP}, "one list of values"),
    ],
)
def test_values_of_responses_that_nothing_can_be_made_of(columns: dict[str, list], words: str):
    assert words in refusal(ShapeError, sp.Run.from_lists, **columns)


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": float("inf")},
        {"temperature": float("nan")},
        {"temperature": 1e-300},
        {"temperature": True},
        {"repetition_penalty": float("inf")},
        {"seed": -1},
    ],
    ids=str,
)
def test_settings_that_no_sampler_has(setting: dict[str, object]):
    assert next(iter(setting)) in refusal(InputError, sp.Sampling, **setting)


@pytest.mark.parametrize(
    "declared",
    [
        {"extra": {"eos_ids": "</s>"}},
        {"extra": {"eos_ids": [2, "x"]}},
        {"extra": {"vocab_size": 1.5}},
    ],
    ids=str,
)
def test_declarations_that_no_check_could_read(declared: dict[str, object]):
    refusal(InputError, sp.Side, **declared)


def test_info_that_json_cannot_hold(tmp_path: Path):
    run = sp.Run.from_lists(rollout_logp=LOGP, info={"loss": float("nan")})
    assert "JSON" in refusal(InputError, sp.write, run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_header_without_an_end(tmp_path: Path):
    sp.write(sp.Run.from_lists(rollout_logp=LOGP), tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("[" * 100_000)
    refusal(CorruptFileError, sp.read, tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"rollout_logp": [-1.0], "rollout_logp": [-2.0]}', "'rollout_logp' twice"),
        (f"{{{SIDES}}}".encode("utf-16"), "not UTF-8"),
        (f"{{{SIDES}}}\n".encode() + b"\xff", "not UTF-8"),
        ('{"rollout_logp": [-1' + "0" * 400 + "]}", "must hold numbers"),
    ],
    ids=["twice", "utf-16", "bytes", "huge"],
)
def test_lines_that_are_refused(dump, content: bytes | str, words: str):
    assert words in refusal(InputError, sp.read, dump(content))


@pytest.mark.parametrize("content", [f"\ufeff{{{SIDES}}}", f"{{{SIDES}}}\r\n", f"\n\n{{{SIDES}}}"])
def test_marks_of_another_editor_are_no_content(dump, content: str):
    assert sp.read(dump(content))["trainer_logp"].values.tolist() == [-1.5]


def test_a_number_for_each_response_in_a_dump(dump):
    lines = [{"rollout_logp": [-1.0, -2.0], "advantage": 0.5}, {"rollout_logp": [-3.0], "advantage": None}]
    run = sp.read(dump("\n".join(map(json.dumps, lines))))
    np.testing.assert_array_equal(run["advantage"].values, [0.5, 0.5, np.nan])


# ------------------------------------------------------------------------------------------------- parts of a folder


def rewritten(part: Path, **columns: object) -> None:
    """Write a part again with other columns, and the header that it had."""
    table = pq.read_table(part)
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, values) if place >= 0 else table.append_column(name, values)
    pq.write_table(table, part)


BAD = {
    "step must hold whole numbers": {"step": pa.array([None, 2, 2], pa.int64())},
    "step must hold whole": {"step": pa.array(["a"] * 3)},
    "step must hold one single value": {"step": pa.array([[2]] * 3)},
    "rollout_logp must hold one list of values": {"rollout_logp": pa.array([-1.0] * 3)},
    "Sequence 0 has 1 values in trainer_logp but 5 in": {"trainer_logp": pa.array([[-1.0]] * 3)},
}


@pytest.mark.parametrize("words", BAD)
def test_a_whole_part_with_columns_that_no_run_has(tmp_path: Path, words: str):
    files = [sp.write(part(step), tmp_path / "run", step=step) for step in (1, 2)]
    rewritten(files[1], **BAD[words])
    told = refusal(CorruptFileError, sp.read, tmp_path / "run")
    assert told.startswith(f"{files[1]} is whole, but its contents are wrong (")
    assert words in told
    for read in (lambda on_bad: sp.read(tmp_path / "run", on_bad=on_bad), skipping(tmp_path / "run")):
        said: list[CorruptFileError] = []
        assert read(said.append)["step"].tolist() == [1] * 3
        assert [str(error) for error in said] == [told]


def skipping(folder: Path):
    """Reads a folder as a stream."""
    return lambda on_bad: sp.Run.concat(list(sp.stream(folder, on_bad=on_bad)))


def test_a_part_with_one_column_twice_and_one_with_a_broken_header(tmp_path: Path):
    files = [sp.write(part(step), tmp_path / "run", step=step) for step in (1, 2, 3)]
    table = pq.read_table(files[1])
    pq.write_table(table.append_column("rollout_logp", table["rollout_logp"]), files[1])
    pq.write_table(pq.read_table(files[2]).replace_schema_metadata({"samepolicy": "[" * 100_000}), files[2])
    said: list[CorruptFileError] = []
    assert sp.read(tmp_path / "run", on_bad=said.append)["step"].tolist() == [1] * 3
    assert "(column rollout_logp is there 2 times)" in str(said[0])
    assert "(its header is no JSON: " in str(said[1])


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_named_like_a_part_but_is_no_file(tmp_path: Path, make):
    sp.write(part(1), tmp_path / "run", step=1)
    make(tmp_path / "run" / "part-00000002-000000.parquet")
    assert "is a folder, a pipe or a device, not a file" in refusal(CorruptFileError, sp.read, tmp_path / "run")
    assert len(sp.read(tmp_path / "run", on_bad=print)) == 3


def test_a_pipe_is_no_dump(tmp_path: Path):
    os.mkfifo(tmp_path / "dump.jsonl")
    assert "is neither a file nor a folder" in refusal(InputError, sp.read, tmp_path / "dump.jsonl")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_folder_whose_name_is_no_utf8_is_read(tmp_path: Path):
    folder = tmp_path / os.fsdecode(b"r\xff")
    sp.write(part(1), folder, step=1)
    assert sp.read(folder) == sp.read(next(folder.glob("*.parquet"))) == part(1)
