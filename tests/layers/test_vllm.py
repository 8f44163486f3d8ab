"""Real vLLM with a small Qwen3-MoE: taps, decode steps, faults on either side, and the command."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tests.serving  # noqa: F401 - keeps vLLM from compiling
from samepolicy.cli.main import status
from samepolicy.engines import vllm_load
from samepolicy.errors import InputError
from samepolicy.layers import Ask, compare
from samepolicy.layers.capture import as_rows
from samepolicy.layers.vllm_taps import Rollout, _refuse
from tests.layers.conftest import ROWS, make

pytestmark = [pytest.mark.full, pytest.mark.e2e, pytest.mark.xdist_group("vllm")]

QUICK = Ask(nats=False, repeat=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("moe")
    make("qwen3_moe").save_pretrained(target)
    return target


@pytest.fixture(scope="module")
def llm(folder: Path) -> Any:
    vllm_load.imported()
    options = {"enforce_eager": True, "max_model_len": 64, "max_num_seqs": 4, "skip_tokenizer_init": True}
    return vllm_load.build(str(folder), {"dtype": "float32", **options})


def test_clean_is_rounding_only_at_every_tap_with_the_ledger(llm: Any):
    found = compare(make("qwen3_moe"), llm, ROWS)
    assert found.verdict == "rounding only", str(found)
    assert len(found.readings) == 3 + 3 * 12
    assert max(reading.relative for reading in found.readings if reading.tap != "layers.2.experts") < 5e-6
    assert found.gap < 1e-5
    assert found["logits"].rollout_repeat < 1e-6


def test_a_fault_in_vllm_alone_is_named_and_a_graft_either_way_mends_it(llm: Any):
    norm = llm.llm_engine.model_executor.driver_worker.model_runner.model.model.layers[1].self_attn.k_norm.weight
    kept = norm.data.clone()
    norm.data[3] += 1
    try:
        found = compare(make("qwen3_moe"), llm, ROWS)
    finally:
        norm.data.copy_(kept)
    assert (found.verdict, found.first) == ("different", "layers.1.k"), str(found)
    assert max(found.grafts[0].left, found.grafts[0].reverse) < 1e-4 < found.gap


def test_decode_steps_are_forced_to_the_ids_and_a_fault_of_theirs_alone_is_found(llm: Any):
    model = make("qwen3_moe")
    found = compare(model, llm, ROWS, ask=Ask(nats=False, decode_from=3))
    assert (found.verdict, found.phase) == ("rounding only", "decode"), str(found)

    def hook(_: Any, args: Any, output: Any) -> Any:
        return output * 1.01 if len(output) == 1 else output

    runner = llm.llm_engine.model_executor.driver_worker.model_runner
    handle = runner.model.model.layers[1].self_attn.attn.register_forward_hook(hook)
    try:
        decode = compare(model, llm, ROWS, ask=Ask(nats=False, repeat=False, decode_from=3))
        prefill = compare(model, llm, ROWS, ask=QUICK)
    finally:
        handle.remove()
    assert (decode.verdict, decode.first) == ("different", "layers.1.attention")
    assert prefill.verdict == "rounding only"


def test_chunks_and_single_sequences_give_the_same_values(llm: Any):
    rollout, ids = Rollout(llm), as_rows(ROWS)
    together, alone = rollout.capture(ids), rollout.capture(ids, alone=True)
    with vllm_load.chunked(llm, 5):
        chunked = rollout.capture(ids)
    for tap in together.taps:
        for other in (alone, chunked):
            assert torch.allclose(together.read(tap).float(), other.read(tap).float(), atol=1e-4), tap


def test_a_sequence_that_is_too_long_is_refused(llm: Any):
    with pytest.raises(InputError, match="takes 63"):
        compare(make("qwen3_moe"), llm, [[5] * 64], ask=QUICK)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tensor_parallel_size": 2}, "shares its layers between 2 processes"),
        ({"enforce_eager": False}, "compiled graphs"),
        ({"quantization": "fp8"}, "quantised"),
    ],
)
def test_what_hooks_cannot_see_is_refused(settings: dict[str, Any], sentence: str):
    said = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "enforce_eager": True, "quantization": None}
    one = SimpleNamespace(**said | settings)
    with pytest.raises(InputError, match=sentence):
        _refuse(SimpleNamespace(parallel_config=one, model_config=one))


def test_the_command_compares_two_folders_and_refuses_servers(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt_ids": row}) for row in ROWS))
    broken = make("qwen3_moe")
    broken.model.layers[1].self_attn.v_proj.weight.mul_(1.1)
    broken.save_pretrained(tmp_path / "broken")
    call = ["layers", str(folder), "--rollout", f"hf:{tmp_path / 'broken'}", "--prompts", str(prompts)]
    assert status([*call, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["first"] == "layers.1.v"
    assert status([*call, "--repro", str(tmp_path / "repro")]) == 1
    shown = capsys.readouterr().out
    assert "part at layers.1.v" in shown
    assert "The gap by blocks" in shown
    assert (tmp_path / "repro" / "repro.py").is_file()
    assert status(["layers", str(folder), "--rollout", f"hf:{folder}", "--prompts", str(prompts), "--no-nats"]) == 0
    capsys.readouterr()
    assert status([*call, "--repro", str(tmp_path / "repro")]) == 2
    assert status(["layers", str(folder), "--rollout", "http://localhost:1"]) == 2
    assert "out of reach" in capsys.readouterr().err
