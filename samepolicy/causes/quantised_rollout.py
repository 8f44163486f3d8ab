"""Weights in a quantised format on one side."""

from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import TOKENS, toy_run
from samepolicy.causes.model import changeable, changed_toy
from samepolicy.causes.settings import Settings
from samepolicy.engines.change import Change
from samepolicy.engines.weight_formats import FORMATS
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling


class QuantisedRollout(Cause):
    """One side runs quantised weights: int8, int6, int4 or fp8.

    What happens    The engine loads, or quantises on the fly, weights in eight or four bits, and the trainer scores
                    with the full ones.
    How it shows    Symmetric around 0 and flat over positions and steps; its level tells the format (int4 several times
                    fp8, fp8 above int8). Formats that share a scale over more weights err more: a group, an output
                    channel, a tensor.
    How to confirm  Run the engine once without quantisation, or score with fake-quantised weights.
    How to fix      Correct for it, or take it away. vLLM: quantization=None and kv_cache_dtype="auto"; SGLang: no
                    --quantization, --kv-cache-dtype auto; verl: rollout.quantization=null, or keep fp8 with token-level
                    truncated importance sampling and train in fp8 as well. TRL: load the vLLM model in the trainer's
                    dtype, vllm_importance_sampling_correction. ms-swift: --vllm_quantization none. Megatron: fp8
                    training with the same recipe and scales. Keep router and head in higher precision on both sides.
    References      verl pull requests 4415 and 7519 (fp8 rollouts, with truncated importance sampling); Yao et al.,
                    Your efficient RL framework secretly brings you off-policy training (2025)
    """

    rung = Rung.WEIGHTS
    cost = 3
    separate = "run the engine once without quantisation"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The format whose rounding of the weights predicts best."""
        changeable(evidence, "an engine whose weights can be quantised (an hf engine as the trainer)")
        best = evidence.best(Settings(change=Change(quantise=form)) for form in FORMATS)
        assert best.change is not None
        fine = evidence.comparable & np.isfinite(evidence.residual)
        yield Undone(
            settings=best,
            parameters={"format": best.change.quantise},
            sentence=(
                f"with weights rounded as {best.change.quantise} the reference gives what was recorded; without, the "
                f"error is {np.sqrt(np.mean(evidence.residual[fine] ** 2)):.2g} nats rms, mean "
                f"{np.mean(evidence.residual[fine]):+.1g}"
            ),
        )

    def reproduce(self, rng: Generator) -> Run:
        """The rollout's layers are rounded to int4."""
        sampling = Sampling(max_tokens=TOKENS)
        return toy_run(rng, rollout=changed_toy(Change(quantise="int4")), sampling=sampling)
