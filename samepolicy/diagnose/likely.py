"""The most likely tokens of both sides beside a run's own, for a comparison of whole distributions."""

from dataclasses import replace

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Engine
from samepolicy.errors import EngineError
from samepolicy.floor import ids_to_score
from samepolicy.records.run import Run


def add_likely(run: Run, *, rollout: Engine, trainer: Engine, top: int) -> Run:
    """Score each side's `top` most likely tokens at every token of the run, under the model's own distribution.

    Args:
        run: a run with ids.
        rollout: the engine that sampled; its prefill is what is asked.
        trainer: the engine that scores.
        top: how many; 1 or more.

    Returns:
        The run with `rollout_top_ids`, `rollout_top_logp`, `trainer_top_ids` and `trainer_top_logp`.

    Raises:
        EngineError: an engine cannot list its most likely tokens.
    """
    prompts, responses = ids_to_score(run)
    columns: dict[str, Ragged] = {}
    for name, engine in (("rollout", rollout), ("trainer", trainer)):
        if not engine.capabilities.top:
            raise EngineError(f"The {name}'s engine cannot list its most likely tokens; leave top out.")
        scores = engine.score(prompts, responses, top=top)
        assert scores.top_ids is not None
        assert scores.top_logp is not None
        columns |= {f"{name}_top_ids": scores.top_ids, f"{name}_top_logp": scores.top_logp}
    return replace(run.with_columns(**columns), info={**run.info, "top": {"count": top, "logprobs": "raw"}})
