"""Measure what is larger than memory or than a machine: shard by shard, anywhere, merged in one fixed order."""

from samepolicy.fleet.measured import Also, Measured, Task
from samepolicy.fleet.plan import Plan, measure_files, plan_of
from samepolicy.fleet.sampled import Sample, sample
from samepolicy.fleet.ways import Way, in_turn, processes

__all__ = [
    "Also",
    "Measured",
    "Plan",
    "Sample",
    "Task",
    "Way",
    "in_turn",
    "measure_files",
    "plan_of",
    "processes",
    "sample",
]
