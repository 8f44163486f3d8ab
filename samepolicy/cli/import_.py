"""`samepolicy import`."""

from pathlib import Path
from typing import Annotated

import typer

from samepolicy.cli import folders, options, output


def command(
    src: Annotated[Path, typer.Argument(metavar="SRC", help="A dump of another program.")],
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A new folder to write the run to.")],
    as_json: options.AsJson = False,
) -> None:
    """Turn a dump of another program into a run folder."""
    from samepolicy.records.formats import import_run
    from samepolicy.records.store import write
    from samepolicy.report import data, measures

    folders.refuse(run)
    found = import_run(src)
    write(found, run)
    output.show(measures.run(found, str(run)), data.of_run(found), as_json=as_json)
