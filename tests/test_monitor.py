"""The monitor: its numbers, its files, its alarms, and that nothing of it reaches into training."""

import threading
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.special import rel_entr

from samepolicy import Monitor, Sampling, Side, measure, measure_batch, read
from samepolicy.errors import InputError
from samepolicy.monitor import newest
from samepolicy.monitor.prob_diff import save_pair
from samepolicy.monitor.reference import reference_kl, warnings
from samepolicy.records.formats import verl_npy
from tests.monitoring import clean, own, said

# -------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("names", ["samepolicy", "verl", "swift", "tinker"])
def test_the_metrics_are_those_of_measure_batch(names):
    data = clean()
    found = Monitor(names=names)(step=1, **data)
    wanted = measure_batch(**data, names=names).flat(names)
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, nan_ok=True), name
    ours = measure_batch(**data)
    assert found["samepolicy/ess_token/ess"] == pytest.approx(ours["ess_token"]["ess"])
    assert found["samepolicy/counts/measured"] == ours.counts.measured


def test_packed_and_padded_batches_give_the_same_numbers_and_records(tmp_path):
    data = clean(empty=False)
    lengths = np.array([np.flatnonzero(row).max() + 1 for row in data["mask"]])
    keep = np.arange(data["mask"].shape[1]) < lengths[:, None]
    packed = {name: value[keep] for name, value in data.items()}
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    reward = np.arange(len(lengths), dtype=float)
    with Monitor(save_dir=tmp_path / "a") as a, Monitor(save_dir=tmp_path / "b") as b:
        one = a(step=1, **data, reward=reward, advantage=reward)
        two = b(step=1, **packed, offsets=offsets, reward=reward, advantage=reward)
    shared = {n for n in one if "/s" not in n or "sign_skew" in n} & {*two}
    assert {n: two[n] for n in shared} == pytest.approx({n: one[n] for n in shared}, nan_ok=True)
    assert "samepolicy/sign_skew/mean" in shared
    first, second = (read(tmp_path / name).without("attempt") for name in "ab")
    assert first == second


def test_a_grid_cell_is_the_difference_of_the_two_probabilities():
    data = clean()
    found = Monitor(grid=(2, 5))(step=1, **data)
    cells = {n: v for n, v in found.items() if n.startswith("samepolicy/prob_diff/s")}
    wanted = {
        f"samepolicy/prob_diff/s{s}_p{p:04d}": abs(np.exp(data["trainer"][s, p]) - np.exp(data["rollout"][s, p]))
        for s in range(2)
        for p in range(5)
        if data["mask"][s, p]
    }
    cells.pop("samepolicy/prob_diff/std", None)
    assert cells == pytest.approx(wanted, rel=1e-4)


def test_what_is_no_log_prob_under_the_mask_is_shown_as_it_is_and_counted():
    data = clean(empty=False)
    data["trainer"][0, 0], data["rollout"][0, 0], data["trainer"][1, 0] = 1e9, 1e9, np.inf
    found = Monitor()(step=1, **data)
    assert np.isnan(found["samepolicy/prob_diff/s0_p0000"])
    assert found["samepolicy/prob_diff/s1_p0000"] == np.inf
    assert found["samepolicy/counts/positive_trainer"] == found["samepolicy/counts/nonfinite_trainer"] == 1


def test_kl_to_the_reference_is_what_a_loop_finds():
    data = clean(empty=True)
    rng = np.random.default_rng(1)
    ref = data["trainer"] + 0.2 * rng.standard_normal(data["mask"].shape).astype(np.float32)
    ref = np.minimum(ref, -1e-6)
    found = Monitor(names="verl")(step=1, **data, ref_logp=ref)
    kinds = {"k1": lambda r: -r, "k2": lambda r: r * r / 2, "k3": lambda r: np.expm1(r) - r}
    for name, kind in kinds.items():
        rows = [
            kind(ref[i].astype(float) - data["trainer"][i].astype(float))[data["mask"][i]]
            for i in range(len(ref))
            if data["mask"][i].any()
        ]
        token, completion = np.concatenate(rows).mean(), np.mean([row.mean() for row in rows])
        assert found[f"samepolicy/reference_kl/{name}_token_mean"] == pytest.approx(token)
        assert found[f"samepolicy/reference_kl/{name}_completion_mean"] == pytest.approx(completion)
    assert found["actor/kl_loss"] == found["samepolicy/reference_kl/k2_token_mean"]
    assert found["samepolicy/reference_kl/left_out"] == 0


def test_k3_over_many_samples_estimates_the_kl_and_bands_follow():
    rng = np.random.default_rng(0)
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    ids = rng.choice(3, size=(1, 200_000), p=p)
    found = reference_kl(policy=np.log(p)[ids], reference=np.log(q)[ids], mask=np.ones(ids.shape))
    assert found["samepolicy/reference_kl/k3_token_mean"] == pytest.approx(rel_entr(p, q).sum(), rel=0.02)
    assert found["samepolicy/reference_kl/band"] == 1.0
    ones = np.ones((1, 4))
    for distance, band in ((0.1, 0), (0.3, 1), (0.55, 2), (0.8, 3)):
        got = reference_kl(policy=-ones, reference=-ones - distance, mask=ones)
        assert got["samepolicy/reference_kl/band"] == band
        assert ("reference_kl" in warnings(got)) == (band == 3)


def test_the_reference_is_held_against_the_current_policy_where_it_is_given():
    data = clean(empty=False)
    current = np.where(data["mask"], data["trainer"] - 0.5, 0)
    found = Monitor()(step=1, **data, ref_logp=data["trainer"], current_logp=current)
    assert found["actor/kl_loss"] == pytest.approx(0.125, rel=1e-5)
    assert found["samepolicy/update_ratio/mean"] == pytest.approx(np.exp(-0.5), rel=1e-5)
    same = Monitor(names="verl")(step=1, **data, current_logp=data["trainer"])
    assert same["samepolicy/update_ratio/mean"] == 1.0


def test_nan_in_the_reference_is_left_out_and_counted():
    data = clean(empty=False)
    ref = data["trainer"].copy()
    ref[0, 0] = np.nan
    found = Monitor()(step=1, **data, ref_logp=ref)
    assert found["actor/kl_loss"] == 0
    assert found["samepolicy/reference_kl/left_out"] == 1


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_tensors_are_measured_and_recorded_before_they_are_reused(dtype, tmp_path):
    import torch

    data = {n: torch.from_numpy(v.copy()) for n, v in clean().items()}
    data |= {n: data[n].to(getattr(torch, dtype)) for n in ("trainer", "rollout")}
    data["trainer"].requires_grad_()
    wanted = measure_batch(**data)
    with Monitor(save_dir=tmp_path / "run", npy_dir=tmp_path / "npy") as monitor:
        found = monitor(step=1, **data)
        with torch.no_grad():
            data["trainer"].fill_(-5.0)
    assert found["samepolicy/logp_diff/mean"] == pytest.approx(wanted["logp_diff"]["mean"])
    assert measure(read(tmp_path / "run"))["logp_diff"]["mean"] == pytest.approx(wanted["logp_diff"]["mean"])
    assert np.load(tmp_path / "npy" / "prob_diff_step_1.npy").max() == pytest.approx(wanted["prob_diff"]["max"])


# -------------------------------------------------------------------------------------------------------- off, every


def test_off_and_steps_between_are_empty_and_touch_nothing():
    assert Monitor(every=0)(step=0, trainer=None, rollout=None, mask=None) == {}
    monitor, data = Monitor(every=5), clean()
    assert [bool(monitor(step=step, **data)) for step in range(11)] == [step % 5 == 0 for step in range(11)]
    assert "samepolicy-writer" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    "settings",
    [
        {"names": "unheard"},
        {"every": -1},
        {"queue": 0},
        {"save_dir": "x", "npy_dir": "./x"},
    ],
)
def test_settings_that_could_only_fail_later_are_refused(settings):
    with pytest.raises(InputError):
        Monitor(**settings)


# ---------------------------------------------------------------------------------------------------------- files


def test_steps_are_written_in_order_and_read_back(tmp_path):
    with Monitor(save_dir=tmp_path / "run", npy_dir=tmp_path / "npy", rollout=Side(dtype="bfloat16")) as monitor:
        for step in (1, 2, 3):
            monitor(step=step, **clean(step), response_ids=np.ones(clean()["mask"].shape, dtype=int))
    run = read(tmp_path / "run")
    assert np.unique(run["step"]).tolist() == [1, 2, 3]
    assert run.rollout.dtype == "bfloat16"
    whole = measure_batch(**clean(1)) + measure_batch(**clean(2)) + measure_batch(**clean(3))
    assert measure(run)["k3"]["mean"] == pytest.approx(whole["k3"]["mean"])
    npy = verl_npy.read(tmp_path / "npy")
    assert measure(npy)["prob_diff"]["mean"] == pytest.approx(whole["prob_diff"]["mean"], rel=1e-5)


def test_shapes_may_change_between_steps(tmp_path):
    with Monitor(save_dir=tmp_path / "run") as monitor:
        for step, (rows, time_) in enumerate([(3, 7), (6, 40), (1, 1)]):
            assert own(monitor(step=step, **clean(rows=rows, time=time_, empty=False)))["skipped"] == 0
    assert len(read(tmp_path / "run")) == 10


def test_a_missing_column_on_some_steps_is_counted_and_said_once(caplog, tmp_path):
    data = clean()
    with Monitor(save_dir=tmp_path / "run") as monitor:
        for step in range(4):
            found = monitor(step=step, **{**data, "rollout": None if step % 2 else data["rollout"]})
    assert own(found)["skipped"] == 2
    assert "samepolicy/k3/mean" not in found
    assert len([line for line in said(caplog) if "no rollout" in line]) == 1
    assert np.unique(read(tmp_path / "run")["step"]).tolist() == [0, 2]


@pytest.mark.parametrize("fault", ["shape", "mask", "text", "column"])
def test_a_batch_that_cannot_be_measured_raises_nothing(fault, caplog):
    data = clean()
    extra = {}
    if fault == "shape":
        data["rollout"] = data["rollout"][:, :3]
    if fault == "mask":
        data["mask"] = data["mask"] * 2
    if fault == "text":
        data["rollout"] = "nothing"
    if fault == "column":
        extra["advantage"] = np.ones(99)
    monitor = Monitor()
    assert own(monitor(step=1, **data, **extra))["skipped"] == 1
    assert own(monitor(step=2, **data, **extra))["skipped"] == 2
    assert len(said(caplog)) == 1


def test_a_folder_that_cannot_be_made_is_counted_and_training_goes_on(tmp_path, caplog):
    (tmp_path / "file").write_text("x")
    with Monitor(save_dir=tmp_path / "file" / "run", npy_dir=tmp_path / "npy") as monitor:
        for step in range(3):
            found = monitor(step=step, **clean())
            monitor.flush()
    assert found["samepolicy/k3/mean"] >= 0
    assert own(monitor(step=3, trainer=None, rollout=None, mask=None))["failed"] == 3
    assert len([line for line in said(caplog) if "could not write" in line]) == 1
    assert len(list((tmp_path / "npy").glob("prob_*.npy"))) == 6


def test_a_full_disk_is_counted_and_writing_goes_on_when_there_is_room(tmp_path, caplog, monkeypatch):
    from samepolicy.monitor import records

    real, full = records.write_run, [True]

    def write(*args, **kwargs):
        if full[0]:
            raise OSError(28, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(records, "write_run", write)
    with Monitor(save_dir=tmp_path / "run") as monitor:
        for step in range(3):
            full[0] = step < 2
            monitor(step=step, **clean())
            monitor.flush()
        assert own(monitor(step=9, trainer=None, rollout=None, mask=None))["failed"] == 2
    assert read(tmp_path / "run")["step"].tolist() == [2] * 6
    assert len([line for line in said(caplog) if "No space left" in line]) == 1


def test_two_runs_never_write_one_folder_and_a_dead_ones_is_taken_again(tmp_path, caplog):
    with Monitor(save_dir=tmp_path / "run") as a, Monitor(save_dir=tmp_path / "run") as b:
        a(step=1, **clean())
        a.flush()
        b(step=1, **clean())
    assert len(read(tmp_path / "run")) == len(read(tmp_path / "run-2")) == 6
    assert any("another run writes to" in line for line in said(caplog))
    with Monitor(save_dir=tmp_path / "run") as c:
        c(step=2, **clean())
    assert np.unique(read(tmp_path / "run")["step"]).tolist() == [1, 2]


def test_a_resume_whose_sides_declare_other_things_gets_a_folder_of_its_own(tmp_path, caplog):
    for seed, dtype in enumerate(("bfloat16", "float32", "float32", "float16", "bfloat16")):
        rollout = Side(dtype=dtype, sampling=Sampling(seed=seed))
        with Monitor(save_dir=tmp_path / "run", rollout=rollout, calm=0) as monitor:
            monitor(step=1, **clean())
    assert {path.name: read(path).rollout.dtype for path in tmp_path.iterdir()} == {
        "run": "bfloat16",
        "run-2": "float32",
        "run-3": "float16",
    }
    assert own(monitor(step=2, trainer=None, rollout=None, mask=None))["failed"] == 0
    left = [line for line in said(caplog) if "is left to the run in it" in line]
    assert "declares dtype='float32' here but dtype='bfloat16' before" in left[0]


def test_two_folders_that_cannot_be_written_are_two_reasons(tmp_path, caplog):
    (tmp_path / "file").write_text("x")
    with Monitor(save_dir=tmp_path / "file", npy_dir=tmp_path / "file" / "npy", calm=0) as monitor:
        monitor(step=1, **clean())
    assert own(monitor(step=2, trainer=None, rollout=None, mask=None))["failed"] == 2
    assert len([line for line in said(caplog) if "could not write" in line]) == 2


def test_a_pair_of_files_is_never_of_two_tries(tmp_path, monkeypatch):
    first, second = (np.full((1, 2), value, dtype=np.float32) for value in (0.25, 0.5))
    save_pair(tmp_path, first, np.ones((1, 2), bool), step=1)

    def killed(self, target):
        if "diff" in target.name:
            raise OSError("killed between the two")
        return real(self, target)

    real = Path.replace
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(OSError, match="killed"):
        save_pair(tmp_path, second, np.zeros((1, 2), bool), step=1)
    assert [file.name for file in tmp_path.iterdir()] == ["prob_mask_step_1.npy"]


def test_steps_written_again_after_a_resume_are_kept_apart_and_the_newest_count(tmp_path):
    for spread, steps in ((0.01, (1, 2, 3)), (0.05, (2, 3))):
        with Monitor(save_dir=tmp_path / "run", npy_dir=tmp_path / "npy") as monitor:
            for step in steps:
                monitor(step=step, **clean(step, spread=spread))
    kept = read(tmp_path / "run")
    assert newest(kept) == kept
    assert sum(pq.read_metadata(part).num_rows for part in (tmp_path / "run").glob("*.parquet")) == 5 * 6
    assert len(kept) == 3 * 6
    wanted = measure_batch(**clean(1, spread=0.01))
    for step in (2, 3):
        wanted += measure_batch(**clean(step, spread=0.05))
    assert measure(kept)["k2"]["mean"] == pytest.approx(wanted["k2"]["mean"])
    assert measure(read(tmp_path / "npy"))["prob_diff"]["mean"] == pytest.approx(wanted["prob_diff"]["mean"], rel=1e-5)
    assert newest(kept.without("attempt")) == kept.without("attempt")
