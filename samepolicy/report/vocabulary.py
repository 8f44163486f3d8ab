"""A comparison of two distributions over the vocabulary for a terminal."""

from rich.console import Group, RenderableType

from samepolicy.report.tables import Indented, heading, number, paragraph, rows, table
from samepolicy.vocabulary import EDGES, Comparison, Estimate


def comparison(found: Comparison) -> RenderableType:
    """The comparison as tables: the whole, by position, and by quantile."""
    whole = table("over the vocabulary", "mean", "95 % interval", numbers=("mean", "95 % interval"))
    rows(whole, [("KL(rollout ‖ trainer), nats", *_told(found.kl)), ("same most likely token", *_told(found.top1))])
    rows(whole, [("mass that both list", *_told(found.kept))])
    place = table("position", "KL", "95 % interval", numbers=("KL", "95 % interval"))
    rows(place, [(_span(first), *_told(value)) for first, value in found.by_position.items()])
    levels = [f"{level:.1%}" for level in found.kl_quantiles]
    spread = table("quantile", *levels, numbers=levels)
    rows(spread, [("KL", *(number(value, 2) for value in found.kl_quantiles.values()))])
    rows(spread, [("Δp of the sampled token", *(number(value, 2) for value in found.prob_quantiles.values()))])
    note = (
        f"{found.tokens} tokens; intervals are bootstrapped over sequences. KL counts tokens that one side does not "
        "list as one, so it is a lower bound, and exact where the listed mass is 1. Both sides under the model's own "
        "distribution; Δp = trainer - rollout."
    )
    title = heading("Whole distributions", "each side's most likely tokens at the same places")
    return Group(title, *(Indented(part) for part in (whole, place, spread)), paragraph(note, "dim"))


def _told(value: Estimate) -> tuple[str, str]:
    """A mean and its interval."""
    return number(value.mean, 3), f"{number(value.low, 3)} to {number(value.high, 3)}"


def _span(first: int) -> str:
    """A bin of positions.

    >>> _span(4), _span(256)
    ('4-15', '256 and on')
    """
    later = [edge for edge in EDGES if edge > first]
    if not later:
        return f"{first} and on"
    return str(first) if later[0] == first + 1 else f"{first}-{later[0] - 1}"
