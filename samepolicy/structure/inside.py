"""Tests of what was seen inside the engines: their tensors, and the steps of their networks."""

from samepolicy.records.inside import inside
from samepolicy.records.run import Run
from samepolicy.structure.fact import Fact, Test


def tensors(run: Run) -> tuple[Fact, ...]:
    """Whether both sides hold the same tensors, where these were compared."""
    found = inside(run, "weights")
    if found is None:
        return ()
    it, why = Test("tensors", "weights"), found["sentence"].rstrip(".")
    return (it.passed(why),) if found["same"] else (it.failed(why),)


def layers(run: Run) -> tuple[Fact, ...]:
    """Whether some step of the network is beyond rounding, where that was looked at; the gap says if it matters."""
    found = inside(run, "layers")
    if found is None:
        return ()
    it, why = Test("layers", "numerics"), found["sentence"].rstrip(".")
    if found["verdict"] == "inconclusive":
        return (it.unchecked(why),)
    return (it.passed(why),) if found["verdict"] == "rounding only" else (it.failed(why),)
