"""`samepolicy score`."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import typer

from samepolicy.cli import engines, folders, options, output
from samepolicy.errors import InputError

EPILOG = engines.EPILOG.format(how="--NAME")


class CLASS(engines.EngineCommand):
    """Takes the engine's options as they are."""

    sides: ClassVar[tuple[str, ...]] = ("",)


def command(
    run: options.RunFolder,
    engine: Annotated[str, typer.Option(help="The engine that scores, as kind:path.")],
    out: options.NewRun,
    side: Annotated[Literal["trainer", "rollout"], typer.Option(help="The side that this engine is.")] = "trainer",
    dtype: Annotated[str | None, typer.Option(help="The engine's dtype, such as bfloat16.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Temperature of the log-probs; the run's unless given.")
    ] = None,
    device: options.Device = None,
    trust_remote_code: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Score a run's tokens with an engine, and write the run with that column to a new folder.

    The column is trainer_logp, with the trainer's entropy where the engine gives it, or with --side rollout
    rollout_logp. A column that is there already is never replaced.
    """
    from samepolicy.engines.base import engine as load
    from samepolicy.records.store import read, write
    from samepolicy.report import data, measures

    folders.refuse(out)
    recorded = _lacking(read(run), side, run)
    chosen = engines.choices(dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    with output.progress(quiet=as_json) as tell:
        tell(f"loading {engine}", 0, 1)
        loaded = load(engine, **chosen)
        tell("scoring", 0, 1)
        scored = _scored(recorded, loaded, side, temperature)
    write(scored, out)
    output.show(measures.run(scored, str(out)), data.of_run(scored), as_json=as_json)


def _lacking(run: Any, side: str, where: Any) -> Any:
    """The run, if it lacks the column that is to be scored."""
    if f"{side}_logp" in run:
        raise InputError(f"{where} has {side}_logp already, and scores are never replaced; score a run without it.")
    return run


def _scored(run: Any, engine: Any, side: str, temperature: float | None) -> Any:
    """The run with the column of that side."""
    from samepolicy.diagnose.judge import score_trainer
    from samepolicy.floor import ids_to_score
    from samepolicy.records.declared import mark_scored
    from samepolicy.records.side import Sampling

    sampling = getattr(run, side).sampling or run.rollout.sampling or Sampling()
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    if side == "trainer":
        return score_trainer(run, engine, sampling)
    logp = engine.score(*ids_to_score(run), sampling=sampling).logp
    return mark_scored(replace(run.with_columns(rollout_logp=logp), rollout=engine.describe(sampling)), "rollout_logp")
