"""`samepolicy doctor`."""

from typing import Annotated, Literal

import typer

from samepolicy.cli import options, output
from samepolicy.errors import InputError

Framework = Annotated[
    Literal["verl", "trl"], typer.Argument(metavar="FRAMEWORK", help="The framework to look at: verl or trl.")
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SETTINGS",
        help="verl's YAML files and command-line overrides, whose switches are checked; later ones win.",
    ),
]


def command(framework: Framework, settings: Settings = None, as_json: options.AsJson = False) -> int:
    """Say whether samepolicy stands in a training framework: version, call sites, and verl's plugin and switches.

    Exit status: 0 nothing failed, 1 something did.
    """
    from dataclasses import asdict

    from samepolicy.integrations import trl_doctor, verl_doctor
    from samepolicy.report.tables import rows, table

    if framework == "trl" and settings:
        raise InputError(
            f"TRL's settings are arguments of `attach`, which checks them itself, so {settings[0]!r} cannot be checked "
            "here; leave it out."
        )
    checks = trl_doctor.examine() if framework == "trl" else verl_doctor.examine(settings or ())
    lines = [(check.name, check.status, check.why) for check in checks]
    value = {"schema": 1, "framework": framework, "checks": [asdict(check) for check in checks]}
    output.show(rows(table("what", "status", "why", fixed=("status",)), lines), value, as_json=as_json)
    return int(any(check.status == "failed" for check in checks))
