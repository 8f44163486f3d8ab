"""Faults of the catalogue. One more is an entry here; where it needs a new mistake, that is one function beside."""

from collections.abc import Iterator
from typing import Any

from _faults import arrays, logits, models, prompts
from _faults.base import Fault

THE, COMMA, STOP, NEWLINE, A, AND = 260, 28, 30, 198, 253, 284
"""Ids of SmolLM2's tokenizer."""

SEEDS = (1, 2, 3)


def listed() -> Iterator[Fault]:
    """Faults of the catalogue, at three severities; where there is none to vary, with three seeds of the rollout."""
    yield from _tokens()
    yield from _rows()
    yield from _sampling()
    yield from _positions()
    yield from _weights()
    yield from _numerics()


def _seeded(name: str, cause: str, **fields: Any) -> Iterator[Fault]:
    """One fault on three rollouts."""
    for seed in SEEDS:
        rollout = {**fields.get("rollout", {}), "seed": seed}
        yield Fault(name=name, cause=cause, severity=f"seed {seed}", **{**fields, "rollout": rollout})


def _tokens() -> Iterator[Fault]:
    """Other ids, other templates."""
    yield from _seeded("two BOS", "bos_doubled", trainer={"prompt": prompts.more_bos})
    for t in (1.0, 1.3, 1.5):
        yield Fault(
            name="text encoded again",
            cause="retokenised",
            severity=f"T {t}",
            rollout={"temperature": t, "seed": 2},
            trainer={"response": prompts.again, "temperature": t},
        )
    yield from _seeded("zero at the end", "end_token", arrays=arrays.zero_ends)
    for value in (0.0, 1.0, -9999.0):
        yield Fault(
            name="placeholder", cause="placeholder_logp", severity=f"{value:g}", arrays=arrays.constants(value, 0.1)
        )
    for count in (8, 16, 24):
        yield Fault(
            name="cut prompt", cause="prompt_truncated", severity=f"{count}", trainer={"prompt": prompts.last(count)}
        )
    yield from _seeded("no generation prompt", "template", trainer={"prompt": prompts.no_generation_prompt})
    yield from _seeded("no system turn", "template", trainer={"prompt": prompts.no_system})
    yield from _seeded("no template", "template", trainer={"prompt": prompts.no_template})


def _rows() -> Iterator[Fault]:
    """Values, rows and masks out of their place."""
    for by in (1, -1, 2):
        yield Fault(name="shift", cause="shift", severity=f"{by:+d}", arrays=arrays.roll(by))
    for pack in (2, 4, 8):
        yield Fault(
            name="shift that grows in a pack", cause="shift", severity=f"of {pack}", arrays=arrays.growing(pack)
        )
    for share in (0.3, 0.6, 1.0):
        yield Fault(name="permuted rows", cause="row_order", severity=f"{share:.0%}", arrays=arrays.permuted(share))
    for count in (2, 4, 8):
        yield Fault(
            name="padding counted",
            cause="mask_misplaced",
            severity=f"{count}",
            arrays=arrays.counted_padding(count),
        )
    for count in (2, 3, 5):
        yield Fault(
            name="stopped tails cut", cause="stop_handling", severity=f"{count}", arrays=arrays.cut_tails(count)
        )
    yield from _seeded("hidden prompt", "context_hidden", trainer={"layout": "hidden prompt"})


def _sampling() -> Iterator[Fault]:
    """What the sampler did and the trainer does not know, or the reverse."""
    for t in (0.6, 0.8, 1.3):
        yield Fault(
            name="raw log-probs",
            cause="temperature",
            severity=f"T {t}",
            rollout={"temperature": t, "logprobs": "raw"},
            declared={"temperature": t},
            trainer={"temperature": t},
        )
    for t in (0.9, 1.1, 1.5):
        yield Fault(
            name="trainer's temperature",
            cause="temperature",
            severity=f"{t}",
            trainer={"temperature": t},
            expected={"temperature": t},
        )
    for t in (0.7, 0.8, 1.2):
        yield Fault(
            name="temperature applied twice",
            cause="temperature",
            severity=f"{t}",
            rollout={"temperature": t},
            trainer={"temperature": t * t},
            expected={"temperature": t * t},
        )
    for t in (0.7, 0.8, 1.25):
        yield Fault(name="divided log-probs", cause="temperature", severity=f"{t}", trainer={"scale": t})
    for p in (0.95, 0.9, 0.8):
        yield _support("top_p", p)
        yield Fault(
            name="top-p, raw R",
            cause="truncated_hidden",
            severity=f"{p}",
            rollout={"top_p": p, "logprobs": "raw"},
            declared={},
            expected={"top_p": p},
        )
    for name, value in (("temperature", 0.7), ("top_p", 0.9), ("top_k", 20)):
        yield Fault(
            name="declared sampler, raw on both sides",
            cause="truncated_hidden",
            severity=f"{name} {value}",
            rollout={name: value, "logprobs": "raw"},
            expected={name: value},
        )
    yield from (_support("top_k", k) for k in (50, 20, 8))
    yield from (_support("min_p", p) for p in (0.02, 0.05, 0.1))
    for penalty in (1.05, 1.1, 1.3):
        yield Fault(
            name="repetition penalty",
            cause="penalty",
            severity=f"{penalty}",
            rollout={"repetition_penalty": penalty},
            declared={},
            expected={"repetition_penalty": penalty},
        )
    for kind, values in (("presence", (0.3, 0.6, 1.2)), ("frequency", (0.1, 0.3, 0.6))):
        for value in values:
            yield Fault(
                name=f"{kind} penalty",
                cause="penalty",
                severity=f"{value}",
                trainer={"logits": logits.penalised(**{kind: value})},
                expected={f"{kind}_penalty": value},
            )
    for ids in ((THE,), (COMMA, STOP), (THE, A, AND)):
        yield Fault(
            name="suppressed tokens",
            cause="forbidden_tokens",
            severity=f"{len(ids)}",
            rollout={"generate": {"suppress_tokens": list(ids)}},
            declared={},
        )
    for value in (1.0, 2.0, 4.0):
        yield Fault(
            name="biased token",
            cause="forbidden_tokens",
            severity=f"{value:+g}",
            trainer={"logits": logits.biased(THE, value)},
        )


def _support(name: str, value: float) -> Fault:
    """Log-probs over a kept set that nobody declares."""
    return Fault(
        name=f"{name.replace('_', '-')} inside R",
        cause="truncated_support",
        severity=f"{value}",
        rollout={name: value},
        declared={},
        expected={name: value},
    )


def _positions() -> Iterator[Fault]:
    """Padding, packing, rotary embeddings."""
    yield from _seeded("padding attended to", "padding", trainer={"layout": "seen padding"})
    yield from _seeded("positions skip", "padding", trainer={"layout": "gap"})
    yield from _seeded("packed without a mask", "packing_leak", trainer={"layout": "packed"})
    for theta in (1_000.0, 2_000.0, 500_000.0):
        yield Fault(
            name="RoPE base",
            cause="rope",
            severity=f"{theta:g}",
            trainer={"model": models.config(rope_theta=theta)},
            expected={"rope_parameters.rope_theta": theta},
        )
    for factor in (1.5, 2.0, 4.0):
        scaling = {"rope_type": "linear", "factor": factor}
        yield Fault(
            name="RoPE scaling",
            cause="rope",
            severity=f"{factor}",
            trainer={"model": models.config(rope_scaling=scaling)},
            expected={"rope_parameters.factor": factor},
        )
    for factor in (0.9, 1.1, 1.2):
        yield Fault(
            name="softmax scale",
            cause="rope",
            severity=f"× {factor}",
            trainer={"model": models.attention_scale(factor)},
            expected={"rope_parameters.attention_factor": factor**0.5},
        )
    for eps in (1e-4, 1e-3, 1e-2):
        yield Fault(
            name="norm epsilon",
            cause="rope",
            severity=f"{eps:g}",
            trainer={"model": models.config(rms_norm_eps=eps)},
            expected={"rms_norm_eps": eps},
        )


def _weights() -> Iterator[Fault]:
    """Weights that are old, in part or as a whole, rounded, or without their adapter."""
    for share in (0.01, 0.02, 0.05):
        yield Fault(
            name="older weights",
            cause="stale_weights",
            severity=f"{share:.0%}",
            trainer={"model": models.noisy(share)},
            checkpoint=f"noisy {share}",
        )
    for steps in (1, 2, 4):
        yield Fault(
            name="weights of another optimizer step",
            cause="stale_weights",
            severity=f"{steps}",
            trainer={"model": models.trained(steps)},
            checkpoint=f"trained {steps}",
        )
    for low, high in ((0, 15), (10, 20), (25, 30)):
        yield Fault(
            name="older layers",
            cause="partial_sync",
            severity=f"{low}-{high}",
            trainer={"model": models.noisy(0.05, models.layers(low, high))},
            checkpoint="noisy 0.05",
        )
    for share in (0.01, 0.02, 0.05):
        yield Fault(
            name="older embedding",
            cause="partial_sync",
            severity=f"{share:.0%}",
            trainer={"model": models.noisy(share, models.embedding)},
            checkpoint=f"noisy {share}",
        )
    for scale in (0.01, 0.02, 0.05):
        yield Fault(
            name="adapter missing in the rollout",
            cause="adapter_missing",
            severity=f"{scale}",
            adapter=(scale, 0.0),
            trainer={"adapter": True},
        )
    for bits in (8, 6, 4):
        yield Fault(
            name="rounded weights",
            cause="quantised_rollout",
            severity=f"{bits} bits",
            trainer={"model": models.rounded(bits)},
        )
    for kind in ("tensor", "row", "none"):
        yield Fault(
            name="8-bit floats",
            cause="quantised_rollout",
            severity=f"scale: {kind}",
            trainer={"model": models.float8(kind)},
        )


def _numerics() -> Iterator[Fault]:
    """Rounding that is more than it has to be, and noise."""
    yield from _seeded("log-softmax in bf16", "precision", trainer={"head": "bfloat16"})
    for rate in (0.05, 0.1, 0.3):
        yield Fault(
            name="dropout while scoring",
            cause="dropout",
            severity=f"{rate}",
            adapter=(0.05, rate),
            rollout={"adapter": (0.05, rate)},
            trainer={"adapter": True, "train": True},
        )
