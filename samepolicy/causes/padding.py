"""Padding that a model sees, or that its positions count."""

from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Int
from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import prompts, toy_run
from samepolicy.causes.model import changeable, changed_toy
from samepolicy.causes.settings import Settings
from samepolicy.engines.layout import Layout, Pads
from samepolicy.records.run import Run

MULTIPLES = (8, 64)
"""Prompts are padded to a multiple of these at times."""

MICRO_BATCHES = (2, 4, 8, 16, 32)
"""Neighbouring responses whose prompts are padded to the longest of them."""

PADS: Mapping[Pads, str] = {
    "hidden": "counted by the positions",
    "seen": "attended to",
    "removed": "taken out again but counted by the positions",
}
"""What may become of padding, in words."""

OFFSETS = (1, 2)
"""Positions that begin so many places late, as those of some models with learned positions do."""


class Padding(Cause):
    """Padding is attended to, or position ids count it, on one side.

    What happens    Prompts are padded to one length, or each micro-batch to its longest, and the model gets no position
                    ids (so real tokens begin at the number of pads), or an attention mask that does not cover the
                    padding; or padding stands between prompt and response.
    How it shows    The gap grows with a sample's number of pads and is zero where there is none, the longest prompt of
                    its batch. With RoPE a constant offset alone is harmless; learned or sinusoidal positions feel it.
    How to confirm  Score one short prompt alone and in a batch with a long one; print position_ids and attention_mask.
    How to fix      Build position_ids from the mask, (attention_mask.cumsum(-1) - 1).clamp(min=0), and pass both. TRL:
                    pass position_ids to every log-prob forward. verl: use_remove_padding=True, or the collator's
                    position_ids. ms-swift: --padding_free true or --padding_side left. Megatron: right padding, or
                    packed rows (thd). vLLM and SGLang do not pad: give them ids without padding.
    References      TRL issue 6800 (log-prob forwards that omit position_ids under left padding); transformers issue
                    29029
    """

    rung = Rung.POSITIONS
    cost = 2
    separate = "score one short prompt alone and once more in a batch with a long one"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The padded lengths that predict best, left and right, seen or hidden; then positions that begin late."""
        limit = changeable(evidence, "an engine that can pad (an hf engine as the trainer)").limit
        run, pad_id = evidence.run, _pad_id(evidence.run)
        tried: list[int | tuple[int, ...]] = [*_micro_batches(run["prompt_ids"].lengths), *_lengths(run)]
        lengths = [to for to in tried if limit is None or (np.asarray(to) + run.lengths).max() <= limit]
        ways = [
            [Settings(layout=Layout(pad_to=to, pads=pads, pad_right=right, pad_id=pad_id)) for to in lengths]
            for pads in PADS
            for right in (False, True)
            if right or pads != "removed"  # on the left, as good as hidden
        ]
        best = evidence.best(evidence.promising(way for way in ways if way))
        if best.layout is not None:
            yield _padded(evidence, best.layout)
        late = evidence.best(Settings(layout=Layout(position_offset=offset)) for offset in OFFSETS)
        assert late.layout is not None
        begin = late.layout.position_offset
        yield Undone(
            settings=late,
            parameters={"position_offset": begin},
            sentence=f"with positions that begin at {begin} the reference gives what was recorded",
        )

    def reproduce(self, rng: Generator) -> Run:
        """The trainer pads on the left to the longest prompt, and its positions count the padding."""
        state = rng.bit_generator.state
        longest = int(_peeked(rng).max())
        rng.bit_generator.state = state
        return toy_run(rng, trainer=changed_toy(layout=Layout(pad_to=longest)))


def _peeked(rng: Generator) -> np.ndarray:
    """Lengths of the prompts that `toy_run` is going to draw after its seed."""
    rng.integers(2**31)
    return prompts(rng).lengths


def _lengths(run: Run) -> list[int]:
    """Padded lengths that are worth trying, shortest first."""
    longest = int(run["prompt_ids"].lengths.max(initial=0))
    told = [side.extra.get("max_prompt_length") for side in (run.rollout, run.trainer)]
    rounded = [-(-longest // m) * m for m in MULTIPLES]
    fixed = [*(n for n in told if isinstance(n, int)), *rounded, longest]
    return sorted({n for n in fixed if n >= longest and n > int(run["prompt_ids"].lengths.min(initial=longest))})


def _micro_batches(prompts: Int[np.ndarray, " rows"]) -> dict[tuple[int, ...], int]:
    """Lengths that each response is padded to, and the size of the micro-batches that make them, where it tells."""
    found: dict[tuple[int, ...], int] = {}
    for size in MICRO_BATCHES:
        longest = np.maximum.reduceat(prompts, np.arange(0, len(prompts), size))
        padded = np.repeat(longest, size)[: len(prompts)]
        if len(np.unique(longest)) > 1 and (padded > prompts).any():
            found.setdefault(tuple(padded.tolist()), size)
    return found


def _pad_id(run: Run) -> int:
    """The declared id that pads, else 0."""
    told = [side.extra.get("pad_id") for side in (run.trainer, run.rollout)]
    return int(next((value for value in told if value is not None), 0))


def _padded(evidence: Evidence, layout: Layout) -> Undone:
    """One padded layout."""
    side = "between prompt and response" if layout.pad_right else "on the left"
    prompts = evidence.run["prompt_ids"].lengths
    pads = np.asarray(layout.pad_to) - prompts
    fine = evidence.comparable & np.isfinite(evidence.residual)
    few = (pads <= np.median(pads))[evidence.row]
    parts = [np.abs(evidence.residual[fine & half]) for half in (few, ~few)]
    told = (
        f"; mean abs gap {parts[0].mean():.2g} nats in the half with fewest pads and {parts[1].mean():.2g} in the other"
        if all(map(len, parts))
        else ""
    )
    what = PADS[layout.pads]
    micro_batch = _micro_batches(prompts).get(layout.pad_to) if isinstance(layout.pad_to, tuple) else None
    length = f"the longest of each {micro_batch} neighbours" if micro_batch else f"{layout.pad_to} tokens"
    return Undone(
        settings=Settings(layout=layout),
        parameters={
            **({"micro_batch": micro_batch} if micro_batch else {"pad_to": layout.pad_to}),
            "pad_side": "right" if layout.pad_right else "left",
            "pads": layout.pads,
        },
        sentence=f"with prompts padded {side} to {length}, {what}, the reference gives what was recorded{told}",
    )
