"""Verdicts, the ledger and the repro on pairs of transformers models with faults at known places."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samepolicy.errors import InputError
from samepolicy.layers import Ask, compare, ledger, passes, write_repro
from samepolicy.layers.capture import as_rows
from samepolicy.layers.hf_taps import Model
from tests.layers.conftest import ROWS, make

pytestmark = pytest.mark.full

QUICK = Ask(nats=False, repeat=False)


def eager(model: Any) -> Any:
    """The same weights through another implementation of attention."""
    made = copy.deepcopy(model)
    made.set_attn_implementation("eager")
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_attention_is_rounding_only(moe: Any, dtype: torch.dtype):
    model = moe.to(dtype)
    found = compare(model, eager(model), ROWS)
    assert (found.verdict, found.first, found.exit_code) == ("rounding only", "", 0), str(found)
    assert found["layers.0.attention"].relative > 0
    assert found.dtypes == (str(dtype).removeprefix("torch."),) * 2
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("tensor", "tap"),
    [
        ("model.embed_tokens.weight", "embedding"),
        ("model.layers.1.input_layernorm.weight", "layers.1.attention_norm"),
        ("model.layers.1.self_attn.q_norm.weight", "layers.1.q"),
        ("model.layers.1.self_attn.k_proj.weight", "layers.1.k"),
        ("model.layers.1.self_attn.v_proj.weight", "layers.1.v"),
        ("model.layers.1.self_attn.o_proj.weight", "layers.1.attention_block"),
        ("model.layers.1.mlp.gate.weight", "layers.1.router"),
        ("model.layers.1.mlp.experts.down_proj", "layers.1.mlp"),
        ("model.norm.weight", "final_norm"),
        ("lm_head.weight", "logits"),
    ],
)
def test_an_edited_tensor_is_found_at_the_tap_it_feeds_on_either_side(moe: Any, tensor: str, tap: str):
    other = eager(moe)
    moe.get_parameter(tensor).view(-1)[::3].mul_(1.05)  # a common factor would be normed away in q and k
    for a, b in ((moe, other), (other, moe)):
        found = compare(a, b, ROWS, ask=QUICK)
        assert (found.verdict, found.first) == ("different", tap), str(found)
        experts = ["layers.1.mlp"] if tap == "layers.1.router" else []  # weighted by what the router says
        assert [reading.tap for reading in found.beyond] == [tap, *experts]
        assert found.confidence == 1
        assert found.causes


def test_experts_that_the_router_did_not_choose_are_named(moe: Any):
    other = eager(moe)

    def hook(_: Any, args: Any, output: Any) -> Any:
        logits, scores, chosen = output
        return logits, scores, (chosen + 1) % 4

    moe.model.layers[2].mlp.gate.register_forward_hook(hook)
    found = compare(moe, other, ROWS, ask=QUICK)
    assert found.first == "layers.2.experts"
    assert found.causes == ("router_flip",)


def test_a_value_that_is_no_number_is_found_where_it_begins(llama: Any):
    other = eager(llama)
    llama.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    found = compare(llama, other, ROWS, ask=QUICK)
    assert found.first == "layers.1.mlp"
    json.dumps(found.as_dict(), allow_nan=False)


def test_the_ledger_adds_up_and_each_row_is_its_fault_alone(llama: Any):
    clean, ids = eager(llama), as_rows(ROWS)
    rollout = passes.capture(Model(clean), ids)
    faults = {"layers.0.middle": "0.self_attn.v_proj", "layers.2.residual": "2.mlp.up_proj"}

    def broken(*names: str) -> Any:
        made = copy.deepcopy(llama)
        for name in names:
            made.model.layers.get_submodule(name).weight.mul_(1.05)
        return made

    both = Model(broken(*faults.values()))
    book = ledger.ledger(both, rollout, ["layers.0.v", "layers.2.mlp"])
    gap = passes.logp_of(passes.capture(both, ids)) - passes.logp_of(rollout)
    assert sum(row.signed for row in book.rows) == pytest.approx(np.nanmean(gap))
    assert sum(row.closes for row in book.rows) == pytest.approx(np.nanmean(abs(gap)))
    for tap, name in faults.items():
        alone = passes.logp_of(passes.capture(Model(broken(name)), ids)) - passes.logp_of(rollout)
        row = next(row for row in book.rows if row.last == tap)
        assert row.nats == pytest.approx(np.nanmean(abs(alone)), rel=0.2)
    rest = [row.nats for row in book.rows if row.last not in faults]
    assert max(rest) < 1e-4


def test_a_graft_closes_the_gap_both_ways_and_the_repeat_is_reported(llama: Any):
    other = eager(llama)
    llama.model.layers[1].self_attn.q_proj.weight.mul_(1.1)
    found = compare(llama, other, ROWS)
    (graft,) = found.grafts
    assert graft.tap == "layers.1.q"
    assert max(graft.left, graft.reverse) < 1e-4 < found.gap
    assert found["logits"].trainer_repeat < 1e-5
    assert "part at layers.1.q" in str(found)


def test_the_repro_runs_alone_and_shows_the_same_error(llama: Any, tmp_path: Path):
    other = eager(llama)
    llama.model.layers[1].mlp.down_proj.weight.mul_(1.25)
    kept: list[Any] = []
    found = compare(llama, other, ROWS, ask=QUICK, keep=kept.append)
    script = write_repro(llama, kept[0], found.first, tmp_path / "repro")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert "layers.1.mlp" in done.stdout
    assert "relative error 2.500e-01" in done.stdout
    with pytest.raises(InputError, match="not an empty folder"):
        write_repro(llama, kept[0], found.first, tmp_path / "repro")
    for number, tap in enumerate(("layers.0.q", "layers.2.residual", "final_norm", "logits", "embedding")):
        write_repro(llama, kept[0], tap, tmp_path / str(number))


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"num_hidden_layers": 2}, "3 layers and the rollout 2"),
        ({"hidden_size": 32}, "64 wide"),
        ({"vocab_size": 101}, "with 97 ids"),
        ({"num_attention_heads": 2}, "queries are 128 wide and the rollout's 64"),
    ],
)
def test_models_of_other_shapes_are_refused(llama: Any, other: dict[str, int], sentence: str):
    with pytest.raises(InputError, match=sentence):
        compare(llama, make("llama", **other), ROWS, ask=QUICK)


def test_what_cannot_be_compared_is_refused(llama: Any):
    with pytest.raises(InputError, match="no token ids"):
        compare(llama, llama)
    with pytest.raises(InputError, match="between 0 and 96"):
        compare(llama, llama, [[1, 97]])
    with pytest.raises(InputError, match="no transformers model"):
        compare("llama", llama, ROWS)
    with pytest.raises(InputError, match="seen in vLLM only"):
        compare(llama, llama, ROWS, ask=Ask(decode_from=2))
