"""Values that depend on what else is in the batch."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import toy, toy_run
from samepolicy.causes.repeats import varies
from samepolicy.records.run import Run
from samepolicy.records.self_checks import self_check


class BatchVariance(Cause):
    """The trainer's log-probs depend on the batch's size or on how the model is split.

    What happens    Kernels choose their reduction by the shape of the batch, the micro-batch or the tensor-parallel
                    size, so that the same sequence gives other values in other company.
    How it shows    The trainer differs from itself at another batch shape, by as much as it differs from its
                    prediction. Mostly this is rounding and the verdict is "numerics"; it is named where it is more.
    How to confirm  Score a few sequences alone and in the batch; repeat with another tensor-parallel size.
    How to fix      Use batch-invariant kernels and the same micro-batch on both sides. vLLM: VLLM_BATCH_INVARIANT=1.
                    SGLang: --enable-deterministic-inference. verl: fixed ppo_micro_batch_size_per_gpu for old and new
                    log-probs, use_dynamic_bsz=False. TRL: the same per-device batch for scoring and training.
                    ms-swift: one --per_device_train_batch_size for both. Megatron: --deterministic-mode and the same
                    tensor-parallel size.
    References      Thinking Machines Lab, Defeating nondeterminism in LLM inference (2025); vLLM issue 27433; TRL
                    issue 6789 (the trainer's chunk of 1 against a chunk of 8)
    """

    rung = Rung.NUMERICS
    proof = "size"
    cost = 3
    separate = "score a few sequences alone and once more in the batch"
    reference: ClassVar[dict[str, str]] = {"dtype": "float32"}

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The trainer against itself at another batch shape, as `check` measures it."""
        if evidence.mode != "trainer":
            return
        takes = "the trainer's scores of some sequences one by one, which `samepolicy check` makes"
        found = varies(evidence, "trainer_alone", takes)
        if found is not None:
            yield Undone(
                side="trainer",
                sentence=(
                    f"scored one by one the trainer differs from its own batch by {found[0]:.2g} nats rms, and from "
                    f"its prediction by {found[1]:.2g}"
                ),
            )

    def reproduce(self, rng: Generator) -> Run:
        """In the batch the last six of 24 places go through a kernel in bfloat16, and float32 is declared."""
        run = toy_run(rng, rollout={"dtype": "float32"}, trainer={"dtype": "float32"})
        alone = run["trainer_logp"]
        coarse = toy(dtype="bfloat16").score(run["prompt_ids"], run["response_ids"]).logp
        place = np.concatenate([np.arange(n) for n in run.lengths])
        batched = alone.with_values(np.where(place >= 18, coarse.values, alone.values))
        return self_check(run.with_columns(trainer_logp=batched), "trainer_alone", first=batched, second=alone)
