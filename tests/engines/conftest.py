"""Real and tiny models, loaded once per session."""

from pathlib import Path

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Engine, engine
from samepolicy.testing import smollm2_path

TEXTS = ("What is the capital of France?", "Name three colours of the rainbow.", "Hi")


@pytest.fixture(scope="session")
def smollm() -> Engine:
    """SmolLM2-135M-Instruct in float32."""
    return engine(f"hf:{smollm2_path()}", dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def smollm_bf16(smollm: Engine) -> Engine:
    """The same in bfloat16."""
    return smollm.variant(dtype="bfloat16")


@pytest.fixture(scope="session")
def chat(smollm: Engine) -> Ragged:
    """Three prompts of different lengths."""
    return Ragged.from_lists([smollm.encode(text) for text in TEXTS])


@pytest.fixture(scope="session")
def answers(smollm: Engine) -> Ragged:
    """A response to each of them, of different lengths."""
    texts = ("The capital of France is Paris, on the river Seine.", "Red, green and blue!", "Hello")
    return Ragged.from_lists([smollm.tokenizer(text)["input_ids"] for text in texts])


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """Make and save a tiny random model of a family, once; gives its folder."""
    import torch
    import transformers

    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    wide = {**sizes, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8}
    families = {
        "llama": lambda: transformers.LlamaConfig(**wide),
        "gemma2": lambda: transformers.Gemma2Config(**wide, final_logit_softcapping=0.5, query_pre_attn_scalar=8),
        "granite": lambda: transformers.GraniteConfig(**wide, logits_scaling=0.25),
        "cohere": lambda: transformers.CohereConfig(**wide, logit_scale=0.1),
        "gpt2": lambda: transformers.GPT2Config(
            vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2
        ),
    }
    made: dict[str, Path] = {}

    def make(family: str) -> str:
        if family not in made:
            torch.manual_seed(0)
            config = families[family]()
            config.initializer_range = 0.3
            model = transformers.AutoModelForCausalLM.from_config(config)
            made[family] = tmp_path_factory.mktemp(family)
            model.save_pretrained(made[family])
        return str(made[family])

    return make


@pytest.fixture(scope="session")
def ragged_ids() -> tuple[Ragged, Ragged]:
    """Random prompts and responses of different lengths, ids below 97."""
    rng = np.random.default_rng(0)
    rows = [(5, 7), (1, 12), (17, 1), (9, 4), (3, 20)]
    return tuple(Ragged.from_lists([rng.integers(3, 97, row[side]) for row in rows]) for side in (0, 1))
