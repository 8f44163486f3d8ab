"""Files of no program's own format: CSV and Parquet, a map from others' column names, and going out and coming back."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

import samepolicy as sp
from samepolicy.errors import CorruptFileError, InputError, MissingColumnError
from samepolicy.records.formats import all_formats, import_run, parquet, verl_npy
from tests.records.strategies import plain, runs

LOGP = [[-1.0, -2.5], [-0.25]]


@pytest.fixture
def csv_file(tmp_path: Path):
    """Writes text as a .csv file."""

    def write(text: str) -> Path:
        path = tmp_path / "a.csv"
        path.write_text(text)
        return path

    return write


def test_a_row_for_each_response(csv_file) -> None:
    run = import_run(
        csv_file(
            "sample,rollout_logp,trainer_logp,mask,reward,finish_reason,group\n"
            '0,"[-1.0, -2.5]",-1 -2.5,1 0,0.5,stop,7\n'
            "\n"
            "1,[-0.25],[null],[true],,,7\n"
        )
    )
    assert plain(run["rollout_logp"]) == LOGP
    assert plain(run["trainer_logp"]) == [[-1.0, -2.5], ["nan"]]
    assert plain(run.mask) == [[True, False], [True]]
    assert plain(run["reward"]) == [0.5, "nan"]
    assert (run["finish_reason"].tolist(), run["group"].tolist()) == (["stop", None], [7, 7])


def test_a_row_for_each_token(csv_file) -> None:
    text = "sample,old_lp,rollout_logp,reward,step\n4,-1.5,-1.0,0.5,1\n4,,-2.5,0.5,1\n5,-0.5,-0.25,1,1\n5,-3,-4,2,2\n"
    run = import_run(csv_file(text), columns={"trainer_logp": "old_lp"})
    assert plain(run["rollout_logp"]) == [*LOGP, [-4.0]]
    assert plain(run["trainer_logp"]) == [[-1.5, "nan"], [-0.5], [-3.0]]
    assert (run["sample"].tolist(), run["step"].tolist()) == ([4, 5, 5], [1, 1, 2])
    assert run["reward"].tolist() == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", InputError, "holds no response"),
        ("rollout_logp,sample,rollout_logp\n-1,0,-9\n", InputError, "has two columns rollout_logp"),
        ("sample,rollout_logp,reward\n0,-1,0.5\n0,-2,0.7\n", InputError, "hold 0.5 and 0.7 as reward"),
        (
            "rollout_logp\n" + "[" * 50_000 + "\n",
            InputError,
            r"a\.csv: A cell of column rollout_logp begins like a list",
        ),
        ("lp,old_lp\n[-1],[-2]\n", MissingColumnError, r"a\.csv: No column has the name .* there are lp, old_lp, so"),
        ("rollout_logp\n", InputError, "holds no response"),
        ("rollout_logp,reward\n[-1]\n", CorruptFileError, "1 cells on line 2 where the heading has 2"),
        ('rollout_logp\n"[-1\n', CorruptFileError, "cannot be read after line"),
        ("rollout_logp\n[-1\n", InputError, "begins like a list"),
        ("rollout_logp\n-1\n", InputError, "no column `sample`"),
        ("sample,rollout_logp\n1,-1\n2,-1\n1,-1\n", InputError, "do not follow one another"),
        ("sample,rollout_logp\n1,x\n", InputError, "rollout_logp must hold numbers, but a cell holds 'x'"),
        ("rollout_logp,mask\n[-1],[2]\n", InputError, "0 and 1"),
    ],
)
def test_bad_csv_is_refused(csv_file, text: str, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        import_run(csv_file(text))


def test_a_map_takes_others_names_and_leaves_out_what_no_run_has(tmp_path: Path) -> None:
    lines = '{"old_lp": [-1.0], "lp": [-2.0], "mask": [1], "meta": {"a": 1}}\n'
    (tmp_path / "a.jsonl").write_text(lines * 2)
    run = import_run(tmp_path / "a.jsonl", columns={"trainer_logp": "old_lp", "rollout_logp": "lp"})
    assert set(run.columns) == {"trainer_logp", "rollout_logp", "mask"}
    assert run["trainer_logp"].values.tolist() == [-1.0] * 2
    with pytest.raises(MissingColumnError, match="no column new_lp to take; there are lp, mask, meta, old_lp"):
        import_run(tmp_path / "a.jsonl", columns={"trainer_logp": "new_lp"})
    with pytest.raises(InputError, match="no format 'jsonlines'; the formats are csv"):
        import_run(tmp_path / "a.jsonl", kind="jsonlines")
    (tmp_path / "b.txt").write_text(lines)
    assert len(import_run(tmp_path / "b.txt", kind="jsonl", columns={"trainer_logp": "old_lp"})) == 1


@given(runs())
@settings(max_examples=40)
def test_parquet_gives_back_every_value_and_dtype(run: sp.Run) -> None:
    with TemporaryDirectory() as folder:
        parquet.write(run, Path(folder) / "a.parquet")
        if not len(run):
            with pytest.raises(InputError, match="holds no response"):
                import_run(Path(folder) / "a.parquet")
            return
        assert import_run(Path(folder) / "a.parquet") == run


def test_parquet_of_another_program(tmp_path: Path) -> None:
    columns = {"lp": pa.array(LOGP, pa.list_(pa.float32())), "mask": pa.array([[1, 0], [1]], pa.list_(pa.int8()))}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    run = import_run(tmp_path / "a.parquet", columns={"rollout_logp": "lp"})
    assert (plain(run["rollout_logp"]), run["rollout_logp"].values.dtype) == (LOGP, np.float32)
    assert run.tokens == 2
    whole = (tmp_path / "a.parquet").read_bytes()
    for content in (b"", whole[:-1], b"PAR1" + whole[:50]):
        (tmp_path / "a.parquet").write_bytes(content)
        with pytest.raises(CorruptFileError, match=r"a\.parquet is truncated or is no Parquet file"):
            import_run(tmp_path / "a.parquet")


def test_verls_pairs_go_out_as_they_came(tmp_path: Path) -> None:
    for step, shape in ((2, (2, 5)), (10, (3, 4))):
        rng = np.random.default_rng(step)
        valid = np.arange(shape[1]) < rng.integers(0, shape[1], (shape[0], 1))
        np.save(tmp_path / f"prob_mask_step_{step}.npy", valid)
        diff = np.where(valid, rng.random(shape, dtype=np.float32), np.float32(0))
        np.save(tmp_path / f"prob_diff_step_{step}.npy", diff)
    sp.write(import_run(tmp_path), tmp_path / "run")
    verl_npy.write(sp.read(tmp_path / "run"), tmp_path / "out")
    names = sorted(f.name for f in tmp_path.glob("*.npy"))
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == names
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_pairs_of_a_run_with_both_sides(tmp_path: Path) -> None:
    run = sp.Run.from_lists(rollout_logp=LOGP, trainer_logp=[[-1.5, -2.5], [-0.5]], mask=[[1, 0], [1]], step=[3, 3])
    verl_npy.write(run, tmp_path / "out")
    expected = [[abs(np.exp(-1.5) - np.exp(-1.0)), 0], [abs(np.exp(-0.5) - np.exp(-0.25)), 0]]
    np.testing.assert_allclose(np.load(tmp_path / "out" / "prob_diff_step_3.npy"), expected, rtol=1e-6)
    with pytest.raises(MissingColumnError, match="no column trainer_logp"):
        verl_npy.write(run.without("trainer_logp"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_pairs_that_find_no_room_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = sp.Run.from_lists(prob_diff=LOGP, step=[1, 2])
    saved: list[np.ndarray] = []

    def full(array: np.ndarray, file: IO[bytes]) -> None:
        saved.append(array)
        if len(saved) == 3:
            raise OSError(28, "No space left on device")
        np.save(file, array)

    monkeypatch.setattr(verl_npy, "_save", full)
    with pytest.raises(OSError, match="No space left"):
        verl_npy.write(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    verl_npy.write(run, tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) == 4
    with pytest.raises(InputError, match="is there already"):
        verl_npy.write(run, tmp_path / "out")


def test_a_run_folder_is_no_dump(tmp_path: Path) -> None:
    sp.write(sp.Run.from_lists(rollout_logp=LOGP), tmp_path)
    with pytest.raises(InputError, match="is a run folder already"):
        import_run(tmp_path)


@pytest.mark.parametrize("kind", sorted(set(all_formats()) - {"jsonl"}))
def test_a_file_of_another_format_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "odd.jsonl"
    file.write_text('{"rollout_logp": [-1.0]}\n')
    with pytest.raises(InputError, match=r"odd\.jsonl") as caught:
        import_run(file, kind=kind, unsafe_pickle=True)
    assert "index out of range" not in str(caught.value)


@pytest.mark.parametrize("target", ["jsonl", "parquet"])
def test_a_link_to_nothing_is_not_overwritten_either(tmp_path: Path, target: str) -> None:
    out = tmp_path / "out"
    out.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="out exists already"):
        all_formats()[target].write(sp.Run.from_lists(rollout_logp=LOGP), out)
    assert out.is_symlink()
