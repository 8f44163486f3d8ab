"""Put the tokens of an engine's forwards back to the sequences and positions they are of."""

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.errors import EngineError


class Placing:
    """Which sequence and position each token of a forward is.

    Attributes:
        ids: the token ids, one row per sequence.
        allowed: sequences that are being computed.
        pieces: of the current forward: place among its tokens, place among all tokens, count.
    """

    def __init__(self, ids: Ragged) -> None:
        """Nothing is computed yet."""
        self.ids = ids
        self.allowed: set[int] = set()
        self.done = [0] * len(ids)
        self.pieces: list[tuple[int, int, int]] = []

    def begin(self, ids: np.ndarray, positions: np.ndarray) -> None:
        """Find the tokens of a forward; those that belong to no sequence are left out."""
        self.pieces, place = [], 0
        while place < len(ids):
            row, count = self._longest(ids[place:], positions[place:])
            if count:
                start = self.done[row]
                self.pieces.append((place, int(self.ids.offsets[row]) + start, count))
                self.done[row] = start + count
            place += max(count, 1)

    def _longest(self, ids: np.ndarray, positions: np.ndarray) -> tuple[int, int]:
        """The sequence that goes on with most of these tokens, and with how many."""
        best = (0, 0)
        for row in sorted(self.allowed):
            rest = self.ids[row][self.done[row] :][: len(ids)]
            expected = np.arange(self.done[row], self.done[row] + len(rest))
            same = (rest == ids[: len(rest)]) & (expected == positions[: len(rest)])
            count = len(rest) if same.all() else int(same.argmin())
            if count > best[1]:
                best = (row, count)
            elif count and count == best[1] and self._history(row) != self._history(best[0]):
                raise EngineError(
                    "vLLM cut two sequences at like places, so their tokens cannot be told apart; give fewer sequences."
                )
        return best

    def _history(self, row: int) -> list[int]:
        """What a sequence has computed so far."""
        return list(self.ids[row][: self.done[row]].tolist())

    def refuse_missing(self) -> None:
        """Refuse where not every token was seen."""
        missing = [row for row, done in enumerate(self.done) if done < len(self.ids[row])]
        if missing:
            row = missing[0]
            raise EngineError(
                f"vLLM computed {self.done[row]} of {len(self.ids[row])} tokens of sequence {row} where they can be "
                "seen: turn off compilation and speculative decoding (enforce_eager=True)."
            )
