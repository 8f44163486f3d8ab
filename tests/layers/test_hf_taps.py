"""Taps of transformers models against what the models and plain formulas say."""

from typing import Any

import pytest
import torch

from samepolicy.errors import InputError
from samepolicy.layers import passes, taps
from samepolicy.layers.capture import Capture, as_rows
from samepolicy.layers.hf_taps import Model
from samepolicy.layers.validate import validate, validate_trainer
from tests.layers.conftest import ROWS, make

pytestmark = pytest.mark.full

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3")


def capture(model: Any, **options: Any) -> Capture:
    return passes.capture(Model(model), as_rows(ROWS), **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_stream_and_the_logits_are_those_of_the_model(family: str):
    model = make(family)
    kept = capture(model)
    validate(kept, 2.0**-24)
    for row, ids in enumerate(ROWS):
        start, stop = map(int, kept.ids.offsets[row : row + 2])
        with torch.inference_mode():
            found = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
        stream = [taps.EMBEDDING, taps.name(0, "residual"), taps.name(1, "residual"), taps.FINAL_NORM]
        for tap, states in zip(stream, found.hidden_states, strict=True):
            assert torch.equal(kept.read(tap, start, stop), states[0])
        assert torch.equal(kept.read(taps.LOGITS, start, stop), found.logits[0])


@pytest.mark.parametrize("family", ["qwen3_moe", "gemma3"])
def test_its_own_values_put_in_change_nothing_and_those_of_zeros_do(family: str):
    model = Model(make(family))
    kept = passes.capture(model, as_rows(ROWS))
    validate_trainer(model, kept)
    zero = passes.capture(model, as_rows(ROWS))
    for tap in kept.taps:
        part = taps.part_of(tap)
        if part in passes.LOOKED_AT or tap == taps.LOGITS or taps.layer_of(tap) not in (None, 1):
            continue
        zero.write(tap, 0, torch.zeros_like(zero.read(tap)))
        moved = abs(passes.logp_with(model, zero, [tap]) - passes.logp_of(kept))
        assert moved[~(moved != moved)].max() > 1e-4, f"{tap} is not replaced"
        zero.write(tap, 0, kept.read(tap))


def test_queries_and_keys_are_taken_after_rotation_and_attention_is_their_softmax(llama: Any):
    kept = capture(llama)
    ids, layer = ROWS[0], llama.model.layers[1].self_attn
    count = len(ids)
    norm = kept.read(taps.name(1, "attention_norm"), 0, count)
    frequencies = 10000.0 ** -(torch.arange(0, 32, 2) / 32)
    angles = torch.arange(count)[:, None] * frequencies
    for part, heads in (("q", 4), ("k", 2)):
        raw = getattr(layer, f"{part}_proj")(norm).reshape(count, heads, 32)
        turned = torch.empty_like(raw)
        for i in range(count):
            cos, sin = angles[i].cos(), angles[i].sin()
            turned[i, :, :16] = raw[i, :, :16] * cos - raw[i, :, 16:] * sin
            turned[i, :, 16:] = raw[i, :, 16:] * cos + raw[i, :, :16] * sin
        assert torch.allclose(kept.read(taps.name(1, part), 0, count), turned.flatten(1), atol=1e-5)
    q, k, v = (kept.read(taps.name(1, part), 0, count).reshape(count, -1, 32) for part in "qkv")
    assert torch.allclose(v.flatten(1), layer.v_proj(norm), atol=1e-6)
    expected = torch.empty(count, 4, 32)
    for head in range(4):
        for i in range(count):
            weights = torch.softmax(k[: i + 1, head // 2] @ q[i, head] * 32**-0.5, 0)
            expected[i, head] = weights @ v[: i + 1, head // 2]
    attention = kept.read(taps.name(1, "attention"), 0, count)
    assert torch.allclose(attention, expected.flatten(1), atol=1e-5)
    assert torch.allclose(kept.read(taps.name(1, "attention_block"), 0, count), layer.o_proj(attention), atol=1e-5)


def test_router_and_experts_are_those_of_the_gate(moe: Any):
    kept = capture(moe)
    norm = kept.read(taps.name(2, "mlp_norm"))
    logits = norm @ moe.model.layers[2].mlp.gate.weight.T
    assert torch.allclose(kept.read(taps.name(2, "router")), logits, atol=1e-5)
    assert torch.equal(kept.read(taps.name(2, "experts")), logits.topk(2).indices.sort(-1).values)


def test_padding_leaves_the_values_of_tokens_alone(moe: Any):
    alone, padded = capture(moe), capture(moe, padded=True)
    for tap in alone.taps:
        assert torch.allclose(alone.read(tap).float(), padded.read(tap).float(), atol=2e-4), tap


def test_hooks_are_gone_afterwards(llama: Any):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    capture(llama)
    assert dict(ALL_ATTENTION_FUNCTIONS._local_mapping) == before
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in llama.modules())


def test_parallel_blocks_are_refused_by_their_sums():
    kept = capture(make("gpt_neox"))
    with pytest.raises(InputError, match="cannot be compared"):
        validate(kept, 2.0**-24)


def test_what_has_no_attention_is_refused():
    with pytest.raises(InputError, match="no list of layers with an attention"):
        Model(torch.nn.Sequential(torch.nn.Linear(2, 2)))


def test_dropout_is_refused():
    model = Model(make("llama", attention_dropout=0.5).train())
    kept = passes.capture(model, as_rows(ROWS))
    with pytest.raises(InputError, match="evaluation mode"):
        validate_trainer(model, kept)
