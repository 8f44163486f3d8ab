"""What `diagnose` and `report` take to find causes: earlier weights, and what was seen inside the engines."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

import typer

from samepolicy.cli import engines
from samepolicy.errors import InputError

Checkpoints: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoints",
        metavar="DIR…",
        help="Earlier weights of the trainer, or a folder of such; tried as stale weights.",
    ),
]
Weights: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="What `samepolicy weights TRAINER ROLLOUT --json` printed: tensors compared.",
    ),
]
Layers: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--layers",
        metavar="FILE",
        help="What `samepolicy layers … --json` printed: where in the network they part.",
    ),
]


class CauseCommand(engines.EngineCommand):
    """Takes the trainer's options, and several folders behind one `--checkpoints`."""

    sides: ClassVar[tuple[str, ...]] = ("trainer", "")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say the switch before every folder, as the parser wants it."""
        return super().parse_args(ctx, list(_repeated(args, "--checkpoints")))


def given(
    trainer: str | None,
    chosen: dict[str, Any],
    checkpoints: Sequence[str] | None,
    weights: Path | None,
    layers: Path | None,
) -> dict[str, Any]:
    """What `diagnose` is called with beside the run and the trainer.

    Args:
        trainer: the trainer's model as kind:path.
        chosen: its options.
        checkpoints: folders of models, or of such folders.
        weights: a file with tensors compared.
        layers: a file with layers compared.

    Raises:
        InputError: there is no trainer to try them with, or a file cannot be read.
    """
    earlier = _kept(checkpoints or ())
    if trainer is None and (chosen or earlier):
        raise InputError("Options of an engine, and checkpoints, need an engine; give --trainer as kind:path.")
    inside = {name: _json(path) for name, path in {"weights": weights, "layers": layers}.items() if path}
    return {"checkpoints": earlier, **inside}


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


def _kept(given: Sequence[str]) -> tuple[str, ...]:
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
