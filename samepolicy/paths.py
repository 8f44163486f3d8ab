"""The path triangle: the same ids through every path that an engine and a trainer have, each against each.

Where two paths of one engine part by more than rounding, the engine is not one policy, and no trainer agrees with it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Engine, check_engine
from samepolicy.engines.hf import HuggingFace
from samepolicy.errors import InputError
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling
from samepolicy.summary import json_number

ROUNDING: dict[str, float] = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.0125}
"""Mean abs d, in nats, that no honest path of an engine of that dtype reaches; twice and more what has been seen."""

Score: TypeAlias = Callable[[Ragged, Ragged], Ragged]
Progress: TypeAlias = Callable[[str, int, int], Any] | None


@dataclass(frozen=True, kw_only=True)
class Break:
    """The first path of a side that parts from the side's first path by more than rounding.

    Attributes:
        path: the path's name.
        against: the side's first path.
        mean_abs: mean abs d between the two, nats.
        limit: what it may be, nats.
    """

    path: str
    against: str
    mean_abs: float
    limit: float

    def __str__(self) -> str:
        """Which path breaks, and by how much."""
        return f"{self.path} breaks: {self.mean_abs:.2g} nats from {self.against} on average (limit {self.limit:.2g})"


@dataclass(frozen=True, kw_only=True, eq=False)
class Paths:
    """Every path against every other, on the same tokens.

    Attributes:
        names: the paths, "rollout decode" first.
        mean_abs: mean abs d between two paths, nats [paths, paths]; NaN where no token is finite in both.
        max_abs: the largest abs d, nats [paths, paths].
        tokens: tokens that each pair was compared on, [paths, paths].
        floor: the largest mean abs d between two paths of one side that both hold, nats, by side.
        breaks: the first path that breaks, by side; a side that holds is left out.
        run: the sampled run.
    """

    names: tuple[str, ...]
    mean_abs: np.ndarray
    max_abs: np.ndarray
    tokens: np.ndarray
    floor: dict[str, float]
    breaks: dict[str, Break]
    run: Run

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return {
            "schema": 1,
            "paths": list(self.names),
            "mean_abs": [[json_number(float(x)) for x in row] for row in self.mean_abs],
            "max_abs": [[json_number(float(x)) for x in row] for row in self.max_abs],
            "tokens": self.tokens.tolist(),
            "floor": {side: json_number(value) for side, value in self.floor.items()},
            "breaks": {side: vars(found) for side, found in self.breaks.items()},
        }

    def __str__(self) -> str:
        """The first path that breaks on each side, or that none does."""
        told = [f"{side}: {found}" for side, found in self.breaks.items()]
        told += [
            f"{s}: all paths hold, no two more than {v:.2g} nats apart on average"
            for s, v in self.floor.items()
            if s not in self.breaks
        ]
        return "\n".join(told)


def paths(
    *, rollout: Engine, trainer: Engine, prompts: Ragged, max_tokens: int = 32, progress: Progress = None
) -> Paths:
    """Send the same ids through every path of both sides.

    The rollout engine samples at neutral settings; its decode is the first path. Then come both sides' prefill as a
    batch, again, and one by one, and the ways that only this engine has (chunked prefill, prefix cache, padding,
    packing).

    Args:
        rollout: the engine that samples.
        trainer: the engine that trains.
        prompts: token ids, one row per prompt.
        max_tokens: longest response.
        progress: called with what is done, how many parts are done, and how many there are.

    Returns:
        The matrix of distances.

    Raises:
        InputError: an engine that is none, or nothing was sampled.
        EngineError: an engine failed.

    >>> from samepolicy.engines.base import engine
    >>> toy = engine("toy:")
    >>> found = paths(rollout=toy, trainer=toy, prompts=Ragged.from_lists([toy.encode("one"), toy.encode("three")]))
    >>> found.names[:3], found.breaks
    (('rollout decode', 'rollout prefill', 'rollout prefill again'), {})
    """
    check_engine("rollout", rollout)
    check_engine("trainer", trainer)
    sampling = Sampling(max_tokens=max_tokens)
    run = rollout.generate(prompts, sampling)
    if not run.tokens:
        raise InputError("Nothing was sampled, so no path can be compared; give prompts that the model answers.")
    sides = {"rollout": rollout, "trainer": trainer}
    todo = [(side, name, way) for side, engine in sides.items() for name, way in ways(engine).items()]
    columns = {"rollout decode": run["rollout_logp"].values}
    for done, (side, name, way) in enumerate(todo):
        if progress:
            progress(f"{side} {name}", done, len(todo))
        columns[f"{side} {name}"] = way(run["prompt_ids"], run["response_ids"]).values
    dtypes = {side: engine.describe(sampling).dtype for side, engine in sides.items()}
    return compare(columns, dtypes=dtypes, run=run)


def ways(engine: Engine) -> dict[str, Score]:
    """The paths of an engine from ids to neutral log-probs, by name; none where it cannot score."""
    if not engine.capabilities.score:
        return {}

    def plain(prompts: Ragged, responses: Ragged) -> Ragged:
        return engine.score(prompts, responses).logp

    def alone(prompts: Ragged, responses: Ragged) -> Ragged:
        rows = [np.array([i]) for i in range(len(responses))]
        return Ragged.concat([plain(prompts.take(row), responses.take(row)) for row in rows])

    return {"prefill": plain, "prefill again": plain, "prefill alone": alone, **_own(engine)}


def compare(columns: Mapping[str, np.ndarray], *, dtypes: Mapping[str, str | None], run: Run) -> Paths:
    """Compare columns of log-probs of the same tokens; pure arithmetic.

    Args:
        columns: log-probs by path, each [tokens]; a path's name begins with its side.
        dtypes: the declared dtype of each side; None is judged as bfloat16.
        run: the run that the tokens come from.

    >>> columns = {"rollout decode": np.array([-1.0, -2.0]), "rollout prefill": np.array([-1.5, -2.0])}
    >>> print(compare(columns, dtypes={"rollout": "float32"}, run=Run()))
    rollout: rollout prefill breaks: 0.25 nats from rollout decode on average (limit 0.0001)
    """
    names = tuple(columns)
    table = np.array([columns[name] for name in names], dtype=np.float64)
    shape = (len(names), len(names))
    mean, largest, tokens = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape, dtype=np.int64)
    for i in range(len(names)):
        difference = np.abs(table - table[i])
        known = np.isfinite(difference)
        tokens[i] = known.sum(axis=1)
        for j in np.flatnonzero(tokens[i]):
            mean[i, j], largest[i, j] = difference[j, known[j]].mean(), difference[j, known[j]].max()
    found = {side: _judge(side, names, mean, ROUNDING.get(dtype or "", 0.1)) for side, dtype in dtypes.items()}
    return Paths(
        names=names,
        mean_abs=mean,
        max_abs=largest,
        tokens=tokens,
        floor={side: level for side, (level, _) in found.items() if np.isfinite(level)},
        breaks={side: broken for side, (_, broken) in found.items() if broken is not None},
        run=run,
    )


def _judge(side: str, names: Sequence[str], mean: np.ndarray, limit: float) -> tuple[float, Break | None]:
    """A side's floor and its first path that breaks."""
    own = [i for i, name in enumerate(names) if name.split()[0] == side]
    bad = [i for i in own if not mean[own[0], i] <= limit]
    broken = None
    if bad:
        size = float(mean[own[0], bad[0]])
        broken = Break(path=names[bad[0]], against=names[own[0]], mean_abs=size, limit=limit)
    held = [i for i in own if i not in bad]
    pairs = [mean[i, j] for i in held for j in held if i < j]
    return (float(max(pairs)) if pairs else float("nan")), broken


def _own(engine: Engine) -> Mapping[str, Score]:
    """The ways that only this engine has."""
    if isinstance(engine, HuggingFace):
        from samepolicy.engines import hf_ways

        return hf_ways.ways(engine)
    given = getattr(engine, "ways", None)
    found: Mapping[str, Score] = given() if given is not None else {}
    return found
