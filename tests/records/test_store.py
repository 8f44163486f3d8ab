"""Run folders: what is written is read, they grow, they refuse, and a killed writer breaks nothing."""

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from samepolicy.errors import CorruptFileError, InputError, MissingColumnError
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling, Side
from samepolicy.records.store import read, write
from tests.records.strategies import runs


def small(step: int = 0, n: int = 2) -> Run:
    logp = [[-1.0 - step, -2.0], [-0.5]][:n]
    return Run.from_lists(response_ids=[[1, 2], [3]][:n], rollout_logp=logp, trainer_logp=logp, mask=[[1, 0], [1]][:n])


@given(runs())
@settings(max_examples=100)
def test_read_gives_what_write_got(run: Run) -> None:
    with TemporaryDirectory() as folder:
        write(run, folder)
        assert read(folder) == run


def test_other_columns_sides_and_info_come_back(tmp_path: Path) -> None:
    side = Side(engine="vllm", sampling=Sampling(top_p=0.9), extra={"tp": 2})
    run = Run.from_lists(
        rollout_logp=[np.array([-1], dtype=np.float32)], router=[[[1, 2]]], piece=[["é"]], node=["x"], hit=[[True]],
        rollout=side, info={"nested": {"a": [1, None]}},
    )  # fmt: skip
    write(run, tmp_path / "deep" / "run")
    back = read(tmp_path / "deep" / "run")
    assert back == run
    assert back.rollout == side
    back["rollout_logp"].values[0] = 0  # not read-only


def test_parts_are_appended_and_come_in_the_order_of_steps(tmp_path: Path) -> None:
    files = [write(small(step), tmp_path, step=step) for step in (10, 2, 2, 100000000)]
    assert [f.name for f in files[:3]] == [
        "part-00000010-000000.parquet", "part-00000002-000000.parquet", "part-00000002-000001.parquet",
    ]  # fmt: skip
    write(small().with_columns(step=[5, 6]), tmp_path)
    assert read(tmp_path)["step"].tolist() == [5, 6, 2, 2, 2, 2, 10, 10, 100000000, 100000000]
    assert read(tmp_path, steps=[10, 6])["step"].tolist() == [6, 10, 10]
    assert (
        read(tmp_path, steps=iter([2]), columns=["rollout_logp"])["rollout_logp"].values.tolist() == [-3, -2, -0.5] * 2
    )


def test_appending_leaves_finished_files_alone(tmp_path: Path) -> None:
    write(small(), tmp_path, step=0)
    before = {f.name: (f.read_bytes(), f.stat().st_mtime_ns) for f in tmp_path.iterdir()}
    write(small(), tmp_path, step=0)
    assert before.items() <= {f.name: (f.read_bytes(), f.stat().st_mtime_ns) for f in tmp_path.iterdir()}.items()
    assert not [f for f in tmp_path.iterdir() if f.name.startswith(".")]


def test_columns_bring_the_mask_and_the_ids_that_they_need(tmp_path: Path) -> None:
    run = small().with_columns(reward=[1.0, 2.0])
    write(run, tmp_path / "a")
    assert set(read(tmp_path / "a", columns=["rollout_logp"]).columns) == {"rollout_logp", "mask"}
    assert read(tmp_path / "a", columns=["rollout_logp"]).tokens == run.tokens
    other = run.with_columns(trainer_response_ids=[[1], [3]], trainer_logp=[[-1.0], [-0.5]])
    write(other, tmp_path / "b")
    assert set(read(tmp_path / "b", columns=["trainer_logp"]).columns) == {
        "trainer_logp", "trainer_response_ids", "response_ids", "mask",
    }  # fmt: skip
    with pytest.raises(MissingColumnError, match="no column advantage"):
        read(tmp_path / "a", columns=["advantage"])


def test_a_column_that_some_parts_lack_is_nan_there(tmp_path: Path) -> None:
    write(small(), tmp_path, step=0)
    write(small().without("trainer_logp", "mask"), tmp_path, step=1)
    write(small().with_columns(reward=[1.0, 2.0]), tmp_path, step=2)
    for columns in (None, ["trainer_logp", "reward"], ["reward"], ["trainer_logp"]):
        run = read(tmp_path, columns=columns)
        assert run.mask.values.tolist() == [1, 0, 1, 1, 1, 1, 1, 0, 1]
        assert len(run) == 6
    np.testing.assert_array_equal(read(tmp_path, columns=["trainer_logp"])["trainer_logp"].values[3:6], [np.nan] * 3)
    np.testing.assert_array_equal(read(tmp_path, columns=["reward"])["reward"], [np.nan] * 4 + [1, 2])


def test_no_null_and_no_double_width_is_stored(tmp_path: Path) -> None:
    run = Run.from_lists(rollout_logp=[np.array([-1, np.nan], dtype=np.float32)], text=["a"], info={"k": 1})
    file = pq.ParquetFile(write(run, tmp_path, step=4))
    table = file.read()
    assert table.schema.field("rollout_logp").type == pa.large_list(pa.float32())
    assert table["rollout_logp"].combine_chunks().values.null_count == 0
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    stored = json.loads(file.schema_arrow.metadata[b"samepolicy"])
    assert stored == json.loads((tmp_path / "run.json").read_text())
    assert (stored["schema"], stored["info"]) == (1, {"k": 1})


@pytest.mark.parametrize(
    ("run", "step", "words"),
    [
        (small().with_columns(step=[1, 2]), 1, "contradicts"),
        (small(), -1, "0 or more"),
        (Run(), 0, "columns first"),
        (Run.from_lists(reward=[1.0], info={"a": object()}), None, "JSON"),
        (Run.from_lists(text=["\ud800"]), None, "text column"),
        (Run.from_lists(reward=[1.0], trainer=Side(dtype="float16")), None, "trainer side declares dtype='float16'"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_no_part(
    tmp_path: Path, run: Run, step: int | None, words: str
) -> None:
    write(small(), tmp_path, step=7)
    with pytest.raises(InputError, match=words):
        write(run, tmp_path, step=step)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["part-00000007-000000.parquet", "run.json"]


def test_a_seed_for_each_step_makes_no_side_another(tmp_path: Path) -> None:
    sides = [Side(engine="vllm", sampling=Sampling(seed=seed)) for seed in (1, 2)]
    for step, side in enumerate(sides):
        write(replace(small(step), rollout=side), tmp_path, step=step)
    both = read(tmp_path)
    assert both["step"].tolist() == [0, 0, 1, 1]
    assert both.rollout == sides[0]
    hot = Side(engine="vllm", sampling=Sampling(seed=1, temperature=0.5))
    with pytest.raises(InputError, match="runs of different sides do not mix"):
        write(replace(small(), rollout=hot), tmp_path, step=2)


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match=r"thesis\.txt"):
        write(small(), tmp_path)
    with pytest.raises(InputError, match="is a file"):
        write(small(), tmp_path / "thesis.txt")
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.txt"]
    (tmp_path / "run.json").write_text('{"name": "another program"}')
    with pytest.raises(CorruptFileError, match="not written by samepolicy"):
        write(small(), tmp_path)
    with pytest.raises(CorruptFileError, match="not written by samepolicy"):
        read(tmp_path)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["run.json", "thesis.txt"]


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"neither a run folder nor .* jsonl: .* verl_npy: "):
        read(tmp_path)
    part = write(small(), tmp_path, step=3)
    with pytest.raises(InputError, match="none of the steps asked for; it has 3"):
        read(tmp_path, steps=[4])
    part.unlink()
    with pytest.raises(InputError, match="without a finished part"):
        read(tmp_path)
    write(small(), tmp_path)
    with pytest.raises(MissingColumnError, match="step"):
        read(tmp_path, steps=[4])


def test_truncation_anywhere_names_the_file(tmp_path: Path) -> None:
    part = write(small(), tmp_path, step=1)
    whole = part.read_bytes()
    for size in {0, 3, 4, 11, len(whole) // 3, len(whole) // 2, len(whole) - 9, len(whole) - 1}:
        part.write_bytes(whole[:size])
        with pytest.raises(CorruptFileError, match=part.name) as caught:
            read(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_flipped_bit_in_the_data_is_never_read_as_data(tmp_path: Path) -> None:
    run = Run.from_lists(rollout_logp=np.random.default_rng(0).normal(size=(20, 50)))
    part = write(run, tmp_path)
    whole = part.read_bytes()
    for at in range(4, len(whole) - 8, 97):
        part.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            back = read(tmp_path)
        except CorruptFileError:
            continue
        assert np.array_equal(back["rollout_logp"].values, run["rollout_logp"].values), at


def test_a_newer_layout_and_foreign_parquet_are_refused(tmp_path: Path) -> None:
    part = write(small(), tmp_path)
    table = pq.read_table(part)
    pq.write_table(table.replace_schema_metadata(None), part)
    with pytest.raises(CorruptFileError, match="not written by samepolicy"):
        read(tmp_path)
    head = json.loads((tmp_path / "run.json").read_text()) | {"schema": 2}
    pq.write_table(table.replace_schema_metadata({b"samepolicy": json.dumps(head)}), part)
    with pytest.raises(CorruptFileError, match="layout version 2"):
        read(tmp_path)
    for version in (True, 0, -1, 1.0, "1", None):
        pq.write_table(table.replace_schema_metadata({b"samepolicy": json.dumps({**head, "schema": version})}), part)
        with pytest.raises(CorruptFileError, match=f"parquet has layout version {version!r}"):
            read(tmp_path)
    for sides in ([1, 2], {"dtype": 5}):
        damaged = {**head, "schema": 1, "rollout": sides}
        pq.write_table(table.replace_schema_metadata({b"samepolicy": json.dumps(damaged)}), part)
        with pytest.raises(CorruptFileError, match=rf"The header of .*{part.name} is damaged: "):
            read(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(head))
    with pytest.raises(CorruptFileError, match=r"run\.json has layout version 2"):
        write(small(), tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(CorruptFileError, match="damaged"):
        read(tmp_path)


WRITER = """
import sys
from samepolicy.records.run import Run
from samepolicy.records.store import write
step = 0
while True:
    rows = [[-float(step)] * 3000] * 8
    write(Run.from_lists(rollout_logp=rows, trainer_logp=rows), sys.argv[1], step=step)
    print(step, flush=True)
    step += 1
"""


@pytest.mark.parametrize("wait", [1, 4, 7])
def test_a_killed_writer_loses_at_most_the_step_in_flight(tmp_path: Path, wait: int) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        done = [int(writer.stdout.readline()) for _ in range(wait)]
        alive = read(tmp_path)  # readable while it grows
        assert set(alive["step"]) >= set(done)
        writer.kill()
        done += [int(line) for line in writer.stdout.read().split()]
    run = read(tmp_path)
    steps = np.unique(run["step"]).tolist()
    assert steps in (done, [*done, done[-1] + 1])
    assert len(run) == 8 * len(steps)
    for row, step in zip(run["rollout_logp"], run["step"], strict=True):
        assert row.tolist() == [-float(step)] * 3000
    write(Run.from_lists(rollout_logp=[[-1.0]]), tmp_path, step=steps[-1] + 1)
    assert len(read(tmp_path)) == len(run) + 1


def test_files_left_by_a_killed_writer_are_passed_by(tmp_path: Path) -> None:
    (tmp_path / ".run.json.123.tmp").write_text("{")
    (tmp_path / ".part-00000001-000000.parquet.tmp").write_text("PAR1")
    assert write(small(), tmp_path, step=1).name == "part-00000001-000001.parquet"
    assert read(tmp_path) == small().with_columns(step=[1, 1])


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        for _ in range(5):
            write(Run.from_lists(rollout_logp=[[-float(rank)]]), tmp_path, step=0)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = read(tmp_path)["rollout_logp"].values
    assert sorted((-values).tolist()) == [float(rank) for rank in range(4) for _ in range(5)]


def test_importing_loads_no_pyarrow() -> None:
    modules = "samepolicy.records.store, samepolicy.records.formats.jsonl"
    code = f"import sys, {modules}; print({{'pyarrow', 'torch'}} & {{*sys.modules}})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
