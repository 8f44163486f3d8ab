"""An engine that decodes otherwise than it prefills."""

from collections.abc import Iterator

from numpy.random import Generator

from samepolicy.causes.base import Cause, Check, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.inside import parts_at
from samepolicy.causes.making import toy, toy_run
from samepolicy.causes.repeats import varies
from samepolicy.records.run import Run
from samepolicy.records.self_checks import self_check


class Kernel(Cause):
    """The engine's decode gives other log-probs than its own prefill.

    What happens    Another kernel runs while decoding than while scoring: attention backend, cascade attention over a
                    shared prefix, chunked prefill, a compiled or captured graph, a cache in another format.
    How it shows    At step 0, and without any update. By length, by shared prefix, or on one device only; the engine
                    scoring its own tokens in one prefill disagrees with what it recorded.
    How to confirm  Let the engine score its own ids as a prompt; turn one path off after the other.
    How to fix      Turn off the path that is wrong. vLLM: disable_cascade_attn=True, enforce_eager=True,
                    enable_chunked_prefill=False, enable_prefix_caching=False, another VLLM_ATTENTION_BACKEND. SGLang:
                    --attention-backend, --disable-cuda-graph, --disable-radix-cache. verl:
                    rollout.engine_kwargs.vllm.disable_cascade_attn=True. TRL: the same vLLM options at
                    trl vllm-serve. ms-swift: --vllm_disable_cascade_attn true. Megatron: --attention-backend.
                    `samepolicy layers` finds the first layer that differs.
    References      vLLM issues 17652 and 22103 (cascade attention), pull request 15243; verl FAQ on high actor gradient
                    norms; ms-swift issue 5330
    """

    rung = Rung.NUMERICS
    proof = "size"
    cost = 3
    separate = "let the engine score its own ids in one prefill, with one path turned off at a time"

    def check(self, evidence: Evidence) -> Check:
        """Proved where the engines part at a step that has no weights."""
        return parts_at(evidence, "attention", "middle", "residual")

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The engine's decode against its own prefill, as `check` measures it."""
        if evidence.mode != "rollout":
            return
        takes = "the engine's own prefill of what it sampled, which `samepolicy check` makes"
        found = varies(evidence, "rollout_prefill", takes)
        if found is not None:
            yield Undone(
                side="rollout",
                sentence=(
                    f"what the engine recorded while decoding differs from its own prefill of the same ids by "
                    f"{found[0]:.2g} nats rms, and from its prediction by {found[1]:.2g}"
                ),
            )

    def reproduce(self, rng: Generator) -> Run:
        """Decoding computes with disturbed weights, as from a broken cache; prefill with the right ones."""
        run = toy_run(rng, rollout={"stale": 0.05})
        prefill = toy().score(run["prompt_ids"], run["response_ids"]).logp
        return self_check(run, "rollout_prefill", first=run["rollout_logp"], second=prefill)
