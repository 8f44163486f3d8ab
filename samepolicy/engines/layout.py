"""How a prompt and its response are laid out for one forward: padding, packing, positions, and what may be attended to.

The neutral layout is the right one: each sequence alone, positions from 0, every earlier token attended to. Every other
one is a fault that trainers are known to make, so that it can be made on purpose and taken back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias

import numpy as np
from jaxtyping import Int

from samepolicy.arrays import Ragged
from samepolicy.errors import InputError

Pads: TypeAlias = Literal["hidden", "seen", "removed"]
"""What becomes of padding."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How sequences are laid out; the default is right.

    Attributes:
        hide_prompt: prompt tokens are not attended to (the response mask passed as attention mask).
        keep_last: of a hidden prompt, so many last tokens are still attended to.
        position_offset: positions begin here and not at 0.
        pad_to: prompts are padded to this many tokens, and positions count the padding; 0 pads none. Several numbers
            are one for each sequence.
        pad_right: the padding stands between prompt and response, and not before the prompt.
        pads: what becomes of the padding: it is "hidden" from attention, "seen" by it, or "removed" before the forward,
            so that only positions tell of it.
        pad_id: the id that pads.
        late: each token is read from the logits so many places later (1 is the slice [m : m+n]).
        packed: so many neighbouring sequences share one row without a mask between them; 1 packs none.
        pack_positions: positions of packed sequences run on; otherwise each counts from 0.
    """

    hide_prompt: bool = False
    keep_last: int = 0
    position_offset: int = 0
    pad_to: int | tuple[int, ...] = 0
    pad_right: bool = False
    pads: Pads = "hidden"
    pad_id: int = 0
    late: int = 0
    packed: int = 1
    pack_positions: bool = True

    def __post_init__(self) -> None:
        """Refuse sizes that no layout has."""
        lengths = self.pad_to if isinstance(self.pad_to, tuple) else (self.pad_to,)
        if self.packed < 1 or min(self.keep_last, self.position_offset, *lengths) < 0:
            raise InputError(
                f"A layout packs 1 sequence or more, and its other numbers are 0 or more, but it is {self}."
            )

    def of(self, sequences: Sequence[int] | Int[np.ndarray, " some"]) -> Self:
        """The layout of some of the sequences, by their numbers.

        >>> Layout(pad_to=(3, 4, 5)).of([0, 2]).pad_to
        (3, 5)
        """
        if not isinstance(self.pad_to, tuple):
            return self
        return replace(self, pad_to=tuple(self.pad_to[i] for i in sequences))


PLAIN = Layout()
"""The right layout."""


@dataclass(frozen=True)
class Plan:
    """One row of a forward.

    Attributes:
        ids: token ids, int64 [row].
        seen: which of them may be attended to, bool [row].
        positions: position of each, int64 [row].
        read: places whose output predicts a response token, int64 [read].
        tokens: which packed response token each of those predicts, int64 [read].
    """

    ids: np.ndarray
    seen: np.ndarray
    positions: np.ndarray
    read: np.ndarray
    tokens: np.ndarray


def plans(prompts: Ragged, responses: Ragged, layout: Layout = PLAIN) -> Iterator[Plan]:
    """Lay out every sequence; the first token after an empty prompt is predicted by nothing and never read.

    >>> one = Ragged.from_lists([[5, 6]]), Ragged.from_lists([[7, 8]])
    >>> plan = next(plans(*one, Layout(pad_to=3)))
    >>> plan.ids.tolist(), plan.read.tolist(), plan.seen.tolist()
    ([0, 5, 6, 7, 8], [2, 3], [False, True, True, True, True])
    """
    pad_to = layout.pad_to if isinstance(layout.pad_to, tuple) else (layout.pad_to,) * len(responses)
    if len(pad_to) != len(responses):
        raise InputError(f"The layout pads {len(pad_to)} sequences, but there are {len(responses)}.")
    for start in range(0, len(responses), layout.packed):
        group = range(start, min(start + layout.packed, len(responses)))
        parts = [_single(prompts[i], responses[i], int(responses.offsets[i]), layout, pad_to=pad_to[i]) for i in group]
        yield _packed(parts, layout)


def _single(prompt: np.ndarray, response: np.ndarray, first: int, layout: Layout, *, pad_to: int) -> Plan:
    """One sequence by itself."""
    pads = max(pad_to - len(prompt), 0)
    padding = np.full(pads, layout.pad_id)
    parts = (prompt, padding) if layout.pad_right else (padding, prompt)
    ids = np.concatenate([*parts, response]).astype(np.int64)
    kept = np.ones(len(ids), dtype=bool)
    padded = slice(len(prompt), len(prompt) + pads) if layout.pad_right else slice(pads)
    kept[padded] = layout.pads != "removed"
    seen = np.ones(len(ids), dtype=bool)
    seen[padded] = layout.pads == "seen"
    positions = np.flatnonzero(kept) + layout.position_offset
    ids, seen = ids[kept], seen[kept]
    begin = len(ids) - len(response)
    if layout.hide_prompt:
        seen[: max(begin - layout.keep_last, 0)] = False
    unpredicted = int(begin == 0)
    index = np.arange(unpredicted, len(response))
    read = begin - 1 + index + layout.late
    inside = (read >= 0) & (read < len(ids))
    return Plan(ids, seen, positions, read[inside], first + index[inside])


def _packed(parts: Sequence[Plan], layout: Layout) -> Plan:
    """Several sequences in one row."""
    if len(parts) == 1:
        return parts[0]
    starts = np.concatenate([[0], np.cumsum([len(p.ids) for p in parts])[:-1]])
    whole = Plan(
        ids=np.concatenate([p.ids for p in parts]),
        seen=np.concatenate([p.seen for p in parts]),
        positions=np.concatenate([p.positions for p in parts]),
        read=np.concatenate([p.read + s for p, s in zip(parts, starts, strict=True)]),
        tokens=np.concatenate([p.tokens for p in parts]),
    )
    return replace(whole, positions=np.arange(len(whole.ids))) if layout.pack_positions else whole
