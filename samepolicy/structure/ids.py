"""What token ids show: were the same ids scored, are they ids of this model, do they begin and end as they should?"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.records.declared import scored_here, trainer_itself
from samepolicy.records.run import Run
from samepolicy.structure.fact import Fact, Test, counted


def check(run: Run) -> Iterator[Fact]:
    """The facts of the tokens rung that need ids only."""
    yield _same_responses(run)
    yield from _tokenizers(run)
    yield from _vocabulary(run)
    yield from _first_token(run)
    yield from _last_token(run)


def same_prompts(run: Run) -> bool | None:
    """Whether both sides were given the same prompt ids; None where that is not known."""
    if "trainer_prompt_ids" in run and "prompt_ids" in run:
        return not _differing(ragged(run, "prompt_ids"), ragged(run, "trainer_prompt_ids"))
    return True if "trainer_logp" in run and scored_here(run, "trainer_logp") else None


def ragged(run: Run, name: str) -> Ragged:
    """A column that is known to hold tokens."""
    column = run[name]
    assert isinstance(column, Ragged), name
    return column


def declared(run: Run, key: str) -> Any:
    """What either side declares under `extra[key]`, the rollout first; None where neither does."""
    return run.rollout.extra.get(key, run.trainer.extra.get(key))


def by_text(run: Run) -> dict[str, Any]:
    """What is known of ids that were made again from a server's text; empty where the rollout's ids are its own."""
    found = run.rollout.extra.get("by_text")
    return found if isinstance(found, dict) else {}


def end_ids(run: Run) -> set[int]:
    """The end ids that either side declares; empty where neither does."""
    ends = declared(run, "eos_ids")
    return set() if ends is None else {int(i) for i in np.atleast_1d(ends)}


def _same_responses(run: Run) -> Fact:
    """The trainer must score the very ids that were sampled."""
    it, text = Test("same ids", "tokens"), by_text(run)
    if "response_ids" in run and "trainer_response_ids" in run:
        sampled, scored = ragged(run, "response_ids"), ragged(run, "trainer_response_ids")
        bad = _differing(sampled, scored)
        if bad:
            first = bad[0]
            why = (
                f"the trainer scored other ids than were sampled in {len(bad)} of {len(run)} responses; the first is "
                f"response {first}, which has {sampled.lengths[first]} sampled and {scored.lengths[first]} scored ids"
            )
            fix = "score the ids that were sampled, not text that was encoded again"
            return it.broken(why, fix=fix)
        if text:
            return _from_text(it, text)
        return it.passed(f"both sides hold the same {len(sampled.values)} ids")
    if text:
        return _from_text(it, text)
    if "trainer_logp" in run and scored_here(run, "trainer_logp"):
        return it.passed("the trainer was given the very ids that were sampled")
    why = "the ids that the trainer scored are not recorded; record trainer_response_ids, or score the run here"
    return it.unchecked(why)


def _from_text(it: Test, text: dict[str, Any]) -> Fact:
    """A server that gives text hides its ids: nothing shows that those made of the text again are the same."""
    tokens, responses = text.get("tokens"), counted(int(text.get("responses", 0)), "response")
    unsure = {
        "guessed": f"of {tokens} ids could be others",
        "cut": f"of {responses} cut before a token whose id is not known",
        "other": f"of {responses} with ids of another text than the server's",
        "misread": f"of {responses} to a prompt that the server read as other ids",
    }
    found = "".join(f"; {text[name]} {why}" for name, why in unsure.items() if text.get(name))
    sent = "token ids were sent, but only text came back" if text.get("sent") == "ids" else "only text was sent"
    why = f"{sent}, and the ids were made again from it, so a token-id fault cannot be excluded{found}"
    fix = "use a server that takes and gives token ids"
    failed = text.get("other") or text.get("misread")
    return it.failed(why, fix=fix) if failed else it.unchecked(f"{why}; {fix}")


def _tokenizers(run: Run) -> Iterator[Fact]:
    """Two declared tokenizers should be one."""
    ours, theirs = run.rollout.tokenizer, trainer_itself(run).tokenizer
    if ours and theirs and ours != theirs:
        why = f"the declared tokenizers differ: rollout {ours}, trainer {theirs}"
        yield Test("tokenizer", "tokens").failed(why)


def _vocabulary(run: Run) -> Iterator[Fact]:
    """Every id must be one that the model has."""
    size = declared(run, "vocab_size")
    names = [n for n in ("prompt_ids", "response_ids", "trainer_prompt_ids", "trainer_response_ids") if n in run]
    if size is None or not names:
        return
    values = np.concatenate([ragged(run, n).values for n in names])
    outside = int(((values < 0) | (values >= size)).sum())
    why = f"{outside or 'none'} of {len(values)} ids lie outside the vocabulary of {size}"
    fix = "score with the model and tokenizer that made these ids"
    it = Test("vocabulary", "tokens")
    yield it.broken(why, fix=fix) if outside else it.passed(why)


def _first_token(run: Run) -> Iterator[Fact]:
    """A prompt begins with one BOS, not with two."""
    bos = declared(run, "bos_id")
    for side, name in (("rollout", "prompt_ids"), ("trainer", "trainer_prompt_ids")):
        if bos is None or name not in run:
            continue
        twice = sum(len(p) > 1 and p[0] == bos and p[1] == bos for p in ragged(run, name))
        if twice:
            why = f"{twice} of {len(run)} prompts of the {side} begin with BOS ({bos}) twice"
            yield Test("bos twice", "tokens").failed(why)


def _last_token(run: Run) -> Iterator[Fact]:
    """A response that stopped should end in an end id; a stop string can explain one that does not."""
    ends = end_ids(run)
    if not ends or "finish_reason" not in run or "response_ids" not in run:
        return
    responses, reasons = ragged(run, "response_ids"), run["finish_reason"]
    stopped = [i for i in range(len(run)) if reasons[i] == "stop" and len(responses[i])]
    without = [i for i in stopped if int(responses[i][-1]) not in ends]
    if without:
        why = (
            f"{len(without)} of {len(stopped)} stopped responses do not end in an end id: a stop string, or an end "
            "token that was cut; compare the lengths on both sides"
        )
        yield Test("last token", "tokens").unchecked(why)
    elif stopped:
        why = f"all {len(stopped)} stopped responses end in an end id"
        yield Test("last token", "tokens").passed(why)


def _differing(ours: Ragged, theirs: Ragged) -> list[int]:
    """Indices of the sequences whose ids differ."""
    if len(ours) != len(theirs):
        return list(range(max(len(ours), len(theirs))))
    return [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if not np.array_equal(a, b)]
