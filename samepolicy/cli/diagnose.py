"""`samepolicy diagnose`."""

from typing import Annotated, ClassVar

import typer

from samepolicy.cli import engines, folders, options, output
from samepolicy.errors import InputError

EPILOG = engines.EPILOG.format(how="--NAME or --trainer-NAME")


class CLASS(engines.EngineCommand):
    """Takes the trainer's options."""

    sides: ClassVar[tuple[str, ...]] = ("trainer", "")


def command(
    run: options.RunFolder,
    trainer: Annotated[
        str | None, typer.Option(help="The trainer's model as kind:path; scores what the verdict lacks.")
    ] = None,
    trainer_dtype: Annotated[str | None, typer.Option(help="The trainer's dtype, such as bfloat16.")] = None,
    device: options.Device = None,
    trust_remote_code: options.Trust = False,
    out: options.Out = None,
    everything: options.Everything = False,
    as_json: options.AsJson = False,
) -> None:
    """Say whether the two sides of a recorded run are the same policy, and what the answer rests on.

    With the trainer's model, its log-probs are scored where the run has none, and so is what tells how large rounding
    is on these tokens.
    """
    from samepolicy.diagnose import diagnose
    from samepolicy.engines.base import engine
    from samepolicy.records.store import read, write
    from samepolicy.report import data, text

    folders.refuse(out)
    recorded = read(run)
    shared = {"device": device, "trust_remote_code": trust_remote_code}
    chosen = engines.choices("trainer", dtype=trainer_dtype, **shared)
    if trainer is None and chosen:
        raise InputError("Options of an engine need an engine; give --trainer as kind:path.")
    with output.progress(quiet=as_json) as tell:
        tell(f"loading {trainer}", 0, 1)
        found = diagnose(recorded, trainer=engine(trainer, **chosen) if trainer else None, progress=tell)
    if out is not None:
        write(found.run, out)
    output.show(text.diagnosis(found, everything=everything), data.of_diagnosis(found), as_json=as_json)
    raise typer.Exit(found.exit_code)
