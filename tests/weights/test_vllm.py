"""A small Qwen3-MoE as vLLM holds it after loading: fused, padded, and packed by the CPU build; by the command."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tests.serving  # noqa: F401 - keeps vLLM from compiling
from samepolicy.cli.main import status
from samepolicy.engines import vllm_load
from samepolicy.weights import compare, fingerprint

pytestmark = [pytest.mark.full, pytest.mark.e2e, pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with 4 experts, query and key norms, and a vocabulary that vLLM pads."""
    import transformers

    sizes = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16}
    sizes |= {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64, "num_experts": 4}
    sizes |= {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen3MoeConfig(**sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.1 * torch.randn_like(parameter))
    target = tmp_path_factory.mktemp("moe")
    model.save_pretrained(target)
    return target


@pytest.fixture(scope="module")
def edited(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with one value of each kind of tensor changed in layer 1."""
    target = tmp_path_factory.mktemp("edited")
    tensors = load_file(folder / "model.safetensors")
    for tensor in tensors.values():
        tensor.view(-1)[5] += 0.5
    save_file(tensors, target / "model.safetensors")
    (target / "config.json").write_text((folder / "config.json").read_text())
    return target


@pytest.fixture(scope="module")
def llm(folder: Path) -> Any:
    vllm_load.imported()
    options = {"enforce_eager": True, "max_model_len": 64, "max_num_seqs": 1, "skip_tokenizer_init": True}
    return vllm_load.build(str(folder), {"dtype": "float32", **options})


def test_what_vllm_holds_is_what_the_folder_holds(folder: Path, llm: Any):
    found = compare(folder, llm)
    assert found.counts == {"equal": 45}, str(found)
    assert any("read through the kernels that use them" in note for note in found.notes)


def test_one_value_changed_in_every_tensor_is_found_in_every_tensor(edited: Path, llm: Any):
    found = compare(edited, llm)
    assert found.counts == {"differs": 45}
    assert all(0 < relation.relative_error < 2 for relation in found.relations)


def test_a_live_change_is_named_where_it_is(folder: Path, llm: Any):
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
    kept = fingerprint(folder)
    norm = model.model.layers[1].self_attn.q_norm.weight
    experts = model.model.layers[0].mlp.experts.routed_experts.w2_weight
    norm.data[3] += 1
    experts.data[2] *= 2
    try:
        found = compare(kept, model)
    finally:
        norm.data[3] -= 1
        experts.data[2] /= 2
    assert [(r.name, r.status) for r in found.different] == [
        ("model.layers.0.mlp.experts.2.down_proj.weight", "scaled"),
        ("model.layers.1.self_attn.q_norm.weight", "differs"),
    ]


def test_the_command_loads_vllm_and_compares_in_bfloat16(folder: Path, capsys: pytest.CaptureFixture[str]):
    code = status(["weights", str(folder), f"vllm:{folder}", "--vllm-dtype", "bfloat16", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["counts"]) == (0, {"equal after cast": 45})
