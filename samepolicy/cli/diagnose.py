"""`samepolicy diagnose`."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from samepolicy.cli import choices, engines, folders, large, options, output
from samepolicy.cli.skipped import Skipped
from samepolicy.errors import InputError

EPILOG = engines.EPILOG.format(how="--NAME or --trainer-NAME")


class CLASS(engines.EngineCommand):
    """Takes the trainer's options, and several folders behind one `--checkpoints`."""

    sides: ClassVar[tuple[str, ...]] = ("trainer", "")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say the switch before every folder, as the parser wants it."""
        return super().parse_args(ctx, list(_repeated(args, "--checkpoints")))


def command(
    run: options.RunFolder,
    trainer: options.Trainer = None,
    trainer_dtype: options.TrainerDtype = None,
    checkpoints: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR…", help="Earlier weights of the trainer, or a folder of such; tried as stale weights."
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What `samepolicy weights TRAINER ROLLOUT --json` printed: tensors compared."
        ),
    ] = None,
    layers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What `samepolicy layers … --json` printed: where in the network they part."),
    ] = None,
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
    asked = large.Asked(run, choices.where(steps, samples, finish_reason), sample, workers, skipped, resume)
    earlier = kept(checkpoints or ())
    inside = {name: _json(path) for name, path in {"weights": weights, "layers": layers}.items() if path}
    shared = {"device": device, "trust_remote_code": trust_remote_code}
    chosen = engines.choices("trainer", dtype=trainer_dtype, **shared)
    if trainer is None and (chosen or earlier):
        raise InputError("Options of an engine, and checkpoints, need an engine; give --trainer as kind:path.")
    with output.progress(quiet=as_json) as tell:
        recorded, drawn = asked.load(tell)
        tell(f"loading {trainer}", 0, 1)
        loaded = None if trainer is None else engine(trainer, **chosen)
        judged = diagnose(recorded, trainer=loaded, checkpoints=earlier, **inside, progress=tell)
    if out is not None:
        write(judged.run, out)
    found = data.of_all(judged, drawn) if drawn else judged
    value = data.of_diagnosis(found, drawn) | ({"skipped": skipped.sentences} if skipped else {})
    output.show(text.diagnosis(found, drawn, everything=everything), value, as_json=as_json)
    raise typer.Exit(found.exit_code)


def _json(path: Path) -> Any:
    """What a command printed with --json.

    Raises:
        InputError: the file is not there, or holds no JSON or nothing but null.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no JSON"
        raise InputError(f"{path} cannot be read ({reason}); give a file that a command wrote with --json.") from error
    if found is None:
        raise InputError(f"{path} holds nothing but null; give a file that a command wrote with --json.")
    return found


def kept(given: Sequence[str]) -> tuple[str, ...]:
    """The checkpoints that are meant: a folder that holds model folders stands for those, in order of their numbers."""
    found: list[str] = []
    for name in given:
        inside = [folder.parent for folder in Path(name).glob("*/config.json")]
        if (Path(name) / "config.json").is_file() or not inside:
            found.append(name)
        else:
            found += [str(folder) for folder in sorted(inside, key=_number)]
    return tuple(found)


def _number(folder: Path) -> tuple[int, str]:
    """The last number in a folder's name, then the name."""
    numbers = re.findall(r"\d+", folder.name)
    return (int(numbers[-1]) if numbers else -1, folder.name)


def _repeated(args: Sequence[str], switch: str) -> Iterator[str]:
    """The arguments with the switch before each word that follows it.

    Raises:
        InputError: no word follows it.

    >>> list(_repeated(["run", "--to", "a", "b", "--json"], "--to"))
    ['run', '--to', 'a', '--to', 'b', '--json']
    """
    inside = False
    for word, behind in zip(args, [*args[1:], "-"], strict=True):
        if word == switch and behind.startswith("-"):
            raise InputError(f"{switch} names nothing; give it what it is about, or leave it out.")
        if word.startswith("-"):
            inside = word == switch
            if not inside:
                yield word
        elif inside:
            yield from (switch, word)
        else:
            yield word
