"""The mask does not lie where tokens were sampled."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool
from numpy.random import Generator

from samepolicy.arrays import Ragged
from samepolicy.causes.base import POSSIBLE, Cause, Check, Rung, Undone
from samepolicy.causes.constants import ENOUGH, Constant, Stretch, constants
from samepolicy.causes.conversation import conversation
from samepolicy.causes.evidence import Evidence
from samepolicy.records.run import Run

LAGS = (1, -1, 2, -2, 3, -3)

EXACT = 0.1
"""A moved mask must leave at most this share of the tokens on which mask and values disagree."""

MOST = 0.9
"""Share of the constants that must stand where a misplaced mask puts them."""


class MaskMisplaced(Cause):
    """The mask counts tokens that were not sampled, or lies a token early or late.

    What happens    The loss mask is shifted by one, or it counts the prompt, the assistant's header, what a tool
                    answered, or padding; for those the engine has no log-prob.
    How it shows    Outliers only at the edges of what the mask counts, or runs of one exact constant inside of it.
    How to confirm  Print ids, mask and both log-prob columns around the first edge of the mask.
    How to fix      Mark exactly the sampled ids, and let labels, mask and log-probs go through one slice. verl:
                    response_mask from the agent loop; TRL: tool_mask (env_mask in a rollout_func); ms-swift:
                    response_loss_mask; Megatron: shift loss_mask together with labels. vLLM, SGLang: take the lengths
                    of the returned token_ids for the mask, and do not tell padding by comparing ids with pad.
    References      TRL issues 4974 and 5144; NeMo-RL pull request 2176; RAGEN issue 71; OpenRLHF issue 973
    """

    rung = Rung.MASK
    cost = 0
    separate = "print ids, mask and both log-prob columns around the first edge of the mask"

    def check(self, evidence: Evidence) -> Check:
        """Constants at one edge of the mask with values left out at the other, or constants in stretches."""
        for constant in constants(evidence):
            found = self._moved(evidence, constant) or self._counted(evidence, constant)
            if found is not None:
                return found
        return POSSIBLE

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """Only what arrays prove."""
        yield from ()

    def reproduce(self, rng: Generator) -> Run:
        """The mask of a conversation is one token late."""
        run = conversation(rng)
        late = [np.concatenate([[False], row[:-1]]) for row in run.mask]
        return run.with_columns(mask=Ragged.from_lists(late, dtype=bool))

    def _moved(self, evidence: Evidence, constant: Constant) -> Check | None:
        """A mask that fits the values once it is moved."""
        mask, valued = evidence.run.mask.values, _valued(evidence, constant)
        inside, outside = int((mask & ~valued).sum()), int((~mask & valued).sum())
        if min(inside, outside) < ENOUGH:
            return None
        wrong = {lag: int((_rolled(evidence, mask, lag) != valued).sum()) for lag in LAGS}
        lag = min(LAGS, key=lambda one: wrong[one])
        if wrong[lag] > EXACT * (inside + outside):
            return None
        where = "late" if lag < 0 else "early"
        sentence = (
            f"the {constant.side}'s log-prob is {constant.told} at {inside} counted tokens, and {outside} tokens that "
            f"are not counted have one; moved by {lag:+d} the mask fits all but {wrong[lag]} of them"
        )
        return self._proved(constant, sentence, {"kind": f"{abs(lag)} {where}", "move": lag})

    def _counted(self, evidence: Evidence, constant: Constant) -> Check | None:
        """A mask that counts stretches of tokens without a log-prob."""
        kinds = Counter[str]()
        for part in constant.stretches:
            kinds[_kind(evidence, part)] += part.size
        found = {kind: n for kind, n in kinds.items() if kind}
        if sum(found.values()) < MOST * constant.count or not constant.clustered:
            return None
        told = " and ".join(f"{n} of {kind}" for kind, n in found.items())
        sentence = f"the {constant.side}'s log-prob is {constant.told} at {told} under the mask, in stretches"
        return self._proved(constant, sentence, {"kind": "counts " + " and ".join(found), "tokens": constant.count})

    def _proved(self, constant: Constant, sentence: str, parameters: dict[str, object]) -> Check:
        """The answer; the mask is the trainer's, whoever's column shows it."""
        return Check(
            status="proved", sentence=sentence, side="trainer", settings=constant.settings, parameters=parameters
        )


def _valued(evidence: Evidence, constant: Constant) -> Bool[np.ndarray, " tokens"]:
    """Tokens that have a log-prob."""
    column = np.asarray(evidence.run[f"{constant.side}_logp"].values)
    without = np.isnan(column) if np.isnan(constant.value) else column == constant.value
    found: np.ndarray = ~(constant.odd | (~evidence.run.mask.values & without))
    return found


def _rolled(evidence: Evidence, mask: np.ndarray, lag: int) -> Bool[np.ndarray, " tokens"]:
    """The mask moved by `lag` tokens in every response; where that leaves a gap the edge repeats."""
    start, end = evidence.run.offsets[:-1][evidence.row], evidence.run.offsets[1:][evidence.row]
    found: np.ndarray = mask[np.clip(np.arange(len(mask)) - lag, start, end - 1)]
    return found


def _kind(evidence: Evidence, part: Stretch) -> str:
    """What a stretch is of; empty where a mask does not explain it."""
    run = evidence.run
    if part.whole or part.end:
        return ""
    if part.ends:
        same = "response_ids" in run and len(set(run["response_ids"].values[part.first : part.last + 1].tolist())) == 1
        return "padding" if same else ""
    if part.begins:
        return "the prompt" if part.size > 1 or _repeats(evidence, part) else ""
    return "a tool's answer" if part.size > 1 else ""


def _repeats(evidence: Evidence, part: Stretch) -> bool:
    """Whether a stretch holds the last ids of the prompt."""
    run = evidence.run
    if "prompt_ids" not in run or "response_ids" not in run:
        return False
    ids = run["response_ids"].values[part.first : part.last + 1]
    return bool(np.array_equal(run["prompt_ids"][part.row][-part.size :], ids))
