"""One side does not attend to the prompt, or to what tools answered."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from samepolicy.arrays import Ragged, offsets_of
from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import toy_run
from samepolicy.causes.reference import Reference
from samepolicy.causes.settings import Ids, IdStep, Settings
from samepolicy.causes.unavailable import Unavailable
from samepolicy.engines.layout import Layout
from samepolicy.records.run import Run

KEPT = (0, 1, 2, 4)
"""Last ids of a hidden prompt that are tried as seen."""


@dataclass(frozen=True)
class Alone(IdStep):
    """The response without its prompt but for the last ids, and positions that begin there."""

    order: ClassVar[int] = Rung.MASK.order
    kept: int

    def apply(self, ids: Ids, reference: Reference) -> Ids:
        """The last ids of the prompts."""
        rows = [row[len(row) - min(self.kept, len(row)) :] for row in ids.prompts]
        return replace(ids, prompts=Ragged.from_lists(rows, dtype=np.int64))


@dataclass(frozen=True)
class SampledOnly(IdStep):
    """Responses without the tokens that the mask leaves out; what follows such a gap at once cannot be said."""

    order: ClassVar[int] = Rung.MASK.order

    def apply(self, ids: Ids, reference: Reference) -> Ids:
        """The tokens under the mask, one after another."""
        mask = np.concatenate([np.zeros(0, dtype=bool), *(reference.run.mask[row] for row in ids.rows)])
        there = ids.place >= 0
        kept = np.ones(len(ids.responses.values), dtype=bool)
        kept[ids.place[there]] = mask[there]
        after = kept & ~np.concatenate([[True], kept[:-1]])
        at = np.where(kept & ~after, np.cumsum(kept) - 1, -1)
        lengths = np.add.reduceat(np.append(kept, False).astype(np.int64), ids.responses.offsets[:-1])
        lengths = np.where(ids.responses.lengths > 0, lengths, 0)
        responses = Ragged(ids.responses.values[kept], offsets_of(lengths))
        return replace(ids, responses=responses, place=np.where(there, at[ids.place], -1))


class ContextHidden(Cause):
    """One side scores the response without seeing the prompt or the tools' answers.

    What happens    The loss mask (response mask) is passed as the attention mask, or only the response is fed to the
                    model, so what was not sampled is not attended to.
    How it shows    The first tokens of a response are worst, later ones recover in part; in multi-turn runs the tokens
                    after a tool's answer are off again.
    How to confirm  Change the prompt and score again: the trainer's log-probs stay as they are.
    How to fix      Attend to everything but padding, and keep the loss mask for the loss. verl: attention_mask covers
                    prompt and response, response_mask only the loss; TRL: prompt_mask and completion_mask for
                    attention, tool_mask for the loss; ms-swift: loss_scale for the loss; Megatron: loss_mask, not
                    attention_mask. vLLM, SGLang: give the whole conversation as the prompt of every turn.
    References      TRL issue 4974; RLinf pull request 318
    """

    rung = Rung.MASK
    cost = 2
    separate = "change the prompt and score again: log-probs that stay as they are never saw it"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The prompt hidden, the response alone, and the answers of tools left out."""
        if "prompt_ids" not in evidence.run:
            raise Unavailable("the run's prompt_ids, to hide them")
        hidden = evidence.best(Settings(layout=Layout(hide_prompt=True, keep_last=k)) for k in KEPT)
        assert hidden.layout is not None
        kept = hidden.layout.keep_last
        yield _undone(hidden, f"the prompt, but for its last {kept} ids" if kept else "the prompt", "its place")
        alone = evidence.best(Settings(ids=(Alone(k),)) for k in KEPT)
        (step,) = alone.ids
        assert isinstance(step, Alone)
        kept = step.kept
        yield _undone(alone, f"the prompt, but for its last {kept} ids" if kept else "the prompt", "left out")
        if _gaps(evidence.run):
            yield _undone(Settings(ids=(SampledOnly(),)), "tokens outside the mask", "left out")
            both = evidence.best(Settings(ids=(Alone(k), SampledOnly())) for k in KEPT)
            yield _undone(both, "the prompt and tokens outside the mask", "left out")

    def reproduce(self, rng: Generator) -> Run:
        """The trainer's response tokens do not attend to the prompt."""
        return toy_run(rng, trainer={"hide_prompt": True})


def _undone(settings: Settings, what: str, how: str) -> Undone:
    """One way of hiding."""
    sentence = f"where the response does not see {what}, the reference gives what was recorded"
    return Undone(settings=settings, parameters={"hidden": what, "positions": how}, sentence=sentence)


def _gaps(run: Run) -> bool:
    """Whether any response holds tokens outside the mask before tokens under it."""
    return any(not row[: np.flatnonzero(row)[-1]].all() for row in run.mask if row.any())
