"""What settings are tried on: packs, and tokens whose recorded value belongs to none."""

from dataclasses import dataclass

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.causes import Evidence, Reference, Settings
from samepolicy.causes.making import toy, toy_run
from samepolicy.causes.settings import ArrayStep
from samepolicy.causes.shift import Moved
from samepolicy.diagnose.columns import of
from samepolicy.diagnose.judging import Judge
from samepolicy.diagnose.measured import measured
from samepolicy.engines.layout import Layout
from samepolicy.records.run import Run


@pytest.fixture(scope="module")
def run() -> Run:
    return toy_run(np.random.default_rng(11))


def evidence(run: Run) -> Evidence:
    return of(run, measured(run), Reference(run), "pair")


def test_a_few_rows_of_a_packed_run_are_those_of_the_whole(run: Run):
    packed = Settings(layout=Layout(packed=3))
    whole = Reference(run, toy()).column("trainer", packed, np.arange(len(run)))
    few = Reference(run, toy()).column("trainer", packed, np.array([2, 5, 15]))
    mine = np.isin(np.repeat(np.arange(len(run)), run.lengths), [2, 5, 15])
    assert np.isfinite(whole).all()
    np.testing.assert_array_equal(few, np.where(mine, whole, np.nan))


def test_tokens_past_the_edge_of_a_shift_count_as_the_others_do(run: Run):
    moved = Ragged.from_lists([np.roll(row, 2) for row in run["rollout_logp"]], dtype=np.float32)
    found = evidence(run.with_columns(trainer_logp=moved))
    right = Settings(arrays=(Moved(-2),))
    void = found.void(right)
    assert void.tolist() == [begin + i for begin in run.offsets[:-1] for i in (0, 1)]
    assert found.error(right) == 0
    assert found.within(right) == 1
    assert found.squares(right).max() == 0
    assert np.isnan(found.predicted(right)[void]).all()


def test_a_lag_that_voids_most_tokens_wins_nothing_by_that(run: Run):
    """Of random values; were void tokens taken for explained, the largest lag would explain most."""
    rng = np.random.default_rng(2)
    logp = run["trainer_logp"].with_values(-rng.exponential(size=int(run.offsets[-1])).astype(np.float32))
    found = evidence(run.with_columns(trainer_logp=logp))
    far = Settings(arrays=(Moved(20),))
    assert len(found.void(far)) > 0.8 * len(logp.values)
    assert abs(Judge(found).explained(far).value) < 0.5
    assert found.error(far) > 0.5 * found.error()


def test_where_all_is_void_nothing_is_explained(run: Run):
    found = evidence(run)
    assert found.error(Settings(arrays=(Moved(99),))) > found.error()
    assert found.within(Settings(arrays=(Moved(99),))) == 0


def test_a_way_is_worth_trying_where_one_of_its_steps_helps(run: Run):
    moved = Ragged.from_lists([np.roll(row, 2) for row in run["rollout_logp"]], dtype=np.float32)
    found = evidence(run.with_columns(trainer_logp=moved))
    right, wrong = ([Settings(arrays=(Moved(sign * lag),)) for lag in (1, 2, 3)] for sign in (-1, 1))
    assert found.promising([wrong, right]) == right
    assert found.promising([]) == []


@dataclass(frozen=True)
class Added(ArrayStep):
    """A number more at every token."""

    value: float

    def apply(self, predicted: np.ndarray, reference: Reference) -> np.ndarray:
        return predicted + self.value


def test_a_way_that_takes_far_less_than_another_is_not_tried(run: Run):
    trainer = run["rollout_logp"].with_values(run["rollout_logp"].values - np.float32(0.5))
    found = evidence(run.with_columns(trainer_logp=trainer))
    little, much = ([Settings(arrays=(Added(value),))] for value in (-0.05, -0.4))
    assert found.promising([little]) == little
    assert found.promising([little, much]) == much
