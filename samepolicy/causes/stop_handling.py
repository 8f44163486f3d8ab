"""What stands behind a stop string is kept on one side only."""

from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

from samepolicy.arrays import Ragged
from samepolicy.causes.base import POSSIBLE, Cause, Check, Rung, SideWord, Undone
from samepolicy.causes.constants import ENOUGH, Constant, constants
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import toy, toy_run
from samepolicy.causes.recorded import Edit, edits
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

MOST = 0.9
"""Share of the constants that must stand behind a stop."""

END = 2
"""Tails of one length up to this are an end token's."""


class StopHandling(Cause):
    """What stands behind a stop string is kept on one side and cut on the other.

    What happens    The engine ends a response at a stop string: the text is cut there, ids and log-probs are not, or
                    the trainer cuts them and pads what is missing.
    How it shows    Only the tails of responses that a stop ended: ids that one side lacks, or a run of constants.
    How to confirm  Print the last ids of a stopped response on both sides, and its text.
    How to fix      Keep what was sampled, to the last id, on both sides. vLLM: include_stop_str_in_output=True, or stop
                    by stop_token_ids; SGLang: no_stop_trim=True; verl: response_ids of the agent loop, uncut; TRL:
                    generation_kwargs with include_stop_str_in_output; ms-swift: stop_words that are single tokens;
                    Megatron: cut ids, log-probs and mask at one index.
    References      vLLM issue 1973; vLLM pull requests 3672 and 47616; TRL issue 3425
    """

    rung = Rung.SAMPLING
    cost = 0
    separate = "print the last ids and both log-prob columns of a stopped response, beside its text"

    def check(self, evidence: Evidence) -> Check:
        """Ids that one side lacks at the ends of stopped responses, or constants there."""
        return self._lengths(evidence) or self._filled(evidence) or POSSIBLE

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """Only what arrays prove."""
        yield from ()

    def reproduce(self, rng: Generator) -> Run:
        """Three of four responses were stopped by a string of two to four ids, which the trainer cuts."""
        run = toy_run(rng)
        stopped = np.arange(len(run)) % 4 > 0
        cut = [len(row) - (2 + i % 3) * bool(stopped[i]) for i, row in enumerate(run["response_ids"])]
        short = Ragged.from_lists([row[:n] for row, n in zip(run["response_ids"], cut, strict=True)], dtype=np.int64)
        logp = toy().score(run["prompt_ids"], short, sampling=run.rollout.sampling or Sampling()).logp
        reasons = np.where(stopped, "stop", "length").astype(object)
        return run.without("trainer_logp").with_columns(
            trainer_response_ids=short, trainer_logp=logp, finish_reason=reasons
        )

    def _lengths(self, evidence: Evidence) -> Check | None:
        """Ids that only one side has at the end."""
        found = edits(evidence)
        if not found or not all(e.end and not (e.ours and e.theirs) and _stopped(evidence.run, e.row) for e in found):
            return None
        sizes = {_size(e) for e in found}
        longer = {bool(e.ours) for e in found}
        if len(longer) > 1 or (len(sizes) == 1 and sizes.pop() <= END):
            return None
        side: SideWord = "rollout" if longer.pop() else "trainer"
        tokens = sum(_size(e) for e in found)
        sentence = (
            f"in {len(found)} of {len(evidence.run)} responses, all of them ended by a stop, only the {side} holds the "
            f"last ids ({tokens} in all), and all ids before them are equal"
        )
        parameters = {"kept": side, "responses": len(found), "tokens": tokens}
        return Check(status="proved", sentence=sentence, side=side, parameters=parameters)

    def _filled(self, evidence: Evidence) -> Check | None:
        """Constants at the ends."""
        for constant in constants(evidence):
            if tails(evidence, constant):
                rows = len(constant.stretches)
                sentence = (
                    f"the {constant.side}'s log-prob is {constant.told} at the last tokens of {rows} responses, all "
                    f"of them ended by a stop ({constant.count} tokens of different ids)"
                )
                return Check(
                    status="proved",
                    sentence=sentence,
                    side=constant.side,
                    settings=constant.settings,
                    parameters={"cut": constant.side, "responses": rows, "tokens": constant.count},
                )
        return None


def tails(evidence: Evidence, constant: Constant) -> bool:
    """Whether a constant stands in stretches at the ends of stopped responses, at ids that are no padding."""
    run = evidence.run
    if "response_ids" not in run or "finish_reason" not in run or constant.count < ENOUGH:
        return False
    behind = [s for s in constant.stretches if s.ends and not s.whole and _stopped(run, s.row)]
    long = [s for s in behind if s.size > 1]
    ids = [run["response_ids"].values[s.first : s.last + 1] for s in long]
    varied = sum(len(np.unique(part)) > 1 for part in ids)
    held = sum(s.size for s in behind)
    return bool(long) and held >= MOST * constant.count and varied >= 0.5 * len(long) and len(long) >= 0.5 * len(behind)


def _stopped(run: Run, row: int) -> bool:
    """Whether a stop ended a response, as far as that is known."""
    return "finish_reason" not in run or run["finish_reason"][row] == "stop"


def _size(edit: Edit) -> int:
    """Ids that one side lacks."""
    return len(edit.ours) + len(edit.theirs)
