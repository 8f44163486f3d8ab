"""Foreign dumps: verl's monitor folder and .jsonl files, whole, odd and broken."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given

from samepolicy.errors import CorruptFileError, InputError, MaskError, ShapeError
from samepolicy.records.formats import import_run, jsonl
from samepolicy.records.run import Run
from samepolicy.records.side import Side
from samepolicy.records.store import read, write
from tests.records.strategies import plain, runs


def dump(folder: Path, end: str, mask: list[list[int]]) -> np.ndarray:
    valid = np.array(mask, dtype=bool)
    diff = np.where(valid, np.arange(valid.size).reshape(valid.shape) / 100, 0).astype(np.float32)
    np.save(folder / f"prob_diff{end}.npy", diff)
    np.save(folder / f"prob_mask{end}.npy", valid)
    return diff


def test_steps_of_different_shapes_come_in_order_with_their_positions(tmp_path: Path) -> None:
    ten = dump(tmp_path, "_step_10", [[1, 1, 0], [0, 1, 0]])
    two = dump(tmp_path, "_step_2", [[0, 0], [1, 1], [1, 0]])
    run = read(tmp_path)
    assert set(run.columns) == {"prob_diff", "mask", "sample", "step"}
    assert run["step"].tolist() == [2, 2, 2, 10, 10]
    assert run["sample"].tolist() == [0, 1, 2, 0, 1]
    assert run.lengths.tolist() == [0, 2, 1, 2, 2]
    assert [row.tolist() for row in run["prob_diff"]] == [
        [], two[1].tolist(), two[2, :1].tolist(), ten[0, :2].tolist(), ten[1, :2].tolist(),
    ]  # fmt: skip
    assert run["mask"][4].tolist() == [False, True]
    assert run["prob_diff"].values.dtype == np.float32
    assert run.info == {"source": "verl_npy", "shapes": {"2": [3, 2], "10": [2, 3]}}
    assert (
        read(tmp_path, steps=[10], columns=["prob_diff"])["prob_diff"].values.tolist()
        == ten[[0, 0, 1, 1], [0, 1, 0, 1]].tolist()
    )
    write(run, tmp_path / "run")
    assert read(tmp_path / "run") == run


def test_a_dump_without_a_step_has_no_step_column(tmp_path: Path) -> None:
    dump(tmp_path, "", [[0, 0]])
    run = import_run(tmp_path)
    assert (len(run), run.tokens, "step" in run) == (1, 0, False)
    dump(tmp_path, "_step_1", [[1]])
    with pytest.raises(InputError, match="with a step and files without"):
        import_run(tmp_path)


@pytest.mark.parametrize("kind", ["diff", "mask"])
def test_a_file_without_its_partner_is_named(tmp_path: Path, kind: str) -> None:
    dump(tmp_path, "_step_3", [[1]])
    (tmp_path / f"prob_{kind}_step_3.npy").unlink()
    with pytest.raises(InputError, match=f"prob_{kind}_step_3.npy is missing"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("diff", "mask", "error", "words"),
    [
        (np.zeros((2, 3)), np.ones((2, 1), bool), ShapeError, r"\[2, 3\].*\[2, 1\]"),
        (np.zeros(3), np.ones(3, bool), ShapeError, r"\[3\]"),
        (np.zeros((1, 2)), np.full((1, 2), 2), MaskError, "2"),
        (np.array([[None, {}]]), np.ones((1, 2), bool), CorruptFileError, "pickled"),
        (np.zeros((1, 2)), np.array([[None, {}]]), CorruptFileError, "pickled"),
        (np.array([["a"]]), np.ones((1, 1), bool), CorruptFileError, "not numbers"),
        (np.zeros((1, 2), complex), np.ones((1, 2), bool), CorruptFileError, "not numbers"),
    ],
)
def test_odd_arrays_are_refused(tmp_path: Path, diff: np.ndarray, mask: np.ndarray, error: type, words: str) -> None:
    np.save(tmp_path / "prob_diff_step_1.npy", diff)
    np.save(tmp_path / "prob_mask_step_1.npy", mask)
    with pytest.raises(error, match=words) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


def test_truncated_and_foreign_npy_files_are_named(tmp_path: Path) -> None:
    dump(tmp_path, "_step_1", [[1, 1, 1]])
    file = tmp_path / "prob_diff_step_1.npy"
    whole = file.read_bytes()
    lying = whole.replace(b"(1, 3), }        ", b"(99999999, 999)}")
    assert len(lying) == len(whole) - 1
    for content in (b"", whole[:4], whole[:9], whole[:60], whole[:-1], b"\x80\x04pickle", b"PK\x03\x04zip", lying):
        file.write_bytes(content)
        with pytest.raises(CorruptFileError, match=r"prob_diff_step_1\.npy"):
            read(tmp_path)


def test_a_bad_step_is_left_out_if_allowed(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        dump(tmp_path, f"_step_{step}", [[1, 1]])
    (tmp_path / "prob_mask_step_2.npy").write_bytes(b"")
    said: list[CorruptFileError] = []
    assert read(tmp_path, on_bad=said.append)["step"].tolist() == [1, 3]
    assert ["prob_mask_step_2.npy" in str(error) for error in said] == [True]
    for step in (1, 3):
        (tmp_path / f"prob_diff_step_{step}.npy").write_bytes(b"")
    with pytest.raises(CorruptFileError, match="None of the 3 steps"):
        read(tmp_path, on_bad=said.append)


@given(runs())
def test_jsonl_gives_back_every_value(run: Run) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "run.jsonl"
        jsonl.write(run, file)
        if not len(run):
            with pytest.raises(InputError, match="no response"):
                import_run(file)
            return
        back = read(file)
        assert (back.rollout, back.trainer, back.info) == (run.rollout, run.trainer, run.info)
        for name, column in run.columns.items():
            assert plain(back[name]) == plain(column)


def test_a_plain_jsonl_file_needs_no_head(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    first = '{"response_ids": [1, 2], "rollout_logp": [-1, null], "mask": [1, 0]}'
    file.write_text(first + '\n\n{"mask": [1], "response_ids": [3], "rollout_logp": [-2]}\n')
    run = import_run(file)
    assert run.tokens == 2
    np.testing.assert_array_equal(run["rollout_logp"].values, [-1, np.nan, -2])
    file.write_text('{"run": {"rollout": {"engine": "sglang"}}}\n{"reward": 1}\n')
    assert import_run(str(file)).rollout == Side(engine="sglang")
    with pytest.raises(InputError, match="exists already"):
        jsonl.write(run, file)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", InputError, "no response"),
        ('{"reward": 1}\n{"reward": ', CorruptFileError, "line 2"),
        ('{"reward": 1}\n[1]', CorruptFileError, "line 2"),
        ("[" * 100000, CorruptFileError, "line 1"),
        ('{"reward": 1}\n\n{"text": "a"}', InputError, "line 3"),
        ('{"rollout_logp": [-1, -2], "trainer_logp": [-1]}', ShapeError, "end_token"),
        ('{"run": 3}\n{"reward": 1}', CorruptFileError, "sides"),
        ('{"run": {"rollout": 3}}\n{"reward": 1}', CorruptFileError, "sides"),
    ],
)
def test_bad_jsonl_is_refused(tmp_path: Path, text: str, error: type, words: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    with pytest.raises(error, match=words):
        import_run(file)


def test_unreadable_paths_list_the_known_formats(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\x00")
    with pytest.raises(InputError, match=r"jsonl: .*; verl_npy: "):
        import_run(tmp_path / "a.bin")
    with pytest.raises(InputError, match="does not exist"):
        import_run(tmp_path / "b")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(CorruptFileError):
        import_run(tmp_path / "b.jsonl")
