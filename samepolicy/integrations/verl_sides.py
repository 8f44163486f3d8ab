"""What verl's configuration declares about its engine and its trainer."""

from typing import Any

from samepolicy.integrations.verl_switches import look
from samepolicy.monitor.settings import ADAPTER
from samepolicy.records.side import Sampling, Side

MODEL, ROLLOUT, ENGINE = "actor_rollout_ref.model", "actor_rollout_ref.rollout", "actor_rollout_ref.actor.fsdp_config"
LOADS = ("vllm", "sglang")
"""Engines of verl 0.9.1 that are sent a LoRA adapter; the others only get it where it is merged."""


def rollout_side(config: Any) -> Side:
    """What verl's configuration declares about the rollout.

    Args:
        config: the configuration (OmegaConf or nested mappings).

    Returns:
        Engine, dtype, model, sampling, and whether an adapter that is trained reaches the engine.

    >>> told = {"actor_rollout_ref": {"rollout": {"name": "vllm", "temperature": 0.7, "logprobs_mode": "raw_logprobs"}}}
    >>> side = rollout_side(told)
    >>> side.engine, side.sampling.temperature, side.sampling.logprobs
    ('vllm', 0.7, 'raw')
    """
    told = look(config, ROLLOUT, {})
    names = ("temperature", "top_p", "top_k", "repetition_penalty")
    given = {name: value for name in names if (value := look(told, name)) is not None}
    if "top_k" in given:
        given["top_k"] = max(int(given["top_k"]), 0)
    mode = look(told, "logprobs_mode")
    if mode is not None:
        given["logprobs"] = "processed" if str(mode).startswith("processed") else "raw"
    text = {"engine": "name", "dtype": "dtype"}
    named: dict[str, Any] = {ours: str(v) for ours, theirs in text.items() if (v := look(told, theirs)) is not None}
    model = look(config, f"{MODEL}.path")
    return Side(
        **named,
        model=None if model is None else str(model),
        sampling=Sampling(**given) if given else None,
        extra=_adapter(config, str(named.get("engine", ""))),
    )


def trainer_side(config: Any = None) -> Side:
    """What is known of verl's trainer.

    Args:
        config: the configuration. Only the FSDP strategies say in what they compute; that of another is not guessed.

    Returns:
        Framework, dtype, the temperature its logits are divided by, and whether it trains an adapter.
    """
    from verl import __version__

    temperature = look(config, f"{ROLLOUT}.temperature")
    return Side(
        framework=f"verl {__version__}",
        dtype=_dtype(config),
        sampling=None if not temperature else Sampling(temperature=float(temperature)),
        extra={ADAPTER: "lora"} if _rank(config) else {},
    )


def _dtype(config: Any) -> str | None:
    """What an FSDP actor computes in: its mixed precision's dtype for parameters, bfloat16 where none is set."""
    strategy = look(config, "actor_rollout_ref.actor.strategy")
    if strategy not in ("fsdp", "fsdp2"):
        return None
    return str(look(config, f"{ENGINE}.mixed_precision.param_dtype", "bf16"))


def _rank(config: Any) -> int:
    """The rank of the LoRA adapter that is trained; 0 where there is none."""
    return int(look(config, f"{MODEL}.lora_rank", 0) or look(config, f"{MODEL}.lora.rank", 0) or 0)


def _adapter(config: Any, engine: str) -> dict[str, Any]:
    """How the adapter reaches the engine."""
    if not _rank(config):
        return {}
    if look(config, f"{MODEL}.lora.merge", False):
        return {ADAPTER: "merged"}
    return {ADAPTER: "loaded" if engine in LOADS else "none"}
