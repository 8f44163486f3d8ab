"""The floor: rms of rounding by surprisal bin, and the columns that it is measured from."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Capabilities, Engine, Scores, engine
from samepolicy.errors import EngineError, InputError, MissingColumnError
from samepolicy.floor import add_evidence, has_evidence, level, measure
from samepolicy.floor.levels import EDGES, FEWEST, SMALLEST
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling, Side

NEUTRAL = Sampling(max_tokens=12)
PROMPTS = Ragged.from_lists([[1, 2, 3], [4, 5], [6, 7, 8, 9], [10, 20]], dtype=np.int64)


class Counting(Engine):
    """A toy that notes every variant that is made and every scoring."""

    capabilities = Capabilities(variants=True)

    def __init__(self, inner: Engine, log: list[tuple[object, ...]], key: tuple[object, ...] = ()):
        self.inner, self.log, self.key = inner, log, key

    def score(self, prompts, responses, *, sampling=NEUTRAL, entropy=False, top=0) -> Scores:
        self.log.append((*self.key, sampling.temperature))
        return self.inner.score(prompts, responses, sampling=sampling, entropy=entropy, top=top)

    def describe(self, sampling) -> Side:
        return self.inner.describe(sampling)

    def variant(self, *, dtype, weights_dtype=None):
        inner = self.inner.variant(dtype=dtype, weights_dtype=weights_dtype)
        return Counting(inner, self.log, (dtype, weights_dtype))


def sampled(rollout_dtype: str | None, trainer_dtype: str | None, trainer_sampling: Sampling | None = None) -> Run:
    run = engine("toy:").generate(PROMPTS, NEUTRAL, samples=2)
    rollout = replace(run.rollout, dtype=rollout_dtype)
    return replace(run, rollout=rollout, trainer=Side(dtype=trainer_dtype, sampling=trainer_sampling))


def test_each_bin_holds_the_rms_of_a_plain_loop():
    rng = np.random.default_rng(0)
    logp, error = -np.exp(rng.uniform(-9, 3, 4000)), rng.normal(0, 0.01, 4000)
    found = level(error, logp)
    assert found.edges == EDGES
    for i, low in enumerate(EDGES):
        high = EDGES[i + 1] if i + 1 < len(EDGES) else np.inf
        squares = [e * e for e, s in zip(error, -logp, strict=True) if low <= s < high]
        assert found.tokens[i] == len(squares)
        assert found.rms[i] == pytest.approx((sum(squares) / len(squares)) ** 0.5)
        assert found.at(np.array([-low])) == pytest.approx([found.rms[i]])


@given(
    arrays(np.float64, st.integers(0, 300), elements=st.floats(0, 20)),
    st.floats(0, 0.1),
)
def test_merged_bins_are_full_and_lose_no_token(surprisal, size):
    found = level(np.full(len(surprisal), size), -surprisal)
    assert sum(found.tokens) == len(surprisal)
    assert len(found.tokens) == 1 or min(found.tokens) >= FEWEST
    assert min(found.rms) >= SMALLEST
    assert np.allclose(found.at(-surprisal), max(size, SMALLEST))


def test_values_that_are_not_finite_are_left_out():
    logp = np.full(64, -1.0)
    error = np.full(64, 0.02)
    error[3], logp[5], error[7] = np.nan, -np.inf, np.inf
    found = level(error, logp)
    assert found.tokens == (61,)
    assert found.rms == pytest.approx((0.02,))
    assert np.isnan(found.at(np.array([np.nan]))).all()


def test_overall_is_the_rms_over_all_tokens():
    rng = np.random.default_rng(1)
    error = rng.normal(0, 0.03, 500)
    assert level(error, -rng.exponential(1.0, 500)).overall == pytest.approx(np.sqrt(np.mean(error**2)))
    assert np.isnan(level(np.zeros(0), np.zeros(0)).overall)


def columns(**values: float) -> Run:
    logp = np.full(40, -0.7)
    given_columns = {name: [logp + value] for name, value in values.items()}
    return Run.from_lists(**given_columns, rollout=Side(dtype="bfloat16"), trainer=Side(dtype="bfloat16"))


def test_the_pair_adds_the_squares_of_both_sides_and_of_the_cast():
    run = columns(
        rollout_reference_logp=0, rollout_rounded_logp=0.03, trainer_reference_logp=0.002, trainer_rounded_logp=0.042
    )
    floor = measure(run)
    assert floor.cast is None
    assert floor.pair_square(run) == pytest.approx(np.full(40, 0.03**2 + 0.04**2))
    two = replace(run, trainer=Side(dtype="float32"))
    assert measure(two).pair_square(two) == pytest.approx(np.full(40, 0.03**2 + 0.04**2 + 0.002**2))
    cast = two.with_columns(cast_reference_logp=two["rollout_reference_logp"].with_values(np.full(40, -0.705)))
    assert measure(cast).pair_square(cast) == pytest.approx(np.full(40, 0.03**2 + 0.04**2 + 0.005**2))


def test_tokens_outside_the_mask_do_not_count():
    run = columns(
        rollout_reference_logp=0, rollout_rounded_logp=0.01, trainer_reference_logp=0, trainer_rounded_logp=0.01
    )
    values = run["rollout_rounded_logp"].values.copy()
    values[0] = np.nan
    values[1] = 5.0
    mask = np.arange(40) > 1
    masked = run.with_columns(rollout_rounded_logp=[values], mask=[mask])
    rollout = measure(masked).rollout
    assert rollout is not None
    assert (rollout.tokens, rollout.rms) == ((38,), pytest.approx((0.01,)))


@pytest.mark.parametrize(
    ("dtype", "why"),
    [
        (None, "the rollout's dtype is not declared"),
        ("int4", "the rollout's dtype int4 cannot be emulated"),
        ("bfloat16", "the rollout's bfloat16 was not scored"),
    ],
)
def test_a_floor_that_is_not_known_says_why(dtype, why):
    floor = measure(Run.from_lists(rollout_logp=[[-1.0]], rollout=Side(dtype=dtype), trainer=Side(dtype="float32")))
    assert floor.rollout is None
    assert not floor.complete
    assert why in floor.missing[0]
    assert why in str(floor)
    with pytest.raises(InputError, match="floor is not known"):
        floor.pair_square(Run())


def test_the_columns_are_what_the_variants_score():
    run = add_evidence(sampled("bfloat16", "float32", Sampling(temperature=0.5)), engine("toy:"))
    expected = {
        "rollout_reference_logp": ("float32", "bfloat16", 1.0),
        "rollout_rounded_logp": ("bfloat16", "bfloat16", 1.0),
        "trainer_reference_logp": ("float32", "float32", 0.5),
        "trainer_rounded_logp": ("float32", "float32", 0.5),
        "cast_reference_logp": ("float32", "float32", 1.0),
    }
    for name, (dtype, weights, temperature) in expected.items():
        toy = engine("toy:", dtype=dtype, weights_dtype=weights)
        scores = toy.score(run["prompt_ids"], run["response_ids"], sampling=Sampling(temperature=temperature))
        np.testing.assert_array_equal(run[name].values, scores.logp.values)


@pytest.mark.parametrize(
    ("rollout", "trainer", "sampling", "scored", "cast"),
    [
        ("float32", "float32", None, 1, False),
        ("bfloat16", "bfloat16", None, 2, False),
        ("bfloat16", "float32", None, 3, False),
        ("bfloat16", "bfloat16", Sampling(temperature=0.5), 4, False),
        ("bfloat16", "float32", Sampling(temperature=0.5), 4, True),
        ("bfloat16", "float16", Sampling(temperature=0.5), 5, True),
        ("torch.bfloat16", "bf16", None, 2, False),
        (None, "bfloat16", None, 2, False),
    ],
)
def test_equal_scorings_run_once_and_each_variant_is_made_once(rollout, trainer, sampling, scored, cast):
    log: list[tuple[object, ...]] = []
    run = add_evidence(sampled(rollout, trainer, sampling), Counting(engine("toy:"), log))
    assert len(log) == len(set(log)) == scored
    variants = [entry[:2] for entry in log]
    assert len(set(variants)) == sum(a != b for a, b in zip(variants, [None, *variants], strict=False))
    assert ("cast_reference_logp" in run) is cast
    assert has_evidence(run) is (rollout is not None)


def test_raw_log_probs_and_greedy_runs_are_scored_at_temperature_1():
    log: list[tuple[object, ...]] = []
    raw = Sampling(temperature=0.5, logprobs="raw")
    run = sampled("float32", "float32", Sampling(temperature=0.0))
    add_evidence(replace(run, rollout=replace(run.rollout, sampling=raw)), Counting(engine("toy:"), log))
    assert log == [("float32", "float32", 1.0)]


def test_columns_that_are_there_are_not_scored_again():
    log: list[tuple[object, ...]] = []
    run = add_evidence(sampled("bfloat16", "bfloat16"), engine("toy:"))
    again = add_evidence(run.without("trainer_rounded_logp"), Counting(engine("toy:"), log))
    assert [entry[:2] for entry in log] == [("bfloat16", "bfloat16")]
    np.testing.assert_array_equal(again["trainer_rounded_logp"].values, run["trainer_rounded_logp"].values)


def test_progress_counts_up_to_its_total():
    seen: list[tuple[str, int, int]] = []
    add_evidence(sampled("bfloat16", "float32"), engine("toy:"), progress=lambda *step: seen.append(step))
    assert [done for _, done, _ in seen] == [0, 1, 1, 2, 2, 3]
    assert {total for _, _, total in seen} == {3}


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(MissingColumnError, match="no prompt_ids"):
        add_evidence(sampled("float32", "float32").without("prompt_ids"), engine("toy:"))

    class Plain(Engine):
        capabilities = Capabilities()

    with pytest.raises(EngineError, match="cannot change its arithmetic"):
        add_evidence(sampled("float32", "float32"), Plain())
