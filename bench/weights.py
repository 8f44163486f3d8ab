"""What `WeightSync` costs per sync, and what a whole comparison of two models costs, on SmolLM2.

The step it is held against is a real one: forward, backward and AdamW on 8 sequences of 256 tokens, in float32. Both
sides are torch modules in this process, the engine's in bfloat16. Run: python bench/weights.py
"""

import os
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers

from _publish import interleaved, publish
from samepolicy.weights import WeightSync, compare
from tests.serving import smollm2_folder

ROWS, TIME, ROUNDS = 8, 256, 5


def main() -> None:
    """Run and publish."""
    folder = smollm2_folder()
    trainer = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    engine = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-5)
    ids = torch.randint(3, 49152, (ROWS, TIME))

    def step() -> None:
        optimizer.zero_grad()
        trainer(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        engine.load_state_dict(trainer.state_dict())

    plain, full = WeightSync(trainer, engine, norms=False), WeightSync(trainer, engine)
    calls = (step, lambda: plain(updated=False), lambda: full(updated=False))
    seconds = [median(found) for found in interleaved(ROUNDS, *calls)]
    whole = timed(lambda: compare(trainer, engine))
    names = ("training step and sync", "WeightSync(norms=False)", "WeightSync", "compare, every value")
    rows: list[dict[str, Any]] = [
        {"call": name, "median ms": f"{1000 * spent:.1f}", "of a step": f"{spent / seconds[0]:.2%}"}
        for name, spent in zip(names, (*seconds, whole), strict=True)
    ]
    count = sum(p.numel() for p in trainer.parameters())
    title = (
        f"One weight sync of SmolLM2-135M ({count:,} parameters), float32 trainer and bfloat16 engine in one process, "
        f"against a training step on {ROWS} sequences of {TIME} tokens, {os.cpu_count()} cores; median of {ROUNDS} "
        "runs in turn, the comparison once."
    )
    publish("weights", title, rows, packages=("torch", "transformers"))


def timed(call: Any) -> float:
    """Seconds of one call."""
    start = perf_counter()
    call()
    return perf_counter() - start


if __name__ == "__main__":
    main()
