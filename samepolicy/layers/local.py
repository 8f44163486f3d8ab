"""The error of each step alone: both sides and a wider reference on the same inputs, those of the rollout."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from samepolicy.arrays import Array
from samepolicy.engines import hf_load
from samepolicy.errors import InputError
from samepolicy.layers import taps
from samepolicy.layers.capture import Capture
from samepolicy.layers.hf_taps import Model
from samepolicy.layers.passes import put_in
from samepolicy.layers.tally import Tally

WIDER = {"bfloat16": "float32", "float16": "float32", "float32": "float64", "float64": "float64"}
"""What a dtype's rounding is measured against."""


@dataclass(frozen=True)
class Step:
    """Errors of the step that ends at a tap, as squared relative errors of tokens, float64 [tokens].

    Attributes:
        pair: trainer against rollout.
        trainer: trainer against the reference.
        rollout: rollout against the reference.
        routed_apart: tokens that are left out, since the two chose other experts for them; bool [tokens].
    """

    pair: np.ndarray
    trainer: np.ndarray
    rollout: np.ndarray
    routed_apart: np.ndarray


@dataclass(frozen=True)
class Routes:
    """Tokens whose experts differ though their router saw the same, bool [tokens].

    Attributes:
        apart: the two sides chose other experts.
        unexplained: and their router logits differ by less than would swap them.
    """

    apart: np.ndarray
    unexplained: np.ndarray


def wider(model: Any) -> Model:
    """A copy of a transformers model in the dtype that its rounding is measured against.

    The weights are those it computes with now, so a fault in them is in the copy, too.
    """
    made = copy.deepcopy(model)
    dtype = str(next(made.parameters()).dtype).removeprefix("torch.")
    hf_load.cast(made, WIDER[dtype])
    if WIDER[dtype] == "float64" and hasattr(made, "set_experts_implementation"):
        made.set_experts_implementation("eager")  # grouped matrix products know no float64
    return Model(made)


def steps(model: Model, rollout: Capture) -> tuple[dict[str, Step], dict[int, Routes]]:
    """Measure the error of every step.

    Args:
        model: the trainer.
        rollout: what the rollout computed.

    Returns:
        Errors by tap, in the order of computation, and by layer what became of the routes.
    """
    count, kept = rollout.tokens, Capture.new(rollout.ids, label="reference", layers=rollout.layers)
    theirs = _tallies(rollout, count)

    def reference(tap: str, place: int, values: Array) -> None:
        kept.write(tap, place, values)
        if tap in theirs:
            other = rollout.read(tap, place, place + len(values))
            _refuse_widths(tap, values, other)
            theirs[tap].add(place, other, values)

    put_in(wider(model.module), rollout, None, reference)
    pair, ours = _tallies(rollout, count), _tallies(rollout, count)
    apart: dict[str, np.ndarray] = {}
    logits: dict[str, Array] = {}
    routes: dict[int, Routes] = {}

    def trainer(tap: str, place: int, values: Array) -> None:
        if tap not in pair:
            return
        other = rollout.read(tap, place, place + len(values))
        _refuse_widths(tap, values, other)
        pair[tap].add(place, values, other)
        ours[tap].add(place, values, kept.read(tap, place, place + len(values)))
        layer = taps.layer_of(tap)
        if taps.part_of(tap) == "router":
            logits["ours"], logits["theirs"] = values.cpu(), other
        elif taps.part_of(tap) == "experts" and layer is not None:
            found = routes.setdefault(layer, Routes(np.zeros(count, bool), np.zeros(count, bool)))
            _compare_routes(found, place, values.cpu(), other, **logits)
            wide = kept.read(tap, place, place + len(values))
            out = apart.setdefault(taps.name(layer, "mlp"), np.zeros(count, bool))
            differs = (values.cpu() != other).any(-1) | (wide != other).any(-1)
            out[place : place + len(values)] = differs.numpy()

    put_in(model, rollout, None, trainer)
    nobody = np.zeros(count, bool)
    found = {
        tap: Step(pair[tap].squares, ours[tap].squares, theirs[tap].squares, apart.get(tap, nobody))
        for tap in rollout.taps
        if taps.part_of(tap) != "experts"
    }
    return found, routes


def _refuse_widths(tap: str, ours: Array, theirs: Array) -> None:
    """Refuse models of different shapes."""
    if ours.shape[1] != theirs.shape[1]:
        raise InputError(
            f"At {tap} the trainer is {ours.shape[1]} wide and the rollout {theirs.shape[1]}, so they are different "
            "models; compare two copies of one model."
        )


def _tallies(rollout: Capture, count: int) -> dict[str, Tally]:
    """An empty tally for each tap."""
    return {tap: Tally(count) for tap in rollout.taps}


def _compare_routes(found: Routes, place: int, chosen: Array, other: Array, *, ours: Array, theirs: Array) -> None:
    """Mark tokens whose experts differ, and those where the router logits do not say why.

    A swap of two experts needs their logits to move by at least the margin between them.
    """
    part = slice(place, place + len(chosen))
    differs = (chosen.sort(-1).values != other.sort(-1).values).any(-1)
    count = other.shape[-1]
    best = theirs.float().topk(min(count + 1, theirs.shape[-1]), -1).values
    margin = best[:, count - 1] - best[:, -1]
    moved = 2 * (ours.float() - theirs.float()).abs().amax(-1)
    found.apart[part] = differs.numpy()
    found.unexplained[part] = (differs & (margin > moved)).numpy()
