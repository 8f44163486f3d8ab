"""Compare two engines tap by tap, and say where they part."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.errors import InputError
from samepolicy.layers import passes, taps
from samepolicy.layers.capture import Capture, as_rows
from samepolicy.layers.hf_taps import Model
from samepolicy.layers.judge import BEYOND, DOUBTFUL, SURE, UNIT, Judged, confidence, judge
from samepolicy.layers.ledger import graft, ledger
from samepolicy.layers.local import Routes, Step, steps
from samepolicy.layers.result import Grafted, LayerComparison, Reading, Verdict
from samepolicy.layers.tally import Tally, between
from samepolicy.layers.validate import validate, validate_trainer
from samepolicy.layers.vllm_taps import Rollout
from samepolicy.ratio import log_ratio

Tell = Callable[[str, int, int], None]
BINS = 8
GRAFTS = 4
"""Taps beyond rounding that are grafted one by one."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What is wanted of a comparison.

    Attributes:
        nats: attribute the gap to blocks, some 30 forwards.
        repeat: compare each side with itself at another batch shape.
        decode_from: compare the rollout's decode steps after so many tokens of each sequence; 0 compares its prefill.
    """

    nats: bool = True
    repeat: bool = True
    decode_from: int = 0


def compare(
    a: Any,
    b: Any,
    ids: Sequence[Any] | Ragged | None = None,
    *,
    ask: Ask = Ask(),
    progress: Tell | None = None,
    keep: Callable[[Capture], None] | None = None,
) -> LayerComparison:
    """Say at which step of the network two engines part, beyond what rounding explains.

    Every step of the trainer runs on the rollout's own inputs, so that an error belongs to the step it is found at, and
    is compared with the step's own rounding, measured in a wider dtype.

    Args:
        a: the trainer: a transformers model, or an hf engine.
        b: the rollout: a `vllm.LLM` in this process, a vllm engine, another transformers model, or a `Capture`.
        ids: token ids of some sequences; a `Capture` brings its own.
        ask: what is wanted.
        progress: told what is being done, how many parts are done, and how many there are.
        keep: is given what the rollout computed, for `write_repro` or another comparison.

    Returns:
        The verdict, every tap, and the gap by blocks in nats.

    Raises:
        InputError: something that hooks cannot see, an unknown structure, or models of different shapes.
        EngineError: vLLM failed.

    >>> import torch, transformers
    >>> sizes = dict(vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2)
    >>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    >>> compare(model, model, [[1, 2, 3, 4], [5, 6, 7]]).verdict
    'rounding only'
    """
    tell = progress or _silent
    trainer = Model(_module(a))
    tell("running the rollout", 0, 5)
    live, rollout = _rollout(b, ids, ask)
    if keep is not None:
        keep(rollout)
    _refuse_strangers(trainer, rollout)
    validate(rollout, UNIT[_dtype(rollout)])
    tell("running the trainer", 1, 5)
    own = passes.capture(trainer, rollout.ids)
    validate(own, UNIT[trainer.dtype])
    validate_trainer(trainer, own)
    tell("running each step on the rollout's inputs", 2, 5)
    found, routes = steps(trainer, rollout)
    coarser = max(trainer.dtype, _dtype(rollout), key=lambda dtype: UNIT[dtype])
    judged = judge(found, routes, coarser)
    tell("comparing each side with itself", 3, 5)
    again = _repeats(trainer, own, live, rollout) if ask.repeat else ({}, {})
    plain = between(own, rollout)
    readings = tuple(_reading(tap, plain[tap], judged[tap], again, rollout.ids) for tap in judged)
    tell("grafting", 4, 5)
    beyond = [reading.tap for reading in readings if reading.beyond]
    verdict, reason, sure = _verdict(found, judged, beyond, again, plain)
    book = ledger(trainer, rollout, beyond[:GRAFTS]) if ask.nats else None
    grafts = tuple(_grafts(trainer, own, live, rollout, beyond)) if ask.nats else ()
    return LayerComparison(
        verdict=verdict,
        first=beyond[0] if beyond else "",
        confidence=sure,
        reason=reason,
        readings=readings,
        gap=_gap(own, rollout),
        ledger=book,
        grafts=grafts,
        growth=_growth(plain, rollout.layers),
        dtypes=(trainer.dtype, _dtype(rollout)),
        phase="decode"
        if any(n < m for n, m in zip(rollout.prefilled, rollout.ids.lengths, strict=True))
        else "prefill",
        tokens=rollout.tokens,
        longest=int(rollout.ids.lengths.max()),
        notes=tuple(_notes(routes)),
    )


def _silent(what: str, done: int, total: int) -> None:
    """Progress that nobody sees."""
    del what, done, total


def _module(model: Any) -> Any:
    """The transformers model of an engine, or the model as it is."""
    import torch

    inner = model if isinstance(model, torch.nn.Module) else getattr(model, "model", None)
    if not isinstance(inner, torch.nn.Module) or not hasattr(inner, "config"):
        raise InputError(f"{type(model).__name__} is no transformers model; give one, or an hf engine, as the trainer.")
    return inner


def _rollout(b: Any, ids: Sequence[Any] | Ragged | None, ask: Ask) -> tuple[Any, Capture]:
    """The rollout if it can run again, and what it computed."""
    if isinstance(b, Capture):
        return None, b
    if ids is None:
        raise InputError("There are no token ids to run; give ids, some sequences of the run that shows the gap.")
    rows = as_rows(ids)
    if hasattr(b, "llm_engine") or hasattr(b, "llm"):
        live = Rollout(b)
        _refuse_ids(rows, live.vocabulary)
        return live, live.capture(rows, decode_from=ask.decode_from)
    if ask.decode_from:
        raise InputError("Decode steps are seen in vLLM only; give a vLLM as the rollout, or leave decode out.")
    other = Model(_module(b))
    _refuse_ids(rows, other.module.get_input_embeddings().weight.shape[0])
    return other, passes.capture(other, rows, label="rollout")


def _refuse_ids(rows: Ragged, vocabulary: int) -> None:
    """Refuse ids that the model has not."""
    if rows.values.min() < 0 or rows.values.max() >= vocabulary:
        raise InputError(f"The token ids must lie between 0 and {vocabulary - 1}; give ids of this model's tokenizer.")


def _refuse_strangers(trainer: Model, rollout: Capture) -> None:
    """Refuse models of different shapes."""
    if len(trainer.parts.layers) != rollout.layers:
        raise InputError(
            f"The trainer has {len(trainer.parts.layers)} layers and the rollout {rollout.layers}, so they are "
            "different models; compare two copies of one model."
        )
    weight = trainer.module.get_input_embeddings().weight
    width = rollout.slots[taps.EMBEDDING].width
    heads = trainer.module.get_output_embeddings().weight.shape[0]
    if weight.shape[1] != width or rollout.slots[taps.LOGITS].width != heads:
        raise InputError(
            f"The trainer is {weight.shape[1]} wide with {heads} ids and the rollout {width} with "
            f"{rollout.slots[taps.LOGITS].width}, so they are different models; compare two copies of one model."
        )
    config = trainer.module.config.get_text_config()
    size = getattr(config, "head_dim", None) or weight.shape[1] // config.num_attention_heads
    q = rollout.slots.get(taps.name(0, "q"))
    if q is not None and q.width != size * config.num_attention_heads:
        raise InputError(
            f"The trainer's queries are {size * config.num_attention_heads} wide and the rollout's {q.width}, so they "
            "are different models; compare two copies of one model."
        )


def _dtype(rollout: Capture) -> str:
    """The dtype that a capture was computed in."""
    return rollout.slots[taps.EMBEDDING].dtype


def _repeats(trainer: Model, own: Capture, live: Any, rollout: Capture) -> tuple[dict[str, Tally], dict[str, Tally]]:
    """Each side against itself at another batch shape, where it can run again."""
    ours = between(passes.capture(trainer, own.ids, padded=True), own)
    if isinstance(live, Rollout):
        part = min(rollout.prefilled) if rollout.prefilled != tuple(rollout.ids.lengths.tolist()) else 0
        return ours, between(live.capture(rollout.ids, alone=True, decode_from=part), rollout)
    if live is not None:
        return ours, between(passes.capture(live, own.ids, padded=True), rollout)
    return ours, {}


def _reading(
    tap: str, plain: Tally, judged: Judged, again: tuple[Mapping[str, Tally], Mapping[str, Tally]], ids: Ragged
) -> Reading:
    """All numbers of a tap."""
    positions = np.concatenate([np.arange(count) for count in ids.lengths])
    repeats = [side[tap].relative if tap in side else float("nan") for side in again]
    return Reading(
        tap=tap,
        relative=plain.relative,
        cosine=plain.cosine,
        max_abs=plain.max_abs,
        outliers=plain.outliers,
        positions=plain.by_position(positions, BINS),
        step=judged.pair,
        trainer=judged.trainer,
        rollout=judged.rollout,
        floor=judged.floor.rms,
        ratio=judged.ratio,
        trainer_repeat=repeats[0],
        rollout_repeat=repeats[1],
    )


def _verdict(
    found: Mapping[str, Step],
    judged: Mapping[str, Judged],
    beyond: Sequence[str],
    again: tuple[Mapping[str, Tally], Mapping[str, Tally]],
    plain: Mapping[str, Tally],
) -> tuple[Verdict, str, float]:
    """The verdict, why it is inconclusive, and the confidence."""
    if beyond:
        sure = confidence(found, judged, beyond[0])
        if sure < SURE:
            return "inconclusive", f"{beyond[0]} is the first beyond rounding in only {sure:.0%} of resamplings", sure
        return "different", "", sure
    for side, repeats in zip(("trainer", "rollout"), again, strict=True):
        most = BEYOND * max(
            plain[taps.LOGITS].relative, float(np.sqrt(sum(one.floor.rms**2 for one in judged.values())))
        )
        if taps.LOGITS in repeats and repeats[taps.LOGITS].relative > most:
            why = f"the {side} differs more from itself at another batch shape than from the other side"
            return "inconclusive", why, float("nan")
    near = max(judged, key=lambda tap: judged[tap].ratio)
    if judged[near].ratio > DOUBTFUL:
        why = f"{near} is at {judged[near].ratio:.1f} floors, where more than {BEYOND:g} is beyond rounding"
        return "inconclusive", why, float("nan")
    return "rounding only", "", float("nan")


def _grafts(trainer: Model, own: Capture, live: Any, rollout: Capture, beyond: Sequence[str]) -> Any:
    """Put one tap right at a time, in both directions where the rollout can run."""
    put = [tap for tap in beyond if taps.part_of(tap) not in passes.LOOKED_AT and tap != taps.LOGITS]
    for tap in put[:GRAFTS]:
        reverse = float("nan")
        if isinstance(live, Rollout):
            changed = passes.logp_of(live.capture(rollout.ids, put=(tap, own)))
            reverse = _mean(log_ratio(trainer=passes.logp_of(own), rollout=changed))
        elif live is not None:
            reverse = graft(live, own, tap)
        yield Grafted(tap=tap, left=graft(trainer, rollout, tap), reverse=reverse)


def _gap(own: Capture, rollout: Capture) -> float:
    """The mean absolute gap in nats per token."""
    return _mean(log_ratio(trainer=passes.logp_of(own), rollout=passes.logp_of(rollout)))


def _mean(change: np.ndarray) -> float:
    known = change[~np.isnan(change)]
    return float(np.abs(known).mean()) if len(known) else float("nan")


def _growth(plain: Mapping[str, Tally], layers: int) -> float:
    """The exponent of the stream's error along depth, by least squares on logarithms."""
    errors = np.array([plain[taps.name(layer, "residual")].relative for layer in range(layers)])
    depth = np.arange(1, layers + 1)
    fit = (errors > 0) & np.isfinite(errors)
    if fit.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(depth[fit]), np.log(errors[fit]), 1)[0])


def _notes(routes: Mapping[int, Routes]) -> Any:
    """What a reader should know of routes."""
    apart = sum(int(found.apart.sum()) for found in routes.values())
    if apart:
        total = sum(len(found.apart) for found in routes.values())
        yield (
            f"{apart} of {total} tokens × layers chose other experts from the same inputs; their expert outputs are "
            "left out"
        )
