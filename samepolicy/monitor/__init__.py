"""Watch a training run step by step: metrics, records, alarms; it never blocks training and never raises into it.

The names are loaded when first used, so that a process that may never be asked to watch pays nothing for them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samepolicy.monitor.monitor import Monitor as Monitor
    from samepolicy.monitor.seen import Seen as Seen
    from samepolicy.records.attempts import newest as newest

__all__ = ["Monitor", "Seen", "newest"]


def __getattr__(name: str) -> Any:
    if name == "Monitor":
        from samepolicy.monitor.monitor import Monitor

        return Monitor
    if name == "newest":
        from samepolicy.records.attempts import newest

        return newest
    if name == "Seen":
        from samepolicy.monitor.seen import Seen

        return Seen
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
