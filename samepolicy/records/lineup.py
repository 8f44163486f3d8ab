"""Do the columns of a run line up: one entry per response, and one value per token where there must be one?"""

from collections.abc import Mapping

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.errors import ShapeError
from samepolicy.records.columns import Packed
from samepolicy.records.schema import COLUMNS, Kind

_PER_TOKEN = ("token", "trainer token")


def kind_of(name: str, column: Packed) -> Kind:
    """How long the column's entries are; a column unknown to the schema follows `response_ids` if it holds lists."""
    if name in COLUMNS:
        return COLUMNS[name].kind
    return "token" if isinstance(column, Ragged) else "response"


def token_column(columns: Mapping[str, Packed]) -> str | None:
    """Name of the column whose lengths are the lengths of the responses; None where no column has them."""
    if "response_ids" in columns:
        return "response_ids"
    kinds = ("token",) if "trainer_response_ids" in columns else ("token", "trainer token")
    return next((n for kind in kinds for n, column in columns.items() if kind_of(n, column) == kind), None)


def offsets(columns: Mapping[str, Packed], kind: Kind = "token") -> np.ndarray:
    """Where the tokens of each response begin, for columns of a kind, int64 [responses + 1]."""
    own = kind == "trainer token" and "trainer_response_ids" in columns
    column = columns.get("trainer_response_ids" if own else token_column(columns) or "")
    responses = len(next(iter(columns.values()), ()))
    return column.offsets if isinstance(column, Ragged) else np.zeros(responses + 1, dtype=np.int64)


def lined_up(columns: Mapping[str, Packed]) -> dict[str, Packed]:
    """The columns with a value of each response repeated over its tokens where the column has one per token.

    Raises:
        ShapeError: another number of responses, or of tokens in one response; the message names where.
    """
    _check_responses(columns)
    ragged = {n: c for n, c in columns.items() if isinstance(c, Ragged) or kind_of(n, c) not in _PER_TOKEN}
    cuts = offsets(ragged)
    spread = {n: c if n in ragged else _repeated(n, c, cuts, token_column(ragged)) for n, c in columns.items()}
    _check_tokens(spread)
    return spread


def _repeated(name: str, column: Packed, cuts: np.ndarray, ruler: str | None) -> Packed:
    """One value per response as one per token."""
    if ruler is None and len(column):
        raise ShapeError(
            f"Column {name} has one value for each response, but no column says how many tokens each has; "
            "give response_ids or log-probs with it."
        )
    return Ragged(np.repeat(column, np.diff(cuts)), cuts) if ruler else Ragged(column, cuts)  # type: ignore[arg-type]


def _check_responses(columns: Mapping[str, Packed]) -> None:
    """Refuse columns of different numbers of responses."""
    first = next(iter(columns), "")
    for name, column in columns.items():
        if len(column) != len(columns[first]):
            raise ShapeError(
                f"Column {name} has {len(column)} entries but {first} has {len(columns[first])}; "
                "every column needs one entry per response."
            )


def _check_tokens(columns: Mapping[str, Packed]) -> None:
    """Refuse per-token columns that are not as long as the responses."""
    rulers = {"token": token_column(columns), "trainer token": token_column(columns)}
    if "trainer_response_ids" in columns:
        rulers["trainer token"] = "trainer_response_ids"
    for name, column in columns.items():
        ruler = rulers.get(kind_of(name, column))
        if ruler is not None and isinstance(column, Ragged):
            _check_lengths(name, column, ruler, columns[ruler])


def _check_lengths(name: str, column: Ragged, ruler: str, other: Packed) -> None:
    """Refuse a per-token column whose sequences are not as long as those of the column it must follow."""
    if not isinstance(other, Ragged) or np.array_equal(column.offsets, other.offsets):
        return
    i = int(np.flatnonzero(column.lengths != other.lengths)[0])
    here, there = int(column.lengths[i]), int(other.lengths[i])
    why = "each token needs one value; where the trainer scored other ids, give them as trainer_response_ids"
    if abs(here - there) == 1:
        why = (
            "a difference of one is most likely an end token that only one side counts (end_token): "
            "drop it there, or give the trainer's own ids as trainer_response_ids"
        )
    raise ShapeError(f"Sequence {i} has {here} values in {name} but {there} in {ruler}; {why}.")
