"""What a metric says about itself, and how the metrics of this package are found."""

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Any, Literal, ParamSpec, TypeVar

from samepolicy.stats import Statistic

Span = Literal["token", "sequence"]
P = ParamSpec("P")
R = TypeVar("R")

_registry: dict[str, "Metric"] = {}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric: its function and what `@metric` said about it.

    Attributes:
        function: from columns to values, one per token or per sequence.
        unit: unit of the values, such as "nats/token".
        ideal: the value where both policies are one.
        span: what one value belongs to, "token" or "sequence".
        statistics: how the values are reduced; each merges exactly.
        read: which of the statistics' readouts are shown; empty shows all.
        clamp: bounds that the values are held to before they are reduced, with the clamped ones counted; only for
            quantities that another framework clamps.
        asked: measured only when a framework's names ask for it.
    """

    function: Callable[..., Any]
    unit: str
    ideal: float
    span: Span
    statistics: tuple[type[Statistic], ...]
    read: tuple[str, ...] = ()
    clamp: tuple[float, float] | None = None
    asked: bool = False

    @cached_property
    def name(self) -> str:
        """The metric's id, the function's name."""
        return self.function.__name__

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The columns that the metric needs."""
        return tuple(inspect.signature(self.function).parameters)

    @property
    def doc(self) -> str:
        """The function's docstring."""
        return inspect.getdoc(self.function) or ""

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return self.doc.partition("\n")[0]


def metric(
    *,
    unit: str,
    ideal: float,
    span: Span,
    statistic: type[Statistic] | tuple[type[Statistic], ...],
    read: tuple[str, ...] = (),
    **more: Any,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function a metric; see `Metric` for what each argument means."""
    statistics = statistic if isinstance(statistic, tuple) else (statistic,)

    def register(function: Callable[P, R]) -> Callable[P, R]:
        found = Metric(function=function, unit=unit, ideal=ideal, span=span, statistics=statistics, read=read, **more)
        _registry[found.name] = found
        return function

    return register


@cache
def all_metrics() -> dict[str, Metric]:
    """Every metric of this package by name, in order of module and place.

    >>> all_metrics()["k3"].unit
    'nats/token'
    """
    import samepolicy.metrics as package

    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        import_module(f"{package.__name__}.{module}")
    return dict(_registry)
