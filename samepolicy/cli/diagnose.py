"""`samepolicy diagnose`."""

import typer

from samepolicy.cli import causes, choices, engines, folders, large, options, output
from samepolicy.cli.skipped import Skipped

EPILOG = engines.EPILOG.format(how="--NAME or --trainer-NAME")
CLASS = causes.CauseCommand


def command(
    run: options.RunFolder,
    trainer: options.Trainer = None,
    trainer_dtype: options.TrainerDtype = None,
    rollout_dtype: options.RolloutDtype = None,
    checkpoints: causes.Checkpoints = None,
    weights: causes.Weights = None,
    layers: causes.Layers = None,
    device: options.Device = None,
    trust_remote_code: options.Trust = False,
    steps: choices.Steps = None,
    samples: choices.Samples = None,
    finish_reason: choices.Reasons = None,
    skip_bad: choices.SkipBad = False,
    workers: choices.Workers = None,
    resume: choices.Resume = None,
    sample: choices.Sample = None,
    out: options.Out = None,
    everything: options.Everything = False,
    as_json: options.AsJson = False,
) -> None:
    """Say whether the two sides of a recorded run are the same policy, and if not why.

    With the trainer's model, its log-probs are scored where the run has none, and so is what tells how large rounding
    is on these tokens; and the run is scored again under other settings until the gap closes, which names the cause.
    Of a large run the metrics are of all responses, and verdict, causes and scores are of a sample, which is said.
    """
    from samepolicy.diagnose import diagnose
    from samepolicy.engines.base import engine
    from samepolicy.records.store import write
    from samepolicy.report import data, text

    folders.refuse(out)
    skipped = Skipped() if skip_bad else None
    asked = large.Asked(
        run, choices.where(steps, samples, finish_reason), sample, workers, skipped, resume, rollout_dtype
    )
    shared = {"device": device, "trust_remote_code": trust_remote_code}
    chosen = engines.choices("trainer", dtype=trainer_dtype, **shared)
    more = causes.given(trainer, chosen, checkpoints, weights, layers)
    with output.progress(quiet=as_json) as tell:
        recorded, drawn = asked.load(tell)
        tell(f"loading {trainer}", 0, 1)
        loaded = None if trainer is None else engine(trainer, **chosen)
        judged = diagnose(recorded, trainer=loaded, **more, progress=tell)
    if out is not None:
        write(judged.run, out)
    found = data.of_all(judged, drawn) if drawn else judged
    value = data.of_diagnosis(found, drawn) | ({"skipped": skipped.sentences} if skipped else {})
    output.show(text.diagnosis(found, drawn, everything=everything), value, as_json=as_json)
    raise typer.Exit(found.exit_code)
