"""`samepolicy doctor`."""

from typing import Annotated, Literal

import typer

from samepolicy.cli import options, output

Framework = Annotated[Literal["verl"], typer.Argument(metavar="FRAMEWORK", help="The framework to look at: verl.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SETTINGS",
        help="Its YAML files and command-line overrides, whose switches are checked; later ones win.",
    ),
]


def command(framework: Framework, settings: Settings = None, as_json: options.AsJson = False) -> int:
    """Say whether samepolicy stands in a training framework: plugin, version, call sites, switches.

    Exit status: 0 nothing failed, 1 something did.
    """
    from dataclasses import asdict

    from samepolicy.integrations.verl_doctor import examine
    from samepolicy.report.tables import rows, table

    checks = examine(settings or ())
    lines = [(check.name, check.status, check.why) for check in checks]
    value = {"schema": 1, "framework": framework, "checks": [asdict(check) for check in checks]}
    output.show(rows(table("what", "status", "why", fixed=("status",)), lines), value, as_json=as_json)
    return int(any(check.status == "failed" for check in checks))
