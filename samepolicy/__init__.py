"""Is the policy that sampled your tokens the policy you train?

samepolicy measures `log π_trainer(token) - log π_rollout(token)`, names the reason, shows it, and corrects the loss.
The public names are loaded when first used, so that importing samepolicy loads no heavy package.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from samepolicy import errors as errors

if TYPE_CHECKING:
    from samepolicy.arrays import Ragged as Ragged
    from samepolicy.corrections import Band as Band
    from samepolicy.corrections import Correction as Correction
    from samepolicy.corrections import Normalise as Normalise
    from samepolicy.corrections import OffPolicyMask as OffPolicyMask
    from samepolicy.corrections import Reject as Reject
    from samepolicy.corrections import SecondMoment as SecondMoment
    from samepolicy.corrections import Truncate as Truncate
    from samepolicy.corrections import Veto as Veto
    from samepolicy.diagnose import Diagnosis as Diagnosis
    from samepolicy.diagnose import check as check
    from samepolicy.diagnose import diagnose as diagnose
    from samepolicy.engines.base import engine as engine
    from samepolicy.fleet import measure_files as measure_files
    from samepolicy.grouping import measure_by as measure_by
    from samepolicy.monitor import Monitor as Monitor
    from samepolicy.ratio import log_ratio as log_ratio
    from samepolicy.records.formats import import_run as import_run
    from samepolicy.records.prune import prune as prune
    from samepolicy.records.run import Run as Run
    from samepolicy.records.self_checks import self_check as self_check
    from samepolicy.records.side import Sampling as Sampling
    from samepolicy.records.side import Side as Side
    from samepolicy.records.store import read as read
    from samepolicy.records.store import write as write
    from samepolicy.records.stream import stream as stream
    from samepolicy.records.worst import worst as worst
    from samepolicy.report import plots as plots
    from samepolicy.report import report as report
    from samepolicy.summary import Summary as Summary
    from samepolicy.summary import measure as measure
    from samepolicy.summary import measure_batch as measure_batch
    from samepolicy.trend import trend as trend
    from samepolicy.weights import WeightSync as WeightSync
    from samepolicy.whatif import whatif as whatif

__version__ = "0.1.0"

_MODULE_OF = {
    "Band": "samepolicy.corrections",
    "Correction": "samepolicy.corrections",
    "Diagnosis": "samepolicy.diagnose",
    "Monitor": "samepolicy.monitor",
    "Normalise": "samepolicy.corrections",
    "OffPolicyMask": "samepolicy.corrections",
    "Ragged": "samepolicy.arrays",
    "Reject": "samepolicy.corrections",
    "Run": "samepolicy.records.run",
    "Sampling": "samepolicy.records.side",
    "SecondMoment": "samepolicy.corrections",
    "Side": "samepolicy.records.side",
    "Summary": "samepolicy.summary",
    "Truncate": "samepolicy.corrections",
    "Veto": "samepolicy.corrections",
    "WeightSync": "samepolicy.weights",
    "check": "samepolicy.diagnose",
    "diagnose": "samepolicy.diagnose",
    "engine": "samepolicy.engines.base",
    "import_run": "samepolicy.records.formats",
    "log_ratio": "samepolicy.ratio",
    "measure": "samepolicy.summary",
    "measure_batch": "samepolicy.summary",
    "measure_by": "samepolicy.grouping",
    "measure_files": "samepolicy.fleet",
    "plots": "samepolicy.report",
    "prune": "samepolicy.records.prune",
    "read": "samepolicy.records.store",
    "report": "samepolicy.report",
    "self_check": "samepolicy.records.self_checks",
    "stream": "samepolicy.records.stream",
    "trend": "samepolicy.trend",
    "whatif": "samepolicy.whatif",
    "worst": "samepolicy.records.worst",
    "write": "samepolicy.records.store",
}

__all__ = sorted([*_MODULE_OF, "errors"])  # noqa: PLE0605 - the names are in the table above


class _Package(ModuleType):
    """A package whose public function may share its name with the submodule that holds it (`diagnose`).

    Importing that submodule would otherwise put it in the function's place.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and _MODULE_OF.get(name) == value.__name__):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
