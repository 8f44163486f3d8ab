"""The figures of a report as functions: plotly figures for a notebook, pixels for a logger.

>>> from samepolicy.demo import recorded
>>> log_ratio(recorded()).layout.xaxis.title.text
'd = log π_trainer − log π_rollout, nats'
"""

from samepolicy.report.figures import ess_by_threshold as ess_by_threshold
from samepolicy.report.figures import histogram as ratios
from samepolicy.report.plots.curves import curve as curve
from samepolicy.report.plots.curves import trend as trend
from samepolicy.report.plots.distributions import abs_log_ratio as abs_log_ratio
from samepolicy.report.plots.distributions import density as density
from samepolicy.report.plots.distributions import log_ratio as log_ratio
from samepolicy.report.plots.image import image as image
from samepolicy.report.plots.layers import layer_map as layer_map
from samepolicy.report.plots.verdict import gap as gap
from samepolicy.report.plots.verdict import heat_map as heat_map
from samepolicy.report.plots.verdict import ledger as ledger

__all__ = [
    "abs_log_ratio",
    "curve",
    "density",
    "ess_by_threshold",
    "gap",
    "heat_map",
    "image",
    "layer_map",
    "ledger",
    "log_ratio",
    "ratios",
    "trend",
]
