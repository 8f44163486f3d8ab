"""What a report looks at: one value per sampled token of an aligned run, and where the token stands."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.metrics.position import positions
from samepolicy.ratio import log_ratio
from samepolicy.records.run import Run


@dataclass(frozen=True, eq=False)
class View:
    """The tokens of a run with the quantity that is shown of each.

    Attributes:
        run: the run, cut to the tokens that both sides have.
        name: what `value` is: "d" where the run has both log-probs, "prob_diff" where it has only that, else "".
        value: float64 [tokens]; NaN where the token is masked or the quantity is not finite.

    >>> v = View.of(Run.from_lists(rollout_logp=[[-1.0, -2.0]], trainer_logp=[[-1.5, -2.0]], mask=[[1, 0]]))
    >>> v.name, v.value.tolist(), v.measured.tolist()
    ('d', [-0.5, nan], [True, False])
    """

    run: Run
    name: str
    value: np.ndarray

    @classmethod
    def of(cls, run: "Run | View") -> "View":
        """The view of a run; a view is returned as it is."""
        if isinstance(run, View):
            return run
        run = run.aligned()
        if "rollout_logp" in run and "trainer_logp" in run:
            sides = [run[name].values.astype(np.float64) for name in ("trainer_logp", "rollout_logp")]
            good = run.mask.values & np.isfinite(sides[0]) & np.isfinite(sides[1]) & (np.maximum(*sides) <= 0)
            with np.errstate(invalid="ignore"):
                return cls(run, "d", np.where(good, log_ratio(trainer=sides[0], rollout=sides[1]), np.nan))
        if "prob_diff" in run:
            found = run["prob_diff"].values.astype(np.float64)
            return cls(run, "prob_diff", np.where(run.mask.values & np.isfinite(found), found, np.nan))
        return cls(run, "", np.full(run.offsets[-1], np.nan))

    @cached_property
    def measured(self) -> np.ndarray:
        """Which tokens have a value, bool [tokens]."""
        found: np.ndarray = ~np.isnan(self.value)
        return found

    @cached_property
    def size(self) -> np.ndarray:
        """Size of the value, 0 where there is none, float64 [tokens]."""
        return np.where(self.measured, np.abs(self.value), 0.0)

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each response begins among the tokens, and the end of the last, int64 [responses + 1]."""
        return self.run.offsets

    @cached_property
    def row(self) -> np.ndarray:
        """Number of the response of each token, int64 [tokens]."""
        return np.repeat(np.arange(len(self.run)), self.run.lengths)

    @cached_property
    def position(self) -> np.ndarray:
        """Place of each token in its response, from 0, int64 [tokens]."""
        return positions(self.offsets)

    @cached_property
    def d(self) -> np.ndarray:
        """The log-ratios that were measured, float64 [measured]; empty where the run has none."""
        return self.value[self.measured] if self.name == "d" else np.zeros(0)

    @cached_property
    def prob_diff(self) -> np.ndarray:
        """abs(exp T - exp R) of each token, float64 [tokens]; NaN where the value is."""
        if self.name != "d":
            return self.value
        found = np.abs(np.exp(self.logp("trainer")) - np.exp(self.logp("rollout")))
        return np.where(self.measured, found, np.nan)

    @cached_property
    def k3(self) -> np.ndarray:
        """k3 of each token, float64 [tokens]; NaN where d is, infinite where it is larger than float64 can hold."""
        with np.errstate(over="ignore"):
            found: np.ndarray = np.expm1(self.value) - self.value
        return found

    def logp(self, side: str) -> np.ndarray:
        """A side's log-probs, float64 [tokens]; at most 0, NaN where the run has none."""
        found: np.ndarray = np.minimum(self.column(f"{side}_logp"), 0.0)
        return found

    def column(self, name: str) -> np.ndarray:
        """A column with one number per token, float64 [tokens]; NaN where the run has none."""
        column = self.run.columns.get(name)
        if isinstance(column, Ragged) and column.values.dtype.kind in "biuf" and column.values.ndim == 1:
            return column.values.astype(np.float64)
        if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
            return np.repeat(column, self.run.lengths).astype(np.float64)
        return np.full(len(self.value), np.nan)

    def total(self, values: np.ndarray) -> np.ndarray:
        """The sum of each response's values, NaN counted as 0, float64 [responses]."""
        return np.bincount(self.row, weights=np.where(np.isnan(values), 0.0, values), minlength=len(self.run))

    def mean(self, values: np.ndarray) -> np.ndarray:
        """The mean of each response's values that are not NaN, float64 [responses]; NaN where there is none."""
        count = np.bincount(self.row, weights=~np.isnan(values), minlength=len(self.run))
        with np.errstate(invalid="ignore", divide="ignore"):
            found: np.ndarray = self.total(values) / count
        return found

    def worst(self, count: int) -> np.ndarray:
        """The tokens with the largest values by size, largest first, int64 [count or fewer]."""
        size = self.size
        count = min(count, int(np.count_nonzero(size)))
        if not count:
            return np.zeros(0, dtype=np.int64)
        top = np.argpartition(-size, count - 1)[:count]
        found: np.ndarray = top[np.lexsort((top, -size[top]))]
        return found

    def kept(self, tokens: np.ndarray) -> Self:
        """The same view with values at these tokens only, bool [tokens]."""
        return type(self)(self.run, self.name, np.where(tokens, self.value, np.nan))
