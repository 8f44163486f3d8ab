"""The program `samepolicy`: finds its commands and turns every error into one sentence and a status."""

import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from samepolicy import __version__, cli
from samepolicy.cli import output
from samepolicy.cli.options import UsageError
from samepolicy.errors import SamePolicyError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and leave with its status.

    The status is 0 for `same` and `numerics`, 1 for `different`, 3 for `inconclusive`, 2 for a wrong call, bad input or
    anything else that left no answer, and 130 when interrupted.

    Args:
        arguments: the command line after the program's name; that of the process by default.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a sign shows a question mark
    sys.exit(status(arguments))


def status(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its status; no exception leaves it."""
    try:
        code = typer.main.get_command(app)(args=arguments, prog_name="samepolicy", standalone_mode=False)
    except UsageError as error:
        where = error.ctx.command_path if error.ctx else "samepolicy"
        what = " ".join(error.format_message().split()).rstrip(".")  # nothing where the help was shown
        join = " " if what.endswith("?") else "; "
        return output.fail(f"{what}{join}`{where} --help` shows what there is.") if what else 2
    except SamePolicyError as error:
        return output.fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        return output.fail(
            f"The system refused: {error.strerror or error}{place}; check the path, its permissions and the free space."
        )
    except Exception as error:
        if os.environ.get("SAMEPOLICY_DEBUG"):
            raise
        what = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": .")
        return output.fail(f"samepolicy failed in a way it should not ({what}); SAMEPOLICY_DEBUG=1 shows where.")
    return code if isinstance(code, int) else 0


def _version(wanted: bool | None) -> None:
    """Print the version and leave."""
    if wanted:
        output.line(f"samepolicy {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    _: Annotated[
        bool | None, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = None,
) -> None:
    """Is the policy that sampled your tokens the policy you train?

    Exit status: 0 same or numerics, 1 different, 3 inconclusive, 2 wrong call or bad input.
    """


def _add_commands() -> None:
    """Every module of this package that has a `command`; its `CLASS`, where it has one, parses its arguments."""
    for name in sorted(module.name for module in pkgutil.iter_modules(cli.__path__)):
        if name != "main":
            module = importlib.import_module(f"{cli.__name__}.{name}")
            if hasattr(module, "command"):
                extra: dict[str, Any] = {
                    "cls": getattr(module, "CLASS", None),
                    "epilog": getattr(module, "EPILOG", None),
                }
                app.command(name.rstrip("_"), **extra)(module.command)


_add_commands()
