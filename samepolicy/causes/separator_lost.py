"""The separator between turns is lost on one side."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool
from numpy.random import Generator

from samepolicy.arrays import Ragged
from samepolicy.causes.base import POSSIBLE, Cause, Check, Rung, Undone
from samepolicy.causes.conversation import conversation
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import toy
from samepolicy.causes.recorded import edits, replaced, undoing
from samepolicy.causes.reference import Reference
from samepolicy.causes.settings import Ids, IdStep, Settings
from samepolicy.causes.text import Text
from samepolicy.causes.unavailable import Unavailable
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

ENOUGH = 10
"""Places that prove it."""

MOST = 0.9
"""Share of the turns that a separator must follow."""


@dataclass(frozen=True)
class Separator(IdStep):
    """One id more (or fewer) behind every turn but the last."""

    order: ClassVar[int] = Rung.TOKENS.order
    token: int
    more: bool

    def apply(self, ids: Ids, reference: Reference) -> Ids:
        """The ids with the separator put in or taken out."""
        ends = turn_ends(reference.run)
        offsets = reference.run.offsets
        rows = [
            self.of(row, ends[offsets[at] : offsets[at + 1]])
            for at, row in zip(ids.rows.tolist(), ids.responses, strict=True)
        ]
        return replaced(ids, Ragged.from_lists(rows, dtype=np.int64))

    def of(self, row: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """One response; as it is where another step has changed its length."""
        if len(ends) != len(row):
            return row
        behind = np.flatnonzero(ends) + 1
        if self.more:
            return np.insert(row, behind, self.token)
        return np.delete(row, behind[row[behind] == self.token])


class SeparatorLost(Cause):
    """The id between two turns is missing on one side.

    What happens    A turn ends at its end token, and the template's separator behind it (a newline) is never sampled:
                    whoever puts turns together from ids leaves it out, whoever renders the conversation has it.
    How it shows    Lengths differ by exactly the number of turns, with one id missing behind each; the gap steps up
                    from turn to turn.
    How to confirm  Compare the ids of a whole conversation with those that the template renders for it.
    How to fix      Append the separator with mask 0 where turns are joined. verl: initialize_turn_separator in the
                    tool agent loop, or continuous token building; TRL: build the next prompt from prompt_ids and
                    completion_ids with the template's own suffix; ms-swift: response_token_ids with the template's
                    suffix; Megatron: train on those ids. vLLM, SGLang: send token ids for every turn, not messages.
    References      verl pull request 6921; verl issues 6501 and 6719; verifiers pull request 476
    """

    rung = Rung.TOKENS
    cost = 2
    separate = "compare the ids of a whole conversation on both sides: one id is missing behind each turn"

    def check(self, evidence: Evidence) -> Check:
        """Recorded ids that differ by one id, always the same, in many places."""
        inside = [e for e in edits(evidence) if not e.end]
        kinds = {(e.ours, e.theirs) for e in inside}
        if len(inside) < ENOUGH or len(kinds) > 1:
            return POSSIBLE
        ((ours, theirs),) = kinds
        if len(ours) + len(theirs) != 1:
            return POSSIBLE
        side, token = ("trainer", ours[0]) if ours else ("rollout", theirs[0])
        rows = len({e.row for e in inside})
        sentence = (
            f"id {token} is missing on the {side}'s side in {len(inside)} places of {rows} responses, and no other is"
        )
        return Check(
            status="proved",
            sentence=sentence,
            settings=undoing(evidence, responses=True),
            parameters={"id": token, "missing_on": side, "places": len(inside)},
        )

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The id behind every turn taken out, or a newline put in."""
        run = evidence.run
        if "trainer_response_ids" in run:
            return
        if "response_ids" not in run:
            raise Unavailable("the run's response_ids, to find the turns")
        ends = turn_ends(run)
        if int(ends.sum()) < ENOUGH:
            return
        for token, more in _candidates(evidence, ends):
            what = "one more" if more else "no"
            yield Undone(
                settings=Settings(ids=(Separator(token, more),)),
                parameters={"id": token, "ids_per_turn": 1 if more else -1, "turns": int(ends.sum())},
                sentence=f"with {what} id {token} behind each turn the reference gives what was recorded",
            )

    def reproduce(self, rng: Generator) -> Run:
        """The trainer reads conversations without the newline behind each turn."""
        run = conversation(rng)
        ends = Ragged(turn_ends(run), run.offsets)
        step = Separator(0, more=False)
        rows = [step.of(row, end) for row, end in zip(run["response_ids"], ends, strict=True)]
        ids = Ragged.from_lists(rows, dtype=np.int64)
        logp = toy().score(run["prompt_ids"], ids, sampling=run.rollout.sampling or Sampling()).logp
        return run.without("trainer_logp").with_columns(trainer_response_ids=ids, trainer_logp=logp)


def turn_ends(run: Run) -> Bool[np.ndarray, " tokens"]:
    """The last sampled token of every turn that another one follows."""
    mask, turn = run.mask.values, run["turn"].values if "turn" in run else np.zeros(int(run.offsets[-1]), np.int64)
    row = np.repeat(np.arange(len(run)), run.lengths)
    found = np.zeros(len(mask), dtype=bool)
    same = row[1:] == row[:-1]
    found[:-1] = same & mask[:-1] & (~mask[1:] | (turn[1:] != turn[:-1]))
    counted = np.flatnonzero(mask)
    found[counted[np.append(row[counted[1:]] != row[counted[:-1]], True)[: len(counted)]]] = False
    return found


def _candidates(evidence: Evidence, ends: np.ndarray) -> Iterator[tuple[int, bool]]:
    """The id that follows nearly all turns, to be taken out; a newline, to be put in."""
    behind = evidence.run["response_ids"].values[np.flatnonzero(ends) + 1]
    token, count = Counter(behind.tolist()).most_common(1)[0]
    if count >= MOST * len(behind):
        yield token, False
    newline = Text(evidence.reference).encode("\n")
    if len(newline) == 1:
        yield newline[0], True
