"""Runs for property tests: any mixture of columns, lengths, dtypes, NaN and infinities."""

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from samepolicy.arrays import Ragged, offsets_of
from samepolicy.records.run import Run
from samepolicy.records.schema import COLUMNS
from samepolicy.records.side import Sampling, Side

VALUES: dict[str, Any] = {
    "float": st.sampled_from([np.float32, np.float64]).flatmap(lambda d: st.just((d, hnp.from_dtype(np.dtype(d))))),
    "int": st.just((np.int64, st.integers(-(2**63), 2**63 - 1))),
    "bool": st.just((np.bool_, st.booleans())),
    "str": st.just((object, st.none() | st.text(st.characters(codec="utf-8"), max_size=5))),
}
SIDES = st.sampled_from([Side(), Side(engine="toy", dtype="bfloat16", sampling=Sampling(temperature=0.7))])
INFO = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3) | st.lists(st.booleans()), max_size=2)


def plain(value: Any) -> Any:
    """A column or an entry of it as lists of Python values, NaN as a word, so that == compares it."""
    if isinstance(value, Ragged):
        return [plain(row) for row in value]
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, list):
        return [plain(v) for v in value]
    return "nan" if isinstance(value, float) and math.isnan(value) else value


@st.composite
def runs(draw: st.DrawFn, names: tuple[str, ...] = tuple(COLUMNS), sides: Any = SIDES) -> Run:
    n = draw(st.integers(0, 4))
    lengths = {kind: _lengths(draw, n) for kind in ("token", "trainer token")}
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=6, unique=True))
    if "trainer_response_ids" not in chosen:
        lengths["trainer token"] = lengths["token"]
    columns = {name: _column(draw, name, n, lengths) for name in chosen}
    return Run(columns, rollout=draw(sides), trainer=draw(sides), info=draw(INFO))


def _lengths(draw: st.DrawFn, n: int) -> np.ndarray:
    return np.array(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)), dtype=np.int64)


def _column(draw: st.DrawFn, name: str, n: int, lengths: dict[str, np.ndarray]) -> Any:
    column = COLUMNS[name]
    dtype, elements = draw(VALUES["int" if column.dtype == "label" else column.dtype])
    if column.kind == "response":
        return _array(draw, dtype, elements, (n,))
    own = lengths["trainer token"] if name == "trainer_response_ids" else _lengths(draw, n)
    chosen = lengths.get(column.kind, own)
    shape = (int(chosen.sum()), *([draw(st.integers(1, 3))] if column.wide else []))
    return Ragged(_array(draw, dtype, elements, shape), offsets_of(chosen))


def _array(draw: st.DrawFn, dtype: Any, elements: Any, shape: tuple[int, ...]) -> np.ndarray:
    size = int(np.prod(shape))
    flat = np.empty(size, dtype=dtype)
    flat[:] = draw(st.lists(elements, min_size=size, max_size=size))
    return flat.reshape(shape)
