"""What the gap does over the steps, told from runs that were made to lag, grow, drift, jump and stay."""

import numpy as np
import pytest

from samepolicy.diagnose import diagnose
from samepolicy.diagnose.course import course
from samepolicy.records.run import Run

STEPS, RESPONSES, TOKENS = 24, 8, 16


def made(sizes: np.ndarray, **columns: np.ndarray) -> Run:
    """A run whose d has the given size at each step; columns hold one value a step."""
    rng = np.random.default_rng(5)
    step = np.repeat(np.arange(STEPS), RESPONSES)
    rollout = -rng.gamma(1.0, 1.0, (len(step), TOKENS))
    trainer = rollout + sizes[step][:, None] * rng.standard_normal((len(step), TOKENS))
    told = {name: values[step] for name, values in columns.items()}
    if "policy_version" in told:
        told["policy_version"] = np.repeat(told["policy_version"][:, None], TOKENS, 1)
    return Run.from_lists(rollout_logp=rollout, trainer_logp=trainer, step=step, **told)


SINCE = np.arange(STEPS) % 6
FLAT, GROWN = np.full(STEPS, 0.01), 0.01 + 0.004 * np.arange(STEPS)
EACH = np.arange(STEPS)


@pytest.mark.parametrize(
    ("run", "shape"),
    [
        (made(FLAT), "flat"),
        (made(FLAT, policy_version=EACH - SINCE, trainer_version=EACH), "flat"),
        (made(0.01 + 0.01 * SINCE, policy_version=EACH - SINCE, trainer_version=EACH), "lags"),
        (made(0.01 + 0.01 * SINCE, policy_version=EACH - SINCE), "lags"),
        (made(GROWN, policy_version=np.zeros(STEPS, int), trainer_version=EACH), "lags"),
        (made(GROWN, policy_version=EACH, trainer_version=EACH), "grows"),
        (made(GROWN), "grows"),
        (made(GROWN, policy_version=np.full(STEPS, 3), trainer_version=np.full(STEPS, 3)), "drifts"),
        (made(np.where(EACH < 15, 0.01, 0.03)), "jumps"),
        (made(np.where(EACH < 9, 0.03, 0.01)), "jumps"),
        (made(np.where((EACH < 8) | (EACH > 20), 0.03, 0.01)), "flat"),
    ],
    ids=str,
)
def test_the_shape(run: Run, shape: str):
    found = course(run)
    assert found is not None
    assert found.shape == shape


def test_chance_alone_has_no_shape():
    """Runs whose sizes are drawn anew at each step are flat but for a few in a hundred."""
    rng = np.random.default_rng(2)
    shapes = [getattr(course(made(0.01 * rng.lognormal(0, 0.5, STEPS))), "shape", None) for _ in range(60)]
    assert shapes.count("flat") >= 55


def test_a_short_run_has_none_and_a_diagnosis_shows_it():
    run = made(0.01 + 0.01 * SINCE, policy_version=EACH - SINCE, trainer_version=EACH)
    assert course(run.select(run["step"] < 5)) is None
    found = diagnose(run)
    assert found.course is not None
    assert found.as_dict()["course"]["like"] == ["stale_weights"]
    assert "as stale_weights would" in str(found)
