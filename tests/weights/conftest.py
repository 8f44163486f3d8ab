"""Tiny random models of three families, saved once."""

from pathlib import Path
from typing import Any

import pytest

SIZES = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
FAMILIES = ("llama", "qwen2", "qwen3_moe")


def make(family: str, **settings: Any) -> Any:
    """A random model; Qwen2's head is tied, and every weight is random, norms too."""
    import torch
    import transformers

    configs = {
        "llama": lambda **more: transformers.LlamaConfig(**SIZES, head_dim=8, **more),
        "qwen2": lambda **more: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True, **more),
        "qwen3_moe": lambda **more: transformers.Qwen3MoeConfig(
            **SIZES, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, **more
        ),
    }
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(configs[family](**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return model


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Saves the random model of a family, once; gives its folder."""
    made: dict[str, Path] = {}

    def save(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            make(family).save_pretrained(made[family])
        return made[family]

    return save
