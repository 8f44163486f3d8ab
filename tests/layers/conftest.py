"""Tiny random models, with every weight random, norms too."""

from typing import Any

import pytest

SIZES = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 32}
SIZES |= {"num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 128}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False}
ROWS = [[5, 9, 33, 4, 8, 71, 6, 7, 12, 50], [5, 9, 33, 80, 3, 3, 90], [60, 61, 5, 11, 95, 17, 22, 31, 8, 4, 44, 9, 13]]


def make(family: str, **settings: Any) -> Any:
    """A random model of a family."""
    import torch
    import transformers

    plain = {key: value for key, value in SIZES.items() if key != "head_dim"}
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
    configs = {
        "llama": lambda: transformers.LlamaConfig(**SIZES | settings),
        "mistral": lambda: transformers.MistralConfig(**SIZES | {"sliding_window": 4} | settings),
        "qwen2": lambda: transformers.Qwen2Config(**plain | settings),
        "qwen3": lambda: transformers.Qwen3Config(**SIZES | settings),
        "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**SIZES | moe | settings),
        "gemma": lambda: transformers.GemmaConfig(**SIZES | settings),
        "gemma2": lambda: transformers.Gemma2Config(**SIZES | settings),
        "gemma3": lambda: transformers.Gemma3TextConfig(**SIZES | settings),
        "gpt_neox": lambda: transformers.GPTNeoXConfig(
            vocab_size=97, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96
        ),
    }
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(configs[family]()).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn_like(weight)
            small = "norm" in name or "bias" in name
            weight.copy_(weight + 0.2 * noise if small else noise * weight.shape[-1] ** -0.5)
        model.get_input_embeddings().weight.mul_(8)
    return model.requires_grad_(False)


@pytest.fixture
def moe() -> Any:
    return make("qwen3_moe")


@pytest.fixture
def llama() -> Any:
    return make("llama")
