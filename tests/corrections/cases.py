"""The corrections that the laws are tried on: every preset, and every step over every span."""

import numpy as np
import pytest

from samepolicy import Band, Correction, Normalise, OffPolicyMask, Reject, Truncate, Veto
from samepolicy.corrections import PRESETS
from samepolicy.corrections.spans import OVER

CORRECTIONS = {
    **{name: p.correction for name, p in PRESETS.items()},
    **{f"truncate-{o}": Correction(Truncate(1.5, below=0.5, over=o, clamp=20.0)) for o in OVER},
    **{f"band-{o}": Correction(Band(0.5, 1.5, over=o, weight="token")) for o in OVER},
    **{f"reject-{o}": Correction(Reject("k3", above=0.2, over=o)) for o in ("token", "sequence", "turn", "segment")},
    **{f"veto-{o}": Correction(Veto(below=0.5, above=2.0, over=o)) for o in ("sequence", "turn", "segment")},
    "largest": Correction(Reject("mult_error", above=1.5, over="turn", reduce="max")),
    "sided-sign": Correction(OffPolicyMask(0.0, sign="token"), Reject("prob_diff", below=-0.1, above=0.1, sided=True)),
    "normalised": Correction(Truncate(2.0), Normalise(), Reject("k2", above=0.1)),
    "normalised-sequences": Correction(Reject("k2", above=0.3), Truncate(2.0, over="geometric"), Normalise("sequence")),
    "kept": Correction(Reject("ratio", below=0.5), Truncate(2.0, over="sequence", clamp=5.0, among="kept")),
    "agreeing": Correction(Truncate(2.0), Normalise(), missing="agree"),
}
named = pytest.mark.parametrize("name", CORRECTIONS)


def columns_of(correction, data):
    """The columns that a correction needs, with `current` where it can be used."""
    wanted = {"trainer", "rollout", "mask", *correction.needs}
    if any(isinstance(s, OffPolicyMask) for s in correction.steps):
        wanted.add("current")
    return {n: x for n, x in data.items() if n in wanted}


def apply(name, data, **more):
    return CORRECTIONS[name](**columns_of(CORRECTIONS[name], data), **more)


def packed(data):
    rows, time = data["mask"].shape
    flat = {n: x.reshape(-1) if x.ndim == 2 else x for n, x in data.items()}
    return flat | {"offsets": np.arange(rows + 1) * time}


def ragged(data):
    """Rows cut behind their last sampled token, so that one sequence is empty."""
    time = data["mask"].shape[1]
    lengths = np.where(data["mask"].any(1), time - data["mask"][:, ::-1].argmax(1), 0)
    inside = np.arange(time) < lengths[:, None]
    flat = {n: x[inside] if x.ndim == 2 else x for n, x in data.items()}
    return inside, flat | {"offsets": np.concatenate([[0], np.cumsum(lengths)])}


def same_stats(a, b, rel=1e-9):
    for part in ("raw", "applied"):
        assert a.as_dict()[part] == pytest.approx(b.as_dict()[part], rel=rel, abs=1e-12, nan_ok=True), part
    rest = [{k: v for k, v in s.as_dict().items() if k not in ("raw", "applied", "dropped")} for s in (a, b)]
    assert rest[0] == pytest.approx(rest[1], rel=rel, nan_ok=True)
    assert a.dropped == b.dropped
