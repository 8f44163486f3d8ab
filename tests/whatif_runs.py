"""Runs to ask what-if of, and how two answers are compared."""

import json

import numpy as np
import pytest

import samepolicy as sp


def run_of(responses: int = 24, *, spread: float = 0.3, lean: float = 0.0, seed: int = 0, **change) -> sp.Run:
    """Responses of four to a prompt; some tokens masked; the gap leans against negative advantages."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 20, responses)
    advantage = rng.standard_normal(responses)
    rollout = [-rng.exponential(1.0, n) - 6 for n in lengths]
    trainer = [
        r + spread * rng.standard_t(3, n) - lean * (a < 0) for r, n, a in zip(rollout, lengths, advantage, strict=True)
    ]
    columns = {
        "rollout_logp": rollout,
        "trainer_logp": trainer,
        "advantage": [np.full(n, a) for n, a in zip(lengths, advantage, strict=True)],
        "mask": [rng.random(n) < 0.9 for n in lengths],
        "group": [f"p{i // 4}" for i in range(responses)],
        "step": [i // 8 for i in range(responses)],
    }
    return sp.Run.from_lists(**{n: c for n, c in (columns | change).items() if c is not None})


def comparable(found) -> dict:
    return json.loads(json.dumps(found.as_dict()))


def same(a, b) -> None:
    """Equal but for rounding in the last digits."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, float):
        assert b == pytest.approx(a, rel=1e-9, abs=1e-12)
    else:
        assert a == b
