"""Causes: why two sides can differ, one file each; a new file with one subclass of `Cause` adds one."""

from samepolicy.causes.base import Cause, Check, Finding, Proof, Rung, Undone, all_causes, cause
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.reference import Reference
from samepolicy.causes.settings import ArrayStep, Ids, IdStep, Settings
from samepolicy.causes.unavailable import Unavailable

__all__ = [
    "ArrayStep",
    "Cause",
    "Check",
    "Evidence",
    "Finding",
    "IdStep",
    "Ids",
    "Proof",
    "Reference",
    "Rung",
    "Settings",
    "Unavailable",
    "Undone",
    "all_causes",
    "cause",
]
