"""Everything that has a name here, with its explanation: gathered from where it is defined, kept nowhere else."""

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from samepolicy.errors import InputError, perhaps
from samepolicy.report.tables import interval
from samepolicy.report.words import NUMBERS, PROOFS, RUNGS, STEPS, VERDICTS

Kind: TypeAlias = Literal[
    "verdict", "number", "proof", "step", "rung", "metric", "threshold", "column", "engine", "format", "key", "cause"
]

WORDS: dict[Kind, dict[str, str]] = {
    "verdict": VERDICTS,
    "number": NUMBERS,
    "proof": PROOFS,
    "step": STEPS,
    "rung": RUNGS,
}


@dataclass(frozen=True, kw_only=True)
class Term:
    """A name and what it means.

    Attributes:
        name: the name.
        kind: what it is the name of.
        line: the meaning in a line.
        text: the whole explanation.
    """

    name: str
    kind: Kind
    line: str
    text: str

    def as_dict(self) -> dict[str, str]:
        """A JSON-ready mapping."""
        return {"name": self.name, "kind": self.kind, "line": self.line, "text": self.text}

    def __str__(self) -> str:
        """The name, its kind, and the explanation."""
        return f"{self.name} ({self.kind})\n\n{self.text}"


def all_terms() -> tuple[Term, ...]:
    """Every term, kind by kind."""
    parts = (_word(name, kind, text) for kind, told in WORDS.items() for name, text in told.items())
    return (*parts, *_causes(), *_metrics(), *_thresholds(), *_columns(), *_engines(), *_formats(), *_keys())


def explain(name: str) -> tuple[Term, ...]:
    """The terms of a name; a metric comes with its usual ranges.

    Args:
        name: any name of `all_terms`, in any case.

    Returns:
        One term or more.

    Raises:
        InputError: there is none; the message has those that are spelled alike.

    >>> [term.kind for term in explain("numerics")]
    ['verdict', 'rung']
    """
    terms = all_terms()
    found = tuple(term for term in terms if term.name.lower() == name.lower())
    if found:
        return found
    alike = perhaps(name, (term.name for term in terms), "`samepolicy explain` lists all")
    raise InputError(f"Nothing is called {name!r}; {alike}.")


def _word(name: str, kind: Kind, text: str) -> Term:
    """A term that is explained in a paragraph, whose first sentence is its line."""
    first = text.partition(". ")[0].rstrip(".")
    return Term(name=name, kind=kind, line=first, text=text)


def _causes() -> Iterator[Term]:
    """Causes by their docstrings, a paragraph for each part."""
    from samepolicy.causes import all_causes

    for cause in all_causes().values():
        parts = [f"{heading}: {text}" for heading, text in cause.parts.items()]
        text = "\n\n".join([f"{cause.title} On the rung {cause.rung.value}; shown by: {cause.proof}.", *parts])
        yield Term(name=cause.name, kind="cause", line=cause.title, text=text)


def _metrics() -> Iterator[Term]:
    """Metrics by their docstrings."""
    from samepolicy.metrics import all_metrics

    for metric in all_metrics().values():
        ideal = "" if metric.ideal != metric.ideal else f"; {metric.ideal:g} where both policies are one"
        facts = f"One value per {metric.span}, in {metric.unit}{ideal}; needs {', '.join(metric.parameters)}."
        yield Term(name=metric.name, kind="metric", line=metric.summary, text=f"{facts}\n\n{metric.doc}")


def _thresholds() -> Iterator[Term]:
    """Usual ranges, under their metric's name."""
    from samepolicy.health import THRESHOLDS

    for told in THRESHOLDS:
        where = [*told.dtypes, *([] if told.models == "any" else [told.models])]
        holds = f" ({', '.join(where)})" if where else ""
        line = f"{told.readout} {interval(told.low, told.high)}{holds}, by {told.source}"
        yield Term(name=told.metric, kind="threshold", line=line, text=f"{line}. Outside: {told.meaning}.")


def _columns() -> Iterator[Term]:
    """Columns of a run."""
    from samepolicy.records.schema import COLUMNS

    for column in COLUMNS.values():
        text = f"A column of a run ({column.kind}, {column.dtype}): {column.meaning}."
        yield Term(name=column.name, kind="column", line=column.meaning, text=text)


def _engines() -> Iterator[Term]:
    """Kinds of engines with their options."""
    from samepolicy.engines.base import kinds

    for kind in kinds():
        module = importlib.import_module(f"samepolicy.engines.{kind}")
        doc, options = inspect.getdoc(module) or "", fields(module.Options)
        switches = ", ".join(f"--{option.name.replace('_', '-')}" for option in options)
        text = f"{doc}\n\n{inspect.getdoc(module.Options)}\n\nOn the command line: {switches}."
        yield Term(name=kind, kind="engine", line=doc.partition("\n")[0], text=text)


def _formats() -> Iterator[Term]:
    """Dumps of other programs."""
    from samepolicy.records.formats import all_formats

    for name, module in all_formats().items():
        doc = inspect.cleandoc(module.__doc__ or "")
        yield Term(name=name, kind="format", line=doc.partition("\n")[0], text=doc)


def _keys() -> Iterator[Term]:
    """Keys that other frameworks log."""
    from samepolicy.names import FRAMEWORKS

    for name, framework in FRAMEWORKS.items():
        told: Any = f"checked against {name} {framework.verified}" if framework.verified else "read, not run"
        for key, read in framework.keys.items():
            line = f"{name}'s {read.readout} of {read.metric}"
            yield Term(name=key, kind="key", line=line, text=f"{line} ({told}). Source: {framework.source}.")
