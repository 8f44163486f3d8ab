"""The reference's networks, one for each change that is tried, and the body states that they gave."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from samepolicy.causes.settings import Ids, Settings
from samepolicy.causes.unavailable import Unavailable
from samepolicy.engines.base import Engine
from samepolicy.engines.change import UNCHANGED, Change
from samepolicy.engines.layout import PLAIN
from samepolicy.engines.states import States
from samepolicy.records.run import Run

HELD = 400_000_000
"""Bytes of hidden states that are kept at most, apart from those of the declared model."""


class Model(NamedTuple):
    """Which network: arithmetic, rounding of its weights, and what is changed."""

    dtype: str
    weights_dtype: str
    change: Change


@dataclass
class Body:
    """Body states under one setting, for the rows scored so far.

    Attributes:
        parts: rows and their states.
        ids: the ids of each part.
    """

    parts: list[tuple[Ids, States]] = field(default_factory=list)

    def lacking(self, rows: np.ndarray) -> np.ndarray:
        """Those of the rows that have no states yet."""
        done = np.concatenate([np.zeros(0, np.int64), *(ids.rows for ids, _ in self.parts)])
        return np.setdiff1d(rows, done)


class Networks:
    """Networks and states, each made once and kept while they are of use."""

    def __init__(self, run: Run, engine: Engine | None, *, tell: Callable[[str], Any] | None = None) -> None:
        """Make none yet; `tell` is called with what is scored."""
        self.run, self.engine, self._tell = run, engine, tell
        self._models: dict[Model, Engine] = {}
        self._bodies: dict[tuple[Model, Settings], Body] = {}

    def body(self, model: Model, settings: Settings, rows: np.ndarray, ids_of: Callable[[np.ndarray], Ids]) -> Body:
        """Body states for at least these rows.

        Args:
            model: which network.
            settings: layout and other ids.
            rows: responses of the run.
            ids_of: from rows to the ids that are read, the settings' steps taken.

        Raises:
            Unavailable: there is no engine, or it cannot do this.
        """
        layout = settings.layout or PLAIN
        key = (model, Settings(layout=layout, ids=settings.ids))
        body = self._bodies.setdefault(key, Body())
        lacking = body.lacking(rows)
        if len(lacking):
            packs = np.unique(lacking // layout.packed)[:, None] * layout.packed + np.arange(layout.packed)
            chosen = packs[packs < len(self.run)]  # whole ones, that is
            engine = self._engine(model)
            ids = ids_of(chosen)
            if self._tell:
                self._tell(_told(settings))
            body.parts.append((ids, engine.states(ids.prompts, ids.responses, layout=layout.of(chosen))))
            self._release(key)
        return body

    def _engine(self, model: Model) -> Engine:
        """The network, made once; beside an unchanged one only the last is kept."""
        if self.engine is None:
            raise Unavailable("the trainer's model: diagnose(run, trainer=…), or --trainer on the command line")
        missing = [n for n in ("prompt_ids", "response_ids") if n not in self.run]
        if missing:
            raise Unavailable(f"the run's {' and '.join(missing)}, to score again")
        if model not in self._models:
            self._models = {m: e for m, e in self._models.items() if m.change == UNCHANGED and m.dtype == "float32"}
            held = (*self._models, model)  # states hold on to their model
            self._bodies = {key: body for key, body in self._bodies.items() if key[0] in held}
            extra = {} if model.change == UNCHANGED else {"change": model.change}
            made = self.engine.variant(dtype=model.dtype, weights_dtype=model.weights_dtype, **extra)
            if not made.capabilities.states:
                raise Unavailable("a trainer engine that can score under other settings, such as hf:PATH")
            self._models[model] = made
        return self._models[model]

    def _release(self, newest: tuple[Model, Settings]) -> None:
        """Let go of the oldest states of changed bodies once there are too many tokens of them."""
        plain = Settings(layout=PLAIN)
        others = [k for k in self._bodies if k != newest and (k[1] != plain or k[0].change != UNCHANGED)]
        held = sum(_size(self._bodies[k]) for k in others)
        for key in others:
            if held <= HELD:
                return
            held -= _size(self._bodies.pop(key))


def _size(body: Body) -> int:
    """About how many bytes a body's states take."""
    return sum(len(states.responses.values) * min(states.vocabulary, 4096) * 4 for _, states in body.parts)


def _told(settings: Settings) -> str:
    """What is being scored, in a word or two."""
    kinds: Mapping[str, Any] = {"other weights": settings.change, "other ids": settings.ids, "layout": settings.layout}
    told = [name for name, value in kinds.items() if value]
    return f"scoring again ({', '.join(told) or 'as declared'})"
