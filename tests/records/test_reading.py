"""What is read of a folder: only what was asked for, each response once, from anywhere, past bad files if allowed."""

import logging
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

import samepolicy as sp
from samepolicy.errors import CorruptFileError, InputError, MissingColumnError
from samepolicy.records import arrow
from samepolicy.records.source import open_source
from samepolicy.records.tables import kept_rows
from samepolicy.records.where import Where
from tests.records.shards import part


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (1, 2, 3):
        sp.write(part(step), tmp_path / "run", step=step)
    return tmp_path / "run"


def spoil(file: Path) -> None:
    """Change a byte of the first column's first page, so that a checksum fails but the footer does not."""
    with pq.ParquetFile(file) as opened:
        column = opened.metadata.row_group(0).column(0)
        end = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size
    content = bytearray(file.read_bytes())
    content[end - 3] ^= 255
    file.write_bytes(bytes(content))


# ------------------------------------------------------------------------------------------------------- predicates


def test_choices_are_those_of_the_whole_run(folder: Path) -> None:
    whole = sp.read(folder)
    for chosen in (
        {"samples": [1]},
        {"finish_reasons": ["stop"]},
        {"steps": [2, 3], "samples": [0, 2], "finish_reasons": ["length"]},
    ):
        rows = np.ones(9, dtype=bool)
        for name, column in (("steps", "step"), ("samples", "sample"), ("finish_reasons", "finish_reason")):
            if name in chosen:
                rows &= np.isin(whole[column].astype(str), [str(v) for v in chosen[name]])
        assert sp.read(folder, **chosen) == whole.select(rows)
        assert sp.Run.concat(list(sp.stream(folder, **chosen))) == whole.select(rows)
        assert sp.read(folder, columns=["reward"] if "reward" in whole else ["sample"], **chosen)[
            "sample"
        ].tolist() == (whole["sample"][rows].tolist())


def test_what_is_not_asked_for_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "GROUP_TOKENS", 2000)
    rows = [np.random.default_rng(i).normal(-1, 1, 1000).astype(np.float32) for i in range(8)]
    ends = ["stop"] * 4 + ["length"] * 4
    file = sp.write(sp.Run.from_lists(rollout_logp=rows, finish_reason=ends, step=[1, 2] * 4), tmp_path)
    spoil(file)  # in the first row group
    assert sp.read(tmp_path, finish_reasons=["length"])["rollout_logp"].lengths.tolist() == [1000] * 4
    assert len(sp.read(tmp_path, columns=["finish_reason"], finish_reasons=["stop"])) == 4
    with pytest.raises(CorruptFileError, match=file.name):
        sp.read(tmp_path, finish_reasons=["stop"])


def test_a_large_part_comes_in_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "GROUP_TOKENS", 2000)
    run = sp.Run.from_lists(rollout_logp=[[-float(i)] * 1000 for i in range(9)], sample=range(9))
    sp.write(run, tmp_path)
    parts = list(sp.stream(tmp_path))
    assert [len(p) for p in parts] == [2, 2, 2, 3]
    assert sp.Run.concat(parts) == run
    monkeypatch.undo()
    assert [len(p) for p in sp.stream(tmp_path)] == [9]


def test_many_row_groups_are_looked_at_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "GROUP_TOKENS", 1)
    file = sp.write(sp.Run.from_lists(rollout_logp=[[-float(i)] for i in range(50)], sample=range(50)), tmp_path)
    with pq.ParquetFile(file) as opened:
        assert opened.metadata.num_row_groups == 50
        looked: list[int] = []

        class Footer:
            """Says which row groups it was asked for."""

            num_row_groups = 50

            def row_group(self, number: int) -> object:
                looked.append(number)
                return opened.metadata.row_group(number)

        kept = kept_rows(SimpleNamespace(metadata=Footer()), np.arange(50) % 7 == 3)
    assert looked == list(range(50))
    assert [rows.tolist() for rows in kept] == [[i % 7 == 3] for i in range(50)]
    assert sp.read(tmp_path, samples=[3, 10, 49])["rollout_logp"].values.tolist() == [-3, -10, -49]


def test_choices_that_nothing_meets_are_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InputError, match="No response in .* has the sample asked for"):
        sp.read(folder, samples=[9])
    with pytest.raises(InputError, match="none of the steps asked for; it has 1, 2, 3"):
        list(sp.stream(folder, steps=[4]))
    assert sp.read(folder, steps=[3, 4, 7])["step"].tolist() == [3] * 3
    assert [r.getMessage() for r in caplog.records] == [f"{folder} has no step 4, 7; the others are read."]
    sp.write(sp.Run.from_lists(rollout_logp=[[-1.0]]), folder, step=5)
    with pytest.raises(MissingColumnError, match="no column finish_reason, so finish_reasons="):
        sp.read(folder, finish_reasons=["stop"])


def test_a_dump_of_another_program_is_chosen_from_alike(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"rollout_logp": [-1], "sample": 0}\n{"rollout_logp": [-2], "sample": 1}\n')
    assert sp.read(tmp_path / "a.jsonl", samples=[1])["rollout_logp"].values.tolist() == [-2.0]
    (only,) = sp.stream(tmp_path / "a.jsonl", samples=[1])
    assert len(only) == 1


# -------------------------------------------------------------------------------------------------------- bad files


@pytest.mark.parametrize("how", ["footer", "data"])
def test_bad_files_are_named_counted_and_left_out_if_allowed(folder: Path, how: str) -> None:
    bad = folder / "part-00000002-000000.parquet"
    if how == "footer":
        bad.write_bytes(bad.read_bytes()[:-1])
    else:
        spoil(bad)
    for read in (lambda **k: sp.read(folder, **k), lambda **k: sp.Run.concat(list(sp.stream(folder, **k)))):
        with pytest.raises(CorruptFileError, match=bad.name):
            read()
        said: list[CorruptFileError] = []
        assert read(on_bad=said.append)["step"].tolist() == [1, 1, 1, 3, 3, 3]
        assert [bad.name in str(error) for error in said] == [True]


def test_nothing_that_can_be_read_is_an_error_all_the_same(folder: Path) -> None:
    for file in folder.glob("*.parquet"):
        file.write_bytes(b"PAR1")
    with pytest.raises(CorruptFileError, match="None of the 3 parts"):
        sp.read(folder, on_bad=print)


def test_a_part_of_a_newer_layout_beside_older_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(arrow, "SCHEMA", arrow.SCHEMA + 1)
        sp.write(part(9), folder, step=9)
    with pytest.raises(CorruptFileError, match=r"part-00000009-000000\.parquet has layout version 2"):
        sp.read(folder)
    said: list[CorruptFileError] = []
    assert len(sp.read(folder, on_bad=said.append)) == 9
    assert len(said) == 1


def test_a_file_that_is_gone_or_forbidden_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = sp.stream(folder)
    next(pieces)
    (folder / "part-00000002-000000.parquet").unlink()
    with pytest.raises(InputError, match=r"part-00000002-000000\.parquet is gone since"):
        next(pieces)

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pyarrow.parquet.ParquetFile", forbidden)
    with pytest.raises(InputError, match=r"parquet may not be read \(permission denied\); ask"):
        sp.read(folder, on_bad=print)


def test_a_folder_that_grows_is_read_as_it_was_when_it_was_opened(folder: Path) -> None:
    pieces = sp.stream(folder)
    steps = next(pieces)["step"].tolist()
    sp.write(part(4), folder, step=4)
    for run in pieces:
        steps += run["step"].tolist()
    assert steps == [1] * 3 + [2] * 3 + [3] * 3


def test_a_part_that_changes_between_looking_and_reading_is_said(folder: Path) -> None:
    source = open_source(folder, where=Where.of(steps=None, samples=[1], finish_reasons=None))
    file = folder / "part-00000002-000000.parquet"
    for samples in ((1,), (0, 1, 2, 3)):
        file.unlink()
        sp.write(part(2, samples=samples), folder, step=2)
        with pytest.raises(CorruptFileError, match=f"{file.name} was changed while it was read"):
            source.load(source.pieces[1])


@pytest.mark.full
def test_the_documented_query_leaves_out_what_was_recorded_again(tmp_path: Path) -> None:
    import duckdb

    for step, attempt in ((1, 10), (2, 10), (2, 20), (3, 20)):
        sp.write(part(step).with_columns(attempt=[attempt] * 3), tmp_path / "run", step=step)
    page = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
    (last_attempts,) = re.findall(r"`(QUALIFY [^`]*)`", page)
    rows = duckdb.sql(f"SELECT step, attempt FROM '{tmp_path}/run/*.parquet' {last_attempts} ORDER BY 1").fetchall()
    run = sp.read(tmp_path / "run")
    assert rows == list(zip(run["step"].tolist(), run["attempt"].tolist(), strict=True))
    assert len(rows) == 9


def test_a_jsonl_file_that_grows_gives_its_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"rollout_logp": [-1]}\n{"rollout_logp": [-2]}\n{"rollout_lo')
    with pytest.raises(CorruptFileError, match="on line 3, its last .* still being written, so read it again later"):
        sp.read(file)
    said: list[CorruptFileError] = []
    assert sp.read(file, on_bad=said.append)["rollout_logp"].values.tolist() == [-1.0, -2.0]
    assert len(said) == 1


FULL = """
import resource, signal, sys
import numpy as np, samepolicy as sp
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
rows = np.random.default_rng(0).normal(size=(20, 1000)).astype(np.float32)
try:
    sp.write(sp.Run.from_lists(rollout_logp=rows), sys.argv[1], step=2)
except OSError as error:
    print(error.errno)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_a_full_disk_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    sp.write(part(1), tmp_path, step=1)
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "27"  # a file over the limit
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before


# --------------------------------------------------------------------------------------------------------- elsewhere


def test_a_url_is_read_like_a_path(folder: Path) -> None:
    url = f"file://{folder.resolve()}"
    assert sp.read(url, steps=[1, 2]) == sp.read(folder, steps=[1, 2])
    assert sp.Run.concat(list(sp.stream(Path(url)))) == sp.read(folder)
    with pytest.raises(InputError, match="There is no run folder at file://.*/nothing; check"):
        sp.read(f"{url}/nothing")
    spoil(folder / "part-00000002-000000.parquet")
    with pytest.raises(CorruptFileError, match="file://.*part-00000002"):
        sp.read(url)


@pytest.mark.full
def test_a_url_of_no_known_file_system_is_refused():
    with pytest.raises(InputError, match="of no known file system"):
        sp.read("nowhere://bucket/run")


@pytest.mark.full
def test_a_file_system_that_only_fsspec_has(folder: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/bucket/run", recursive=True)
    assert sp.read("memory://bucket/run") == sp.read(folder)
    assert sp.read(Path("memory://bucket/run"), samples=[1]) == sp.read(folder, samples=[1])


def test_what_is_said_goes_to_one_logger() -> None:
    from samepolicy.records.overlap import LOG

    assert LOG is logging.getLogger("samepolicy.records")
