"""Scoring what the verdict needs, as columns of the run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Engine
from samepolicy.errors import InputError, MissingColumnError
from samepolicy.records.declared import DTYPES, dtype_of, mark_scored, samplings
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

Owner: TypeAlias = Literal["rollout", "trainer", "neither"]
"""Whose model a reference engine is."""

Progress: TypeAlias = Callable[[str, int, int], Any] | None
"""Called with what is being done, how many parts are done, and how many there are."""


def add_evidence(run: Run, reference: Engine, *, owner: Owner = "trainer", progress: Progress = None) -> Run:
    """Score what the verdict needs: each side's declaration in float32 and in its declared dtype.

    Writes `rollout_reference_logp` and `trainer_reference_logp` (float32 arithmetic, weights cast to the side's dtype,
    the side's sampling), `rollout_rounded_logp` and `trainer_rounded_logp` (the same in the declared dtype), and
    `cast_reference_logp` (the trainer's dtype under the rollout's sampling) where both dtype and sampling differ.
    Columns that are equal by construction are scored once, and one variant of the engine is held at a time.

    Args:
        run: a run with `prompt_ids`, `response_ids` and the dtype that each side declares.
        reference: an engine with variants, usually the trainer.
        owner: whose model the reference is; a fault inside it looks like a fault of the other side.
        progress: called with what is scored, how many scorings are done and how many there are.

    Returns:
        The run with those columns. A side whose dtype is not declared, or is none of `DTYPES`, gets none.

    Raises:
        MissingColumnError: the run has no ids to score.
        EngineError: the reference has no variants.
    """
    ids_to_score(run)
    jobs = {name: job for name, job in _plan(run).items() if name not in run}
    scored = _score(run, reference, sorted(set(jobs.values())), progress)
    columns = {name: scored[job] for name, job in jobs.items()}
    info = {**run.info, "reference": {"owner": owner, **reference.describe(Sampling()).as_dict()}}
    return mark_scored(replace(run.with_columns(**columns), info=info), *columns)


def has_evidence(run: Run) -> bool:
    """Whether a run holds all the columns that its verdict needs."""
    return all(name in run for side in ("rollout", "trainer") for name in evidence_names(side))


def ids_to_score(run: Run) -> tuple[Ragged, Ragged]:
    """Prompt and response ids of a run.

    Raises:
        MissingColumnError: the run lacks one of them.
    """
    missing = [name for name in ("prompt_ids", "response_ids") if name not in run]
    if missing:
        names = " and no ".join(missing)
        raise MissingColumnError(f"The run has no {names}, so it cannot be scored: record the ids of both.")
    return run["prompt_ids"], run["response_ids"]


def column(run: Run, name: str) -> Float[np.ndarray, " tokens"]:
    """The packed values of a per-token column in float64."""
    ragged = run[name]
    if not isinstance(ragged, Ragged):
        raise InputError(f"{name} must hold one value per token, but it holds one per response.")
    values: np.ndarray = ragged.values.astype(np.float64)
    return values


def apart(run: Run, one: str, other: str) -> Float[np.ndarray, " tokens"]:
    """One per-token column minus another; NaN where both are -inf, outside of both kept sets."""
    with np.errstate(invalid="ignore"):
        return np.asarray(column(run, one) - column(run, other))


class _Job(NamedTuple):
    """One scoring: arithmetic, weights, sampling. Sorted so that each variant is made once."""

    dtype: str
    weights_dtype: str
    order: int
    sampling: Sampling


def _plan(run: Run) -> dict[str, _Job]:
    """Which scoring gives each evidence column; equal scorings are equal jobs."""
    sides = {"rollout": dtype_of(run.rollout), "trainer": dtype_of(run.trainer)}
    sampling = dict(zip(sides, samplings(run), strict=True))
    order = {s: i for i, s in reversed(list(enumerate(sampling.values())))}
    jobs: dict[str, _Job] = {}
    for side, dtype in sides.items():
        if dtype in DTYPES:
            reference, rounded = evidence_names(side)
            jobs[reference] = _Job("float32", dtype, order[sampling[side]], sampling[side])
            jobs[rounded] = _Job(dtype, dtype, order[sampling[side]], sampling[side])
    two = sides["rollout"] != sides["trainer"] and sampling["rollout"] != sampling["trainer"]
    if two and len(jobs) == 4:
        jobs["cast_reference_logp"] = _Job("float32", str(sides["trainer"]), 0, sampling["rollout"])
    return jobs


def _score(run: Run, reference: Engine, jobs: list[_Job], progress: Progress) -> dict[_Job, Ragged]:
    """Run the scorings, with one variant of the engine in memory at a time."""
    prompts, responses = ids_to_score(run)
    held: tuple[str, str] | None = None
    engine = reference
    done: dict[_Job, Ragged] = {}
    for job in jobs:
        what = f"reference in {job.dtype}"
        if progress:
            progress(what, len(done), len(jobs))
        if held != (job.dtype, job.weights_dtype):
            held = (job.dtype, job.weights_dtype)
            engine = reference  # lets the last variant go before the next one is made
            engine = reference.variant(dtype=job.dtype, weights_dtype=job.weights_dtype)
        done[job] = engine.score(prompts, responses, sampling=job.sampling).logp
        if progress:
            progress(what, len(done), len(jobs))
    return done


def evidence_names(side: str) -> tuple[str, str]:
    """The evidence columns of a side: float32, and the declared dtype."""
    return f"{side}_reference_logp", f"{side}_rounded_logp"
