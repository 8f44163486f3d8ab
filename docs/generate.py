"""Write what the documentation shows of the code: the reference pages, and real outputs of commands.

    python docs/generate.py           rewrite what has changed
    python docs/generate.py --check   change nothing; list what is out of date and exit with status 1

A reference page is made from docstrings and tables of the package. An output is a fenced block below a line such as
`<!-- output: samepolicy demo -->` in the README or a page of docs/; the command is run and its output put there.
"""

import dataclasses
import importlib
import inspect
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from docstrings import markdown, signature, text_of

ROOT = Path(__file__).resolve().parent.parent
NOTICE = "<!-- Written by docs/generate.py from the code; edit the docstrings instead. -->"
OUTPUT = re.compile(
    r"(?P<head><!-- output: (?P<command>.+?) -->\n```(?:text|console)?\n)(?P<body>.*?)(?P<tail>^```$)", re.M | re.S
)


def main(arguments: list[str]) -> int:
    """Write, or with --check compare; the exit status."""
    stale = {path: text for path, text in expected() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)} is out of date: run `make docs`.")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if stale and "--check" in arguments else 0


def expected() -> Iterator[tuple[Path, str]]:
    """Every file with something generated, and what it should hold."""
    for page, make in [*PAGES.items(), *cause_pages()]:
        yield ROOT / "docs" / "reference" / f"{page}.md", f"{NOTICE}\n\n{make().strip()}\n"
    for path in [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text("utf-8")
        if OUTPUT.search(text):
            yield path, OUTPUT.sub(lambda m: f"{m['head']}{output_of(m['command'])}{m['tail']}", text)


def output_of(command: str) -> str:
    """What a command of samepolicy prints on a plain terminal of 100 columns."""
    program, *rest = shlex.split(command)
    if program != "samepolicy":
        raise SystemExit(f"Only outputs of samepolicy can be shown, not of {command!r}.")
    plain = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        call = [sys.executable, "-c", "from samepolicy.cli.main import main; main()", *rest]
        done = subprocess.run(call, cwd=folder, env=os.environ | plain, capture_output=True, text=True, check=False)
    if done.returncode == 2 or "Traceback" in done.stderr:
        raise SystemExit(f"`{command}` failed:\n{done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


# ---------------------------------------------------------------------------------------------------- the pages


def metrics_page() -> str:
    """Every metric: a table, then each one's docstring."""
    from samepolicy.metrics import all_metrics

    found = all_metrics().values()
    rows = ["| metric | what it is | unit | same policy | one value per | columns |", "|---|---|---|---|---|---|"]
    for m in found:
        columns = ", ".join(f"`{p}`" for p in m.parameters)
        ideal = "" if math.isnan(m.ideal) else f"{m.ideal:g}"
        what = m.doc.splitlines()[0].replace("|", r"\|")
        rows.append(f"| [`{m.name}`](#{m.name}) | {what} | {m.unit} | {ideal} | {m.span} | {columns} |")
    return "\n".join(["# Metrics", "", *rows, "", *(f"## {m.name}\n\n{markdown(m.doc)}\n" for m in found)])


def causes_page() -> str:
    """Every cause by rung, each with a link to its own page."""
    from samepolicy.causes import all_causes, base

    rows = ["| rung | cause | what it is | shown by |", "|---|---|---|---|"]
    for c in all_causes().values():
        rows.append(f"| {c.rung.value} | [`{c.name}`](causes/{c.name}.md) | {c.title} | {c.proof} |")
    return "\n\n".join(["# Causes", text_of(base), "\n".join(rows)])


def cause_pages() -> Iterator[tuple[str, Callable[[], str]]]:
    """A page for every cause, in the words of its docstring."""
    from samepolicy.causes import all_causes

    for cause in all_causes().values():
        yield f"causes/{cause.name}", partial(cause_page, cause)


def cause_page(cause: Any) -> str:
    """One cause: its parts, what it is told from and how, and the command that shows it at work."""
    from samepolicy.causes.base import alike, all_causes

    shown = "Shown by" if cause.proof != "undone" else "Shown by undoing it; cost"
    cost = ("array arithmetic", "a pass of the head", "a forward", "a forward with other weights")[cause.cost]
    facts = [
        f"On the rung `{cause.rung.value}` of the ladder.",
        f"{shown}: {cost if cause.proof == 'undone' else cause.proof}.",
    ]
    if same := [f"[`{n}`]({n}.md)" for n in all_causes() if n != cause.name and alike(n, cause.name)]:
        facts.append(f"No data can tell it from {' or '.join(same)}.")
    if cause.separate:
        facts.append(f"To tell it from others that explain as much: {cause.separate}.")
    parts = [f"## {heading}\n\n{text}" for heading, text in cause.parts.items()]
    see = f"## See it\n\n```console\n$ samepolicy demo {cause.name}\n$ samepolicy explain {cause.name}\n```"
    return "\n\n".join([f"# {cause.name}", cause.title, " ".join(facts), *parts, see])


def schema_page() -> str:
    """The columns of a run, and what each side declares."""
    from samepolicy.records import schema, side

    parts = ["# Columns of a run", text_of(schema), schema.table(), "## What each side declares"]
    parts += [f"### {cls.__name__}\n\n{text_of(cls)}" for cls in (side.Side, side.Sampling)]
    return "\n\n".join(parts)


def engines_page() -> str:
    """What an engine is, and each kind with its options."""
    from samepolicy.engines import base

    parts = ["# Engines", text_of(base)]
    for kind in base.kinds():
        module = importlib.import_module(f"samepolicy.engines.{kind}")
        parts += [f"## {kind}", text_of(module), options_table(module.Options)]
    parts += ["## The protocol", f"```python\n{signature(base.Engine.score)}\n```", text_of(base.Engine.score)]
    return "\n\n".join([*parts, "### Capabilities", text_of(base.Capabilities)])


def options_table(options: Any) -> str:
    """An engine's options with their defaults, and the text about them."""
    rows = ["| option | default |", "|---|---|"]
    rows += [f"| `{f.name}` | `{f.default!r}` |" for f in dataclasses.fields(options)]
    own = options.__doc__ if options.__doc__ and not options.__doc__.startswith(f"{options.__name__}(") else ""
    return "\n".join(rows) + (f"\n\n{markdown(inspect.cleandoc(own))}" if own else "")


def api_page() -> str:
    """Every public name of the package."""
    import samepolicy

    parts = ["# Python API", f"{text_of(samepolicy)}\n\nDocstring examples assume `import numpy as np`."]
    for name in samepolicy.__all__:
        value = getattr(samepolicy, name)
        parts.append(f"## {name}")
        if inspect.isfunction(value):
            parts.append(f"```python\n{signature(value)}\n```")
        parts.append(text_of(value))
        if inspect.isclass(value):
            parts += [
                method_of(value, key) for key in vars(value) if not key.startswith("_") and documented(value, key)
            ]
    return "\n\n".join(parts)


def commands_page() -> str:
    """Every command with its arguments and options."""
    import typer

    from samepolicy.cli.main import app

    root = typer.main.get_command(app)
    parts = ["# Commands", markdown(inspect.cleandoc(root.help or ""))]
    for name, command in sorted(root.commands.items()):
        parts += [f"## samepolicy {name}", markdown(inspect.cleandoc(command.help or "")), parameters_table(command)]
    return "\n\n".join(parts)


def parameters_table(command: Any) -> str:
    """The arguments and options of a command as a table."""
    rows = ["| argument or option | meaning | default |", "|---|---|---|"]
    for p in command.params:
        if getattr(p, "hidden", False) or p.name == "help":
            continue
        names = [*p.opts, *p.secondary_opts] if p.param_type_name == "option" else [p.name.upper()]
        default = (
            "" if p.default is None or callable(p.default) or p.default is False or p.required else f"`{p.default}`"
        )
        help_text = " ".join((p.help or "").split()).replace("|", r"\|")
        rows.append(f"| {', '.join(f'`{n}`' for n in names)} | {help_text} | {'required' if p.required else default} |")
    return "\n".join(rows)


PAGES: dict[str, Callable[[], str]] = {
    "api": api_page,
    "causes": causes_page,
    "commands": commands_page,
    "engines": engines_page,
    "metrics": metrics_page,
    "schema": schema_page,
}


# -------------------------------------------------------------------------------------- parts of pages


def documented(cls: type, key: str) -> bool:
    """Whether an attribute is a method or property, and not a field."""
    value = vars(cls)[key]
    return isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)


def method_of(cls: type, key: str) -> str:
    """A method or property with its signature and text."""
    raw = vars(cls)[key]
    function = raw.fget if isinstance(raw, property) else getattr(raw, "__func__", raw)
    shown = "" if isinstance(raw, property) else f"\n\n```python\n{signature(function)}\n```"
    return f"### {cls.__name__}.{key}{shown}\n\n{text_of(function)}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
