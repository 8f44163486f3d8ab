"""Every metric that needs only log-probs, against its formula written out over plain lists."""

import numpy as np
import pytest

from samepolicy import measure_batch
from tests.oracles.batches import batch


def formulas(trainer: np.ndarray, rollout: np.ndarray, mask: np.ndarray) -> dict[str, dict[str, float]]:
    rows = [
        (t[m].astype(np.float64), r[m].astype(np.float64))
        for t, r, m in zip(trainer, rollout, mask, strict=True)
        if m.any()
    ]
    t, r = np.concatenate([x for x, _ in rows]), np.concatenate([x for _, x in rows])
    d = t - r
    rho, p, q = np.exp(d), np.exp(t), np.exp(r)
    d_mean = np.array([(x - y).mean() for x, y in rows])
    d_sum = np.array([(x - y).sum() for x, y in rows])

    def moments(x):
        return {"mean": x.mean(), "std": x.std(ddof=1), "min": x.min(), "max": x.max(), "count": len(x)}

    def ess(w):
        return {"ess": w.sum() ** 2 / (len(w) * (w**2).sum())}

    def chi2(w):
        return {"chi2": (w**2).mean() - 1}

    return {
        "prob_diff": moments(np.abs(p - q)),
        "prob_corr": {"pearson": np.corrcoef(p, q)[0, 1]},
        "logp_diff": moments(np.abs(d)),
        "rel_diff": {"mean": (np.abs(d) / (np.abs(t) + 1e-8)).mean()},
        "k1": moments(-d),
        "k2": {"mean": (d**2 / 2).mean(), "count": len(d)},
        "k3": moments(np.expm1(d) - d),
        "ratio": moments(rho),
        "ratio_above": {"share": (rho > 2).mean()},
        "ratio_below": {"share": (rho < 0.5).mean()},
        "ratio_far": {"share": (np.maximum(rho, 1 / rho) > 2).mean()},
        "mult_error": {"mean": np.exp(np.abs(d)).mean(), "count": len(d)},
        "mult_error_seq": moments(np.array([np.exp(np.abs(x - y)).mean() for x, y in rows])),
        "confident_disagreement": {"share": ((q >= 0.5) & (d < -2)).mean()},
        "chi2_token": chi2(rho),
        "chi2_seq": chi2(np.exp(d_mean)),
        "chi2_seq_product": chi2(np.exp(d_sum)),
        "ess_token": ess(rho),
        "ess_seq": ess(np.exp(d_mean)),
        "ess_seq_product": ess(np.exp(d_sum)),
        "trainer_ppl": moments(np.array([np.exp(-x.mean()) for x, _ in rows])),
        "trainer_log_ppl": moments(np.array([-x.mean() for x, _ in rows])),
        "rollout_ppl": moments(np.array([np.exp(-y.mean()) for _, y in rows])),
        "rollout_log_ppl": moments(np.array([-y.mean() for _, y in rows])),
        "log_ppl_diff": moments(-d_mean),
        "log_ppl_abs_diff": moments(np.abs(d_mean)),
        "ppl_ratio": moments(np.exp(-d_mean)),
    }


@pytest.mark.parametrize("spread", [1e-4, 0.1, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_every_metric_is_its_formula(seed, spread):
    data = batch(seed, spread=spread)
    found = measure_batch(**data)
    for name, expected in formulas(**data).items():
        for readout, value in expected.items():
            assert found[name][readout] == pytest.approx(value, rel=1e-8, abs=1e-13), (name, readout)


def test_quantiles_of_logp_diff():
    data = batch(0, rows=200, time=100)
    d = np.abs(data["trainer"].astype(float) - data["rollout"])[data["mask"]]
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)):
        assert measure_batch(**data)["logp_diff"][name] == pytest.approx(np.quantile(d, q), rel=0.02)


def test_columns_beyond_log_probs():
    data = batch(3)
    rng = np.random.default_rng(3)
    extra = {n: rng.standard_normal(data["mask"].shape) for n in ("advantage", "trainer_entropy")}
    current = data["trainer"] - 0.05
    found = measure_batch(**data, **extra, current_logp=current)
    m = data["mask"]
    d = (data["trainer"].astype(float) - data["rollout"])[m]
    assert found["sign_skew"]["mean"] == pytest.approx(-(np.expm1(d) * extra["advantage"][m]).mean())
    assert found["surprisal_gap"]["mean"] == pytest.approx((-data["trainer"][m] - extra["trainer_entropy"][m]).mean())
    update = (current.astype(float) - data["trainer"])[m]
    total = (current.astype(float) - data["rollout"])[m]
    assert found["update_ratio"]["max"] == pytest.approx(np.exp(update).max())
    assert found["update_gap"]["mean"] == pytest.approx((np.expm1(update) - update).mean())
    assert found["total_gap"]["mean"] == pytest.approx((np.expm1(total) - total).mean())


def test_every_metric_has_an_oracle():
    from samepolicy.metrics import all_metrics

    elsewhere = {"pareto_k", "pareto_k_seq", "sign_skew", "surprisal_gap", "update_ratio", "update_gap", "total_gap"}
    plain = {n for n, m in all_metrics().items() if not m.asked}
    assert plain == set(formulas(**batch(0))) | elsewhere
