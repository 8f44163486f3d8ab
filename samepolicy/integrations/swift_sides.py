"""What an ms-swift trainer declares about its engine and about itself, read from its arguments."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from samepolicy.monitor.settings import ADAPTER
from samepolicy.records.side import Sampling, Side

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def is_megatron(trainer: Any) -> bool:
    """Whether it is one of ms-swift's Megatron trainers."""
    return hasattr(trainer, "unwrapped_models")


def rollout_side(trainer: Any) -> Side:
    """What is known of the engine.

    Args:
        trainer: a GRPO trainer of ms-swift.

    Returns:
        Engine, sampling (ms-swift asks vLLM for processed log-probs), and whether a trained adapter reaches it.
    """
    args = trainer.args
    if not getattr(args, "use_vllm", False):
        return Side(engine="hf", framework=_framework())
    given: dict[str, Any] = {n: float(getattr(args, n)) for n in SAMPLING if getattr(args, n, None) is not None}
    if "top_k" in given:
        given["top_k"] = max(int(given["top_k"]), 0)
    loaded = bool(getattr(trainer, "rollout_enable_lora", False))
    return Side(
        engine="vllm",
        framework=_framework(),
        sampling=Sampling(**given, logprobs="processed"),
        extra={ADAPTER: "loaded" if loaded else "merged"} if _has_adapter(trainer) else {},
    )


def trainer_side(trainer: Any) -> Side:
    """What the trainer computes in, and the temperature that it divides its logits by."""
    args = trainer.args
    autocast = "bfloat16" if getattr(args, "bf16", False) else "float16" if getattr(args, "fp16", False) else None
    dtype = getattr(getattr(trainer, "model", None), "dtype", None)
    temperature = getattr(trainer, "temperature", None)
    return Side(
        engine="megatron" if is_megatron(trainer) else "hf",
        framework=_framework(),
        dtype=autocast or (None if dtype is None else str(dtype)),
        sampling=Sampling(temperature=float(temperature)) if temperature else None,
        extra={ADAPTER: "lora"} if _has_adapter(trainer) else {},
    )


def _has_adapter(trainer: Any) -> bool:
    """Whether it trains an adapter."""
    return getattr(trainer.args, "tuner_type", "full") in ("lora", "adalora", "longlora")


def _framework() -> str:
    """ms-swift and its version, where it is installed as a package."""
    try:
        return f"ms-swift {version('ms-swift')}"
    except PackageNotFoundError:
        return "ms-swift"
