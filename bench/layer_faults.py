"""Faults at known places, put into the transformers side, and the tap at which each one enters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

LAYER = 2
"""The layer that most faults are in."""


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: what it is.
        tap: where it enters.
        put: puts it into a model; the dtype says how large it must be to matter.
        on: the kinds of model it can be in.
    """

    name: str
    tap: str
    put: Callable[[Any, bool], None]
    on: tuple[str, ...] = ("mistral", "qwen3_moe", "smollm2")


def inner(part: str, layer: int = LAYER) -> str:
    """A tap of the layer."""
    return f"layers.{layer}.{part}"


def attention(model: Any) -> Any:
    return model.model.layers[LAYER].self_attn


def mlp(model: Any) -> Any:
    return model.model.layers[LAYER].mlp


def old(weight: torch.Tensor, coarse: bool) -> None:
    """What the weight may have been some steps ago."""
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)).to(weight.dtype)
    weight += noise * weight.float().std().to(weight.dtype) * (0.08 if coarse else 1e-3)


def rounded(weight: torch.Tensor, coarse: bool) -> None:
    """The weight through a coarser dtype and back."""
    weight.copy_(weight.to(torch.float8_e5m2 if coarse else torch.bfloat16).to(weight.dtype))


def in_int8(weight: torch.Tensor, bits: int = 8) -> None:
    """The weight in whole numbers with a scale per row."""
    scale = weight.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    weight.copy_((weight / scale).round() * scale)


def experts_swapped(model: Any, coarse: bool) -> None:
    del coarse
    for weight in (mlp(model).experts.gate_up_proj, mlp(model).experts.down_proj):
        weight[[0, 1]] = weight[[1, 0]].clone()


def heads_swapped(weight: torch.Tensor, size: int, *, columns: bool = False) -> None:
    """The first two heads change places."""
    view = weight.T if columns else weight
    kept = view[:size].clone()
    view[:size] = view[size : 2 * size]
    view[size : 2 * size] = kept


def rope_base(model: Any, coarse: bool) -> None:
    rotary, factor = model.model.rotary_emb, 2.0 if coarse else 1.001
    size = len(rotary.inv_freq)
    rotary.inv_freq.div_(factor ** (torch.arange(size) / size))


def rope_of_one_layer(model: Any, coarse: bool) -> None:
    size = 0.05 if coarse else 1e-4

    def hook(_: Any, args: Any, kwargs: Any) -> Any:
        cos, sin = kwargs["position_embeddings"]
        return args, {**kwargs, "position_embeddings": (cos * (1 + size), sin * (1 + size))}

    attention(model).register_forward_pre_hook(hook, with_kwargs=True)


def no_sink(model: Any, coarse: bool) -> None:
    """One layer does not see the first token."""
    del coarse

    def hook(_: Any, args: Any, kwargs: Any) -> Any:
        count = kwargs["hidden_states"].shape[1]
        mask = torch.ones(count, count, dtype=torch.bool).tril()
        mask[1:, 0] = False
        return args, {**kwargs, "attention_mask": mask[None, None]}

    attention(model).register_forward_pre_hook(hook, with_kwargs=True)


def scaled(part: Callable[[Any], Any]) -> Callable[[Any, bool], None]:
    """A module gives a little more than it should."""

    def put(model: Any, coarse: bool) -> None:
        factor = 1.05 if coarse else 1 + 1e-4

        def hook(_: Any, args: Any, output: Any) -> Any:
            del args
            return (output[0] * factor, *output[1:]) if isinstance(output, tuple) else output * factor

        part(model).register_forward_hook(hook)

    return put


def weight(part: Callable[[Any], Any], how: Callable[[torch.Tensor, bool], None] = old) -> Callable[[Any, bool], None]:
    """A fault in one weight."""
    return lambda model, coarse: how(part(model), coarse)


def quantised(model: Any, coarse: bool) -> None:
    """All projections of one layer's attention in int8, or int4 where the rest is bf16."""
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        in_int8(getattr(attention(model), name).weight, 4 if coarse else 8)


def epsilon(part: Callable[[Any], Any]) -> Callable[[Any, bool], None]:
    """A norm's epsilon: a share of the mean square that it is added to."""

    def put(model: Any, coarse: bool) -> None:
        seen: list[float] = []
        handle = part(model).register_forward_hook(
            lambda _, args, __: seen.append(float(args[0].float().square().mean()))
        )
        model(input_ids=torch.arange(3, 40)[None])
        handle.remove()
        part(model).variance_epsilon = seen[0] * (0.2 if coarse else 1e-4)

    return put


def set_window(model: Any, coarse: bool) -> None:
    del coarse
    model.config.sliding_window = 64


def other_activation(model: Any, coarse: bool) -> None:
    del coarse
    mlp(model).act_fn = torch.nn.GELU()


def layer_twice(model: Any, coarse: bool) -> None:
    del coarse
    model.model.layers[LAYER].load_state_dict(model.model.layers[LAYER - 1].state_dict())


def stale_head(model: Any, coarse: bool) -> None:
    """The head, untied where it was one with the embedding."""
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone(), requires_grad=False)
    old(model.lm_head.weight, coarse)


def embedding(how: Callable[[torch.Tensor, bool], None]) -> Callable[[Any, bool], None]:
    """A fault in the embedding alone."""

    def put(model: Any, coarse: bool) -> None:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone(), requires_grad=False)
        how(model.model.embed_tokens.weight, coarse)

    return put


def one_value(tensor: torch.Tensor, coarse: bool) -> None:
    tensor[5, 7] += tensor.float().std().to(tensor.dtype) * (30 if coarse else 1)


def transposed(tensor: torch.Tensor, coarse: bool) -> None:
    del coarse
    tensor.copy_(tensor.T.clone())


def zero_row(tensor: torch.Tensor, coarse: bool) -> None:
    del coarse
    tensor[3] = 0


def larger(tensor: torch.Tensor, coarse: bool) -> None:
    tensor *= 1.05 if coarse else 1.0001


def one_bad_token(tensor: torch.Tensor, coarse: bool) -> None:
    old(tensor[3:9], coarse)


DENSE, MOE, TINY = ("mistral", "smollm2"), ("qwen3_moe",), ("mistral", "qwen3_moe")
FAULTS = (
    Fault(
        "epsilon of an attention norm",
        inner("attention_norm"),
        epsilon(lambda m: m.model.layers[LAYER].input_layernorm),
    ),
    Fault(
        "epsilon of an MLP norm", inner("mlp_norm"), epsilon(lambda m: m.model.layers[LAYER].post_attention_layernorm)
    ),
    Fault("epsilon of the final norm", "final_norm", epsilon(lambda m: m.model.norm), TINY),
    Fault("RoPE base", inner("q", 0), rope_base),
    Fault("RoPE scale in one layer", inner("q"), rope_of_one_layer),
    Fault(
        "attention scale",
        inner("attention"),
        lambda m, c: setattr(attention(m), "scaling", attention(m).scaling * (1.5 if c else 1.001)),
    ),
    Fault("window dropped", inner("attention", 0), set_window, ("mistral",)),
    Fault("attention sink dropped", inner("attention"), no_sink, ("qwen3_moe", "smollm2")),
    Fault("old q", inner("q"), weight(lambda m: attention(m).q_proj.weight)),
    Fault("old k", inner("k"), weight(lambda m: attention(m).k_proj.weight)),
    Fault("old v", inner("v"), weight(lambda m: attention(m).v_proj.weight), TINY),
    Fault("old output projection", inner("attention_block"), weight(lambda m: attention(m).o_proj.weight), TINY),
    Fault("old gate", inner("mlp"), weight(lambda m: mlp(m).gate_proj.weight), ("mistral",)),
    Fault("old up", inner("mlp"), weight(lambda m: mlp(m).up_proj.weight), ("mistral",)),
    Fault("old down", inner("mlp"), weight(lambda m: mlp(m).down_proj.weight), DENSE),
    Fault(
        "old attention norm", inner("attention_norm"), weight(lambda m: m.model.layers[LAYER].input_layernorm.weight)
    ),
    Fault(
        "old MLP norm", inner("mlp_norm"), weight(lambda m: m.model.layers[LAYER].post_attention_layernorm.weight), TINY
    ),
    Fault("old final norm", "final_norm", weight(lambda m: m.model.norm.weight), TINY),
    Fault("old embedding", "embedding", embedding(old)),
    Fault("some rows of the embedding old", "embedding", embedding(one_bad_token), TINY),
    Fault("embedding scale", "embedding", embedding(larger), TINY),
    Fault("stale head", "logits", stale_head),
    Fault("MLP in a coarser dtype", inner("mlp"), weight(lambda m: mlp(m).down_proj.weight, rounded), DENSE),
    Fault("v in a coarser dtype", inner("v"), weight(lambda m: attention(m).v_proj.weight, rounded), TINY),
    Fault(
        "query heads swapped",
        inner("q"),
        lambda m, _: heads_swapped(attention(m).q_proj.weight, attention(m).head_dim),
        TINY,
    ),
    Fault(
        "key heads swapped",
        inner("k"),
        lambda m, _: heads_swapped(attention(m).k_proj.weight, attention(m).head_dim),
        TINY,
    ),
    Fault(
        "heads swapped before the output",
        inner("attention_block"),
        lambda m, _: heads_swapped(attention(m).o_proj.weight, attention(m).head_dim, columns=True),
        TINY,
    ),
    Fault(
        "output projection transposed",
        inner("attention_block"),
        weight(lambda m: attention(m).o_proj.weight, transposed),
        TINY,
    ),
    Fault("query projection transposed", inner("q"), weight(lambda m: attention(m).q_proj.weight, transposed), TINY),
    Fault(
        "a row of the output projection lost",
        inner("attention_block"),
        weight(lambda m: attention(m).o_proj.weight, zero_row),
        TINY,
    ),
    Fault("one value of q", inner("q"), weight(lambda m: attention(m).q_proj.weight, one_value), TINY),
    Fault("v scaled", inner("v"), weight(lambda m: attention(m).v_proj.weight, larger), TINY),
    Fault("MLP output scaled", inner("mlp"), scaled(mlp)),
    Fault("stream scaled", inner("residual"), scaled(lambda m: m.model.layers[LAYER]), TINY),
    Fault("another activation", inner("mlp"), other_activation, ("mistral",)),
    Fault("attention quantised", inner("q"), quantised),
    Fault("a layer loaded twice", inner("attention_norm"), layer_twice, TINY),
    Fault("two experts swapped", inner("mlp"), experts_swapped, MOE),
    Fault("one expert old", inner("mlp"), weight(lambda m: mlp(m).experts.down_proj[3]), MOE),
    Fault("experts' input old", inner("mlp"), weight(lambda m: mlp(m).experts.gate_up_proj), MOE),
    Fault("old router", inner("router"), weight(lambda m: mlp(m).gate.weight), MOE),
    Fault(
        "expert weights not normalised",
        inner("mlp"),
        lambda m, _: setattr(mlp(m).gate, "norm_topk_prob", not mlp(m).gate.norm_topk_prob),
        MOE,
    ),
    Fault("old query norm", inner("q"), weight(lambda m: attention(m).q_norm.weight), MOE),
    Fault("old key norm", inner("k"), weight(lambda m: attention(m).k_norm.weight), MOE),
)
