"""Metrics: pure functions of a run's columns, one value per token or per sequence.

A function's parameter names are the columns that it needs: columns of a run (`trainer_logp`, `advantage`, …), columns
derived from them (`columns.py`), or, for a metric over sequences, either of these with `_mean`, `_sum` or `_max`
behind the name. `@metric` says the rest. Writing such a function in a module of this package is all it takes to add
one.
"""

from samepolicy.metrics.base import Metric, all_metrics, metric

__all__ = ["Metric", "all_metrics", "metric"]
