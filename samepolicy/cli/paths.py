"""`samepolicy paths`."""

from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from samepolicy.cli import engines, options, output

EPILOG = engines.EPILOG.format(how="--NAME for both sides, --rollout-NAME or --trainer-NAME for one")


class CLASS(engines.EngineCommand):
    """Takes the engines' options for the rollout, the trainer, or both."""

    sides: ClassVar[tuple[str, ...]] = ("rollout", "trainer", "")


def command(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="The model of both sides: a folder, a .gguf file, a hub name.")
    ] = None,
    rollout: Annotated[
        str | None,
        typer.Option(help="The engine that samples: kind:path, a kind (it takes MODEL), or http://HOST:PORT."),
    ] = None,
    trainer: Annotated[str | None, typer.Option(help="The engine that trains, as kind:path.")] = None,
    dtype: Annotated[str | None, typer.Option(help="The dtype of both sides, such as bfloat16.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="A .txt or .jsonl file with a prompt a line.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest response, in tokens.")] = 32,
    as_json: options.AsJson = False,
) -> None:
    """Compare every path that the two engines have from token ids to log-probs.

    The rollout engine samples; the same ids go through decode, prefill, caches, chunks and batches of one side, and
    through batches, padding and packing of the other. The status is 1 if a path parts from its own engine by more than
    rounding.
    """
    from samepolicy.cli.check import installed
    from samepolicy.cli.prompts import read_prompts
    from samepolicy.diagnose.consistency import encode
    from samepolicy.paths import paths

    given = {"rollout": rollout, "trainer": trainer}
    specs = {side: engines.of_side(side, named, model) for side, named in given.items()}
    chosen = engines.of_sides(specs, {}, dtype=dtype)
    asked = read_prompts(prompts)
    installed(specs.values())
    with output.progress(quiet=as_json) as tell:
        sides: dict[str, Any] = {}
        for side, spec in specs.items():
            tell(f"loading {spec}", len(sides), 2)
            sides[side] = engines.opened(spec, chosen[side], model)
        ids = encode(sides["rollout"], asked)
        found = paths(**sides, prompts=ids, max_tokens=max_tokens, progress=tell)
    output.show(view(found), found.as_dict(), as_json=as_json)
    raise typer.Exit(1 if found.breaks else 0)


def view(found: Any) -> Any:
    """The paths by number, and the matrix: mean abs d above the diagonal, largest abs d below it."""
    from rich.console import Group
    from rich.table import Table

    table = Table(box=None, padding=(0, 0, 0, 1), title="abs d in nats, mean above the diagonal, largest below")
    for heading in ("", *range(1, len(found.names) + 1)):
        table.add_column(str(heading), justify="right", no_wrap=True)
    for i in range(len(found.names)):
        row = [found.mean_abs[i, j] if j > i else found.max_abs[i, j] for j in range(len(found.names))]
        table.add_row(str(i + 1), *("·" if j == i else _short(value) for j, value in enumerate(row)))
    named = "\n".join(f"{i:>2} {name}" for i, name in enumerate(found.names, start=1))
    return Group(named, "", table, "", str(found))


def _short(value: float) -> str:
    """A number in four characters or so.

    >>> _short(0.0451), _short(0.0), _short(float("nan"))
    ('5e-2', '0', 'nan')
    """
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e+") if value else "0"
