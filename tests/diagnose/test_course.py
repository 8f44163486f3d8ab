"""What the gap does over the steps, told from runs that were made to lag, grow, drift, jump, spike and stay."""

import numpy as np
import pytest

from samepolicy.diagnose import diagnose
from samepolicy.diagnose.course import course
from samepolicy.records.run import Run

STEPS, RESPONSES, TOKENS = 24, 8, 16


def made(sizes: np.ndarray, **columns: np.ndarray) -> Run:
    """A run whose d has the given size at each step; columns hold one value a step."""
    rng = np.random.default_rng(5)
    step = np.repeat(np.arange(len(sizes)), RESPONSES)
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
        (made(np.where((EACH < 8) | (EACH > 20), 0.03, 0.01)), "unclear"),
        (made(np.where(EACH == 4, 2.0, 0.025)), "spikes"),
        (made(np.where(EACH == 4, 2.0, FLAT * np.linspace(1, 3, STEPS))), "spikes"),
    ],
    ids=str,
)
def test_the_shape(run: Run, shape: str):
    found = course(run)
    assert found is not None
    assert found.shape == shape


@pytest.mark.parametrize("steps", [6, 7, 8, 9, 10, 12])
@pytest.mark.parametrize(("before", "after"), [(0.024, 0.2), (0.2, 0.024)])
def test_a_clear_jump_is_found_from_six_steps_on(steps: int, before: float, after: float):
    for place in (steps // 2, 2, steps - 2) if steps < 9 else (steps // 2,):
        found = course(made(np.where(np.arange(steps) < place, before, after)))
        assert found is not None
        assert (found.shape, found.step, found.like) == ("jumps", place, ())


@pytest.mark.parametrize(("steps", "bad"), [(6, [3]), (8, [4]), (8, [7]), (16, [8]), (24, [0]), (24, [4, 9, 17])])
def test_single_steps_that_stand_out_are_told(steps: int, bad: list[int]):
    found = course(made(np.where(np.isin(np.arange(steps), bad), 2.0, 0.025)))
    assert found is not None
    assert (found.shape, found.like) == ("spikes", ())
    assert found.step in bad
    assert found.low == pytest.approx(0.025, rel=0.1)
    assert found.high == pytest.approx(2.0, rel=0.2)
    who = f"step {bad[0]} alone stands out" if len(bad) == 1 else "steps 4, 9 and 17 stand out"
    assert str(found).startswith(who)
    assert "look at" in str(found)


def test_one_far_token_makes_no_spike_and_no_flat_run():
    run = made(FLAT)
    far = run["trainer_logp"].values.copy()
    far[5 * RESPONSES * TOKENS] -= 10
    found = course(run.with_columns(trainer_logp=run["trainer_logp"].with_values(far)))
    assert found is not None
    assert (found.shape, found.like) == ("unclear", ())


def test_nothing_but_a_spike_is_no_flat_run():
    """Steps that are equal to the bit, and one that is not."""
    found = course(made(np.where(np.arange(8) == 2, 0.1, 0.0)))
    assert found is not None
    assert str(found).startswith("step 2 alone stands out (0.095 nats rms against 0 elsewhere")


def test_chance_alone_has_no_shape():
    """Runs whose sizes are drawn anew at each step have no course but for a few in a hundred."""
    rng = np.random.default_rng(2)
    shapes = [getattr(course(made(0.01 * rng.lognormal(0, 0.5, STEPS))), "shape", None) for _ in range(60)]
    assert shapes.count("unclear") + shapes.count("flat") >= 58


@pytest.mark.parametrize("tail", [2.0, 4.0, 100.0])
def test_healthy_runs_are_called_nothing_else(tail: float):
    """Rounding noise with heavy tails, over 6 to 24 steps of 100 to 2000 tokens: at most 2 % have a course."""
    rng, shapes = np.random.default_rng(0), []
    for _ in range(150):
        steps, tokens = int(rng.integers(6, 25)), int(rng.integers(100, 2001))
        d = 0.02 * rng.standard_t(tail, (steps, tokens)) * rng.lognormal(0, 0.2, steps)[:, None]
        found = course(Run.from_lists(rollout_logp=np.full(d.shape, -30.0), trainer_logp=d - 30, step=range(steps)))
        shapes.append(getattr(found, "shape", None))
    assert shapes.count("unclear") + shapes.count("flat") >= 147
    if tail > 2:
        assert shapes.count("flat") >= 120


def test_a_short_run_has_none_and_a_diagnosis_shows_it():
    run = made(0.01 + 0.01 * SINCE, policy_version=EACH - SINCE, trainer_version=EACH)
    assert course(run.select(run["step"] < 5)) is None
    found = diagnose(run)
    assert found.course is not None
    assert found.as_dict()["course"]["like"] == ["stale_weights"]
    assert "as stale_weights would" in str(found)
