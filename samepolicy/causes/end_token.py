"""An end token that only one side counts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from samepolicy.arrays import Ragged
from samepolicy.causes.base import POSSIBLE, Cause, Check, Rung, SideWord, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import toy_run, with_ends
from samepolicy.causes.reference import Reference
from samepolicy.causes.settings import ArrayStep, Settings
from samepolicy.records.run import Run

SURE = -0.05
"""A value that is exactly 0 is odd only where the prediction is below this, nats."""

ENOUGH = 10
"""End tokens with the same exact value that prove it."""

TOY_END = 97


@dataclass(frozen=True)
class EndFilled(ArrayStep):
    """The last tokens of responses hold a constant instead of a log-prob."""

    order: ClassVar[int] = Rung.TOKENS.order
    value: float
    tokens: tuple[int, ...]

    def apply(self, predicted: np.ndarray, reference: Reference) -> np.ndarray:
        """The constant at those tokens."""
        found = predicted.copy()
        found[list(self.tokens)] = self.value
        return found


class EndToken(Cause):
    """An end token is appended, dropped or filled in on one side.

    What happens    One side counts an end token that the other does not have: it is appended after sampling with a
                    log-prob of 0, or the sampled one is cut while its log-prob stays.
    How it shows    Only the last token of finished responses: an exact 0.0 there, or lengths that differ by one.
    How to confirm  Print the last three ids, log-probs and mask values of a finished response on both sides.
    How to fix      Keep the engine's ids as they are sampled (vLLM: include the stop token in token_ids; SGLang:
                    no_stop_trim; verl, TRL, ms-swift: mask what is appended after sampling), or set the mask to 0
                    there.
    References      TRL, verl and SGLang issues on stop tokens without a log-prob
    """

    rung = Rung.TOKENS
    cost = 0
    separate = "print the last three ids, log-probs and mask values of a finished response on both sides"

    def check(self, evidence: Evidence) -> Check:
        """Exact zeros at the ends of responses and nowhere else, or ids that differ by an end."""
        return self._filled(evidence) or self._lengths(evidence) or POSSIBLE

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """Only what arrays prove."""
        yield from ()

    def reproduce(self, rng: Generator) -> Run:
        """An end token is appended to twelve of sixteen responses with a log-prob of 0."""
        return with_ends(toy_run(rng), TOY_END, value=0.0, rows=range(12))

    def _filled(self, evidence: Evidence) -> Check | None:
        """Constants at the ends."""
        if evidence.mode not in ("rollout", "trainer", "pair"):
            return None
        sides: tuple[SideWord, ...] = ("trainer", "rollout") if evidence.mode == "pair" else (evidence.side,)
        for side in sides:
            found = self._of(evidence, side)
            if found is not None:
                return found
        return None

    def _of(self, evidence: Evidence, side: SideWord) -> Check | None:
        """Zeros of one side that only its last tokens hold."""
        run = evidence.run
        column, other = (evidence.column(f"{name}_logp") for name in (side, _other(side)))
        known = evidence.base if evidence.mode != "pair" else other
        odd = (column == 0) & run.mask.values & (known < SURE) & (other < SURE)
        ends = _last(run)
        count, elsewhere = int((odd & ends).sum()), int((odd & ~ends).sum())
        if count < ENOUGH or elsewhere > 0.1 * count:
            return None
        tokens = tuple(np.flatnonzero(odd & ends).tolist())
        sentence = (
            f"the {side}'s log-prob of the last token is exactly 0 in {count} of {len(run)} responses, where it is "
            f"{known[list(tokens)].mean():.2g} nats otherwise, and {elsewhere or 'no'} other token has such a 0"
        )
        settings = Settings(arrays=(EndFilled(0.0, tokens),)) if evidence.mode != "pair" else Settings()
        return Check(
            status="proved", sentence=sentence, side=side, settings=settings, parameters={"kind": "filled with 0"}
        )

    def _lengths(self, evidence: Evidence) -> Check | None:
        """Response ids that are equal but for the last one."""
        run = evidence.run
        if "trainer_response_ids" not in run:
            return None
        pairs = list(zip(run["response_ids"], run["trainer_response_ids"], strict=True))
        longer = [len(a) - len(b) for a, b in pairs]
        same = all(np.array_equal(a[: len(b)], b[: len(a)]) for a, b in pairs)
        odd = [d for d in longer if d]
        if not same or not odd or len({*odd}) > 1 or abs(odd[0]) > 2:
            return None
        side: SideWord = "trainer" if odd[0] > 0 else "rollout"
        other = _other(side)
        sentence = (
            f"in {len(odd)} of {len(run)} responses the {other} has {abs(odd[0])} more id at the end than the {side}, "
            "and all others are equal"
        )
        return Check(status="proved", sentence=sentence, parameters={"kind": f"missing on the {side}'s side"})


def _other(side: SideWord) -> SideWord:
    """The other side."""
    return "rollout" if side == "trainer" else "trainer"


def _last(run: Run) -> np.ndarray:
    """The last token under the mask of every response, bool [tokens]."""
    mask: Ragged = run.mask
    found = np.zeros(len(mask.values), dtype=bool)
    for i, row in enumerate(mask):
        inside = np.flatnonzero(row)
        if len(inside):
            found[mask.offsets[i] + inside[-1]] = True
    return found
