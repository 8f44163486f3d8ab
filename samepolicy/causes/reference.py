"""Scoring under any settings, each thing once: models, body states and columns are kept while they are of use."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from samepolicy.causes.settings import DECLARED, Ids, Settings
from samepolicy.engines.base import Engine
from samepolicy.engines.change import UNCHANGED, Change
from samepolicy.engines.layout import PLAIN
from samepolicy.engines.sampling import most_likely
from samepolicy.engines.states import Shaping, States
from samepolicy.errors import EngineError
from samepolicy.records.declared import DTYPES, dtype_of, samplings
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

SideName: TypeAlias = Literal["rollout", "trainer"]

ANSWERS = 64
"""Columns of a few tokens that are kept."""

HELD = 400_000_000
"""Bytes of hidden states that are kept at most, apart from those of the declared model."""


class Unavailable(EngineError):  # noqa: N818 - no fault of anyone
    """Something that an undo needs is not there; the message says what it would take. Caught by the search."""


class Clash(Unavailable):
    """Something that is known already speaks against trying this."""


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


class Reference:
    """The reference engine on a run: S(c) for any settings c.

    Attributes:
        run: the run, not aligned, so that it can be scored.
        engine: the reference, usually the trainer's model; None where there is none.
        checkpoints: earlier weights of the trainer, oldest first.
    """

    def __init__(
        self,
        run: Run,
        engine: Engine | None = None,
        *,
        rollout: Engine | None = None,
        checkpoints: Sequence[str] = (),
        tell: Callable[[str], Any] | None = None,
    ) -> None:
        """Score nothing yet."""
        self.run, self.engine, self._rollout, self._tell = run, engine, rollout, tell
        self._samplings = samplings(run)
        self._checkpoints = tuple(checkpoints)
        self._answers: dict[tuple[Any, ...], np.ndarray] = {}
        self._models: dict[Model, Engine] = {}
        self._bodies: dict[tuple[Model, Settings], Body] = {}
        self._columns: dict[tuple[Any, ...], np.ndarray] = {}
        self._done: dict[tuple[Any, ...], np.ndarray] = {}
        self._keepers: list[States] = []

    @property
    def rollout(self) -> Engine:
        """The engine that sampled; raises `Unavailable` where it was not given."""
        if self._rollout is None:
            raise Unavailable("the rollout's engine: diagnose(…, rollout=…)")
        return self._rollout

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """Earlier weights of the trainer, oldest first.

        Raises:
            Unavailable: none were given.
        """
        if not self._checkpoints:
            raise Unavailable("the trainer's earlier checkpoints: diagnose(…, checkpoints=[…]), or --checkpoints DIR …")
        return self._checkpoints

    def sampling(self, side: SideName) -> Sampling:
        """The sampling that reaches a side's log-probs, as declared."""
        return self._samplings[side == "trainer"]

    def dtype(self, side: SideName) -> str:
        """The side's declared dtype; the engine's own where it declares none that can be emulated."""
        declared = dtype_of(getattr(self.run, side))
        if declared in DTYPES:
            return str(declared)
        own = dtype_of(self.engine.describe(Sampling())) if self.engine else None
        return own if own in DTYPES else "float32"

    def column(
        self, side: SideName, settings: Settings, rows: Int[np.ndarray, " rows"]
    ) -> Float[np.ndarray, " tokens"]:
        """S(c) of the run's response tokens in these rows, nats, float64 [tokens]; NaN elsewhere.

        Raises:
            Unavailable: there is no engine, or it cannot do this.
        """
        needed = rows
        for step in reversed(settings.arrays):
            needed = np.union1d(needed, step.needs(needed, self))
        found = self._scored(side, replace(settings, arrays=()), needed)
        for step in settings.arrays:
            found = step.apply(found, self)
        outside = np.repeat(~np.isin(np.arange(len(self.run)), rows), self.run.lengths)
        return np.where(outside, np.nan, found)

    def logp(self, side: SideName, settings: Settings, tokens: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """S(c) of a few of the run's tokens, without array steps; the last logits and the last answers are kept."""
        key = (side, settings, tokens.tobytes())
        if key not in self._answers:
            self._answers = dict(list(self._answers.items())[-ANSWERS:])
            self._answers[key] = self._read_few(side, settings, tokens)
        return self._answers[key]

    def _read_few(self, side: SideName, settings: Settings, tokens: np.ndarray) -> np.ndarray:
        """Log-probs of a few tokens."""
        kept: list[States] = []

        def read(states: States, shape: Shaping, part: np.ndarray) -> np.ndarray:
            states.keep(part)
            kept.append(states)
            return states.logp(shape, part)

        found: np.ndarray = self._few(side, settings, tokens, read)
        for states in self._keepers:
            if not any(states is one for one in kept):
                states.forget()
        self._keepers = kept
        return found

    def logp_of(self, side: SideName, settings: Settings, tokens: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The same for tokens that are asked for once, many of them perhaps."""
        found: np.ndarray = self._few(side, settings, tokens, lambda states, shape, part: states.logp(shape, part))
        return found

    def entropy(self, side: SideName, settings: Settings, tokens: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Entropy of S(c)'s distribution at a few of the run's tokens, nats."""
        found: np.ndarray = self._few(side, settings, tokens, lambda states, shape, part: states.entropy(shape, part))
        return found

    def likely(
        self, side: SideName, settings: Settings, tokens: Int[np.ndarray, " n"], count: int
    ) -> Float[np.ndarray, "n count"]:
        """Log-probs of the likeliest ids at a few tokens, most likely first; n times vocab should stay small."""

        def read(states: States, shape: Shaping, part: np.ndarray) -> np.ndarray:
            values = most_likely(states.full(part, shape), count)[1]
            return np.asarray(values, dtype=np.float64)

        found: np.ndarray = self._few(side, settings, tokens, read)
        return found

    def full(self, side: SideName, settings: Settings, tokens: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n vocab"]:
        """Log-probs of all ids at a few tokens, in order of id, float32; n times vocab should stay small."""

        def read(states: States, shape: Shaping, part: np.ndarray) -> np.ndarray:
            values = states.full(part, shape)
            return np.asarray(values if isinstance(values, np.ndarray) else values.cpu().numpy(), dtype=np.float32)

        found: np.ndarray = self._few(side, settings, tokens, read)
        return found

    def cross_entropy(
        self, side: SideName, settings: Settings, sampler: Settings, tokens: Int[np.ndarray, " n"]
    ) -> Float[np.ndarray, " n"]:
        """-Σ q log p at some tokens: p is S(c)'s distribution, q that of a sampler with other settings of the head."""
        other = sampler.shaping(Sampling())

        def read(states: States, shape: Shaping, part: np.ndarray) -> np.ndarray:
            return states.cross_entropy(shape, other, part)

        found: np.ndarray = self._few(side, settings, tokens, read)
        return found

    def vocabulary(self) -> int:
        """Ids that the engine has."""
        size = self.engine.describe(Sampling()).extra.get("vocab_size", 0) if self.engine else 0
        return int(size) or 50_000

    def _few(
        self, side: SideName, settings: Settings, tokens: np.ndarray, read: Callable[[States, Shaping, np.ndarray], Any]
    ) -> Any:
        """Something of a few tokens; NaN where another set of ids does not hold a token."""
        row = np.searchsorted(self.run.offsets, tokens, side="right") - 1
        body = self._body(side, settings, np.unique(row))
        shape, out = settings.shaping(self.sampling(side)), np.zeros(0)
        for ids, states in body.parts:
            mine = np.flatnonzero(np.isin(row, ids.rows))
            place = ids.place[self._local(ids, tokens[mine])]
            there = place >= 0
            if there.any():
                values = read(states, shape, place[there])
                if not len(out):
                    out = np.full((len(tokens), *values.shape[1:]), np.nan, values.dtype)
                out[mine[there]] = values
        return out

    def _local(self, ids: Ids, tokens: np.ndarray) -> np.ndarray:
        """Index of run tokens among the tokens of some rows."""
        row = np.searchsorted(self.run.offsets, tokens, side="right") - 1
        starts = np.concatenate([[0], np.cumsum(self.run.lengths[ids.rows])])
        local: np.ndarray = starts[np.searchsorted(ids.rows, row)] + tokens - self.run.offsets[row]
        return local

    def _scored(self, side: SideName, settings: Settings, rows: np.ndarray) -> np.ndarray:
        """The column before array steps, rows scored as they are needed."""
        name = f"{side}_reference_logp"
        if settings == DECLARED and name in self.run:
            return np.asarray(self.run[name].values, dtype=np.float64)
        key = (self._model(side, settings), self.sampling(side), replace(settings, dtype=None, weights_dtype=None))
        found = self._columns.setdefault(key, np.full(int(self.run.offsets[-1]), np.nan))
        done = self._done.setdefault(key, np.zeros(len(self.run), dtype=bool))
        fresh = rows[~done[rows]]
        if len(fresh):
            self._fill(found, side, settings, fresh)
            done[fresh] = True
        return found.copy()

    def _fill(self, found: np.ndarray, side: SideName, settings: Settings, rows: np.ndarray) -> None:
        """Score rows into a column."""
        body = self._body(side, settings, rows)
        shape = settings.shaping(self.sampling(side))
        for ids, states in body.parts:
            mine = np.isin(ids.rows, rows)
            if not mine.any():
                continue
            owner = np.repeat(np.arange(len(ids.rows)), self.run.lengths[ids.rows])
            wanted = mine[owner] & (ids.place >= 0)
            target = np.concatenate([np.arange(self.run.offsets[r], self.run.offsets[r + 1]) for r in ids.rows])
            found[target[wanted]] = states.logp(shape, ids.place[wanted])

    def _body(self, side: SideName, settings: Settings, rows: np.ndarray) -> Body:
        """Body states for at least these rows."""
        model = self._model(side, settings)
        layout = settings.layout or PLAIN
        key = (model, Settings(layout=layout, ids=settings.ids))
        body = self._bodies.setdefault(key, Body())
        lacking = body.lacking(rows)
        if len(lacking):
            packs = np.unique(lacking // layout.packed)[:, None] * layout.packed + np.arange(layout.packed)
            chosen = packs[packs < len(self.run)]  # whole ones, that is
            engine = self._engine(model)
            ids = self._ids(settings, chosen)
            if self._tell:
                self._tell(_told(settings))
            body.parts.append((ids, engine.states(ids.prompts, ids.responses, layout=layout.of(chosen))))
            self._release(key)
        return body

    def _ids(self, settings: Settings, rows: np.ndarray) -> Ids:
        """The ids under the settings' steps."""
        prompts, responses = self.run["prompt_ids"].take(rows), self.run["response_ids"].take(rows)
        ids = Ids(rows, prompts, responses, np.arange(len(responses.values)))
        for step in settings.ids:
            ids = step.apply(ids, self)
        return ids

    def _model(self, side: SideName, settings: Settings) -> Model:
        """Which network the settings mean."""
        weights = settings.weights_dtype or (settings.dtype or self.dtype(side))
        return Model(settings.dtype or "float32", weights, settings.change or UNCHANGED)

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
