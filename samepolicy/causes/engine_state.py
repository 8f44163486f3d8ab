"""An engine that changes without an update."""

from collections.abc import Iterator

from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import toy, toy_run
from samepolicy.causes.model import changed_toy
from samepolicy.causes.repeats import varies
from samepolicy.engines.change import Change
from samepolicy.records.run import Run
from samepolicy.records.self_checks import self_check


class EngineState(Cause):
    """The engine gives other log-probs after sleeping, waking or reloading, with no update between.

    What happens    Sleep and wake lose what is no parameter (buffers such as rotary caches or scales); weights are
                    loaded twice, and processed twice; a cache of old weights is kept; speculative decoding keeps an
                    old draft or misbehaves near the length cap.
    How it shows    A change with no update: at learning rate 0 the gap still appears, after the first wake only, or on
                    the last tokens before the cap.
    How to confirm  Score the same ids in the engine before and after one sleep and wake without an update.
    How to fix      vLLM: after wake_up(tags=["weights"]) from level 2 call collective_rpc("reload_weights"), or sleep
                    at level 1; a version that restores buffers (pull request 16889); reset_prefix_cache after every
                    load. SGLang: release_memory_occupation and resume with flush_cache. verl: free_cache_engine=False
                    for a test, a rollout version with restored buffers. TRL: a version that reloads weights on waking
                    (pull request 4571), or vllm_enable_sleep_mode=False. ms-swift: --sleep_level 1. Megatron: keep
                    inference buffers out of the offload. Turn speculative decoding off for rollouts that are trained
                    on.
    References      vLLM issues 16564, 29341 and 52479; NeMo RL issue 2631; TRL pull request 4571
    """

    rung = Rung.WEIGHTS
    proof = "size"
    cost = 3
    separate = "score the same ids in the engine before and after one sleep and wake without an update"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The engine before and after, where the run keeps that distance."""
        if evidence.mode != "rollout":
            return
        takes = (
            "the engine's scores of the same ids before and after one sleep and wake with no update between: "
            'sp.self_check(run, "rollout_woken", first=…, second=…)'
        )
        found = varies(evidence, "rollout_woken", takes)
        if found is not None:
            yield Undone(
                side="rollout",
                sentence=(
                    f"with no update between, the engine differs from itself by {found[0]:.2g} nats rms before and "
                    f"after waking, and from its prediction by {found[1]:.2g}"
                ),
            )

    def reproduce(self, rng: Generator) -> Run:
        """The rollout woke with a disturbed bias, as a buffer that was not restored."""
        run = toy_run(rng, rollout=changed_toy(Change(weights="stale=0.6", tensors=("bias",))))
        before = toy().score(run["prompt_ids"], run["response_ids"]).logp
        return self_check(run, "rollout_woken", first=before, second=run["rollout_logp"])
