"""Find the parts of a decoder by structure: a list of like layers, in each an attention, a feed-forward part and norms.

The same search serves transformers' modules and vLLM's. Names settle what kind a part is only where they are telling;
what the search takes for a residual stream is checked on numbers later (`samepolicy.layers.validate`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from samepolicy.errors import InputError

FAMILIES = "Llama, Mistral, Qwen2, Qwen3, Qwen3-MoE and Gemma"
_ATTENTION = ("q_proj", "qkv_proj", "c_attn", "query_key_value", "q_a_proj")
_OUTPUT = ("o_proj", "out_proj", "dense", "c_proj")
_ROUTER = ("gate", "router")


@dataclass(frozen=True)
class Layer:
    """The parts of one layer.

    Attributes:
        module: the layer.
        attention_norm: the norm before attention.
        attention: the attention with its projections.
        attention_block: the module whose output is added to the stream after attention.
        mlp_norm: the norm before the feed-forward part.
        mlp: the feed-forward part, dense or of experts.
        mlp_block: the module whose output is added to the stream after it.
        router: what gives router logits; None in a dense layer.
        top_k: experts per token; 0 in a dense layer.
    """

    module: Any
    attention_norm: Any
    attention: Any
    attention_block: Any
    mlp_norm: Any
    mlp: Any
    mlp_block: Any
    router: Any
    top_k: int


@dataclass(frozen=True)
class Parts:
    """The parts of a model: its layers, the norm after them, and the model itself."""

    model: Any
    layers: tuple[Layer, ...]
    norm: Any


def find(model: Any) -> Parts:
    """Find the parts of a causal language model.

    Args:
        model: a torch module of transformers or of vLLM.

    Raises:
        InputError: the structure is another one; the message says what was missing.
    """
    path, layers = _layers(model)
    config = getattr(model, "config", None)
    text: Any = config.get_text_config() if config is not None and hasattr(config, "get_text_config") else config
    top_k = int(getattr(text, "num_experts_per_tok", 0) or 0)
    return Parts(model, tuple(_layer(one, top_k) for one in layers), _final_norm(model, path))


def _layers(model: Any) -> tuple[str, list[Any]]:
    """The longest list of modules that hold an attention, and where it is."""
    import torch

    lists = [
        (name, list(part))
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.ModuleList) and all(_attentions(one) for one in part) and len(part)
    ]
    if not lists:
        raise _unknown(model, "no list of layers with an attention in each was found")
    return max(lists, key=lambda found: len(found[1]))


def _attentions(layer: Any) -> list[Any]:
    """The direct children of a layer that project queries."""
    return [child for child in layer.children() if any(hasattr(child, name) for name in _ATTENTION)]


def _layer(layer: Any, top_k: int) -> Layer:
    """The parts of one layer."""
    attentions, norms = _attentions(layer), dict(_norms(layer))
    if len(attentions) != 1:
        raise _unknown(layer, f"a layer has {len(attentions)} attentions")
    attention = attentions[0]
    others = [c for c in layer.children() if c is not attention and not _is_norm(c) and list(c.parameters())]
    if len(others) != 1:
        raise _unknown(layer, f"a layer has {len(others)} parts beside attention and norms, not one")
    mlp, output = others[0], next((getattr(attention, n) for n in _OUTPUT if hasattr(attention, n)), attention)
    router = next((getattr(mlp, name) for name in _ROUTER if hasattr(mlp, name)), None)
    if not top_k:
        router = None
    first, *rest = norms.values() or [None]
    if len(rest) == 1:
        found = (output, rest[0], mlp)
    elif "pre_feedforward_layernorm" in norms and len(rest) == 3:
        found = (
            norms["post_attention_layernorm"],
            norms["pre_feedforward_layernorm"],
            norms["post_feedforward_layernorm"],
        )
    else:
        raise _unknown(layer, f"a layer has {len(norms)} norms ({', '.join(norms) or 'none'})")
    block, mlp_norm, mlp_block = found
    return Layer(layer, first, attention, block, mlp_norm, mlp, mlp_block, router, top_k if router is not None else 0)


def _norms(layer: Any) -> Iterator[tuple[str, Any]]:
    """The norms of a layer, in the order it lists them."""
    for name, child in layer.named_children():
        if _is_norm(child):
            yield name, child


def _is_norm(part: Any) -> bool:
    return "norm" in type(part).__name__.lower()


def _final_norm(model: Any, path: str) -> Any:
    """The norm beside the list of layers."""
    body = model.get_submodule(path.rpartition(".")[0])
    found = [child for child in body.children() if _is_norm(child)]
    if len(found) != 1:
        raise _unknown(model, f"beside the layers there are {len(found)} norms, not one")
    return found[0]


def _unknown(part: Any, why: str) -> InputError:
    return InputError(
        f"{type(part).__name__} has a structure that is not known here ({why}), so its layers cannot be compared; "
        f"families such as {FAMILIES} can."
    )
