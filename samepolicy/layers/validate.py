"""Check on numbers that taps are what their names say: the stream after a block is that before it plus its output."""

import itertools

from samepolicy.errors import InputError
from samepolicy.layers import taps
from samepolicy.layers.capture import Capture
from samepolicy.layers.hf_taps import Model
from samepolicy.layers.passes import pieces, put_in
from samepolicy.layers.tally import Tally

SLACK = 4.0
"""Roundings that an addition may be off by, relative to its larger part."""


def validate(kept: Capture, unit: float) -> None:
    """Check the sums along the residual stream of a capture.

    Args:
        kept: what one side computed.
        unit: its unit roundoff.

    Raises:
        InputError: a tap is missing, or most sums do not hold, so what was taken for the parts of a layer is not. A few
            that do not hold are a fault, which is for the comparison to find.
    """
    missing = [tap for tap in (*taps.stream(kept.layers), taps.FINAL_NORM, taps.LOGITS) if tap not in kept.slots]
    if missing:
        raise InputError(
            f"{kept.label} computed nothing at {missing[0]}, so its layers work in a way that is not known here and "
            "cannot be compared."
        )
    stream = taps.stream(kept.layers)
    wrong = [tap for before, tap in itertools.pairwise(stream) if not _adds_up(kept, before, tap, unit)]
    if len(wrong) > kept.layers:
        raise InputError(
            f"At {wrong[0]} and {len(wrong) - 1} other places the stream of {kept.label} is not the one "
            "before it plus a block's output, so its layers are put together in a way that is not known here "
            "and cannot be compared."
        )


def _adds_up(kept: Capture, before: str, after: str, unit: float) -> bool:
    """Whether the stream after a block is the one before it plus the block's output."""
    block = taps.name(taps.layer_of(after) or 0, "attention_block" if taps.part_of(after) == "middle" else "mlp")
    for place, total in pieces(kept, after):
        stop = place + len(total)
        one, other = kept.read(before, place, stop).float(), kept.read(block, place, stop).float()
        slack = SLACK * unit * (one.abs() + other.abs()).amax()
        if bool(total.isfinite().all()) and not bool(((one + other - total.float()).abs() <= slack).all()):
            return False
    return True


def validate_trainer(model: Model, kept: Capture) -> None:
    """Check that a model which is given its own values at every tap computes what it computes without.

    Raises:
        InputError: it does not, so a value that is put in does not arrive where it should.
    """
    found = {tap: Tally(kept.tokens) for tap in kept.taps}

    def see(tap: str, place: int, values: object) -> None:
        found[tap].add(place, values, kept.read(tap, place, place + len(values)))  # type: ignore[arg-type]

    put_in(model, kept, None, see)
    wrong = [tap for tap, tally in found.items() if tally.max_abs != 0]
    if wrong and kept.read(wrong[0]).isfinite().all():
        raise InputError(
            f"The trainer does not repeat itself at {wrong[0]}, so its layers cannot be compared; put it into "
            "evaluation mode, without dropout."
        )
