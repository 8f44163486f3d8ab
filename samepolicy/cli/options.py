"""Options that several commands share, each in one place so that they read the same everywhere."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

UsageError: Any = typer.BadParameter.__bases__[0]
"""What typer raises for a wrong command line."""

ENGINES = "Engines"
"""Where help lists what is about engines."""

AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print exactly what the library returns, as JSON, and nothing else.")
]
Everything: TypeAlias = Annotated[bool, typer.Option("--all", help="Show every metric, not the main ones.")]
RunFolder: TypeAlias = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, or a dump of another program that `import` knows.")
]
Out: TypeAlias = Annotated[Path | None, typer.Option("--out", help="A new folder to write the run to.")]
NewRun: TypeAlias = Annotated[Path, typer.Option("--out", help="A new folder to write the run to.")]
Trainer: TypeAlias = Annotated[
    str | None,
    typer.Option("--trainer", help="The trainer's model as kind:path; scores what the verdict and the causes lack."),
]
TrainerDtype: TypeAlias = Annotated[
    str | None, typer.Option("--trainer-dtype", help="The trainer's dtype, such as bfloat16.")
]
RolloutDtype: TypeAlias = Annotated[
    str | None, typer.Option("--rollout-dtype", help="The rollout's dtype, where the run declares none.")
]
Device: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--device", help='Where engines run, such as "cpu" or "cuda:0"; auto unless given.', rich_help_panel=ENGINES
    ),
]
Trust: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Run code that comes with the model; off unless given.", rich_help_panel=ENGINES
    ),
]
