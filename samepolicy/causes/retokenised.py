"""Text was decoded and encoded again on its way to the trainer."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from samepolicy.arrays import Ragged
from samepolicy.causes.base import POSSIBLE, Cause, Check, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import toy, toy_run
from samepolicy.causes.recorded import by_position, edits, replaced, undoing
from samepolicy.causes.reference import Reference
from samepolicy.causes.settings import Ids, IdStep, Settings
from samepolicy.causes.text import WAYS, How, Text
from samepolicy.causes.unavailable import Unavailable
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

SHORT = 16
"""An edit of two encodings of one text is at most this long, in ids."""

COMMON = 0.5
"""Two encodings of one text share at least this much of it."""


@dataclass(frozen=True)
class Encoded(IdStep):
    """Every response decoded and encoded again.

    Attributes:
        how: in which way.
        paired: the trainer's values were paired with the same text; otherwise they stand by position.
    """

    order: ClassVar[int] = Rung.TOKENS.order
    how: How
    paired: bool = True

    def apply(self, ids: Ids, reference: Reference) -> Ids:
        """The ids as they come back from text."""
        text = Text(reference)
        both = [text.again(p, r, self.how) for p, r in zip(ids.prompts, ids.responses, strict=True)]
        prompts, responses = (Ragged.from_lists(part, dtype=np.int64) for part in zip(*both, strict=True))
        found = replaced(ids, responses) if self.paired else by_position(ids, responses)
        return replace(found, prompts=prompts)


class Retokenised(Cause):
    """The trainer scores other ids of the same text.

    What happens    The engine's ids are decoded to text, and the text is encoded again: many sequences of ids decode
                    alike, and the tokenizer gives back another one than was sampled.
    How it shows    No gap up to the first id that differs, a large one from there on; lengths may differ by a few.
    How to confirm  Compare encode(decode(ids)) with ids; the first difference is where the gap begins.
    How to fix      Keep the sampled ids, from engine to loss. vLLM: read token_ids, over HTTP return_token_ids; SGLang:
                    /generate with input_ids and output_ids; verl: an agent loop that passes response_ids on; TRL: a
                    rollout_func that returns prompt_ids and completion_ids; ms-swift: response_token_ids; Megatron:
                    hand ids, not text, to the data loader.
    References      vLLM blog, "No More Retokenization Drift" (2025); SGLang pull request 26555; rLLM pull request 272;
                    ms-swift pull request 10012
    """

    rung = Rung.TOKENS
    cost = 2
    separate = "record the ids that the trainer scores (trainer_response_ids) and compare them with the sampled ones"

    def check(self, evidence: Evidence) -> Check:
        """Recorded ids that differ in places, by more than one id that is always the same and by more than the end."""
        inside = [e for e in edits(evidence) if not e.end]
        if not inside or not _one_text(evidence.run) or max(len(e.ours) + len(e.theirs) for e in inside) > SHORT:
            return POSSIBLE
        if len({(e.ours, e.theirs) for e in inside}) == 1 and min(len(inside[0].ours), len(inside[0].theirs)) == 0:
            return POSSIBLE
        rows, one = len({e.row for e in inside}), inside[0]
        sentence = (
            f"the trainer scored other ids in {len(inside)} places of {rows} responses, such as {list(one.theirs)} for "
            f"{list(one.ours)} at token {one.at} of response {one.row}, and the same ids around them"
        )
        return Check(
            status="proved",
            sentence=sentence,
            side="trainer",
            settings=undoing(evidence, responses=True),
            parameters={"places": len(inside), "responses": rows},
        )

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The ways in which this tokenizer gives other ids back."""
        if "trainer_response_ids" in evidence.run:
            return
        for how, rows in _changing(evidence.reference).items():
            best = evidence.best(Settings(ids=(Encoded(how, paired),)) for paired in (True, False))
            (step,) = best.ids
            assert isinstance(step, Encoded)
            yield Undone(
                settings=best,
                parameters={"encoded": how, "responses": rows, "paired_by": "text" if step.paired else "position"},
                sentence=f"decoded and encoded again ({how}), {rows} of {len(evidence.run)} responses have other ids, "
                "and with those the reference gives what was recorded",
            )

    def reproduce(self, rng: Generator) -> Run:
        """The trainer reads the responses as text, in which a BOS is three characters."""
        run = toy_run(rng, sampling=Sampling(temperature=2.0, max_tokens=64))
        one, sampling = toy(), run.rollout.sampling or Sampling()
        again = [one.encode(one.decode(row))[1:] for row in run["response_ids"]]
        ids = Ragged.from_lists(again, dtype=np.int64)
        logp = one.score(run["prompt_ids"], ids, sampling=sampling).logp
        return run.without("trainer_logp").with_columns(trainer_response_ids=ids, trainer_logp=logp)


def _changing(reference: Reference) -> dict[How, int]:
    """The ways that change any response, and how many; of ways that give the same ids the first."""
    run, text = reference.run, Text(reference)
    if "prompt_ids" not in run or "response_ids" not in run:
        raise Unavailable("the run's prompt_ids and response_ids, to encode again")
    found: dict[bytes, tuple[How, int]] = {}
    for how in WAYS:
        pairs = list(zip(run["prompt_ids"], run["response_ids"], strict=True))
        again = [text.again(p, r, how) for p, r in pairs]
        rows = sum(
            not (np.array_equal(p, p2) and np.array_equal(r, r2)) for (p, r), (p2, r2) in zip(pairs, again, strict=True)
        )
        if rows:
            key = b"|".join(p.tobytes() + b":" + r.tobytes() for p, r in again)
            found.setdefault(key, (how, rows))
    return dict(found.values())


def _one_text(run: Run) -> bool:
    """Whether the two sides' ids have enough in common to be of one text."""
    from samepolicy.records.align import align_all

    left, _, _ = align_all(run["response_ids"], run["trainer_response_ids"])
    return len(left) >= COMMON * len(run["response_ids"].values)
