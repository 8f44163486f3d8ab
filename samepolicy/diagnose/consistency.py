"""Roll out, score, measure, diagnose: is this engine's policy the trainer's?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.diagnose.judge import explained, score_trainer
from samepolicy.diagnose.result import Diagnosis
from samepolicy.engines.base import Engine, Message, check_engine
from samepolicy.errors import EngineError, InputError
from samepolicy.floor import Progress, add_evidence
from samepolicy.floor.evidence import Owner
from samepolicy.records.run import Run
from samepolicy.records.self_checks import self_check
from samepolicy.records.side import Sampling
from samepolicy.semantics import noted

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int] | np.ndarray
"""A user message, a conversation, or token ids."""

ALONE = 4
"""Sequences that the trainer scores a second time, one by one."""


def check(
    *,
    rollout: Engine,
    trainer: Engine,
    prompts: Sequence[Prompt],
    sampling: Sampling = Sampling(),
    trainer_sampling: Sampling | None = None,
    samples: int = 1,
    progress: Progress = None,
    keep: Callable[[Run], Any] | None = None,
) -> Diagnosis:
    """Test two engines for being one policy, end to end.

    The rollout engine samples; the trainer scores the very same ids; each engine is compared with itself; the
    trainer's model in float32 and in each declared dtype tells how large rounding is; the gap is judged against that.

    Args:
        rollout: the engine that samples.
        trainer: the engine that scores.
        prompts: user messages, conversations or token ids.
        sampling: how tokens are drawn; neutral by default.
        trainer_sampling: what the trainer applies to its log-probs; the rollout's sampling by default.
        samples: responses per prompt.
        progress: called with what is done, how many parts are done, and how many there are.
        keep: called with the run as soon as it is sampled, so that a trainer that fails does not lose it.

    Returns:
        The diagnosis, with the whole run in it.

    Raises:
        InputError: an engine that is none, no prompts, or ids that one of the engines does not have.
        EngineError: an engine failed.

    >>> from samepolicy.engines.base import engine
    >>> toy = engine("toy:")
    >>> found = check(rollout=toy, trainer=toy, prompts=["one", "two"], sampling=Sampling(max_tokens=8))
    >>> found.verdict, found.exit_code
    ('same', 0)
    """
    check_engine("rollout", rollout)
    check_engine("trainer", trainer)
    tell = progress or _silent
    tell("rollout", 0, 1)
    ids = encode(rollout, prompts)
    run = rollout.generate(ids, sampling, samples=samples)
    run = replace(run, info={**run.info, **_rendered(trainer, prompts, ids)})
    tell("rollout", 1, 1)
    if keep is not None:
        keep(run)
    tell("trainer", 0, 1)
    run = noted(score_trainer(run, trainer, trainer_sampling or sampling), trainer=trainer)
    tell("trainer", 1, 1)
    run = _self_checked(run, rollout, trainer, tell)
    owner: Owner = "trainer" if trainer.capabilities.variants else "rollout"
    reference = trainer if owner == "trainer" else rollout
    if not reference.capabilities.variants:
        return explained(run, None, rollout=rollout)
    run = add_evidence(run, reference, owner=owner, progress=progress)
    return explained(run, reference, rollout=rollout, progress=progress)


def encode(engine: Engine, prompts: Sequence[Prompt]) -> Ragged:
    """Token ids of the prompts, int64, one row per prompt; ids are taken as they are.

    Raises:
        InputError: no prompt, or one that is neither text, nor a conversation, nor token ids.
    """
    if isinstance(prompts, str) or not len(prompts):
        what = "prompts is one text" if isinstance(prompts, str) else "There is no prompt to sample from"
        raise InputError(f"{what}; give a list of at least one prompt, better twelve.")
    rows = [_ids(engine, prompt, f"Prompt {i}") for i, prompt in enumerate(prompts)]
    return Ragged.from_lists(rows, dtype=np.int64)


def _ids(engine: Engine, prompt: Any, where: str) -> Sequence[int]:
    """The token ids of one prompt."""
    if isinstance(prompt, str):
        return engine.encode(prompt)
    parts = prompt.tolist() if isinstance(prompt, np.ndarray) else prompt
    if isinstance(parts, Sequence):
        if all(isinstance(part, int | np.integer) and not isinstance(part, bool) for part in parts):
            if any(abs(int(part)) >= 2**63 for part in parts):
                raise InputError(f"{where} holds an id of 2**63 or more; give the ids of this model.")
            return [int(part) for part in parts]
        if all(_is_turn(part) for part in parts):
            return engine.encode(parts)
    raise InputError(
        f"{where} is neither a text, nor a list of token ids, nor a conversation ({prompt!r:.60}); "
        'a conversation is a list of turns {"role": "user", "content": "…"}.'
    )


def _is_turn(part: Any) -> bool:
    """Whether it is one turn of a conversation."""
    return isinstance(part, Mapping) and all(isinstance(part.get(key), str) for key in ("role", "content"))


def _rendered(trainer: Engine, prompts: Sequence[Prompt], ids: Ragged) -> dict[str, Any]:
    """How many prompts the trainer would turn into other ids; nothing where it has no tokenizer, or ids were given."""
    different, example = 0, ""
    for i, prompt in enumerate(prompts):
        try:
            own = _ids(trainer, prompt, f"Prompt {i}")
        except EngineError:
            return {}
        if list(own) != ids[i].tolist():
            example = example or f"prompt {i}: {len(ids[i])} ids of the rollout, {len(own)} of the trainer"
            different += 1
    return {"prompts_rendered": {"prompts": len(prompts), "different": different, "example": example}}


def _self_checked(run: Run, rollout: Engine, trainer: Engine, tell: Callable[[str, int, int], Any]) -> Run:
    """Each engine against itself: the trainer at another batch shape, the rollout's decode against its own prefill."""
    tell("self-checks", 0, 2)
    run = self_check(run, "trainer_alone", **_alone(run, trainer))
    tell("self-checks", 1, 2)
    if rollout.capabilities.score:
        sampling = run.rollout.sampling or Sampling()
        prefill = rollout.score(run["prompt_ids"], run["response_ids"], sampling=sampling).logp
        run = self_check(run, "rollout_prefill", first=run["rollout_logp"], second=prefill)
    tell("self-checks", 2, 2)
    return run


def _alone(run: Run, trainer: Engine) -> dict[str, Ragged]:
    """The trainer's scores of some sequences in the batch, and one by one."""
    rows = np.linspace(0, len(run) - 1, min(ALONE, len(run)), dtype=np.int64)
    few, sampling = run.select(rows), run.trainer.sampling or Sampling()
    parts = [few.select([i]) for i in range(len(few))]
    alone = [trainer.score(part["prompt_ids"], part["response_ids"], sampling=sampling).logp for part in parts]
    return {"first": few["trainer_logp"], "second": Ragged.concat(alone)}


def _silent(what: str, done: int, total: int) -> None:
    """Progress that nobody asked for."""
