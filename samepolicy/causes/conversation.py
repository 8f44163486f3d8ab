"""Conversations of the toy engine: turns that it sampled, and between them what a tool answered."""

import numpy as np
from numpy.random import Generator

from samepolicy.arrays import Ragged
from samepolicy.causes.making import PROMPTS, WORDS, prompts, toy
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

TURNS, TURN = 3, 10


def conversation(rng: Generator, *, turns: int = TURNS, tokens: int = TURN, separator: str = "\n") -> Run:
    """Let the toy answer several times, each time after a separator, a word and another separator.

    Args:
        rng: makes prompts, words and the sampler's seed.
        turns: how often it answers.
        tokens: longest answer, in tokens.
        separator: what stands between turns.

    Returns:
        A healthy run in bfloat16. Tokens that were not sampled have mask 0 and a rollout log-prob of 0, as engines
        that give no log-prob leave them.
    """
    one, context = toy(), prompts(rng)
    begun = [len(row) for row in context]
    mask: list[list[bool]] = [[] for _ in range(PROMPTS)]
    logp: list[list[float]] = [[] for _ in range(PROMPTS)]
    turn: list[list[int]] = [[] for _ in range(PROMPTS)]
    for number in range(turns):
        said = one.generate(context, Sampling(max_tokens=tokens, seed=int(rng.integers(2**31))))
        answers = [one.encode(f"{separator}{rng.choice(WORDS)}{separator}")[1:] for _ in range(PROMPTS)]
        answers = answers if number < turns - 1 else [[] for _ in answers]
        for i, answer in enumerate(answers):
            count = len(said["response_ids"][i])
            mask[i] += [True] * count + [False] * len(answer)
            logp[i] += [*said["rollout_logp"][i].tolist(), *([0.0] * len(answer))]
            turn[i] += [number] * (count + len(answer))
        rows = zip(context, said["response_ids"], answers, strict=True)
        context = Ragged.from_lists([np.concatenate([*row]) for row in rows], dtype=np.int64)
    prompt_ids = Ragged.from_lists([row[:n] for row, n in zip(context, begun, strict=True)], dtype=np.int64)
    response_ids = Ragged.from_lists([row[n:] for row, n in zip(context, begun, strict=True)], dtype=np.int64)
    sampling = Sampling(max_tokens=tokens)
    return Run.from_lists(
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        mask=mask,
        turn=turn,
        rollout_logp=Ragged.from_lists(logp, dtype=np.float32),
        trainer_logp=one.score(prompt_ids, response_ids, sampling=sampling).logp,
        rollout=one.describe(sampling),
        trainer=one.describe(sampling),
    )
