"""A beginning-of-sequence token twice, or missing, on one side."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from samepolicy.arrays import Ragged
from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import toy_run
from samepolicy.causes.reference import Reference
from samepolicy.causes.settings import Ids, IdStep, Settings
from samepolicy.records.run import Run


@dataclass(frozen=True)
class Bos(IdStep):
    """So many more (or fewer, where negative) of this id before every prompt."""

    order: ClassVar[int] = Rung.TOKENS.order
    token: int
    more: int

    def apply(self, ids: Ids, reference: Reference) -> Ids:
        """The prompts with another beginning; responses stay."""
        added = np.full(max(self.more, 0), self.token, dtype=np.int64)
        rows = [np.concatenate([added, row[max(-self.more, 0) :]]) for row in ids.prompts]
        return replace(ids, prompts=Ragged.from_lists(rows, dtype=np.int64))


class BosDoubled(Cause):
    """BOS stands twice before the prompt on one side, or not at all.

    What happens    The chat template writes a BOS and the tokenizer adds another one; or one side leaves it out.
    How it shows    The prompt is one id longer on one side; the gap is largest on the first response tokens.
    How to confirm  Print the first three prompt ids of both sides.
    How to fix      Encode rendered templates with add_special_tokens=False, and hand token ids, not text, from one
                    side to the other (vLLM: prompt_token_ids; SGLang: input_ids; TRL, verl, ms-swift: pass the prompt
                    ids on).
    References      Hugging Face, chat templating: add_special_tokens; Unsloth and llama.cpp notes on double BOS
    """

    rung = Rung.TOKENS
    cost = 2
    separate = "print the first three prompt ids of both sides"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """One BOS more, two more, or one fewer."""
        token = _bos(evidence.run)
        if token is None:
            return
        begins = all(len(row) > 1 and row[0] == token for row in evidence.run["prompt_ids"])
        best = evidence.best(Settings(ids=(Bos(token, more),)) for more in ((1, 2, -1) if begins else (1, 2)))
        (step,) = best.ids
        assert isinstance(step, Bos)
        yield Undone(
            settings=best,
            parameters={"id": token, "more": step.more},
            sentence=f"with {step.more:+d} BOS ({token}) before every prompt the reference gives what was recorded",
        )

    def reproduce(self, rng: Generator) -> Run:
        """The rollout reads one BOS more."""
        return toy_run(rng, rollout={"extra_bos": 1})


def _bos(run: Run) -> int | None:
    """The declared BOS, else the id that every prompt begins with."""
    declared = run.rollout.extra.get("bos_id", run.trainer.extra.get("bos_id"))
    if declared is not None:
        return int(declared)
    first = {int(row[0]) for row in run["prompt_ids"] if len(row)} if "prompt_ids" in run else set()
    return first.pop() if len(first) == 1 else None
