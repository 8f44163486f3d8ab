"""What causes ask of the reference's model, and toys whose model is another than they declare."""

from samepolicy.causes.evidence import Evidence
from samepolicy.causes.unavailable import Unavailable
from samepolicy.engines.base import Engine
from samepolicy.engines.change import UNCHANGED, Change, Changeable
from samepolicy.engines.layout import PLAIN, Layout
from samepolicy.engines.toy import Options, Toy


def changeable(evidence: Evidence, what: str) -> Changeable:
    """What a `Change` of the reference's model can name.

    Args:
        evidence: the evidence; its reference has the engine.
        what: what an engine without any of it lacks, for the message.

    Raises:
        Unavailable: there is no engine, or it names nothing.
    """
    engine = evidence.reference.engine
    if engine is None or evidence.mode == "pair":
        raise Unavailable("the trainer's model: diagnose(run, trainer=…), or --trainer on the command line")
    found = engine.changeable()
    if found == Changeable():
        raise Unavailable(what)
    return found


def changed_toy(
    change: Change = UNCHANGED, *, layout: Layout = PLAIN, dtype: str = "bfloat16", adapter: float = 0.0
) -> Engine:
    """A toy with a changed model, or one that lays sequences out in another way, neither of which it declares."""
    return Toy(Options(dtype=dtype, adapter=adapter), change, layout=layout)
