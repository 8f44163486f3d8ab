"""From a run to a diagnosis; with an engine in hand, what the verdict lacks is scored first."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import Any

from samepolicy import health
from samepolicy.blocks import Counts
from samepolicy.causes import Reference
from samepolicy.diagnose.course import course
from samepolicy.diagnose.kept import keep, kept
from samepolicy.diagnose.ladder import ladder, steps
from samepolicy.diagnose.measured import measured
from samepolicy.diagnose.naming import name
from samepolicy.diagnose.result import Diagnosis
from samepolicy.diagnose.verdict import decide
from samepolicy.engines.base import Engine, check_engine
from samepolicy.errors import InputError, MissingColumnError
from samepolicy.floor import Progress, add_evidence, has_evidence, ids_to_score
from samepolicy.records.declared import dtype_of, mark_scored
from samepolicy.records.inside import Kind, with_inside
from samepolicy.records.merge import NAMED
from samepolicy.records.run import Run
from samepolicy.records.self_checks import self_checks
from samepolicy.records.side import Sampling, Side
from samepolicy.semantics import noted
from samepolicy.structure.ids import declared
from samepolicy.summary import Summary, measure


def diagnose(
    run: Run,
    *,
    trainer: Engine | None = None,
    rollout: Engine | None = None,
    checkpoints: Sequence[str | PathLike[str]] | None = (),
    weights: Any = None,
    layers: Any = None,
    progress: Progress = None,
) -> Diagnosis:
    """Say whether a run's two sides are one policy, and if not why: the causes that close the gap when undone.

    The verdict is arithmetic on the run's columns. `different` means more than rounding: the whole interval of
    G / floor² above its limit, or a structural fault. Causes are named by predicting what a side recorded under
    settings other than the declared ones; parameters are fitted on half of the prompts, and all numbers are read on the
    other half.

    Args:
        run: a recorded run.
        trainer: the trainer's model; scores `trainer_logp` where the run has none, and the reference columns that tell
            how large rounding is. It also scores again under other settings, to find the cause. A run whose trainer
            declares nothing takes its dtype from it.
        rollout: the engine that sampled, for causes that only it can show.
        checkpoints: earlier weights of the trainer, oldest first: model folders of its architecture.
        weights: what `samepolicy.weights.compare` said of the trainer's weights (A) and the rollout's (B).
        layers: what `samepolicy.layers.compare` said of the two engines. Both are kept in the run's `info`.
        progress: called with what is done, how many parts are done, and how many there are.

    Returns:
        The diagnosis. Without reference columns and without an engine it is `same`, `different` by structure, or
        `inconclusive`.

    Raises:
        MissingColumnError: an engine is given, but the run has no ids to score.
        InputError: an engine that is none, ids that its vocabulary does not have, checkpoints that are not of its
            model, or a comparison that is none.
        EngineError: the engine failed.

    >>> run = Run.from_lists(rollout_logp=[[-1.0, -0.5]], trainer_logp=[[-1.00001, -0.50002]])
    >>> diagnose(run).verdict
    'same'
    """
    if not isinstance(run, Run):
        raise InputError(f"A diagnosis is of a Run, and this is {type(run).__name__}; read a folder with sp.read.")
    for side, given in (("trainer", trainer), ("rollout", rollout)):
        if given is not None:
            check_engine(side, given)
    earlier = _folders(checkpoints)
    if earlier and trainer is None:
        raise InputError("Checkpoints are read into the trainer's model; give it, too: diagnose(run, trainer=…).")
    comparisons: dict[Kind, Any] = {"weights": weights, "layers": layers}
    for kind, seen in comparisons.items():
        run = run if seen is None else with_inside(run, kind, seen)
    if trainer is not None:
        for folder in earlier:
            trainer.check_weights(folder)
        run = _scored(run, trainer, progress)
    elif "semantics" not in run.info:
        run = noted(run)
    return explained(run, trainer, rollout=rollout, checkpoints=earlier, progress=progress)


def _folders(checkpoints: Sequence[str | PathLike[str]] | None) -> tuple[str, ...]:
    """The checkpoints as texts, each once."""
    if isinstance(checkpoints, str | PathLike):
        raise InputError("checkpoints is a list of folders, oldest first; give [folder] where there is one.")
    try:
        return tuple(dict.fromkeys(fspath(one) for one in checkpoints or ()))
    except TypeError as error:
        raise InputError(f"checkpoints is a list of folders, oldest first ({error}).") from error


def explained(
    run: Run,
    reference: Engine | None,
    *,
    rollout: Engine | None = None,
    checkpoints: Sequence[str] = (),
    progress: Progress = None,
) -> Diagnosis:
    """The diagnosis of a run that holds all that it is going to hold.

    Args:
        run: the run.
        reference: the engine that its evidence was scored with, to find the cause; None leaves it to arrays.
        rollout: the engine that sampled.
        checkpoints: earlier weights of the trainer.
        progress: called with what is done.
    """
    m = measured(run)
    scorer = Reference(run, reference, rollout=rollout, checkpoints=checkpoints, tell=_telling(progress))
    held = kept(run) if reference is None else None
    before = held if rollout is None else None
    named = before or name(run, m, scorer)
    run = run if reference is None else keep(run, named)
    verdict = decide(m, named)
    summary = _summary(run)
    dtypes = {"rollout_dtype": dtype_of(run.rollout), "trainer_dtype": dtype_of(run.trainer)}
    return Diagnosis(
        verdict=verdict.word,
        sentence=verdict.sentence,
        next=verdict.next,
        summary=summary,
        gap=m.gap,
        floor=m.floor if m.floor.rollout or m.floor.trainer else None,
        sides=m.sides,
        where=m.where,
        course=course(run),
        steps=steps(m, verdict, named),
        ladder=ladder(m, verdict, named),
        facts=m.facts,
        readings=health.judge(summary, **dtypes, experts=declared(run, "experts")),
        self_checks=dict(self_checks(run)),
        run=run,
        findings=named.findings,
        ledger=named.ledger,
        unchecked=named.unchecked,
        tried=named.tried,
        kept=before is not None,
        outdated=reference is None and held is None and NAMED in run.info,
    )


def _telling(progress: Progress) -> Callable[[str], Any] | None:
    """Progress of a search whose length nobody knows."""
    return None if progress is None else lambda what: progress(what, 0, 1)


def score_trainer(run: Run, trainer: Engine, sampling: Sampling) -> Run:
    """The run with `trainer_logp` (and `trainer_entropy`, where the engine gives it) scored on the very ids sampled."""
    prompts, responses = ids_to_score(run)
    entropy = trainer.capabilities.entropy
    scores = trainer.score(prompts, responses, sampling=sampling, entropy=entropy)
    columns = {"trainer_logp": scores.logp, "trainer_entropy": scores.entropy}
    given = {name: column for name, column in columns.items() if column is not None}
    side = trainer.describe(sampling) if run.trainer == Side() else run.trainer
    return mark_scored(replace(run.with_columns(**given), trainer=side), *given)


def _scored(run: Run, trainer: Engine, progress: Progress) -> Run:
    """Score what the run lacks; a trainer that declares nothing is what was given as the trainer."""
    if run.trainer == Side() and "trainer_logp" in run:
        told = trainer.describe(run.rollout.sampling or Sampling())
        run = replace(run, trainer=told, info={**run.info, "trainer_assumed": True})
    if "trainer_logp" not in run:
        sampling = run.trainer.sampling or run.rollout.sampling or Sampling()
        run = score_trainer(run, trainer, sampling)
    if "semantics" not in run.info:
        run = noted(run, trainer=trainer)
    if trainer.capabilities.variants and not has_evidence(run):
        run = add_evidence(run, trainer, progress=progress)
    return run


def _summary(run: Run) -> Summary:
    """The metrics of the run; only counts where one side's log-probs are not there."""
    try:
        return measure(run)
    except MissingColumnError:
        return Summary(Counts(sequences=len(run), tokens=run.tokens), {}, {})
