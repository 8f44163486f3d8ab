"""GGUF: the real SmolLM2 against the same saved as safetensors, and small models written with the package gguf."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from samepolicy.errors import CorruptFileError, InputError
from samepolicy.testing import smollm2_path
from samepolicy.weights import compare, fingerprint
from tests.serving import smollm2_folder
from tests.weights.conftest import SIZES, make

pytestmark = pytest.mark.full

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate": "ffn_gate_inp",
}


def test_smollm2_in_gguf_is_smollm2_in_safetensors():
    found = compare(smollm2_folder(), smollm2_path())
    assert found.counts == {"equal": 272}, str(found)
    assert any("Q4_1, Q8_0): its dequantised values are compared" in note for note in found.notes)
    assert found.tied == (("model.embed_tokens.weight", "lm_head.weight"),)


def write(path: Path, kind: str, model: Any) -> None:
    """A model as a GGUF file in float32, its experts fused as llama.cpp keeps them."""
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(2)
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    state = model.state_dict()
    tops = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, tensor in state.items():
        stem, _, end = name.rpartition(".")
        part = stem.partition("layers.")[2].partition(".")
        if stem in tops:
            writer.add_tensor(f"{tops[stem]}.{end}", tensor.numpy())
        elif end == "gate_up_proj":
            gate, up = tensor.chunk(2, 1)
            writer.add_tensor(f"blk.{part[0]}.ffn_gate_exps.weight", gate.contiguous().numpy())
            writer.add_tensor(f"blk.{part[0]}.ffn_up_exps.weight", up.contiguous().numpy())
        elif end == "down_proj":
            writer.add_tensor(f"blk.{part[0]}.ffn_down_exps.weight", tensor.numpy())
        else:
            writer.add_tensor(f"blk.{part[0]}.{NAMES[part[2]]}.{end}", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_experts_are_cut_apart_and_an_edited_one_is_named(tmp_path: Path):
    model = make("qwen3_moe")
    write(tmp_path / "moe.gguf", "qwen3moe", model)
    found = compare(model, tmp_path / "moe.gguf")
    assert (set(found.counts), found.notes[0].startswith("2 buffers of A")) == ({"equal"}, True)
    with torch.no_grad():
        model.model.layers[1].mlp.experts.gate_up_proj[2, 40, 3] += 0.5
    edited = compare(tmp_path / "moe.gguf", model)
    assert [r.name for r in edited.different] == ["model.layers.1.mlp.experts.2.up_proj.weight"]


def test_an_architecture_that_is_not_known_is_refused(tmp_path: Path):
    write(tmp_path / "other.gguf", "mamba", make("qwen3_moe"))
    with pytest.raises(InputError, match="architecture 'mamba', whose names in GGUF are not known here"):
        fingerprint(tmp_path / "other.gguf")


@pytest.mark.parametrize("size", [3, 5000, 40_000_000])
def test_a_truncated_file(tmp_path: Path, size: int):
    with Path(smollm2_path()).open("rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(size))
    with pytest.raises(CorruptFileError, match="truncated or no GGUF file"):
        fingerprint(tmp_path / "cut.gguf")
