"""Scoring under any settings, each thing once: columns and answers are kept, and networks while they are of use."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from samepolicy.causes.networks import Body, Model, Networks
from samepolicy.causes.settings import DECLARED, Ids, Settings
from samepolicy.causes.unavailable import Unavailable
from samepolicy.engines.base import Engine
from samepolicy.engines.change import UNCHANGED
from samepolicy.engines.sampling import most_likely
from samepolicy.engines.states import Shaping, States
from samepolicy.records.declared import DTYPES, dtype_of, samplings
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

SideName: TypeAlias = Literal["rollout", "trainer"]

ANSWERS = 64
"""Columns of a few tokens that are kept."""


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
        self.run, self.engine, self._rollout = run, engine, rollout
        self._networks = Networks(run, engine, tell=tell)
        self._samplings = samplings(run)
        self._checkpoints = tuple(checkpoints)
        self._answers: dict[tuple[Any, ...], np.ndarray] = {}
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
        key = (side, self._here(settings, tokens), tokens.tobytes())
        if key not in self._answers:
            self._answers = dict(list(self._answers.items())[-ANSWERS:])
            self._answers[key] = self._read_few(side, settings, tokens)
        return self._answers[key]

    def _here(self, settings: Settings, tokens: np.ndarray) -> Settings:
        """Settings as they act on the rows of these tokens: layouts that pad them alike are one."""
        layout = settings.layout
        if layout is None or not isinstance(layout.pad_to, tuple):
            return settings
        return replace(settings, layout=layout.of(np.unique(self._row(tokens))))

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
        row = self._row(tokens)
        body = self._body(side, settings, np.unique(row))
        shape, out = settings.shaping(self.sampling(side)), None
        for ids, states in body.parts:
            mine = np.flatnonzero(np.isin(row, ids.rows))
            place = ids.place[self._local(ids, tokens[mine])]
            there = place >= 0
            if there.any():
                values = read(states, shape, place[there])
                if out is None:
                    out = np.full((len(tokens), *values.shape[1:]), np.nan, values.dtype)
                out[mine[there]] = values
        return np.full(len(tokens), np.nan) if out is None else out

    def _row(self, tokens: np.ndarray) -> np.ndarray:
        """The response of each of the run's tokens."""
        row: np.ndarray = np.searchsorted(self.run.offsets, tokens, side="right") - 1
        return row

    def _local(self, ids: Ids, tokens: np.ndarray) -> np.ndarray:
        """Index of run tokens among the tokens of some rows."""
        row = self._row(tokens)
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
        return self._networks.body(self._model(side, settings), settings, rows, lambda some: self._ids(settings, some))

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
