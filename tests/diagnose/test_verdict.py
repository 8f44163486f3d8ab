"""The verdict on toy pairs and on made columns: which of the four words, why, and what comes next."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.diagnose import Diagnosis, check, diagnose
from samepolicy.engines.base import Capabilities, Engine, engine
from samepolicy.errors import EngineError, InputError, MissingColumnError
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling, Side
from samepolicy.records.store import read, write

PROMPTS = [
    "the cat sat",
    "hello world",
    "one two three",
    "what is it?",
    "sum of parts",
    "a b c d",
    "rain in spain",
    "jump over it",
    "quick brown fox",
    "lorem ipsum",
    "zebra",
    "tell me a story",
]
SHORT = Sampling(max_tokens=20)
BF16, FP32 = {"dtype": "bfloat16"}, {"dtype": "float32"}


def toy(**options) -> Engine:
    return engine("toy:", **options)


@cache
def healthy() -> Diagnosis:
    return both(BF16, BF16)


def both(rollout: dict, trainer: dict, **more) -> Diagnosis:
    return check(rollout=toy(**rollout), trainer=toy(**trainer), **({"prompts": PROMPTS, "sampling": SHORT} | more))


def made(d, *, floor=0.01, prompts=20, tokens=10, **columns) -> Run:
    """A run whose floor is `floor` on each side and whose log-ratio is d [prompts, tokens]."""
    rng = np.random.default_rng(0)
    reference = -rng.exponential(1.0, (prompts, tokens)) - 9.0
    sign = rng.choice([-1.0, 1.0], (prompts, tokens))
    given = {
        "rollout_logp": reference,
        "trainer_logp": reference + d,
        "rollout_reference_logp": reference,
        "trainer_reference_logp": reference,
        "rollout_rounded_logp": reference + floor * sign,
        "trainer_rounded_logp": reference + floor * sign,
    }
    side = Side(dtype="bfloat16", sampling=Sampling())
    return Run.from_lists(**(given | columns), rollout=side, trainer=side)


@pytest.mark.parametrize(
    ("rollout", "trainer", "verdicts"),
    [
        (FP32, FP32, {"same", "numerics"}),
        (BF16, BF16, {"numerics"}),
        (BF16, FP32, {"numerics"}),
        ({"dtype": "float16"}, BF16, {"numerics"}),
    ],
)
def test_a_healthy_pair_agrees(rollout, trainer, verdicts):
    found = both(rollout, trainer)
    assert found.verdict in verdicts
    assert found.exit_code == 0
    assert {rung.status for rung in found.ladder} <= {"passed", "not checked"}
    assert found.steps[-1].status == "passed"
    assert found.gap is not None
    assert found.gap.high <= found.gap.limit


@pytest.mark.parametrize("dtypes", [(BF16, BF16), (BF16, FP32)], ids=["bf16", "fp32-trainer"])
@pytest.mark.parametrize(
    "fault",
    [{"temperature": 0.7}, {"hide_prompt": True}, {"extra_bos": 1}, {"stale": 0.05}],
    ids=lambda fault: next(iter(fault)),
)
@pytest.mark.parametrize("faulty", ["rollout", "trainer"])
def test_a_fault_on_either_side_makes_them_differ(dtypes, fault, faulty):
    rollout, trainer = dtypes
    options = {"rollout": rollout, "trainer": trainer}
    options[faulty] = options[faulty] | fault
    found = both(**options)
    assert found.verdict == "different"
    assert found.exit_code == 1
    assert found.steps[-1].status == "failed"
    named = {"temperature": "temperature", "extra_bos": "bos_doubled"}.get(next(iter(fault)))
    if named:
        assert found.findings[0].cause == named
    else:
        assert found.findings or "cause unknown" in found.sentence
    assert found.next.endswith(".")


def test_a_shifted_column_fails_its_rung_with_the_remedy():
    found = both(BF16, BF16 | {"shift": 1})
    rungs = {rung.name: rung.status for rung in found.ladder}
    assert (found.verdict, rungs["shift"]) == ("different", "failed")
    assert "m-1+i" in found.next


class Faithful(Engine):
    """Scores wrongly, but its variants are the healthy model: a fault of the trainer's own scoring code."""

    capabilities = Capabilities(variants=True)

    def __init__(self, scoring: Engine, healthy: Engine):
        self.scoring, self.healthy = scoring, healthy

    def score(self, prompts, responses, *, sampling=SHORT, entropy=False, top=0):
        return self.scoring.score(prompts, responses, sampling=sampling, entropy=entropy, top=top)

    def describe(self, sampling):
        return self.healthy.describe(sampling)

    def variant(self, *, dtype, weights_dtype=None):
        return self.healthy.variant(dtype=dtype, weights_dtype=weights_dtype)


def test_the_side_that_misses_its_own_prediction_is_told():
    trainer = Faithful(toy(**BF16, temperature=0.7), toy(**BF16))
    found = check(rollout=toy(**BF16), trainer=trainer, prompts=PROMPTS, sampling=SHORT)
    assert found.verdict == "different"
    assert [side.name for side in found.sides if side.misses] == ["trainer"]
    assert found.further == "trainer"
    assert "By the trainer's model in float32, the trainer misses what it declares" in found.sentence
    rollout = both(BF16 | {"temperature": 0.7}, BF16)
    assert [side.name for side in rollout.sides if side.misses] == ["rollout"]
    assert "a fault inside the trainer's own model would look the same" in rollout.sentence


def test_two_declarations_that_differ_are_told_apart_from_a_fault():
    found = both(FP32, FP32, trainer_sampling=Sampling(temperature=0.7))
    assert found.verdict == "different"
    assert not [side for side in found.sides if side.misses]
    assert "temperature 1.0 against 0.7" in found.sentence
    assert "cause unknown" not in found.sentence
    assert found.gap is not None
    assert ("at least" in found.sentence) == (found.gap.tails >= 0.5)
    assert {rung.name: rung.status for rung in found.ladder}["sampling"] == "failed"
    assert [finding.cause for finding in found.findings] == ["temperature"]
    assert found.next.startswith("To mend temperature: vLLM: logprobs_mode")


@pytest.mark.parametrize(
    ("sides", "words"),
    [
        ({}, "Declare the dtype of the rollout and the trainer with Side(dtype=…), or --rollout-dtype and --trainer"),
        (
            {"trainer": Side(dtype="bf16")},
            "Declare the dtype of the rollout with Side(dtype=…), or --rollout-dtype, and give",
        ),
        ({"rollout": Side(dtype="bf16"), "trainer": Side(dtype="bf16")}, "Give the trainer's model"),
    ],
    ids=["none", "one", "both"],
)
def test_without_a_floor_only_what_lacks_is_asked_for(sides, words):
    run = Run.from_lists(rollout_logp=[[-1.0, -2.0]], trainer_logp=[[-1.1, -2.0]], **sides)
    found = diagnose(run)
    assert found.verdict == "inconclusive"
    assert found.next.startswith(f"Record prompt_ids and response_ids in the run. {words}")
    ids = {"prompt_ids": [[1, 2]], "response_ids": [[3, 4]]}
    assert diagnose(
        Run.from_lists(rollout_logp=[[-1.0, -2.0]], trainer_logp=[[-1.1, -2.0]], **ids, **sides)
    ).next.startswith(words)
    assert found.next.endswith("or --trainer on the command line.")


def test_one_temperature_on_both_sides_agrees():
    assert both(BF16, BF16, sampling=Sampling(temperature=0.7, max_tokens=20)).verdict == "numerics"


def test_the_steps_are_the_eight_in_order():
    found = healthy()
    assert [step.name for step in found.steps] == [
        "fixed prompts",
        "sample and keep all of it",
        "neutral processors",
        "same weights",
        "score prompt + response",
        "align response token i with logits m-1+i",
        "compare d and ratio",
        "verdict",
    ]
    assert [rung.name for rung in found.ladder] == [
        "tokens",
        "template",
        "shift",
        "mask",
        "sampling",
        "positions",
        "weights",
        "routing",
        "numerics",
    ]
    warm = both(BF16, BF16, sampling=Sampling(temperature=0.7, max_tokens=20))
    assert "told otherwise: temperature 0.7" in warm.steps[2].why


def test_rungs_that_rest_on_declarations_are_open_where_the_gap_belies_them():
    found = both(BF16, BF16 | {"stale": 0.05})
    rungs = {rung.name: rung for rung in found.ladder}
    assert rungs["weights"].status == "not checked"
    assert "comparing the tensors" in rungs["weights"].why
    assert rungs["numerics"].status == "failed"
    assert {"sampling", "weights", "positions"} <= {rung.name for rung in found.open_rungs}


def test_self_checks_stand_beside_the_verdict():
    found = healthy()
    alone, prefill = found.self_checks["trainer_alone"], found.self_checks["rollout_prefill"]
    run = found.run
    again = toy(**BF16).score(run["prompt_ids"], run["response_ids"], sampling=SHORT).logp.values
    expected = [abs(float(a) - float(b)) for a, b in zip(run["rollout_logp"].values, again, strict=True)]
    assert prefill["mean_abs"] == pytest.approx(sum(expected) / len(expected))
    assert prefill["tokens"] == run.tokens
    assert alone["mean_abs"] == 0.0
    assert alone["tokens"] == 4 * 20


def test_a_recorded_run_gives_the_same_diagnosis_without_any_engine(tmp_path):
    for name, found in {"healthy": both(BF16, FP32), "cooled": both(BF16, BF16 | {"temperature": 0.7})}.items():
        write(found.run, tmp_path / name)
        again = diagnose(read(tmp_path / name))
        parts = ("verdict", "gap", "floor", "sides", "where", "health", "counts", "metrics")
        assert {p: again.as_dict()[p] for p in parts} == {p: found.as_dict()[p] for p in parts}


def test_the_dictionary_is_json_without_nan():
    for found in (healthy(), both(FP32, FP32, prompts=["one"]), diagnose(Run()), diagnose(made(0.5, prompts=1))):
        data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
        assert data["schema"] == 1
        assert {
            "verdict",
            "sentence",
            "counts",
            "metrics",
            "gap",
            "floor",
            "steps",
            "ladder",
            "findings",
            "next",
        } <= set(data)
        assert len(data["steps"]) == 8
        assert len(data["ladder"]) == 9
        assert str(found).startswith(found.verdict)


@pytest.mark.parametrize("sd", [0.008, 0.012])
def test_noise_at_the_floor_is_numerics(sd):
    d = np.random.default_rng(1).normal(0, sd, (20, 10))
    assert diagnose(made(d)).verdict == "numerics"


def test_the_ratio_is_the_closed_form_on_made_columns():
    found = diagnose(made(0.02))  # d² = 4e-4, floor² = 2 · 1e-4
    assert found.gap is not None
    assert found.gap.ratio == pytest.approx(2.0)
    assert (found.gap.low, found.gap.high) == pytest.approx((2.0, 2.0))
    assert found.verdict == "different"
    few = diagnose(made(0.02, prompts=11))
    assert few.verdict == "numerics"


def test_a_gap_that_the_data_cannot_place_is_inconclusive():
    d = np.where(np.arange(20)[:, None] < 6, 0.04, 0.001) * np.ones((20, 10))
    found = diagnose(made(d))
    assert found.verdict == "inconclusive"
    assert found.exit_code == 3
    assert "across the limit of 1.5" in found.sentence
    assert found.next.startswith("Give more prompts than 20")


def test_a_few_huge_tokens_are_capped_and_told():
    d = np.full((20, 10), 0.005)
    d[0, 0] = -50.0
    found = diagnose(made(d))
    assert found.verdict == "numerics"
    assert found.gap is not None
    assert found.gap.tails == pytest.approx(1 / 200)
    assert "0.50% of the tokens beyond 8 floors" in found.sentence


@pytest.mark.parametrize(("d", "verdict"), [(0.99e-4, "same"), (1.01e-4, "inconclusive")])
def test_same_needs_no_floor_and_ends_at_its_limit(d, verdict):
    run = Run.from_lists(rollout_logp=[[-1.0, -2.0]] * 2, trainer_logp=[[-1.0 - d, -2.0 - d]] * 2)
    assert diagnose(run).verdict == verdict


def test_without_a_floor_the_sentence_says_what_is_missing():
    run = replace(Run.from_lists(rollout_logp=[[-1.0]], trainer_logp=[[-1.5]]), trainer=Side(dtype="float32"))
    found = diagnose(run)
    assert found.verdict == "inconclusive"
    assert "the rollout's dtype is not declared" in found.sentence
    assert "the trainer's float32 was not scored by a reference engine" in found.sentence
    assert "Give" in found.next or "give" in found.next
    assert found.floor is None


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf, 0.5])
@pytest.mark.parametrize("side", ["rollout_logp", "trainer_logp"])
def test_a_value_that_is_no_log_prob_forbids_same(bad, side):
    logp = {"rollout_logp": np.full((2, 4), -1.0), "trainer_logp": np.full((2, 4), -1.00001)}
    logp[side][0, 1] = bad
    found = diagnose(Run.from_lists(**logp))
    assert found.verdict == "different"
    assert found.exit_code == 1
    mask = np.isin(np.arange(8), [1], invert=True).reshape(2, 4)
    assert diagnose(Run.from_lists(**logp, mask=mask)).verdict == "same"


def test_a_copy_is_never_same():
    logp = [[-1.0, -0.3], [-2.0, -0.1]]
    run = Run.from_lists(rollout_logp=logp, trainer_logp=logp)
    found = diagnose(run)
    assert found.verdict == "inconclusive"
    assert "bit by bit on all 4 tokens" in found.sentence
    assert {rung.name: rung.status for rung in found.ladder}["numerics"] == "failed"
    assert diagnose(replace(run, trainer=Side(extra={"bitwise_aligned": True}))).verdict == "same"


def test_two_engines_that_agree_bit_by_bit_are_the_same():
    class Scorer(Faithful):
        capabilities = Capabilities(generate=True, variants=True)

        def encode(self, prompt):
            return self.healthy.encode(prompt)

        def generate(self, prompts, sampling, *, samples=1):
            run = self.healthy.generate(prompts, sampling, samples=samples)
            scores = self.healthy.score(run["prompt_ids"], run["response_ids"], sampling=sampling)
            return run.with_columns(rollout_logp=scores.logp)

    found = check(rollout=Scorer(toy(), toy()), trainer=toy(), prompts=PROMPTS, sampling=SHORT)
    assert (found.run["rollout_logp"].values == found.run["trainer_logp"].values).all()
    assert found.verdict == "same"


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (Run.from_lists(rollout_logp=[[-1.0]], trainer_logp=[[-1.5]], mask=[[0]]), "no token is under the mask"),
        (Run.from_lists(rollout_logp=[[-1.0]]), "no log-probs of the trainer"),
        (Run.from_lists(prob_diff=[[0.1]]), "no log-probs of the rollout and the trainer"),
        (Run(), "no log-probs of the rollout and the trainer"),
    ],
)
def test_with_nothing_to_compare_nothing_is_said(run, what):
    found = diagnose(run)
    assert found.verdict == "inconclusive"
    assert what in found.sentence
    assert found.gap is None


def test_one_prompt_gives_no_interval():
    found = diagnose(made(0.5, prompts=1))
    assert found.verdict == "inconclusive"
    assert "one prompt gives no interval" in found.sentence
    grouped = diagnose(made(0.5, prompts=4, group=[0, 0, 0, 0]))
    assert grouped.verdict == "inconclusive"


def test_one_token_is_enough_to_run():
    found = both(BF16, BF16, prompts=["x"], sampling=Sampling(max_tokens=1))
    assert found.verdict in {"same", "inconclusive"}
    assert found.summary.counts.tokens == 1


def test_trainer_ids_that_differ_are_compared_on_what_both_have():
    logp = np.linspace(-3, -1, 30)
    ids = np.arange(30)
    kept = ids != 12
    run = Run.from_lists(
        response_ids=[ids] * 3,
        rollout_logp=[logp] * 3,
        trainer_response_ids=[ids[kept]] * 3,
        trainer_logp=[logp[kept] - 1e-5] * 3,
    )
    found = diagnose(run)
    assert found.verdict == "different"
    assert "other ids than were sampled in 3 of 3" in found.sentence
    assert found.where is not None
    assert found.where.mean == pytest.approx(-1e-5)


def test_diagnose_scores_what_a_run_lacks():
    whole = healthy()
    bare = Run(
        {name: whole.run[name] for name in ("prompt_ids", "response_ids", "rollout_logp", "mask", "group")},
        rollout=whole.run.rollout,
    )
    found = diagnose(bare, trainer=toy(**BF16))
    assert found.verdict == whole.verdict
    assert found.gap == whole.gap
    np.testing.assert_array_equal(found.run["trainer_logp"].values, whole.run["trainer_logp"].values)
    assert found.run.trainer.dtype == "bfloat16"


def test_recorded_log_probs_are_never_scored_over():
    whole = healthy()
    old = whole.run["trainer_logp"].with_values(whole.run["trainer_logp"].values - 0.4)
    run = whole.run.without("trainer_rounded_logp", "trainer_reference_logp").with_columns(trainer_logp=old)
    found = diagnose(run, trainer=toy(**BF16))
    np.testing.assert_array_equal(found.run["trainer_logp"].values, old.values)
    assert [side.name for side in found.sides if side.misses] == ["trainer"]


def test_what_cannot_be_scored_is_refused_in_one_sentence():
    with pytest.raises(MissingColumnError, match="no prompt_ids"):
        diagnose(Run.from_lists(rollout_logp=[[-1.0]]), trainer=toy())
    run = Run.from_lists(prompt_ids=[[1]], response_ids=[[5000]], rollout_logp=[[-1.0]])
    with pytest.raises(InputError, match="5000"):
        diagnose(run, trainer=toy())
    with pytest.raises(InputError, match="no prompt"):
        check(rollout=toy(), trainer=toy(), prompts=[])


def test_an_engine_without_variants_leaves_the_floor_open():
    class Plain(Faithful):
        capabilities = Capabilities()

    plain = Plain(toy(**BF16), toy(**BF16))
    found = diagnose(healthy().run.without(*EVIDENCE), trainer=plain)
    assert found.verdict == "inconclusive"
    other = check(rollout=toy(**BF16), trainer=plain, prompts=PROMPTS, sampling=SHORT)
    assert other.verdict == "numerics"
    assert other.run.info["reference"]["owner"] == "rollout"


EVIDENCE = [f"{side}_{kind}_logp" for side in ("rollout", "trainer") for kind in ("reference", "rounded")]


def test_a_trainer_that_fails_does_not_lose_the_rollouts():
    class Failing(Faithful):
        def score(self, prompts, responses, **options):
            raise EngineError("out of memory")

    kept: list[Run] = []
    with pytest.raises(EngineError, match="out of memory"):
        check(rollout=toy(), trainer=Failing(toy(), toy()), prompts=PROMPTS, sampling=SHORT, keep=kept.append)
    assert kept[0].tokens == len(PROMPTS) * 20


def test_prompts_may_be_text_conversations_or_ids():
    ids = toy().encode("zebra")
    message = [{"role": "user", "content": "zebra"}]
    found = both(FP32, FP32, prompts=["zebra", message, ids, np.asarray(ids)], samples=2)
    prompts = found.run["prompt_ids"]
    assert isinstance(prompts, Ragged)
    assert len(prompts) == 8
    assert prompts[0].tolist() == prompts[4].tolist() == prompts[6].tolist() == list(ids)
    assert found.gap is not None
    assert found.gap.prompts == 4


def test_entropy_is_kept_where_the_trainer_gives_it():
    run = healthy().run
    scores = toy(**BF16).score(run["prompt_ids"], run["response_ids"], sampling=SHORT, entropy=True)
    assert scores.entropy is not None
    np.testing.assert_array_equal(run["trainer_entropy"].values, scores.entropy.values)


def test_progress_is_told_from_rollout_to_reference():
    seen: list[tuple[str, int, int]] = []
    both(BF16, FP32, progress=lambda *step: seen.append(step))
    names = list(dict.fromkeys(what for what, _, _ in seen))
    assert names == ["rollout", "trainer", "self-checks", "reference in bfloat16", "reference in float32"]
    assert all(done <= total for _, done, total in seen)


def test_the_profile_is_that_of_a_plain_loop():
    run = both(FP32, FP32 | {"hide_prompt": True}).run
    where = diagnose(run).where
    assert where is not None
    first, rest, sure, unsure, all_d = [], [], [], [], []
    for r, t in zip(run["rollout_logp"], run["trainer_logp"], strict=True):
        for i, (a, b) in enumerate(zip(r.tolist(), t.tolist(), strict=True)):
            d = b - a
            (first if i < 4 else rest).append(abs(d))
            if np.exp(a) >= 0.9:
                sure.append(abs(d))
            if np.exp(a) < 0.5:
                unsure.append(abs(d))
            all_d.append(d)
    assert where.first == pytest.approx(sum(first) / len(first))
    assert where.rest == pytest.approx(sum(rest) / len(rest))
    assert where.sure == pytest.approx(sum(sure) / len(sure))
    assert where.unsure == pytest.approx(sum(unsure) / len(unsure))
    assert where.mean == pytest.approx(sum(all_d) / len(all_d))
    assert where.ratio == pytest.approx(sum(np.exp(x) for x in all_d) / len(all_d))
    assert where.prompts == 1.0
