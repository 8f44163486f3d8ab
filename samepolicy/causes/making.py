"""Runs of the toy engine for the causes' reproductions: healthy but for what is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Engine, engine
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "rain", "in", "spain", "jump", "over", "quick", "fox")
PROMPTS, TOKENS = 16, 24


def toy(**options: Any) -> Engine:
    """A toy engine in bfloat16, unless told otherwise."""
    return engine("toy:", **({"dtype": "bfloat16"} | options))


def prompts(rng: Generator, count: int = PROMPTS) -> Ragged:
    """Prompts of three to six words as ids of the toy."""
    texts = [" ".join(rng.choice(WORDS, rng.integers(3, 7))) for _ in range(count)]
    return Ragged.from_lists([toy().encode(text) for text in texts], dtype=np.int64)


def toy_run(
    rng: Generator,
    *,
    rollout: Mapping[str, Any] | Engine | None = None,
    trainer: Mapping[str, Any] | Engine | None = None,
    sampling: Sampling = Sampling(max_tokens=TOKENS),
    trainer_sampling: Sampling | None = None,
    declared: Sampling | None = None,
) -> Run:
    """Sample with one toy and score with another.

    Args:
        rng: makes the prompts and the sampler's seed.
        rollout: options of the toy that samples, or the toy; its faults are not declared.
        trainer: options of the toy that scores, or the toy.
        sampling: how tokens are drawn, and which log-prob is recorded.
        trainer_sampling: what the trainer applies, where that is something else.
        declared: what both sides declare, where that is something else than the truth.

    Returns:
        The run with both sides' log-probs.
    """
    sampling = replace(sampling, seed=int(rng.integers(2**31)))
    run = _made(rollout).generate(prompts(rng), sampling)
    scorer = _made(trainer)
    applied = trainer_sampling or sampling
    logp = scorer.score(run["prompt_ids"], run["response_ids"], sampling=applied).logp
    told = declared or sampling
    run = replace(run, rollout=replace(run.rollout, sampling=told), trainer=scorer.describe(declared or applied))
    return run.with_columns(trainer_logp=logp)


def _made(what: Mapping[str, Any] | Engine | None) -> Engine:
    """A toy from its options, or as it is."""
    return toy(**(what or {})) if what is None or isinstance(what, Mapping) else what


def with_ends(run: Run, end: int, *, value: float, rows: Sequence[int]) -> Run:
    """The run with an end id appended to some responses, and this value as the rollout's log-prob of it.

    The trainer's log-prob there is that of the toy in the run's own dtype.
    """
    ids = [np.append(row, end) if i in rows else row for i, row in enumerate(run["response_ids"])]
    ours = [np.append(row, value) if i in rows else row for i, row in enumerate(run["rollout_logp"])]
    responses = Ragged.from_lists(ids, dtype=np.int64)
    sampling = run.trainer.sampling or Sampling()
    theirs = toy(dtype=run.trainer.dtype).score(run["prompt_ids"], responses, sampling=sampling).logp
    columns = {
        "response_ids": responses,
        "rollout_logp": Ragged.from_lists(ours, dtype=np.float32),
        "trainer_logp": theirs,
        "mask": responses.with_values(np.ones(len(responses.values), dtype=bool)),
        "finish_reason": np.array(["stop" if i in rows else "length" for i in range(len(run))], dtype=object),
    }
    kept = {name: run[name] for name in ("prompt_ids", "group", "sample")}
    return Run({**kept, **columns}, rollout=run.rollout, trainer=run.trainer, info=run.info)
