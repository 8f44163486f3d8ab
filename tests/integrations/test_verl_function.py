"""The token-level monitor on the real DataProto: every edge of its definition."""

from types import SimpleNamespace

import numpy as np
import pytest

from samepolicy.errors import MaskError
from samepolicy.integrations.verl import calculate_token_level_prob_diff, columns
from samepolicy.records.store import read
from tests.integrations.batches import SHAPE, by_loop, proto, tensors

pytestmark = pytest.mark.full
PREFIX = "training/rollout_probs_diff/"


def expected(held, samples=8, tokens=10):
    diff, mask = by_loop(held), held["response_mask"].numpy()
    places = [(s, p) for s in range(min(SHAPE[0], samples)) for p in range(min(SHAPE[1], tokens)) if mask[s, p]]
    return {f"{PREFIX}s{s}_p{p:04d}": diff[s, p] for s, p in places}


@pytest.mark.parametrize(("samples", "tokens"), [(8, 10), (2, 3), (100, 100), (0, 5), (1, 0)])
def test_the_grid_is_what_a_loop_finds_where_the_mask_is_1(samples, tokens):
    held = tensors()
    found = calculate_token_level_prob_diff(proto(held), token_max_print=tokens, sample_max_print=samples)
    wanted = expected(held, samples, tokens)
    assert found == pytest.approx(wanted, abs=1e-6)
    assert list(found) == list(wanted)
    assert len(calculate_token_level_prob_diff(proto(held))) <= 80


@pytest.mark.parametrize("missing", ["rollout_log_probs", "old_log_probs", "responses", "both masks"])
def test_a_missing_column_gives_nothing_and_writes_nothing(missing, tmp_path):
    held = tensors()
    for name in ("response_mask", "attention_mask") if missing == "both masks" else (missing,):
        del held[name]
    assert calculate_token_level_prob_diff(proto(held), save_dir=tmp_path / "x") == {}
    assert not (tmp_path / "x").exists()


def test_without_a_response_mask_the_last_columns_of_the_attention_mask_are_taken():
    held = tensors()
    wanted = calculate_token_level_prob_diff(proto(held))
    del held["response_mask"]
    assert calculate_token_level_prob_diff(proto(held)) == wanted


@pytest.mark.parametrize("form", ["object", "mapping", "tensordict", "numpy"])
def test_other_kinds_of_batch_read_alike(form):
    held = tensors()
    data = {
        "object": SimpleNamespace(batch=held),
        "mapping": held,
        "tensordict": proto(held).batch,
        "numpy": {name: value.numpy() for name, value in held.items()},
    }[form]
    assert calculate_token_level_prob_diff(data) == pytest.approx(
        calculate_token_level_prob_diff(proto(held)), abs=1e-6
    )


def test_a_batch_without_tensors_gives_nothing():
    assert calculate_token_level_prob_diff(SimpleNamespace(batch=None)) == {}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_any_dtype_is_computed_and_saved_in_float32(dtype, tmp_path):
    import torch

    held = tensors()
    held = {n: v.to(getattr(torch, dtype)) if v.is_floating_point() else v for n, v in held.items()}
    found = calculate_token_level_prob_diff(proto(held), save_dir=tmp_path)
    saved = np.load(tmp_path / "prob_diff.npy")
    assert saved.dtype == np.float32
    np.testing.assert_allclose(saved, by_loop(held), atol=1e-6)
    assert found == pytest.approx(expected(held), abs=1e-6)


@pytest.mark.parametrize("dtype", ["bool", "float32", "int64", "uint8"])
def test_masks_of_any_dtype_are_read(dtype):
    import torch

    held = tensors()
    wanted = calculate_token_level_prob_diff(proto(held))
    held["response_mask"] = held["response_mask"].to(getattr(torch, dtype))
    assert calculate_token_level_prob_diff(proto(held)) == wanted


def test_a_mask_with_other_values_is_refused():
    held = tensors()
    held["response_mask"] = held["response_mask"] * 2
    with pytest.raises(MaskError, match="only 0 and 1"):
        calculate_token_level_prob_diff(proto(held))


def test_nan_outside_the_mask_stays_outside_and_nan_under_it_is_shown(tmp_path):
    held = tensors()
    held["old_log_probs"][0, 0] = float("nan")
    found = calculate_token_level_prob_diff(proto(held), save_dir=tmp_path)
    assert [name for name, value in found.items() if np.isnan(value)] == [f"{PREFIX}s0_p0000"]
    saved = np.load(tmp_path / "prob_diff.npy")
    assert np.argwhere(np.isnan(saved)).tolist() == [[0, 0]]


@pytest.mark.parametrize(("step", "end"), [(None, ""), (0, "_step_0"), (7, "_step_7"), (np.int64(12), "_step_12")])
def test_the_files_are_there_before_it_returns(step, end, tmp_path):
    held = tensors()
    folder = tmp_path / "made" / "by it"
    calculate_token_level_prob_diff(proto(held), save_dir=folder, step=step)
    assert sorted(f.name for f in folder.iterdir()) == [f"prob_diff{end}.npy", f"prob_mask{end}.npy"]
    diff, mask = (np.load(folder / f"prob_{kind}{end}.npy", allow_pickle=False) for kind in ("diff", "mask"))
    assert (diff.dtype, mask.dtype, diff.shape, mask.shape) == (np.float32, np.bool_, SHAPE, SHAPE)
    np.testing.assert_allclose(diff, by_loop(held), atol=1e-6)
    np.testing.assert_array_equal(mask, held["response_mask"].numpy() == 1)


def test_an_empty_mask_gives_no_keys_and_files_of_zeros(tmp_path):
    held = tensors()
    held["response_mask"] = held["response_mask"] * 0
    assert calculate_token_level_prob_diff(proto(held), save_dir=tmp_path, step=1) == {}
    assert not np.load(tmp_path / "prob_diff_step_1.npy").any()
    assert not np.load(tmp_path / "prob_mask_step_1.npy").any()


def test_a_failed_write_leaves_neither_file_nor_trace(tmp_path, monkeypatch):
    calculate_token_level_prob_diff(proto(tensors(0)), save_dir=tmp_path, step=1)
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="No space left"):
        calculate_token_level_prob_diff(proto(tensors(1)), save_dir=tmp_path, step=1)
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before


def test_the_folder_reads_back_as_a_run(tmp_path):
    held = {step: tensors(step) for step in (1, 2)}
    for step, one in held.items():
        calculate_token_level_prob_diff(proto(one), save_dir=tmp_path, step=step)
    run = read(tmp_path)
    assert run.tokens == sum(int(one["response_mask"].sum()) for one in held.values())
    wanted = np.concatenate([by_loop(one)[one["response_mask"].numpy() == 1] for one in held.values()])
    np.testing.assert_allclose(run["prob_diff"].values[run.mask.values], wanted, atol=1e-6)


def test_the_whole_grid_is_one_copy_to_the_host(monkeypatch):
    from samepolicy.monitor import prob_diff

    copies = []
    real = prob_diff.to_numpy
    monkeypatch.setattr(prob_diff, "to_numpy", lambda x: copies.append(x.shape) or real(x))
    assert len(calculate_token_level_prob_diff(proto(tensors()))) > 10
    assert copies == [(2, 5, 10)]


def test_columns_are_those_of_a_run():
    held = tensors()
    data = proto(held)
    data.non_tensor_batch["uid"] = np.array(list("aabbc"), dtype=object)
    found = columns(data)
    assert found["group"] == list("aabbc")
    assert [row.tolist() for row in found["prompt_ids"]] == [[1, 1, 1]] * 5
    assert found["trainer"] is not None
    assert found["response_ids"].shape == SHAPE
    del held["old_log_probs"]
    assert columns(proto(held)) == {"trainer": None, "rollout": None, "mask": None}
