"""Raw log-probs where processed ones are declared, or the reverse."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import TOKENS, toy_run
from samepolicy.causes.settings import Settings
from samepolicy.records.declared import effective
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling


class LogprobMode(Cause):
    """Log-probs from before the sampler's processing are taken for ones from after it, or the reverse.

    What happens    The engine records raw log-probs (the model's own) and the trainer applies temperature, kept set and
                    penalties to its logits; or the engine records processed ones and the trainer does not.
    How it shows    As a temperature, a kept set and a penalty at once; with only one of them set it is that cause by
                    another name, and that one is named.
    How to confirm  Record one batch in each mode with the same ids, and see which one the trainer gives.
    How to fix      Take the distribution that was sampled from on both sides. vLLM: logprobs_mode="processed_logprobs"
                    (raw_logprobs is the default). SGLang: return log-probs after temperature scaling, and check which
                    ones the version returns. verl: rollout.logprobs_mode=processed_logprobs. TRL: a version that sets
                    the processed mode, same temperature in GRPOConfig. ms-swift: --vllm_engine_kwargs
                    '{"logprobs_mode": "processed_logprobs"}'. Megatron: scale logits in the loss as the sampler does.
    References      vLLM pull request 21398 (logprobs_mode); TRL issue 4159; open-instruct pull request 1678
    """

    rung = Rung.SAMPLING
    cost = 2  # only the head runs, but a single parameter that explains all is the better name and comes first
    equivalent = frozenset({"temperature", "truncated_support", "penalty"})
    separate = "record one batch in each mode with the same ids, and see which one the trainer gives"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The other mode than the declared one."""
        own = getattr(evidence.run, evidence.side).sampling or evidence.run.rollout.sampling
        if own is None:
            return
        processed = effective(replace(own, logprobs="processed")).changed
        if not processed:
            return
        raw: dict[str, Any] = {name: getattr(Sampling(), name) for name in processed}
        mode = "processed" if own.logprobs == "raw" else "raw"
        yield Undone(
            settings=Settings(**(processed if mode == "processed" else raw)),
            parameters={"logprobs": mode, "declared": own.logprobs},
            sentence=f"the recorded values are {mode} log-probs",
        )

    def reproduce(self, rng: Generator) -> Run:
        """Sampled at temperature 0.7 with repetition penalty 1.2; raw log-probs are recorded, processed declared."""
        raw = Sampling(temperature=0.7, repetition_penalty=1.2, max_tokens=TOKENS, logprobs="raw")
        processed = replace(raw, logprobs="processed")
        return toy_run(rng, sampling=raw, trainer_sampling=processed, declared=processed)
