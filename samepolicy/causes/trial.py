"""Which tokens of a column settings are tried on, and which ones everything that is said of a cause is read on."""

import numpy as np
from jaxtyping import Bool, Float, Int

PROBE = 640
"""Prompt and response tokens that are scored to try a setting."""

GLANCE = 72
"""Response tokens that are scored first where a setting takes another forward."""

FEW = 4
"""With fewer prompts, both halves are all of them; so many responses are tried at least."""


def halves(
    prompt: Int[np.ndarray, " tokens"], comparable: Bool[np.ndarray, " tokens"], floors: Float[np.ndarray, " tokens"]
) -> tuple[Bool[np.ndarray, " tokens"], Bool[np.ndarray, " tokens"]]:
    """Tokens that parameters are fitted on, and those that numbers are read on.

    One prompt of each two that have about the same gap is for fitting; with very few prompts, all are for both.

    Args:
        prompt: number of each token's prompt.
        comparable: tokens that count.
        floors: how far each token is from what is declared, in floors.
    """
    prompts = largest_first(prompt[comparable], floors[comparable])
    if len(prompts) < FEW:
        return comparable, comparable
    chance = np.random.default_rng(0).random(len(prompts))[np.argsort(np.argsort(prompts))]
    pairs = (range(i, min(i + 2, len(prompts))) for i in range(0, len(prompts), 2))
    fitted = np.isin(prompt, prompts[[min(pair, key=lambda i: chance[i]) for pair in pairs]])
    return comparable & fitted, comparable & ~fitted


def probe(
    row: Int[np.ndarray, " tokens"],
    fitted: Bool[np.ndarray, " tokens"],
    floors: Float[np.ndarray, " tokens"],
    lengths: Int[np.ndarray, " rows"],
    *,
    most: int,
) -> Int[np.ndarray, " n"]:
    """The few tokens that settings are tried on, rising: whole responses of the fitted half, of all gaps.

    Args:
        row: the response of each token.
        fitted: tokens of the fitted half.
        floors: how far each token is from what is declared, in floors.
        lengths: tokens of each response with its prompt.
        most: how many tokens at most.
    """
    rows = largest_first(row[fitted], floors[fitted])
    count = max(_within(lengths[rows], PROBE), min(FEW, len(rows)))
    tokens = np.flatnonzero(fitted & np.isin(row, _spread(rows, count)))
    return _spread(tokens, most)


def glance(
    row: Int[np.ndarray, " n"], error: Float[np.ndarray, " n"], lengths: Int[np.ndarray, " rows"]
) -> Bool[np.ndarray, " n"]:
    """Which of the tried tokens dear settings are tried on first: those of the response furthest off, or of a few.

    Args:
        row: the response of each tried token.
        error: how far it is from what is known.
        lengths: tokens of each response.
    """
    order = largest_first(row, error)
    return np.isin(row, order[: enough(lengths[order])])


def enough(lengths: Int[np.ndarray, " rows"]) -> int:
    """How many rows, from the first on, hold `GLANCE` tokens; all where they do not.

    >>> enough(np.array([64, 64, 64])), enough(np.array([128, 128]))
    (2, 1)
    """
    return int(np.searchsorted(np.cumsum(lengths), GLANCE)) + 1


def largest_first(label: Int[np.ndarray, " n"], value: Float[np.ndarray, " n"]) -> Int[np.ndarray, " labels"]:
    """The labels by the mean of their values, largest first.

    >>> largest_first(np.array([4, 7, 7]), np.array([1.0, 0.5, 2.5])).tolist()
    [7, 4]
    """
    found, at = np.unique(label, return_inverse=True)
    ordered: np.ndarray = found[np.argsort(-np.bincount(at, value) / np.bincount(at), kind="stable")]
    return ordered


def _within(lengths: Int[np.ndarray, " rows"], budget: int) -> int:
    """How many rows, from the first on, fit into so many tokens."""
    return int(np.searchsorted(np.cumsum(lengths), budget, side="right"))


def _spread(values: Int[np.ndarray, " n"], count: int) -> Int[np.ndarray, " fewer"]:
    """At most so many of the values, evenly spread over all of them."""
    found: np.ndarray = values[np.linspace(0, len(values) - 1, min(count, len(values)), dtype=np.int64)]
    return found
