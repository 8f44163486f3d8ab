"""A what-if for a terminal: the advice first, then what each rule does, then what that does to the surrogate."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from samepolicy.report.measures import counts
from samepolicy.report.tables import Indented, heading, inline, number, paragraph, rows, table
from samepolicy.whatif import Outcome, WhatIf
from samepolicy.whatif.surrogate import Interval
from samepolicy.whatif.tally import Lost

DIVISOR = {"mask": "all sampled tokens", "kept": "the tokens that a rule keeps"}


def whatif(found: WhatIf, *, everything: bool = False) -> RenderableType:
    """A what-if as it is shown.

    Args:
        found: what every rule does.
        everything: show every rule's first responses one by one.

    Returns:
        What rich prints.
    """
    parts: list[RenderableType] = [
        Text(found.advice.sentence, "bold green" if found.advice.rule else "bold yellow"),
        counts(found.summary),
        paragraph(_raw(found), "dim"),
        heading("What each rule does", "shares of tokens, of responses, and what the weights are worth"),
        _outcomes(found.outcomes),
    ]
    for name, swept in found.sweeps.items():
        parts += [heading(f"{name} at other thresholds"), _outcomes(swept)]
    parts += _surrogate(found)
    parts += _first(found.outcomes, everything)
    if found.untried:
        lines = [f"{name}: it takes {' and '.join(needs)}" for name, needs in found.untried.items()]
        parts += [heading("Not tried"), paragraph("\n".join(lines))]
    return Group(*parts)


def _raw(found: WhatIf) -> str:
    """The batch as it is, in two lines."""
    s = found.summary
    ess = [number(s[name]["ess"]) for name in ("ess_token", "ess_seq", "ess_seq_product")]
    k = [number(s[name]["k"]) for name in ("pareto_k", "pareto_k_seq")]
    far = [f"{s[name]['share']:.2%}" for name in ("ratio_above", "ratio_below")]
    trusted = number(s["pareto_k"]["trusted_below"], 3)
    skew = f", advantage-sign skew {number(s['sign_skew']['mean'], 3)}" if "sign_skew" in s else ""
    return (
        f"raw ESS  token {ess[0]}, response {ess[1]} (geometric mean), {ess[2]} (product)\n"
        f"ratios   {far[0]} above 2, {far[1]} below 1/2, Pareto k {k[0]} (token), {k[1]} (response), "
        f"trusted below {trusted}{skew}"
    )


def _outcomes(outcomes: Sequence[Outcome]) -> RenderableType:
    """A row for each rule."""
    columns = ("τ", "kept", "clipped", "zeroed", "dropped", "resp.", "ESS", "ESS resp.", "w mean", "w max", "k")
    made = table("rule", *columns, numbers=columns, fixed=("rule",))
    return Indented(rows(made, (_row(o) for o in outcomes)))


def _row(o: Outcome) -> Sequence[str]:
    """One rule's numbers."""
    shares = (o.kept, o.clipped, o.zeroed, o.dropped, o.kept_sequences)
    worth = [_places(v, 3) for v in (o.ess_token, o.ess_sequence)]
    weights = [number(v, 3) for v in (o.weight_mean, o.weight_max)]
    threshold = "" if o.threshold is None else f"{o.threshold:g}"
    return (o.name, threshold, *map(_share, shares), *worth, *weights, _places(o.pareto_k, 2))


def _surrogate(found: WhatIf) -> Iterator[RenderableType]:
    """What each rule does to the objective, or what that would take."""
    if all(o.surrogate is None for o in found.outcomes):
        yield inline("Bias and variance of mean(w·A)", "it takes advantage, which this run does not have")
        return
    yield heading(
        "The surrogate mean(w·A)",
        f"divided by {DIVISOR[found.divide_by]}; 95 % intervals by a bootstrap over {found.prompts} prompts",
    )
    columns = ("value", "std. error", "from uncorrected", "from fully weighted", "error", "skew")
    made = table("rule", *columns, numbers=columns, fixed=("rule",))
    yield Indented(rows(made, (row for o in found.outcomes if (row := _surrogate_row(o)))))
    yield paragraph(
        "Fully weighted: every token by its ratio, unbounded. Error: the mean squared one, weights by their sum.\n"
        "Skew: mean weight where the advantage is positive minus that where it is negative.",
        "dim",
    )


def _surrogate_row(o: Outcome) -> Sequence[str]:
    """One rule's objective."""
    s = o.surrogate
    if s is None:
        return ()
    numbers = (number(s.value, 3), number(s.standard_error, 3), _interval(s.from_uncorrected))
    return (o.label, *numbers, _interval(s.from_weighted), number(s.error, 3), number(s.skew, 3))


def _first(outcomes: Sequence[Outcome], everything: bool) -> Iterator[RenderableType]:
    """The responses that each rule takes tokens from, the worst first."""
    taking = [o for o in outcomes if o.first]
    if not taking:
        return
    yield heading("Responses that lose most", "by number; the share of their tokens that is left without weight")
    if not everything:
        made = table("rule", "responses", fixed=("rule",))
        yield Indented(rows(made, ((o.label, ", ".join(map(_called, o.first))) for o in taking)))
        return
    columns = ("response", "step", "sample", "tokens", "lost", "mean abs d", "advantage")
    made = table("rule", *columns, "group", numbers=columns, fixed=("rule",))
    yield Indented(rows(made, (_lost(o.label, x) for o in taking for x in o.first)))


def _called(x: Lost) -> str:
    """A response and what it loses."""
    return f"{x.sequence} ({_share(x.lost)})"


def _lost(name: str, x: Lost) -> Sequence[str]:
    """A response with what is known of it."""
    places = ("" if n is None else str(n) for n in (x.step, x.sample))
    facts = (str(x.tokens), _share(x.lost), number(x.mean_abs, 3), number(x.advantage, 3))
    return (name, str(x.sequence), *places, *facts, x.group or "")


def _share(value: float) -> str:
    """A share in per cent, of which a small one is not shown as none.

    >>> _share(1.0), _share(0.0), _share(0.0312), _share(0.00002), _share(0.99999)
    ('100%', '0%', '3.1%', '<0.1%', '>99.9%')
    """
    if value != value:
        return "–"
    if 0 < value < 1e-3:
        return "<0.1%"
    if 0.999 < value < 1:
        return ">99.9%"
    return f"{value:.0%}" if value in (0.0, 1.0) else f"{value:.1%}"


def _places(value: float, places: int) -> str:
    """A number with that many places, or a dash."""
    return "–" if value != value else f"{value:.{places}f}"


def _interval(found: Interval) -> str:
    """A value with its interval."""
    return f"{number(found.value, 3)} [{number(found.low, 3)}, {number(found.high, 3)}]"
