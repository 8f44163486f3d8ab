"""One side holds an older version of the weights."""

from collections.abc import Iterator
from typing import ClassVar

from numpy.random import Generator

from samepolicy.causes.base import Cause, Check, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.inside import old_weights, proved, same_weights
from samepolicy.causes.making import toy_run
from samepolicy.causes.settings import Settings
from samepolicy.engines.change import Change
from samepolicy.records.run import Run


class StaleWeights(Cause):
    """The engine samples from an older version of the weights.

    What happens    The update never reached the engine, or reached it later than the step counts say.
    How it shows    Clean at step 0, grows with the number of updates since the last one that arrived; some earlier
                    checkpoint gives a gap at the floor.
    How to confirm  Score the same ids with each kept checkpoint; compare a checksum of the weights on both sides.
    How to fix      Synchronise before sampling, and check that it happened: vLLM update_weights or collective_rpc on
                    every worker, then reset_prefix_cache; SGLang update_weights_from_tensor with flush_cache; verl the
                    sharding manager or checkpoint engine; TRL sync_weights and vllm_server_host; ms-swift
                    move_model_batches. Async pipelines: record policy_version and correct by lag.
    References      verl rollout correction, "stale" regime; AReaL and ROLL on bounded staleness
    """

    rung = Rung.WEIGHTS
    cost = 3
    separate = "compare a checksum of the weights on both sides right after an update"
    checkpoints: ClassVar[tuple[str, ...]] = ("stale=0.09", "stale=0.06", "stale=0.03")

    def check(self, evidence: Evidence) -> Check:
        """Proved where every tensor that changed is that of one checkpoint; excluded where all tensors are the same."""
        old = old_weights(evidence)
        if old is None or old.partial:
            return same_weights(evidence)
        sentence = f"all {len(old.names)} tensors that differ are, bit for bit, those of {old.checkpoint}"
        return proved(evidence, old, sentence)

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The checkpoint that predicts best."""
        best = evidence.best(Settings(change=Change(weights=folder)) for folder in evidence.checkpoints)
        assert best.change is not None
        where = best.change.weights
        age = len(evidence.checkpoints) - evidence.checkpoints.index(str(where))
        yield Undone(
            settings=best,
            parameters={"checkpoint": where, "versions_behind": age},
            sentence=f"the weights in {where} give what was recorded",
        )

    def reproduce(self, rng: Generator) -> Run:
        """The rollout holds the second of three kept checkpoints."""
        return toy_run(rng, rollout={"stale": 0.06})
