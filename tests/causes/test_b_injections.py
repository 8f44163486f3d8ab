"""Faults of sampling, positions, weights, routing and numerics, written here without the causes' own code."""

from dataclasses import replace

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.causes import Reference, packing_leak
from samepolicy.causes.making import toy
from samepolicy.diagnose import Diagnosis, diagnose
from samepolicy.diagnose.columns import evidences
from samepolicy.diagnose.measured import measured
from samepolicy.engines import toy_model
from samepolicy.engines.toy import VOCABULARY
from samepolicy.floor import add_evidence
from samepolicy.records.run import Run
from samepolicy.records.self_checks import self_check
from samepolicy.records.side import Sampling

pytestmark = pytest.mark.full  # the core job has the laws

TEXTS = [
    f"{a} {b} {c}" for a in ("the cat", "one two", "rain", "jump") for b in ("in", "over") for c in ("spain", "it")
]


@pytest.fixture(scope="module")
def healthy() -> Run:
    return sampled(Sampling(max_tokens=24, seed=5))


def sampled(sampling: Sampling, **rollout) -> Run:
    """A run of the bf16 toy, scored by the bf16 toy; both declare the neutral sampling."""
    one, neutral = toy(), Sampling(max_tokens=sampling.max_tokens, seed=sampling.seed)
    prompts = Ragged.from_lists([one.encode(text) for text in TEXTS], dtype=np.int64)
    run = toy(**rollout).generate(prompts, sampling)
    logp = one.score(run["prompt_ids"], run["response_ids"], sampling=neutral).logp
    run = replace(run.with_columns(trainer_logp=logp), trainer=one.describe(neutral))
    return replace(run, rollout=replace(run.rollout, sampling=neutral))


def told(run: Run, **more) -> Diagnosis:
    return diagnose(run, trainer=toy(**more.pop("options", {})), **more)


def logits_of(run: Run) -> list[np.ndarray]:
    """The toy's log-probs of the whole vocabulary at every token, from its own top list, in order of id."""
    scores = toy().score(run["prompt_ids"], run["response_ids"], top=VOCABULARY)
    rows = []
    for ids, values in zip(scores.top_ids, scores.top_logp, strict=True):
        full = np.zeros_like(values, dtype=np.float64)
        np.put_along_axis(full, ids, values.astype(np.float64), axis=1)
        rows.append(full)
    return rows


def own(rows: list[np.ndarray], run: Run) -> Ragged:
    normal = [x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in rows]
    picked = [full[np.arange(len(ids)), ids] for full, ids in zip(normal, run["response_ids"], strict=True)]
    return Ragged.from_lists(picked, dtype=np.float32)


def with_model(run: Run, monkeypatch: pytest.MonkeyPatch, name: str, changed) -> Ragged:
    """What the toy scores while a function of its model is another."""
    with monkeypatch.context() as patch:
        patch.setattr(toy_model.Model, name, changed)
        return toy().score(run["prompt_ids"], run["response_ids"]).logp


@pytest.mark.parametrize("value", [1.1, 1.3])
def test_a_repetition_penalty_is_estimated(value: float):
    run = sampled(Sampling(repetition_penalty=value, max_tokens=48))
    (finding,) = told(run).findings
    assert (finding.cause, finding.side) == ("penalty", "rollout")
    assert finding.parameters["repetition_penalty"] == pytest.approx(value, abs=0.01)
    d = run["trainer_logp"].values - run["rollout_logp"].values.astype(np.float64)
    assert np.exp(d.mean()) < 0.99 * np.exp(d).mean()


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_an_additive_penalty_is_estimated(healthy: Run, name: str):
    rows = logits_of(healthy)
    for row, ids in zip(rows, healthy["response_ids"], strict=True):
        for place in range(len(ids)):
            for token, count in zip(*np.unique(ids[:place], return_counts=True), strict=True):
                row[place, token] -= 0.8 * (count if name == "frequency_penalty" else 1)
    (finding,) = told(healthy.with_columns(trainer_logp=own(rows, healthy))).findings
    assert (finding.cause, finding.side) == ("penalty", "trainer")
    assert finding.parameters[name] == pytest.approx(0.8, abs=0.05)


def test_ids_that_are_forbidden_at_first(healthy: Run):
    """Three likely ids could not be sampled at the first ten places; where they stand there, nothing is compared."""
    rows, ids = logits_of(healthy), healthy["response_ids"]
    banned = np.argsort(-np.bincount(ids.values))[:3]
    place = np.concatenate([np.arange(n) for n in ids.lengths])
    for row in rows:
        row[:10, banned] -= 60.0
    mask = ids.with_values(~(np.isin(ids.values, banned) & (place < 10)))
    found = told(healthy.with_columns(rollout_logp=own(rows, healthy), mask=mask))
    finding = found.findings[0]
    assert (finding.cause, finding.side) == ("forbidden_tokens", "rollout")
    assert set(finding.parameters["ids"]) == set(banned.tolist())
    assert finding.parameters["first_places"] == [10, 10, 10]


def test_a_biased_id_is_found(healthy: Run):
    rows = logits_of(healthy)
    token = int(np.bincount(healthy["response_ids"].values).argmax())
    for row in rows:
        row[:, token] += 1.5
    (finding,) = told(healthy.with_columns(rollout_logp=own(rows, healthy))).findings
    assert (finding.cause, finding.parameters["id"]) == ("forbidden_tokens", token)
    assert finding.parameters["bias"] == pytest.approx(1.5, abs=0.05)


def test_raw_values_of_a_penalised_and_heated_sampler(healthy: Run):
    declared = Sampling(temperature=0.8, repetition_penalty=1.3, max_tokens=24)
    logp = toy().score(healthy["prompt_ids"], healthy["response_ids"], sampling=declared).logp
    sides = {name: replace(getattr(healthy, name), sampling=declared) for name in ("rollout", "trainer")}
    (finding,) = told(replace(healthy.with_columns(trainer_logp=logp), **sides)).findings
    assert (finding.cause, finding.side) == ("logprob_mode", "rollout")
    assert finding.parameters == {"logprobs": "raw", "declared": "processed"}


def test_one_raw_setting_keeps_its_own_name(healthy: Run):
    declared = Sampling(temperature=0.8, max_tokens=24)
    logp = toy().score(healthy["prompt_ids"], healthy["response_ids"], sampling=declared).logp
    sides = {name: replace(getattr(healthy, name), sampling=declared) for name in ("rollout", "trainer")}
    (finding,) = told(replace(healthy.with_columns(trainer_logp=logp), **sides)).findings
    assert (finding.cause, finding.parameters["temperature"]) == ("temperature", 1)


def test_positions_with_another_base(healthy: Run, monkeypatch: pytest.MonkeyPatch):
    def features(position, *_):
        angles = position[:, None] * 1000.0 ** -(np.arange(24) / 24)
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).astype(np.float32)

    with monkeypatch.context() as patch:
        patch.setattr(toy_model, "_sinusoid", features)
        logp = toy().score(healthy["prompt_ids"], healthy["response_ids"]).logp
    (finding,) = told(healthy.with_columns(trainer_logp=logp)).findings
    assert (finding.cause, finding.side, finding.parameters["rope_theta"]) == ("rope", "trainer", 1000.0)


def test_a_declared_field_of_the_other_side_is_tried(healthy: Run, monkeypatch: pytest.MonkeyPatch):
    """A base that is no family's default stands in the trainer's declaration."""

    def features(position, *_):
        angles = position[:, None] * 37.0 ** -(np.arange(24) / 24)
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).astype(np.float32)

    with monkeypatch.context() as patch:
        patch.setattr(toy_model, "_sinusoid", features)
        logp = toy().score(healthy["prompt_ids"], healthy["response_ids"]).logp
    extra = {**healthy.trainer.extra, "config": {"rope_theta": 37.0}}
    run = replace(healthy.with_columns(trainer_logp=logp), trainer=replace(healthy.trainer, extra=extra))
    (finding,) = told(run).findings
    assert (finding.cause, finding.parameters["rope_theta"]) == ("rope", 37.0)


@pytest.mark.parametrize("micro_batch", [0, 4])
def test_positions_that_count_left_padding(healthy: Run, monkeypatch: pytest.MonkeyPatch, micro_batch: int):
    """To the longest prompt of all, or of each four neighbours."""
    plain, lengths = toy_model._sinusoid, healthy["prompt_ids"].lengths
    size = micro_batch or len(lengths)
    rows = []
    for i, (prompt, response) in enumerate(zip(healthy["prompt_ids"], healthy["response_ids"], strict=True)):
        pads = max(lengths[i - i % size :][:size]) - len(prompt)
        with monkeypatch.context() as patch:
            patch.setattr(toy_model, "_sinusoid", lambda position, *more, n=pads: plain(position + n, *more))
            one = [Ragged.from_lists([ids], dtype=np.int64) for ids in (prompt, response)]
            rows.append(toy().score(*one).logp.values)
    (finding,) = told(healthy.with_columns(trainer_logp=rows)).findings
    assert (finding.cause, finding.side) == ("padding", "trainer")
    length = {"micro_batch": micro_batch} if micro_batch else {"pad_to": max(lengths)}
    assert finding.parameters == length | {"pad_side": "left", "pads": "hidden"}


@pytest.mark.parametrize("size", [2, 7, 16])
def test_samples_that_see_the_ones_before_them(healthy: Run, size: int):
    """Each sample's context begins with all samples before it in its row; at last, the whole batch is one row."""
    prompts, responses = list(healthy["prompt_ids"]), list(healthy["response_ids"])
    for at in range(len(prompts)):
        if at % size:
            prompts[at] = np.concatenate([prompts[at - 1], responses[at - 1], prompts[at]])
    logp = toy().score(Ragged.from_lists(prompts, dtype=np.int64), healthy["response_ids"]).logp
    (finding,) = told(healthy.with_columns(trainer_logp=logp)).findings
    assert (finding.cause, finding.side) == ("packing_leak", "trainer")
    assert finding.parameters == {"samples_per_row": size, "positions": "run on"}


def test_rounding_does_not_make_a_multiple_of_the_pack_look_cleaner(healthy: Run):
    """Rows of three that leak a few floors: all first samples are as clean as rounding leaves them."""
    rng, scored = np.random.default_rng(3), add_evidence(healthy, toy())
    first = np.arange(len(healthy)) % 3 == 0
    noise = rng.choice([-0.1, 0.1], int(healthy.lengths.sum())) * np.repeat(~first, healthy.lengths)
    logp = scored["trainer_logp"]
    run = scored.with_columns(trainer_logp=logp.with_values(np.minimum(logp.values + noise, 0)))
    (evidence,) = evidences(run, measured(run), Reference(run, toy()))
    assert evidence.mode == "trainer"
    assert packing_leak._packs(evidence)[0] == 3


@pytest.mark.parametrize(("old", "said"), [("0.", "layer 0"), ("head", "the output head")])
def test_tensors_that_stayed_old(healthy: Run, monkeypatch: pytest.MonkeyPatch, old: str, said: str):
    stale = toy_model.Model.disturbed

    def partly(self, share):
        whole = stale(self, 0.05)
        kept = {n: (whole if n.startswith(old) else self).weights[n] for n in self.weights}
        return toy_model.Model(kept)

    logp = with_model(healthy, monkeypatch, "disturbed", partly)
    run = healthy.with_columns(rollout_logp=logp)
    (finding,) = told(run, checkpoints=["stale=0.1", "stale=0.05"]).findings
    assert finding.cause == "partial_sync"
    assert finding.parameters == {"checkpoint": "stale=0.05", "old": said}


def test_an_adapter_that_never_arrived(healthy: Run):
    options = {"adapter": 0.3}
    logp = toy(**options).score(healthy["prompt_ids"], healthy["response_ids"]).logp
    run = replace(healthy.with_columns(trainer_logp=logp), trainer=toy(**options).describe(Sampling()))
    (finding,) = told(run, options=options).findings
    assert (finding.cause, finding.side, finding.parameters) == ("adapter_missing", "rollout", {"adapter": "off"})


@pytest.mark.parametrize(("bits", "said"), [(4, "int4"), (6, "int6"), (8, "int8")])
def test_weights_in_fewer_bits(monkeypatch: pytest.MonkeyPatch, bits: int, said: str):
    """In float32 on both sides, so that even eight bits stand out."""
    one, neutral = toy(dtype="float32"), Sampling(max_tokens=24, seed=5)
    prompts = Ragged.from_lists([one.encode(text) for text in TEXTS], dtype=np.int64)
    run = one.generate(prompts, neutral)
    plain, top = toy_model.Model.disturbed, 2 ** (bits - 1) - 1

    def rounded(self, share):
        found = plain(self, share).weights
        scale = {n: np.abs(w).max(axis=0) / top for n, w in found.items() if "." in n}
        return toy_model.Model({n: np.rint(w / scale[n]) * scale[n] if n in scale else w for n, w in found.items()})

    with monkeypatch.context() as patch:
        patch.setattr(toy_model.Model, "disturbed", rounded)
        logp = toy(dtype="float32").score(run["prompt_ids"], run["response_ids"]).logp
    trainer = one.score(run["prompt_ids"], run["response_ids"]).logp
    run = replace(run.with_columns(rollout_logp=logp, trainer_logp=trainer), trainer=one.describe(neutral))
    (finding,) = diagnose(run, trainer=one).findings
    assert (finding.cause, finding.side, finding.parameters) == ("quantised_rollout", "rollout", {"format": said})


def test_a_trainer_that_drops(healthy: Run, monkeypatch: pytest.MonkeyPatch):
    rng, plain = np.random.default_rng(11), toy_model.Model._attend

    def dropping(self, x, layer, cache, allowed):
        out = plain(self, x, layer, cache, allowed)
        return np.where(rng.random(out.shape) < 0.15, 0, out / np.float32(0.85)).astype(np.float32)

    logp, again = (with_model(healthy, monkeypatch, "_attend", dropping) for _ in range(2))
    run = healthy.with_columns(trainer_logp=logp)
    once = told(run)
    assert (once.verdict, once.findings) == ("different", ())
    assert "a second time" in next(cause.takes for cause in once.unchecked if cause.name == "dropout")
    twice = told(self_check(run, "trainer_alone", first=logp, second=again))
    assert [(f.cause, f.side, f.explained) for f in twice.findings] == [("dropout", "trainer", None)]


@pytest.mark.parametrize("seed", range(3))
def test_a_trainer_of_other_weights_does_not_drop(seed: int):
    """Its error may have dropout's size and shape, but it is the same each time."""
    run = sampled(Sampling(max_tokens=24, seed=seed))
    logp = toy(stale=0.1).score(run["prompt_ids"], run["response_ids"]).logp
    run = run.with_columns(trainer_logp=logp)
    assert told(run).findings == told(self_check(run, "trainer_alone", first=logp, second=logp)).findings == ()


def test_other_experts_are_blamed_only_where_they_hold_the_gap(healthy: Run):
    rng = np.random.default_rng(2)
    values, routes = healthy["rollout_logp"], rng.integers(0, 99, int(healthy.offsets[-1]))
    flipped = rng.random(len(routes)) < 0.15
    off = values.values + np.where(flipped, rng.normal(0, 1, len(routes)), 0).astype(np.float32)
    run = healthy.with_columns(rollout_logp=values.with_values(np.minimum(off, 0)))
    routed = {"trainer_routes": values.with_values(routes), "rollout_routes": values.with_values(routes + flipped)}
    (finding,) = told(run.with_columns(**routed)).findings
    assert (finding.cause, finding.rung, finding.proof) == ("router_flip", "routing", "structural")
    elsewhere = {**routed, "rollout_routes": values.with_values(routes + rng.permutation(flipped))}
    assert told(run.with_columns(**elsewhere)).findings == ()


def test_what_is_not_at_hand_is_listed(healthy: Run):
    rng = np.random.default_rng(0)
    values = healthy["rollout_logp"].values
    noisy = np.minimum(values + rng.normal(0, 0.4, len(values)), -1e-6).astype(np.float32)
    run = healthy.with_columns(rollout_logp=healthy["rollout_logp"].with_values(noisy))
    found = told(run)
    assert found.findings == ()
    missing = {cause.name: cause.takes for cause in found.unchecked}
    assert {"partial_sync", "adapter_missing", "router_flip", "engine_state", "kernel"} <= set(missing)
    assert "experts" in missing["router_flip"]
    assert "--trainer-adapter" in missing["adapter_missing"]


def test_an_engine_that_disagrees_with_its_own_prefill(healthy: Run):
    rng = np.random.default_rng(4)
    values = healthy["rollout_logp"].values
    noise = rng.normal(0, 0.4, len(values)).astype(np.float32)
    run = healthy.with_columns(rollout_logp=healthy["rollout_logp"].with_values(np.minimum(values + noise, -1e-6)))
    checked = replace(run, info={**run.info, "self_checks": {"rollout_prefill": {"mean_abs": 0.3, "rms": 0.4}}})
    (finding,) = told(checked).findings
    assert (finding.cause, finding.side, finding.proof) == ("kernel", "rollout", "size")
    small = replace(run, info={**run.info, "self_checks": {"rollout_prefill": {"mean_abs": 0.04, "rms": 0.05}}})
    assert told(small).findings == ()
