"""What a monitor hands to its loggers: one step's numbers, its log-probs, and what was said about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One step, in host memory.

    Attributes:
        step: training step.
        metrics: what the monitor gave back for it.
        batch: trainer, rollout, mask and, for packed arrays, offsets; empty where the step could not be measured.
        events: alarms that went on and doubts about the settings, a sentence each.
    """

    step: int
    metrics: Mapping[str, float]
    batch: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[str, ...] = ()


Logger: TypeAlias = Callable[[Seen], Any]
"""What takes a step; it is called on the background thread, and what it raises is counted and said once."""


def show(loggers: tuple[Logger, ...], seen: Seen) -> None:
    """Hand a step to each logger; one that raises costs no other its step.

    Raises:
        ExceptionGroup: what they raised.
    """
    errors = []
    for logger in loggers:
        try:
            logger(seen)
        except BaseException as error:
            errors.append(error)
    if errors:
        raise BaseExceptionGroup("loggers raised", errors)
