"""All cases of the bench: faults of the catalogue, faults on no list, healthy runs, and two faults at once."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from _faults import arrays, logits, models
from _faults.base import Fault
from _faults.listed import SEEDS, listed


def cases(*, first: bool = False) -> Iterator[tuple[str, str, tuple[Fault, ...]]]:
    """Every case: its kind, its key and its faults; first one severity of each, so that a part is a fair sample."""
    groups: dict[str, list[Fault]] = {}
    for fault in listed():
        groups.setdefault(fault.name, []).append(fault)
    depth = 1 if first else max(map(len, groups.values()))
    rounds = [[g[(len(g) // 2 + r) % len(g)] for g in groups.values() if r < len(g)] for r in range(depth)]
    begin, *rest = [[("listed", f.key, (f,)) for f in some] for some in rounds]
    plain = [("healthy", f.key, (f,)) for f in healthy()]
    strange = [("unlisted", f.key, (f,)) for f in unlisted()]
    pairs = [("stacked", f"{a.key} + {b.key}", (a, b)) for a, b in stacked()]
    yield from chain(begin, plain, strange, pairs, *rest)


def unlisted() -> Iterator[Fault]:
    """Faults on no list: the answer is that the cause is unknown."""
    for size in (0.2, 0.5):
        yield Fault(name="noise", cause="", severity=f"{size}", arrays=arrays.noise(size))
        yield Fault(name="drift", cause="", severity=f"{size}", arrays=arrays.drift(size))
    strange = {
        "swapped heads": {f"layer {layer}": models.swapped_heads(layer) for layer in (3, 15, 28)},
        "scaled tensor": {
            f"{part} × {factor}": models.scaled(part, factor)
            for part, factor in (
                ("layers.5.mlp", 1.1),
                ("layers.20.self_attn.o_proj", 0.7),
                ("layers.10.self_attn.q", 1.3),
            )
        },
        "layer left out": {f"{layer}": models.without_layer(layer) for layer in (8, 22)},
        "activation": {"gelu": models.config(hidden_act="gelu")},
    }
    for name, some in strange.items():
        for severity, change in some.items():
            yield Fault(name=name, cause="", severity=severity, trainer={"model": change})
    yield Fault(name="soft cap", cause="", severity="15", trainer={"logits": logits.capped(15.0)})
    for share in (0.05, 0.2):
        yield Fault(
            name="smoothed probabilities", cause="", severity=f"{share}", trainer={"logits": logits.smoothed(share)}
        )


def healthy() -> Iterator[Fault]:
    """Runs without a fault: engines, dtypes, temperatures, kept sets, lengths, filtered batches."""
    bf16: list[dict[str, Any]] = [
        *({"seed": seed} for seed in SEEDS),
        {"temperature": 0.6},
        {"temperature": 0.8},
        {"temperature": 1.3},
        {"temperature": 0.0},
        {"temperature": 0.0, "max_tokens": 24},
        {"max_tokens": 8},
        {"max_tokens": 16},
        {"max_tokens": 32},
        {"max_tokens": 128},
        {"engine": "vllm"},
        {"engine": "vllm", "temperature": 0.7},
        {"engine": "vllm", "max_tokens": 16},
    ]
    for rollout in bf16:
        yield _healthy(rollout)
    yield _healthy({"engine": "vllm", "dtype": "float32"}, dtype="float32")
    for ours, theirs in (("float32", "float32"), ("bfloat16", "float32"), ("float32", "bfloat16")):
        yield _healthy({"dtype": ours}, dtype=theirs)
    yield _healthy({"dtype": "float32", "temperature": 0.7}, dtype="float32")
    for highest in (True, False):
        yield _healthy({}, name="healthy, filtered", arrays=arrays.filtered(highest), severity=f"highest {highest}")


def _healthy(
    rollout: dict[str, Any], *, name: str = "healthy", severity: str = "", dtype: str = "bfloat16", **fields: Any
) -> Fault:
    """A run whose trainer does what the rollout declares."""
    temperature = rollout.get("temperature", 1.0) or 1.0
    said = ", ".join([*(f"{k} {v}" for k, v in rollout.items()), f"trainer {dtype}"])
    return Fault(
        name=name,
        cause="numerics",
        severity=severity or said,
        rollout=rollout,
        trainer={"temperature": temperature},
        dtype=dtype,
        **fields,
    )


def stacked() -> Iterator[tuple[Fault, Fault]]:
    """Two faults at once: one of the trainer's forward, one of the recorded arrays or of the sampling."""
    known = {fault.key: fault for fault in listed()}
    pairs = (
        ("trainer's temperature 1.1", "shift +1"),
        ("trainer's temperature 1.5", "zero at the end seed 1"),
        ("top-p inside R 0.8", "older weights 5%"),
        ("repetition penalty 1.3", "RoPE base 2000"),
        ("two BOS seed 1", "placeholder 0"),
        ("no generation prompt seed 1", "permuted rows 30%"),
        ("older weights 5%", "shift +1"),
        ("top-p inside R 0.9", "two BOS seed 1"),
        ("top-k inside R 20", "trainer's temperature 1.1"),
        ("repetition penalty 1.1", "padding attended to seed 1"),
        ("raw log-probs T 0.8", "placeholder -9999"),
        ("older layers 0-15", "permuted rows 60%"),
        ("rounded weights 4 bits", "shift -1"),
        ("min-p inside R 0.1", "no system turn seed 1"),
        ("norm epsilon 0.001", "trainer's temperature 1.5"),
    )
    for one, other in pairs:
        yield known[one], known[other]
