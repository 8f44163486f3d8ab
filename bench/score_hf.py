"""What scoring with the hf engine costs: time against the bare forward, and memory above the weights.

Four sequences of 1024 random ids (a prompt of 1, a response of 1023, so nearly every place needs the head) through
SmolLM2-135M with its vocabulary of 49152. Times are medians of interleaved rounds in one process. Memory is the peak of
resident memory during one call above what was resident before it, in a fresh process for each way (Linux).

    whole   model(ids).logits: the bare body and head, all logits at once
    bare    the body, then the head in chunks whose logits are thrown away: no log-prob is computed at all
    naive   model(ids).logits, log_softmax over all of them, gather
    ours    engine.score
"""

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from _publish import interleaved, peak_resident_mb, publish
from samepolicy.arrays import Ragged
from samepolicy.engines import head
from samepolicy.engines.base import engine
from samepolicy.testing import smollm2_path

ROWS, LENGTH, REPEATS = 4, 1024, 3
WAYS = ("whole", "bare", "naive", "ours")
DTYPES = ("float32", "bfloat16")


def ways(hf: Any) -> dict[str, Callable[[int], Any]]:
    """Each way as a function of the sequences' length."""
    import torch

    model = hf.model
    ids = np.random.default_rng(0).integers(3, 49152, (ROWS, LENGTH))

    def whole(length: int) -> Any:
        return model(torch.from_numpy(ids[:, :length]), use_cache=False).logits

    def bare(length: int) -> None:
        hidden = model.model(torch.from_numpy(ids[:, :length]), use_cache=False)[0].flatten(0, 1)
        for part in hidden.split(head.CHUNK // model.config.vocab_size):
            model.lm_head(part)

    def naive(length: int) -> Any:
        logp = whole(length)[:, :-1].float().log_softmax(-1)
        return logp.gather(-1, torch.from_numpy(ids[:, 1:length])[..., None])

    def ours(length: int) -> Any:
        return hf.score(Ragged.from_lists(ids[:, :1]), Ragged.from_lists(ids[:, 1:length])).logp

    chosen = {"whole": whole, "bare": bare, "naive": naive, "ours": ours}
    return {name: torch.inference_mode()(way) for name, way in chosen.items()}


def peak(dtype: str, name: str) -> float:
    """Megabytes that one call adds to the resident memory at its peak, in this process."""
    way = ways(engine(f"hf:{smollm2_path()}", dtype=dtype, device="cpu"))[name]
    way(16)
    gc.collect()
    return peak_resident_mb(lambda: way(LENGTH))


def _peak_apart(dtype: str, name: str) -> float:
    """`peak` in a fresh process."""
    command = [sys.executable, __file__, dtype, name]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    full: Any = engine(f"hf:{smollm2_path()}", dtype="float32", device="cpu")
    rows = []
    for dtype in DTYPES:
        chosen = ways(full.variant(dtype=dtype))
        calls = [lambda way=chosen[name]: way(LENGTH) for name in WAYS]
        taken = dict(zip(WAYS, map(median, interleaved(REPEATS, *calls)), strict=True))
        for name in WAYS:
            ratio = f"{taken['ours'] / taken[name]:.2f}"
            memory = f"{_peak_apart(dtype, name):.0f}"
            rows.append(
                {"dtype": dtype, "way": name, "seconds": f"{taken[name]:.2f}", "ours / way": ratio, "peak MB": memory}
            )
    title = (
        f"Scoring {ROWS} × {LENGTH} tokens with SmolLM2-135M (vocabulary 49152): time, and memory above the weights."
    )
    publish("score_hf", title, rows, packages=("torch", "transformers"))


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(peak(*sys.argv[1:])))
    else:
        main()
