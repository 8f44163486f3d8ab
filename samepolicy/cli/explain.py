"""`samepolicy explain`."""

from typing import TYPE_CHECKING, Annotated

import typer

from samepolicy.cli import options, output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from samepolicy.report.terms import Term

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="A verdict, number, proof, step, rung, cause, metric, column, engine, format or logged key.",
    ),
]


def command(name: Name = None, as_json: options.AsJson = False) -> None:
    """Explain a term: what it means, its unit, what is normal and who says so; without a name, list all."""
    from samepolicy.report.terms import all_terms, explain

    terms = all_terms() if name is None else explain(name)
    view = _list(terms) if name is None else _pages(terms)
    output.show(view, {"schema": 1, "terms": [term.as_dict() for term in terms]}, as_json=as_json)


def _pages(terms: "tuple[Term, ...]") -> "RenderableType":
    """The whole explanations of a few terms."""
    from rich.console import Group
    from rich.text import Text

    from samepolicy.report.tables import paragraph, reflow

    parts: list[RenderableType] = []
    for i, term in enumerate(terms):
        title = Text.assemble("\n" if i else "", (term.name, "bold"), (f" ({term.kind})", "dim"))
        parts += [title, paragraph(reflow(term.text))]
    return Group(*parts)


def _list(terms: "tuple[Term, ...]") -> "RenderableType":
    """Every term in a line, kind by kind."""
    from rich.console import Group

    from samepolicy.report.tables import Indented, heading, rows, table

    parts: list[RenderableType] = []
    for kind in dict.fromkeys(term.kind for term in terms):
        lines = [(term.name, term.line) for term in terms if term.kind == kind]
        made = table(kind, "meaning", fixed=(kind,))
        made.columns[0].min_width, made.show_header = 22, False
        parts += [heading(f"{kind.capitalize()}s"), Indented(rows(made, lines))]
    return Group(*parts)
