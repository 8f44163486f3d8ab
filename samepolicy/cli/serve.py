"""`samepolicy serve`."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from samepolicy.cli import output

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The run folder that a monitor writes; an empty one is waited for.")
]
Host = Annotated[str, typer.Option(help="The address to answer at; any but this machine's own asks for a token.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes any free one.")]
Token = Annotated[
    str,
    typer.Option(
        envvar="SAMEPOLICY_TOKEN",
        show_envvar=True,
        help="What callers have to know, 16 characters or more; made and printed where one is needed and none given.",
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option("--name", help="A further host name that the page is opened under, such as that of a proxy."),
]
Tokenizer = Annotated[
    Path | None, typer.Option(help="A folder with tokenizer.json or a .gguf file, to show text for ids in reports.")
]


def command(
    folder: Folder,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    token: Token = "",
    name: Names = None,
    tokenizer: Tokenizer = None,
) -> None:
    """Show a run folder in the browser while training writes it: metrics, alarms, and the report of any step.

    It reads the folder and nothing else, changes nothing, and ends with Ctrl-C.
    """
    from samepolicy.report.pieces import pieces_of
    from samepolicy.serve.server import Address, serve

    known = pieces_of(tokenizer) if tokenizer is not None else None
    address = Address(host=host, port=port, token=token, names=tuple(name or ()))
    with suppress(KeyboardInterrupt):
        serve(folder, address, pieces=known, tell=_say)
    output.note("The live page has ended.")


def _say(url: str) -> None:
    """Where the page is."""
    output.line(f"The live page is at {url} (Ctrl-C ends it).")
