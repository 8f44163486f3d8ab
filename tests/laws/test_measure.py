"""What holds for every summary: layouts, namespaces, merging, masks and findings."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samepolicy import Run, arrays, measure, measure_batch, measure_by
from samepolicy.arrays import Ragged
from samepolicy.errors import InputError, MaskError, MissingColumnError, ShapeError
from samepolicy.metrics.position import position_curve
from tests.oracles.batches import batch


def same(a, b, rel=1e-9):
    assert a.counts == b.counts
    assert a.statistics.keys() == b.statistics.keys()
    for name, readouts in a.metrics.items():
        assert b[name] == pytest.approx(readouts, rel=rel, abs=1e-11, nan_ok=True), name


def packed(data):
    lengths = np.full(len(data["mask"]), data["mask"].shape[1])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return {n: x.reshape(-1) for n, x in data.items()} | {"offsets": offsets}


@given(seed=st.integers(0, 50), cut=st.integers(0, 6))
def test_micro_batches_merge_to_the_batch(seed, cut):
    data = batch(seed)
    parts = [measure_batch(**{n: x[rows] for n, x in data.items()}) for rows in (slice(cut), slice(cut, None))]
    same(parts[0] + parts[1], measure_batch(**data))


@given(seed=st.integers(0, 50))
def test_padded_packed_and_run_are_measured_alike(seed):
    data = batch(seed)
    whole = measure_batch(**data)
    same(measure_batch(**packed(data)), whole)
    run = Run.from_padded(trainer_logp=data["trainer"], rollout_logp=data["rollout"], mask=data["mask"])
    same(measure(run), whole)


@given(seed=st.integers(0, 20))
def test_order_of_sequences_does_not_matter(seed):
    data = batch(seed)
    order = np.random.default_rng(seed).permutation(len(data["mask"]))
    same(measure_batch(**{n: x[order] for n, x in data.items()}), measure_batch(**data))


def test_what_the_mask_hides_changes_nothing():
    data = batch(1)
    clean = {**data, **{n: np.where(data["mask"], data[n], -1.0) for n in ("trainer", "rollout")}}
    same(measure_batch(**clean), measure_batch(**data))


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float32, np.uint8])
def test_masks_of_any_dtype(dtype):
    data = batch(2)
    same(measure_batch(**{**data, "mask": data["mask"].astype(dtype)}), measure_batch(**data))


def test_many_blocks_give_what_one_block_gives(monkeypatch):
    data = batch(5, rows=64, time=50)
    whole = measure_batch(**data)
    monkeypatch.setattr("samepolicy.blocks.TOKENS_HOST", 60)
    same(measure_batch(**data), whole)
    same(measure_batch(**packed(data)), whole)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_torch_on_the_host_is_measured_like_numpy(dtype):
    import torch

    data = {n: torch.from_numpy(x) for n, x in batch(6).items()}
    for name in ("trainer", "rollout"):
        data[name] = data[name].to(getattr(torch, dtype)).requires_grad_()
    plain = {n: x.detach().to(torch.float64 if x.is_floating_point() else x.dtype).numpy() for n, x in data.items()}
    same(measure_batch(**data), measure_batch(**plain))


@pytest.mark.full
@pytest.mark.parametrize("layout", [dict, packed])
def test_the_device_path_gives_what_the_host_path_gives(monkeypatch, layout):
    import torch

    data = layout(batch(7, rows=40))
    whole = measure_batch(**data)
    monkeypatch.setattr(arrays, "on_host", lambda x: not arrays.is_torch(x))
    monkeypatch.setattr("samepolicy.blocks.on_host", lambda x: not arrays.is_torch(x))
    monkeypatch.setattr(arrays, "to_numpy", lambda x: x.detach().numpy() if arrays.is_torch(x) else x)
    monkeypatch.setattr("samepolicy.blocks.to_numpy", arrays.to_numpy)
    monkeypatch.setattr("samepolicy.gathering.to_numpy", arrays.to_numpy)
    monkeypatch.setattr("samepolicy.blocks.TOKENS_DEVICE", 100)
    same(measure_batch(**{n: torch.from_numpy(x) if n != "offsets" else x for n, x in data.items()}), whole)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.5])
@pytest.mark.parametrize("side", ["trainer", "rollout"])
def test_bad_values_under_the_mask_are_counted_and_left_out(side, value):
    data = batch(8, empty=False)
    data[side][0, 0] = value
    found = measure_batch(**data)
    without = {**data, "mask": data["mask"].copy()}
    without["mask"][0, 0] = False
    expected = measure_batch(**without)
    assert found.counts.tokens == expected.counts.tokens + 1
    assert found.counts.measured == expected.counts.measured
    kind = "positive" if value == 0.5 else "nonfinite"
    assert getattr(found.counts, f"{kind}_{side}") == 1
    assert found.counts.missing == int(np.isnan(value))
    for name, readouts in expected.metrics.items():
        assert found[name] == pytest.approx(readouts, rel=1e-9, nan_ok=True), name


def test_exact_zeros_are_counted_and_measured():
    found = measure_batch(trainer=np.array([[0.0, -1.0]]), rollout=np.array([[-1.0, -1.0]]), mask=np.ones((1, 2)))
    assert (found.counts.zero_trainer, found.counts.zero_rollout, found.counts.measured) == (1, 0, 2)


def test_an_empty_mask_gives_nan_with_count_0():
    found = measure_batch(trainer=np.zeros((2, 3)), rollout=np.zeros((2, 3)), mask=np.zeros((2, 3)))
    assert found.counts.empty_sequences == 2
    for name, readouts in found.metrics.items():
        assert readouts["count"] == 0 if "count" in readouts else True, name
        assert all(math.isnan(v) for k, v in readouts.items() if k not in ("count", "trusted_below")), name


def test_a_batch_of_no_rows_and_one_of_no_columns():
    for shape in ((0, 3), (2, 0)):
        found = measure_batch(trainer=np.zeros(shape), rollout=np.zeros(shape), mask=np.zeros(shape, bool))
        assert found.counts.tokens == 0
        assert math.isnan(found["k3"]["mean"])


def test_one_token():
    found = measure_batch(trainer=np.array([[-1.5]]), rollout=np.array([[-1.0]]), mask=np.ones((1, 1)))
    assert found["k1"]["mean"] == 0.5
    assert math.isnan(found["k1"]["std"])


def test_a_huge_ratio_reads_as_infinite():
    found = measure_batch(trainer=np.array([[-1.0]]), rollout=np.array([[-2000.0]]), mask=np.ones((1, 1)))
    assert found["ratio"]["max"] == math.inf
    assert found["chi2_token"]["chi2"] == math.inf
    assert found.as_dict()["metrics"]["ratio"]["max"] == "inf"


def test_identical_policies_read_the_ideal():
    from samepolicy.metrics import all_metrics

    data = batch(9, empty=False)
    found = measure_batch(**{**data, "trainer": data["rollout"]})
    for name, readouts in found.metrics.items():
        ideal, first = all_metrics()[name].ideal, next(iter(readouts.values()))
        if not math.isnan(ideal) and not name.startswith("pareto"):
            assert first == pytest.approx(ideal), name


@given(seed=st.integers(0, 30))
def test_signs_and_bounds(seed):
    found = measure_batch(**batch(seed, spread=1.0))
    assert found["k3"]["min"] >= 0
    assert found["k2"]["mean"] >= 0
    assert found["mult_error"]["mean"] >= 1
    assert 0 < found["ess_token"]["ess"] <= 1 + 1e-12
    assert 0 < found["ess_seq_product"]["ess"] <= 1 + 1e-12
    assert found["k3"]["mean"] == pytest.approx(found["ratio"]["mean"] - 1 + found["k1"]["mean"], abs=1e-9)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"mask": np.full((6, 40), 2)}, MaskError),
        ({"mask": np.full((6, 40), 0.5)}, MaskError),
        ({"mask": np.full((6, 40), np.nan)}, MaskError),
        ({"mask": np.ones((6, 1))}, ShapeError),
        ({"trainer": np.zeros((6, 1))}, ShapeError),
        ({"trainer": np.zeros((6, 39))}, ShapeError),
        ({"advantage": np.zeros(6)}, ShapeError),
        ({"mask": np.ones(6)}, ShapeError),
        ({"reward": np.zeros((6, 40))}, InputError),
        ({"names": "nobody"}, InputError),
    ],
)
def test_bad_input_is_one_sentence(change, error):
    with pytest.raises(error) as caught:
        measure_batch(**{**batch(0), **change})
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_missing_column_says_what_it_needs():
    found = measure_batch(**batch(0))
    assert found.missing["sign_skew"] == ("advantage",)
    with pytest.raises(MissingColumnError, match="advantage"):
        found["sign_skew"]
    with pytest.raises(InputError, match="no metric"):
        found["nonsense"]
    with pytest.raises(MissingColumnError, match="trainer_logp"):
        measure(Run.from_lists(rollout_logp=[[-1.0]]))


def test_a_run_of_probability_differences_only():
    run = Run.from_lists(prob_diff=[[0.1, 0.3], [0.2]])
    found = measure(run)
    assert found["prob_diff"]["mean"] == pytest.approx(0.2)
    assert found.missing["k3"] == ("rollout_logp", "trainer_logp")


@pytest.mark.parametrize("by", ["step", "position", "end", "probability", "turn", "version", "lag", "finish_reason"])
def test_groups_partition_the_tokens(by):
    data = batch(11, rows=20)
    run = Run.from_padded(
        trainer_logp=data["trainer"],
        rollout_logp=data["rollout"],
        mask=data["mask"],
        step=np.arange(20) // 5,
        finish_reason=["stop", "length"] * 10,
        turn=np.tile(np.arange(40) // 10, (20, 1)),
        policy_version=np.tile(np.arange(40) // 20, (20, 1)),
        trainer_version=np.full(20, 3),
    )
    whole, groups = measure(run), measure_by(run, by)
    assert sum(g.counts.tokens for g in groups.values()) == whole.counts.tokens
    total = sum(g["k3"]["mean"] * g["k3"]["count"] for g in groups.values())
    assert total / whole["k3"]["count"] == pytest.approx(whole["k3"]["mean"])
    assert len(groups) > 1


def test_unknown_groupings_are_refused():
    with pytest.raises(InputError, match="finish_reason"):
        measure_by(Run.from_lists(rollout_logp=[[-1.0]], trainer_logp=[[-1.0]]), "weather")


def test_position_curve_is_the_mean_across_the_batch():
    values = [[1.0, 2.0, 3.0], [5.0], [np.nan, 4.0]]
    mask = [[True, False, True], [True], [True, True]]
    curve = position_curve(Ragged.from_lists(values), Ragged.from_lists(mask))
    assert curve.count.tolist() == [2, 1, 1]
    assert curve.mean.tolist() == [3.0, 4.0, 3.0]
    assert curve.max.tolist() == [5.0, 4.0, 3.0]
