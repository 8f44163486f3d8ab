"""What the two sides of a run declared, read the one way everything above reads it."""

from dataclasses import replace

from samepolicy.errors import InputError
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling, Side

DTYPES = ("float32", "bfloat16", "float16")
"""The dtypes whose rounding a reference engine can run or emulate."""

_SPELLINGS = {"fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}


def dtype_of(side: Side) -> str | None:
    """The declared dtype under its one name, or None where it is not declared.

    >>> dtype_of(Side(dtype="torch.bfloat16")), dtype_of(Side(dtype="fp32")), dtype_of(Side())
    ('bfloat16', 'float32', None)
    """
    if side.dtype is None:
        return None
    name = side.dtype.removeprefix("torch.").lower()
    return _SPELLINGS.get(name, name)


def with_rollout_dtype(run: Run, dtype: str) -> Run:
    """The run with its rollout's dtype, where it declares none.

    Raises:
        InputError: it declares another one, or there is no such dtype.
    """
    given, told = dtype_of(Side(dtype=dtype)), dtype_of(run.rollout)
    if told not in (None, given):
        raise InputError(f"The run's rollout declares {told}, so it cannot be {dtype}; leave --rollout-dtype out.")
    if given not in DTYPES:
        raise InputError(
            f"The rollout's dtype {dtype!r} is none of {', '.join(DTYPES)}, whose rounding can be measured."
        )
    return replace(run, rollout=replace(run.rollout, dtype=given))


def effective(sampling: Sampling) -> Sampling:
    """What of the sampling settings reaches a recorded log-prob.

    Nothing does where raw log-probs are recorded; a greedy run records those of temperature 1, after the penalty only.

    >>> effective(Sampling(temperature=0.7, logprobs="raw")) == Sampling()
    True
    >>> effective(Sampling(temperature=0.7, max_tokens=9, seed=3)).changed
    {'temperature': 0.7}
    """
    if sampling.logprobs == "raw":
        return Sampling()
    if sampling.temperature == 0:
        return Sampling(repetition_penalty=sampling.repetition_penalty)
    return replace(Sampling(), **sampling.changed)


def samplings(run: Run) -> tuple[Sampling, Sampling]:
    """The effective sampling of (rollout, trainer).

    A rollout that declares none is read as neutral, and a trainer that declares none as the rollout's.
    """
    rollout = run.rollout.sampling or Sampling()
    return effective(rollout), effective(run.trainer.sampling or rollout)


def assumed(run: Run) -> bool:
    """True where the run's trainer declares nothing, and what stands there is of the engine given as the trainer."""
    return bool(run.info.get("trainer_assumed"))


def trainer_itself(run: Run) -> Side:
    """What the run's trainer declares itself; an engine that was given in its place agrees with nobody."""
    return Side() if assumed(run) else run.trainer


def scored_here(run: Run, column: str) -> bool:
    """True where samepolicy itself scored the column, on the run's very ids."""
    return column in run.info.get("scored_by_samepolicy", ())


def mark_scored(run: Run, *columns: str) -> Run:
    """The run, remembering that samepolicy itself scored these columns on the run's very ids."""
    names = sorted({*run.info.get("scored_by_samepolicy", ()), *columns})
    return replace(run, info={**run.info, "scored_by_samepolicy": names})
