"""Captures, sums and placing, against plain NumPy."""

from pathlib import Path

import numpy as np
import pytest
import torch

from samepolicy.errors import CorruptFileError, EngineError, InputError
from samepolicy.layers import taps
from samepolicy.layers.capture import Capture, as_rows
from samepolicy.layers.placing import Placing
from samepolicy.layers.tally import Tally, size

pytestmark = pytest.mark.full


def test_a_capture_gives_back_what_was_written_in_any_order_and_after_saving(tmp_path: Path):
    ids = as_rows([[1, 2, 3], [4, 5]])
    kept = Capture.new(ids, label="x", layers=1, folder=tmp_path / "kept")
    values = torch.randn(5, 6).to(torch.bfloat16)
    kept.write(taps.EMBEDDING, 3, values[3:])
    kept.write(taps.LOGITS, 0, torch.ones(5, 2))
    kept.write(taps.EMBEDDING, 0, values[:3])
    kept.save()
    for one in (kept, Capture.open(tmp_path / "kept")):
        assert torch.equal(one.read(taps.EMBEDDING), values)
        assert torch.equal(one.read(taps.EMBEDDING, 2, 4), values[2:4])
        assert one.taps == (taps.EMBEDDING, taps.LOGITS)
    with pytest.raises(InputError, match="is not empty"):
        Capture.new(ids, label="x", layers=1, folder=tmp_path / "kept")
    (tmp_path / "kept" / "taps.bin").write_bytes(b"short")
    with pytest.raises(CorruptFileError, match="too short"):
        Capture.open(tmp_path / "kept").read(taps.LOGITS)
    with pytest.raises(CorruptFileError, match="no capture"):
        Capture.open(tmp_path)


@pytest.mark.parametrize("rows", [[], [[]], [[1.5, 2.0]], ["text"]])
def test_what_is_no_ids_is_refused(rows: list[object]):
    with pytest.raises(InputError):
        as_rows(rows)  # type: ignore[arg-type]


def test_tallies_in_pieces_are_the_formulas():
    rng = np.random.default_rng(0)
    theirs = rng.normal(size=(40, 9))
    ours = theirs + 0.01 * rng.normal(size=theirs.shape)
    ours[:, 4] += 0.5
    tally = Tally(40)
    for start in (0, 7, 30):
        stop = {0: 7, 7: 30, 30: 40}[start]
        tally.add(start, torch.tensor(ours[start:stop]), torch.tensor(theirs[start:stop]))
    difference = ours - theirs
    assert tally.relative == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(theirs))
    cosine = (ours * theirs).sum() / np.linalg.norm(ours) / np.linalg.norm(theirs)
    assert tally.cosine == pytest.approx(cosine)
    assert tally.max_abs == pytest.approx(abs(difference).max())
    assert tally.outliers == pytest.approx(1 / 9)
    squares = (difference**2).sum(1) / (theirs**2).sum(1)
    assert tally.squares == pytest.approx(squares)
    assert size(squares).rms == pytest.approx(np.sqrt(squares.mean()))
    assert size(squares).tail == pytest.approx(np.sqrt(np.sort(squares)[-2:].mean()))
    positions = np.concatenate([np.arange(25), np.arange(15)])
    expected = [np.sqrt(squares[(positions >= low) & (positions < low + 5)].mean()) for low in range(0, 25, 5)]
    assert tally.by_position(positions, 5) == pytest.approx(expected)


def test_a_value_that_is_no_number_shows():
    tally = Tally(1)
    tally.add(0, torch.tensor([[float("nan")]]), torch.ones(1, 1))
    assert np.isnan(tally.max_abs)
    assert np.isnan(tally.squares).all()


def begin(placing: Placing, *runs: tuple[list[int], int]) -> list[tuple[int, int, int]]:
    ids = np.concatenate([run for run, _ in runs])
    positions = np.concatenate([np.arange(start, start + len(run)) for run, start in runs])
    placing.begin(ids, positions)
    return placing.pieces


def test_packed_chunks_in_another_order_are_put_back_and_other_tokens_left_out():
    placing = Placing(as_rows([[1, 2, 3, 4], [1, 2, 9, 9, 9], [7]]))
    placing.allowed = {0, 1, 2}
    assert begin(placing, ([0] * 8, 0)) == []  # profiling on zeros
    assert begin(placing, ([7], 0), ([1, 2, 9], 0), ([1, 2, 3], 0), ([0, 0], 0)) == [(0, 9, 1), (1, 4, 3), (4, 0, 3)]
    with pytest.raises(EngineError, match="3 of 4 tokens of sequence 0"):
        placing.refuse_missing()
    assert begin(placing, ([9], 3), ([4], 3)) == [(0, 7, 1), (1, 3, 1)]
    assert begin(placing, ([9], 4)) == [(0, 8, 1)]
    placing.refuse_missing()
    assert begin(placing, ([1, 2], 0)) == []


def test_sequences_that_cannot_be_told_apart_are_refused():
    placing = Placing(as_rows([[1, 5, 6], [2, 5, 6]]))
    placing.allowed = {0, 1}
    begin(placing, ([1], 0), ([2], 0))
    with pytest.raises(EngineError, match="cannot be told apart"):
        begin(placing, ([5, 6], 1))
