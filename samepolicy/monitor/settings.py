"""What two declarations say must go wrong, before a token is sampled: it costs nothing to look."""

from samepolicy.records.declared import dtype_of, effective
from samepolicy.records.side import Sampling, Side

ADAPTER = "adapter"
"""Of a side's `extra`: "lora" where the trainer trains one; "merged", "loaded" or "none" in the engine."""
PENALTIES = ("presence_penalty", "frequency_penalty", "logit_bias", "bad_words", "allowed_token_ids")
"""Of the rollout's `extra`: settings that reshape its distribution beside those of `Sampling`."""
SUPPORT = ("top_p", "top_k", "min_p", "repetition_penalty")


def doubts(*, rollout: Side, trainer: Side) -> dict[str, str]:
    """Combinations of settings under which trainer and rollout cannot agree, in a sentence each.

    What a side does not declare is not judged.

    Args:
        rollout: what the rollout side declares.
        trainer: what the trainer side declares; its sampling is what it applies to logits before the softmax.

    Returns:
        Sentences with fact, meaning and fix, by a short name; empty where nothing speaks against the pair.

    >>> bf16, fp32 = Side(dtype="bfloat16"), Side(dtype="float32")
    >>> list(doubts(rollout=bf16, trainer=fp32)), doubts(rollout=fp32, trainer=fp32)
    (['dtype'], {})
    """
    found = {"adapter": _adapter(rollout, trainer), "dtype": _dtype(rollout, trainer)}
    if rollout.sampling is not None:
        found["raw"] = _raw(rollout.sampling)
        found["temperature"] = _temperature(rollout.sampling, trainer.sampling)
        found["support"] = _support(rollout, trainer)
    return {name: sentence for name, sentence in found.items() if sentence}


def _adapter(rollout: Side, trainer: Side) -> str:
    """LoRA is trained, and the engine does not have it."""
    if trainer.extra.get(ADAPTER, "none") == "none" or rollout.extra.get(ADAPTER) != "none":
        return ""
    return (
        "the trainer trains a LoRA adapter that the engine does not have, so the base model samples; merge the "
        "adapter before the weights are sent, or have the engine load it"
    )


def _dtype(rollout: Side, trainer: Side) -> str:
    """The trainer computes in float32 and the engine in half precision."""
    engine = dtype_of(rollout)
    if dtype_of(trainer) != "float32" or engine not in ("bfloat16", "float16"):
        return ""
    return (
        f"the trainer computes in float32 and the engine in {engine}, whose rounding alone makes a gap on every token; "
        "give both the same dtype, or correct the loss"
    )


def _raw(sampling: Sampling) -> str:
    """Raw log-probs while the temperature is another than 1; a greedy run's are those of temperature 1 either way."""
    if sampling.logprobs != "raw" or sampling.temperature in (0.0, 1.0):
        return ""
    return (
        f"the engine samples at temperature {sampling.temperature:g} but records raw log-probs, those of temperature "
        '1; set logprobs_mode="processed_logprobs"'
    )


def _temperature(rollout: Sampling, trainer: Sampling | None) -> str:
    """The two sides divide the logits by different temperatures."""
    if trainer is None or 0.0 in (rollout.temperature, trainer.temperature) or rollout.logprobs == "raw":
        return ""
    if rollout.temperature == trainer.temperature:
        return ""
    return (
        f"the engine samples at temperature {rollout.temperature:g} and the trainer divides its logits by "
        f"{trainer.temperature:g}; give both the same"
    )


def _support(rollout: Side, trainer: Side) -> str:
    """The engine's log-probs are of a cut or reshaped distribution that the trainer does not replay."""
    if rollout.sampling is None or rollout.sampling.logprobs == "raw":
        return ""
    replayed = effective(trainer.sampling or Sampling())
    active = [n for n in SUPPORT if getattr(rollout.sampling, n) != getattr(replayed, n)]
    active += [n for n in PENALTIES if rollout.extra.get(n) and rollout.extra.get(n) != trainer.extra.get(n)]
    if not active:
        return ""
    return (
        f"{', '.join(active)} reshapes what the engine samples from and its log-probs are of that, while the trainer "
        "scores with the whole vocabulary; switch it off, or replay it in the trainer"
    )
