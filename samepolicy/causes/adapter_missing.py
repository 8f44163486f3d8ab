"""An adapter that one side does not apply."""

from collections.abc import Iterator
from typing import Any, ClassVar

from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import toy_run
from samepolicy.causes.model import changeable, changed_toy
from samepolicy.causes.settings import Settings
from samepolicy.causes.unavailable import Unavailable
from samepolicy.engines.change import Change
from samepolicy.records.run import Run


class AdapterMissing(Cause):
    """The LoRA adapter never reached one side, which runs the base model.

    What happens    Training updates an adapter; the synchronisation sends only base weights, or the request names no
                    adapter, so that the engine goes on sampling from the base model.
    How it shows    The rollout equals the base model at all steps. The gap grows with learning rate times steps, not
                    with the age of the last synchronisation; it looks like staleness and no synchronisation helps.
    How to confirm  Score with the adapter off: the rollout's log-probs come out. List the engine's adapters.
    How to fix      Send the adapter, or merged weights. vLLM: enable_lora=True and a LoRARequest in every generate call
                    (list_loras() must not be empty), reset_prefix_cache after each load. SGLang: load_lora_adapter and
                    lora_path in every request. verl: merge before the sync, or
                    actor_rollout_ref.rollout.load_format=safetensors with layered_summon. TRL: merged sync, or adapter
                    sync with --enable-lora. ms-swift: --vllm_enable_lora true. Megatron: export merged weights
                    (Bridge) before each update.
    References      verl issue 7495 (weight sync never delivers the adapter); TRL pull requests 6007 and 7017;
                    ms-swift pull request 5773
    """

    rung = Rung.WEIGHTS
    cost = 3
    equivalent = frozenset({"stale_weights"})
    separate = "compare after two updates: an old checkpoint then differs from the base model"
    reference: ClassVar[dict[str, Any]] = {"dtype": "bfloat16", "adapter": 0.2}

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The model without its adapter."""
        if not changeable(evidence, "the trainer's model with its adapter").adapter:
            raise Unavailable("the trainer's adapter: engine('hf:PATH', adapter=FOLDER), or --trainer-adapter")
        yield Undone(
            settings=Settings(change=Change(adapter=False)),
            parameters={"adapter": "off"},
            sentence="without the adapter the reference gives what was recorded",
        )

    def reproduce(self, rng: Generator) -> Run:
        """The trainer has an adapter, the rollout does not."""
        return toy_run(rng, trainer=changed_toy(adapter=0.2))
