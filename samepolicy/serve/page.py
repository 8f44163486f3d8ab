"""The live page and what it loads: the report's own style and scripts, and a few more."""

import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from samepolicy import __version__
from samepolicy.report import html
from samepolicy.report.chinese import chinese

HERE = Path(__file__).parent

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may do. Style attributes are allowed, since plotly sets some; no text of a run ever becomes one."""

REPORT, OWN = ("core", "charts", "table"), ("stream", "lines", "lists", "live")
"""Scripts of the report that the live page uses, and its own, in the order in which they run."""

SERIES = (
    "logp_diff.mean",
    "prob_diff.mean",
    "k3.mean",
    "ess_token.ess",
    "ratio.mean",
    "ratio_far.share",
    "ratio_above.share",
    "sign_skew.mean",
)
"""What is drawn unless a person chooses others: the usual measures, and what `trend` watches."""

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 16"><g fill="none" stroke-width="2.6">'
    '<path stroke="#2f6fb0" d="M1 14C5 14 7 3 12 3s7 11 11 11"/>'
    '<path stroke="#c8551b" d="M1 14C6 14 8 5 13 5s6 9 10 9"/></g></svg>'
)


@dataclass(frozen=True)
class File:
    """A script or style sheet.

    Attributes:
        content: what it holds.
        kind: its media type.
        zipped: the same, compressed.
        tag: a hash of it.
    """

    content: bytes = field(repr=False)
    kind: str
    zipped: bytes = field(repr=False)
    tag: str

    @classmethod
    def of(cls, text: str, kind: str) -> "File":
        """A file of this text."""
        content = text.encode("utf-8")
        tag = hashlib.sha256(content).hexdigest()[:16]
        return cls(content, kind, gzip.compress(content, mtime=0), tag)


@cache
def static() -> Mapping[str, File]:
    """Everything that the page loads, by name; nothing else is ever read for an address."""
    from plotly.offline import get_plotlyjs

    report, own = html.HERE / "static", HERE / "static"
    scripts = [report / f"{name}.js" for name in REPORT] + [own / f"{name}.js" for name in OWN]
    styles = [report / "report.css", own / "live.css"]
    return {
        "live.js": File.of("\n".join(s.read_text(encoding="utf-8") for s in scripts), "text/javascript"),
        "plotly.js": File.of(str(get_plotlyjs()), "text/javascript"),
        "live.css": File.of("\n".join(s.read_text(encoding="utf-8") for s in styles), "text/css"),
    }


@cache
def home(title: str) -> str:
    """The page of a run.

    Args:
        title: what the run is called.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(HERE / "templates")
    page = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters["json"] = html.embedded
    words = dict(chinese()) | json.loads((HERE / "static" / "chinese.json").read_text(encoding="utf-8"))
    return page.get_template("live.html").render(
        title=title,
        version=__version__,
        chinese=words,
        start={"series": SERIES},
        files={name: f"/static/{name}?v={file.tag}" for name, file in static().items()},
        plotly_styles=html.plotly_styles(),
    )
