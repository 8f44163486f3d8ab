"""A report as one HTML file that opens without a network: from the JSON value to text, and onto the disk."""

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from samepolicy import __version__
from samepolicy.diagnose import Diagnosis
from samepolicy.errors import InputError
from samepolicy.metrics import all_metrics
from samepolicy.records.places import text_of
from samepolicy.records.run import Run
from samepolicy.report import data
from samepolicy.report.chinese import chinese, sentence
from samepolicy.report.measures import MAIN
from samepolicy.report.page import tokens
from samepolicy.report.page.causes import causes, ledger
from samepolicy.report.pieces import pieces_of
from samepolicy.report.words import RUNGS
from samepolicy.whatif import WhatIf

HERE = Path(__file__).parent
MARK = "<!-- a report of samepolicy -->"
"""What the second line of every report is, so that a report may replace an older one and nothing else."""

SCRIPTS = ("core", "colour", "charts", "table", "responses", "strip", "detail", "heat", "whatif", "search", "keys")
"""The page's own scripts, in the order in which they run."""


def report(
    path: str | os.PathLike[str],
    run: Run | None = None,
    diagnosis: Diagnosis | None = None,
    *,
    whatif: WhatIf | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    budget: int = tokens.BUDGET,
) -> Path:
    """Write one HTML file that shows a run from its verdict down to each token.

    Args:
        path: the file to write; an older report there is replaced, anything else is left alone.
        run: the run; taken from the diagnosis where only that is given.
        diagnosis: what `diagnose` or `check` found; made from the run where not given.
        whatif: what corrections would do; made from the run where it has both log-probs.
        tokenizer: a folder with tokenizer.json or a .gguf file, to show text for ids; by default what the run holds.
        budget: how many tokens to keep one by one, about; the rest is kept in bins.

    Returns:
        The file.

    Raises:
        InputError: neither a run nor a diagnosis, or a file that is no report in the way.
    """
    target = Path(text_of(path))
    refuse(target)
    if diagnosis is None:
        diagnosis, made = data.judged(_given(run))
        whatif = whatif or made
    known = pieces_of(Path(tokenizer)) if tokenizer is not None else None
    value = data.of_report(diagnosis, whatif=whatif, pieces=known, title=target.stem, budget=budget)
    return write(render(value), target)


def _given(run: Run | None) -> Run:
    """The run, or a sentence that says what to give."""
    if run is None:
        raise InputError("There is nothing to report; give a run or a diagnosis.")
    return run


def render(made: Mapping[str, Any]) -> str:
    """The page of a report's JSON value.

    Args:
        made: what `data.of_report` returns.

    Returns:
        HTML that needs nothing beside itself. Scripts and styles are allowed by their hash alone, so no text of the
        run can become code; the value itself stands in a block that no browser runs.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(HERE / "templates")
    page = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters["json"] = embedded
    page.filters["number"] = _number
    style, own, plotly = _style(), _own_scripts(), _plotly()
    return page.get_template("report.html").render(
        value=made,
        main=[_main(made, *place) for place in MAIN if place[0] in made["metrics"]],
        metrics=all_metrics(),
        rungs=RUNGS,
        about=_about(made),
        sentence=sentence(made),
        found=causes(made),
        ledger=ledger(made),
        chinese=chinese(),
        version=__version__,
        mark=MARK,
        style=style,
        own=own,
        plotly=plotly,
        plotly_styles=plotly_styles(),
        policy=_policy(scripts=(own, plotly), styles=(style,)),
    )


def write(page: str, target: Path) -> Path:
    """Write a page in one step, so that no reader and no crash meets half of it."""
    refuse(target)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(page, encoding="utf-8", errors="replace", newline="\n")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


def refuse(target: Path, *, mark: str = MARK) -> None:
    """Refuse, before any work is done, a file that must not be written.

    Args:
        target: the file.
        mark: what an older one has among its first bytes, so that it may be replaced.

    Raises:
        InputError: a folder, a file that is no report, or a folder that is not there.
    """
    if target.is_dir():
        raise InputError(f"{target} is a folder; give the name of an .html file.")
    if not target.absolute().parent.is_dir():
        raise InputError(f"There is no folder {target.parent}; make it first, or give another file.")
    if target.exists():
        with target.open("rb") as file:
            if mark.encode() not in file.read(200):
                raise InputError(f"{target} is there and no report, so it is not overwritten; give another file.")


def embedded(made: Any) -> str:
    r"""JSON that can stand inside a script element, whatever text it holds.

    >>> str(embedded("</script>"))
    '"\\u003c/script\\u003e"'
    """
    from markupsafe import Markup

    text = json.dumps(made, allow_nan=False, separators=(",", ":"))  # ASCII, so neither U+2028 nor a lone surrogate
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _number(number: float | str | None, digits: int = 4) -> str:
    """A number as the terminal shows it, with a true minus; infinities are text already."""
    from samepolicy.report.tables import number as plain

    return number if isinstance(number, str) else plain(number, digits).replace("-", "−")


def _main(made: Mapping[str, Any], metric: str, readout: str) -> dict[str, Any]:
    """One main readout beside its usual ranges."""
    ranges, best = data.usual(made, metric, readout)
    read = made["metrics"][metric].get(readout)
    return {"metric": metric, "readout": readout, "value": read, "ranges": ranges, "best": best}


def _about(made: Mapping[str, Any]) -> dict[str, Any]:
    """What the named causes say of themselves, by name."""
    from samepolicy.causes import all_causes

    known = all_causes()
    return {c["cause"]: known[c["cause"]] for c in causes(made) if c["cause"] in known}


def _policy(*, scripts: tuple[str, ...], styles: tuple[str, ...]) -> str:
    """The Content-Security-Policy: these very scripts and styles, pictures that a script drew, and nothing else.

    Style attributes are allowed, since plotly sets some; no text of a run ever becomes one.
    """
    run, look = (" ".join(f"'sha256-{_hash(text)}'" for text in texts) for texts in (scripts, styles))
    rest = "img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {run}; style-src {look}; style-src-attr 'unsafe-inline'; {rest}"


@cache
def _hash(text: str) -> str:
    """The hash that a policy names a text by."""
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


@cache
def _own_scripts() -> Any:
    """The page's own scripts in one."""
    parts = [(HERE / "static" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return _safe("\n".join(parts))


@cache
def _style() -> Any:
    """The style sheet."""
    return _safe((HERE / "static" / "report.css").read_text(encoding="utf-8"))


@cache
def _plotly() -> Any:
    """Plotly's own bundle, as its package ships it."""
    from plotly.offline import get_plotlyjs

    return _safe(str(get_plotlyjs()))


@cache
def plotly_styles() -> tuple[str, ...]:
    """Ids under which plotly and its map library look for their style elements.

    Where something of that id is there, they write no style of their own, which the policy would refuse; the page's
    style sheet holds what figures need.
    """
    return ("plotly.js-style-global", *re.findall(r'document\.getElementById\("([0-9a-f]{64})"\)', _plotly()))


def _safe(code: str) -> Any:
    """Code that was written for this page, or ships with a package: not escaped, and unable to end its element."""
    from markupsafe import Markup

    return Markup(code.replace("</script", "<\\/script").replace("</style", "<\\/style").replace("\r\n", "\n"))
