"""What an engine has sampled, put together as a Run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Engine
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling


@dataclass(frozen=True, kw_only=True)
class Response:
    """One sampled response.

    Attributes:
        ids: the sampled ids, the end token included.
        logp: their log-probs under the declared sampling, nats.
        finish: "stop" after an end token, "length" otherwise.
        text: the ids as text; None where the engine has no tokenizer.
    """

    ids: Sequence[int]
    logp: Sequence[float]
    finish: Literal["stop", "length"]
    text: str | None = None


def as_run(one: Engine, prompts: Ragged, responses: Sequence[Response], *, sampling: Sampling, samples: int) -> Run:
    """Put sampled responses into a Run with every column that an engine fills.

    Args:
        one: the engine that sampled.
        prompts: prompt ids, one row per prompt.
        responses: `samples` responses to the first prompt, then to the second, and so on.
        sampling: how they were drawn.
        samples: responses per prompt.

    Returns:
        A run with prompt_ids, response_ids, rollout_logp, mask, finish_reason, group (the prompt's index), sample
        and text (where there is a tokenizer), and this engine as its rollout side.
    """
    group = np.repeat(np.arange(len(prompts)), samples)
    texts = [r.text for r in responses]
    ids = Ragged.from_lists([r.ids for r in responses], dtype=np.int64)
    return Run.from_lists(
        prompt_ids=prompts.take(group),
        response_ids=ids,
        rollout_logp=Ragged.from_lists([r.logp for r in responses], dtype=np.float32),
        mask=ids.with_values(np.ones(len(ids.values), dtype=bool)),
        rollout=one.describe(sampling),
        group=group,
        sample=np.tile(np.arange(samples), len(prompts)),
        finish_reason=np.array([r.finish for r in responses], dtype=object),
        text=None if any(t is None for t in texts) else np.array(texts, dtype=object),
    )
