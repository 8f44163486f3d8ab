"""One side renders the prompt with another chat template."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from samepolicy.arrays import Ragged
from samepolicy.causes.base import POSSIBLE, Cause, Check, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import PROMPTS, TOKENS, WORDS, toy
from samepolicy.causes.recorded import prompts, speaks, undoing
from samepolicy.causes.reference import Reference
from samepolicy.causes.rendering import THOUGHT, Pieces, Rendered
from samepolicy.causes.settings import Ids, IdStep, Settings
from samepolicy.causes.unavailable import Unavailable
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

LONGEST = 24
"""Ids that are tried as a common beginning or end of all prompts, where no template tells them."""

BEST = 0.05
"""A part of the template is looked at further where another one takes this share of the error."""


@dataclass(frozen=True)
class Without(IdStep):
    """Prompts that lack so many ids behind their first one, and so many at their end."""

    order: ClassVar[int] = Rung.TEMPLATE.order
    head: int = 0
    tail: int = 0

    def apply(self, ids: Ids, reference: Reference) -> Ids:
        """The shorter prompts."""
        rows = [np.concatenate([row[:1], row[1 + self.head : len(row) - self.tail]]) for row in ids.prompts]
        return replace(ids, prompts=Ragged.from_lists(rows, dtype=np.int64))


class Template(Cause):
    """One side renders the prompt with another chat template.

    What happens    The template, the system prompt, the generation prompt or the thinking of earlier turns is another
                    one on one side, so the response follows another prompt than it was sampled after.
    How it shows    All responses from the first step on, about 0.8 nats per token; largest at the beginning of the
                    response, smaller further on.
    How to confirm  Print the decoded prompt ids of one response on both sides.
    How to fix      Render once and hand ids on. vLLM: prompt_token_ids, or the chat endpoint with the trainer's
                    --chat-template and chat_template_kwargs; SGLang: input_ids, --chat-template; verl:
                    data.apply_chat_template_kwargs, the same on both sides; TRL: chat_template_kwargs and one
                    processing_class; ms-swift: one --template, --system and --enable_thinking for rollout and rlhf;
                    Megatron: the ids that the rollout was given. Set add_generation_prompt=True for prompts.
    References      ms-swift issue 9168; TRL pull request 6515; cosmos-rl pull request 189; verl issue 6501
    """

    rung = Rung.TEMPLATE
    cost = 2
    separate = "print the decoded prompt ids of one response on both sides"

    def check(self, evidence: Evidence) -> Check:
        """Recorded prompt ids that differ by more than a BOS or a cut."""
        found = prompts(evidence.run) if speaks(evidence) else []
        if not found or all(_bos_or_cut(ours, theirs) for ours, theirs in found):
            return POSSIBLE
        ours, theirs = found[0]
        size = min(len(ours), len(theirs))
        differ = np.flatnonzero(ours[:size] != theirs[:size])
        at = int(differ[0]) if len(differ) else size
        sentence = (
            f"the trainer read other ids in {len(found)} of {len(evidence.run)} prompts; the first has {len(theirs)} "
            f"ids where the rollout was given {len(ours)}, and they part at id {at}"
        )
        return Check(
            status="proved",
            sentence=sentence,
            side="trainer",
            settings=undoing(evidence, prompts=True),
            parameters={"prompts": len(found)},
        )

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """Other renderings that the tokenizer's template has; without a template, common ends that are left out."""
        if prompts(evidence.run):
            return
        if "prompt_ids" not in evidence.run:
            raise Unavailable("the run's prompt_ids, to render them in another way")
        if Pieces.has(evidence.reference):
            yield from self._rendered(evidence)
        else:
            yield from self._shortened(evidence)

    def reproduce(self, rng: Generator) -> Run:
        """The trainer renders prompts without the generation prompt."""
        one, ending = toy(), "\nbot: "
        texts = [f"user: {' '.join(rng.choice(WORDS, rng.integers(2, 5)))}" for _ in range(PROMPTS)]
        full, bare = (Ragged.from_lists([one.encode(t + e) for t in texts], np.int64) for e in (ending, ""))
        sampling = Sampling(max_tokens=TOKENS, seed=int(rng.integers(2**31)))
        run = one.generate(full, sampling)
        logp = one.score(bare, run["response_ids"], sampling=sampling).logp
        return replace(run, trainer=one.describe(sampling)).with_columns(trainer_logp=logp)

    def _rendered(self, evidence: Evidence) -> Iterator[Undone]:
        """The best opening, the best closing, both, and prompts without earlier thinking."""
        pieces = Pieces.of(evidence.reference)
        steps: dict[str, Rendered] = {}
        for part, texts in (("opening", pieces.openings), ("closing", pieces.closings)):
            tried = {f"{part}: {name}": _part(part, text) for name, text in texts.items()}
            best = evidence.best(Settings(ids=(step,)) for step in tried.values())
            steps |= {name: step for name, step in tried.items() if best.ids == (step,)}
        if "no template" in pieces.openings:
            steps["no template at all"] = Rendered(pieces.openings["no template"], "")
        if any(THOUGHT.search(pieces.text.decode(row)) for row in evidence.run["prompt_ids"]):
            steps["earlier thinking removed"] = Rendered(thoughtless=True)
        for name, step in steps.items():
            yield _told(name, step)
        single = {n: s for n, s in steps.items() if s.opening is None or s.closing is None}
        helping = {n: s for n, s in single.items() if evidence.gain(Settings(ids=(s,))) > BEST}
        if len(helping) > 1:
            yield _told(" and ".join(helping), _together(list(helping.values())))

    def _shortened(self, evidence: Evidence) -> Iterator[Undone]:
        """A common end or beginning of all prompts left out."""
        head, tail = _common(evidence.run["prompt_ids"])
        for part, most in (("tail", tail), ("head", head)):
            if not most:
                continue
            best = evidence.best(Settings(ids=(Without(**{part: n}),)) for n in range(1, most + 1))
            (step,) = best.ids
            assert isinstance(step, Without)
            count, where = (step.tail, "at the end") if part == "tail" else (step.head, "behind the first")
            yield Undone(
                settings=best,
                parameters={"ids_left_out": count, "where": where},
                sentence=f"without {count} ids {where} of every prompt the reference gives what was recorded",
            )


def _part(part: str, text: str) -> Rendered:
    """Another opening or another closing."""
    return Rendered(opening=text) if part == "opening" else Rendered(closing=text)


def _together(steps: list[Rendered]) -> Rendered:
    """Several renderings at once."""
    opening = next((step.opening for step in steps if step.opening is not None), None)
    closing = next((step.closing for step in steps if step.closing is not None), None)
    return Rendered(opening, closing, any(step.thoughtless for step in steps))


def _told(name: str, step: Rendered) -> Undone:
    """One rendering."""
    sentence = f"with prompts rendered otherwise ({name}) the reference gives what was recorded"
    return Undone(settings=Settings(ids=(step,)), parameters={"rendered": name}, sentence=sentence)


def _common(rows: Ragged) -> tuple[int, int]:
    """Ids that all prompts share behind their first one, and at their end; 0 where there is one prompt only."""
    distinct = list({row.tobytes(): row for row in rows}.values())
    if len(distinct) < 2:
        return 0, 0
    least = min(len(row) for row in distinct)
    heads, tails = np.array([row[:least] for row in distinct]), np.array([row[::-1][:least] for row in distinct])
    counts = [int(np.cumprod((part == part[0]).all(axis=0)).sum()) for part in (heads, tails)]
    head, tail = min(counts[0] - 1, least - 2, LONGEST), min(counts[1], least - 1, LONGEST)
    return max(head, 0), max(tail, 0)


def _bos_or_cut(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether one prompt is the other with a BOS more, or its beginning or end."""
    short, long = sorted((ours, theirs), key=len)
    size = len(short)
    return size > 0 and (np.array_equal(long[len(long) - size :], short) or np.array_equal(long[:size], short))
