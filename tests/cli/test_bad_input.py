"""Input that is wrong is refused in one sentence with status 2; input that is odd gives a finding."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import samepolicy as sp
from tests.cli.conftest import Call

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def dump(tmp_path: Path):
    """Writes a .jsonl file from lines."""

    def write(*lines: dict[str, Any]) -> Path:
        path = tmp_path / "dump.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)))
        return path

    return write


@pytest.mark.parametrize("command", ["measure", "diagnose"])
def test_a_missing_run(call: Call, tmp_path: Path, command: str):
    assert "does not exist" in call(command, tmp_path / "nowhere").refusal


def test_a_folder_that_is_no_run(call: Call, tmp_path: Path):
    (tmp_path / "readme.txt").write_text("hello")
    assert "neither a run folder nor a dump" in call("measure", tmp_path).refusal


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_parquet_file(call: Call, recorded: Path, tmp_path: Path, share: float):
    for file in recorded.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    part = next(tmp_path.glob("*.parquet"))
    part.write_bytes(part.read_bytes()[: int(share * part.stat().st_size)])
    assert part.name in call("measure", tmp_path).refusal


def test_a_run_of_a_newer_layout(call: Call, recorded: Path, tmp_path: Path):
    for file in recorded.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    about = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**about, "schema": 99}))
    assert "99" in call("measure", tmp_path).refusal


def test_pickled_and_truncated_npy_files(call: Call, tmp_path: Path):
    np.save(tmp_path / "prob_mask_step_1.npy", np.ones((2, 3), dtype=bool))
    np.save(tmp_path / "prob_diff_step_1.npy", np.array([{"a": 1}] * 2, dtype=object), allow_pickle=True)
    assert "pickled Python objects" in call("measure", tmp_path).refusal
    np.save(tmp_path / "prob_diff_step_1.npy", np.ones((2, 3), np.float32))
    file = tmp_path / "prob_diff_step_1.npy"
    file.write_bytes(file.read_bytes()[:-4])
    assert "truncated" in call("import", tmp_path, tmp_path.with_name("run")).refusal


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"rollout_logp": [-1.0], "trainer_logp": [-1.0], "mask": [2]}, "mask"),
        ({"rollout_logp": [-1.0, -2.0], "trainer_logp": [-1.0]}, "end_token"),
        ({"rollout_logp": [-1.0, -2.0], "trainer_logp": [-1.0, -2.0], "mask": [1]}, "Sequence 0 has 1 values in mask"),
        ({"rollout_logp": ["a"], "trainer_logp": [-1.0]}, "rollout_logp"),
    ],
)
def test_columns_that_do_not_fit(call: Call, dump: Any, tmp_path: Path, line: dict[str, Any], words: str):
    assert words in call("import", dump(line), tmp_path / "run").refusal
    assert not (tmp_path / "run").exists()


def test_a_line_that_is_no_object(call: Call, tmp_path: Path):
    (tmp_path / "dump.jsonl").write_text('{"rollout_logp": [-1.0]}\n{"rollout_logp": [-1.')
    assert "line 2" in call("import", tmp_path / "dump.jsonl", tmp_path / "run").refusal


def test_one_side_alone_cannot_be_measured(call: Call, dump: Any):
    assert "samepolicy score RUN" in call("measure", dump({"rollout_logp": [-1.0]})).refusal
    done = call("diagnose", dump({"rollout_logp": [-1.0]}))
    assert (done.code, "There is nothing to compare" in done.out) == (3, True)


@pytest.mark.parametrize(
    ("lines", "code", "counts"),
    [
        ([{"rollout_logp": [-1.0, -2.0], "trainer_logp": [NAN, -2.0]}], 1, {"nonfinite_trainer": 1, "measured": 1}),
        ([{"rollout_logp": [-INF, -2.0], "trainer_logp": [-1.0, -2.0]}], 1, {"nonfinite_rollout": 1, "measured": 1}),
        ([{"rollout_logp": [0.5, -2.0], "trainer_logp": [-1.0, -2.0]}], 1, {"positive_rollout": 1, "measured": 1}),
        ([{"rollout_logp": [-1.0], "trainer_logp": [-1.5], "mask": [0]}], 3, {"tokens": 0, "measured": 0}),
        ([{"rollout_logp": [], "trainer_logp": []}], 3, {"tokens": 0, "empty_sequences": 1}),
        ([{"rollout_logp": [-1.0], "trainer_logp": [-1.5]}], 3, {"tokens": 1, "sequences": 1}),
        (
            [{"rollout_logp": [-1.0, -9.0], "trainer_logp": [-1.000001, NAN], "mask": [1, 0]}] * 2,
            0,
            {"nonfinite_trainer": 0, "measured": 2},
        ),
    ],
)
def test_odd_values_are_findings(
    call: Call, tmp_path: Path, lines: list[dict[str, Any]], code: int, counts: dict[str, int]
):
    sp.write(sp.Run.from_lists(**{name: [line[name] for line in lines] for name in lines[0]}), tmp_path / "run")
    measured = call("measure", tmp_path / "run", "--json")
    assert measured.code == 0
    assert {name: measured.value["counts"][name] for name in counts} == counts
    done = call("diagnose", tmp_path / "run", "--json")
    assert done.code == code, done.value["sentence"]
    assert call("diagnose", tmp_path / "run", "--all").code == code


def test_runs_of_different_columns_say_which_tokens_each_metric_covers(call: Call, tmp_path: Path):
    both = {"rollout_logp": [[-1.0, -2.0]], "trainer_logp": [[-1.1, -2.0]]}
    for name, columns in (("a", both), ("b", {"prob_diff": [[0.1, 0.2, 0.3]]}), ("c", {**both, "advantage": [1.0]})):
        sp.write(sp.Run.from_lists(**columns), tmp_path / name)
    page = " ".join(call("measure", *(tmp_path / name for name in "abc")).out.split())
    assert "7 of 7 tokens measured" in page
    part = page.partition("Measured on a part of the tokens")[2].partition("Not measured")[0]
    assert "k3" in part
    assert ": 4 of 7 tokens" in part
    assert "sign_skew: 2 of 7 tokens" in part
    assert "prob_diff" not in part
    assert "Measured on a part" not in call("measure", tmp_path / "a").out


@pytest.mark.full
def test_a_model_folder_that_is_none(call: Call, tmp_path: Path):
    assert "not a model folder" in call("check", tmp_path).refusal
    (tmp_path / "model.gguf").write_bytes(b"GGUF or not")
    assert str(tmp_path / "model.gguf") in call("check", tmp_path / "model.gguf").refusal


def test_switches_that_name_nothing(call: Call, recorded: Path):
    assert "has no kind" in call("diagnose", recorded, "--trainer", "").refusal
    assert "--checkpoints names nothing" in call("diagnose", recorded, "--trainer", "toy:", "--checkpoints").refusal
