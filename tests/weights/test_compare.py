"""What became of a tensor: every status by a tensor that was made so, and every single edit named on either side."""

import copy
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch

from samepolicy.errors import InputError
from samepolicy.weights import compare, fingerprint
from samepolicy.weights.live import open_module
from samepolicy.weights.result import SAME, Status
from tests.weights.conftest import FAMILIES, make

pytestmark = pytest.mark.full

HIDDEN = "model.layers.1.mlp.down_proj.weight"
OTHER = "model.layers.0.mlp.down_proj.weight"


def table() -> dict[str, torch.Tensor]:
    """Random tensors under a model's names."""
    torch.manual_seed(3)
    shapes = {HIDDEN: (24, 40), OTHER: (24, 40), "model.norm.weight": (24,), "model.embed_tokens.weight": (50, 24)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def edited(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with one value changed."""
    found = tensor.clone()
    found.view(-1)[7] += 0.25
    return found


MADE: dict[str, Any] = {
    "equal": lambda t: t,
    "equal after cast": lambda t: t.to(torch.bfloat16),
    "scaled": lambda t: t * 0.125,
    "transposed": lambda t: t.T.contiguous(),
    "permuted": lambda t: t.roll(4, 0),
    "zero": torch.zeros_like,
    "nan": lambda t: torch.where(t > 2, float("nan"), t),
    "shape differs": lambda t: t[:12],
    "differs": edited,
}


@pytest.mark.parametrize("status", MADE)
@pytest.mark.parametrize("turned", [False, True], ids=["in B", "in A"])
def test_a_tensor_made_so_is_named_so(status: str, turned: bool):
    one = table()
    other = {**one, HIDDEN: MADE[status](one[HIDDEN])}
    found = compare(*((other, one) if turned else (one, other)))
    assert found[HIDDEN].status == status
    assert [relation.name for relation in found.different] == ([] if status in SAME else [HIDDEN])
    assert found.exit_code == int(status not in SAME) == int(not found.same)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("status", ["transposed", "permuted", "scaled"])
def test_it_is_found_under_a_cast_too(status: str, dtype: str):
    one = table()
    other = {name: tensor.to(getattr(torch, dtype)) for name, tensor in one.items()}
    found = compare(one, {**other, HIDDEN: MADE[status](one[HIDDEN]).to(getattr(torch, dtype))})
    assert found[HIDDEN].status == status
    assert found.counts == {"equal after cast": 3, status: 1}


def test_rounded_values_in_a_wide_dtype_are_a_cast():
    one = table()
    found = compare(one, {name: tensor.to(torch.bfloat16).float() for name, tensor in one.items()})
    assert found.same
    assert {relation.dtype for relation in found.relations} == {"bfloat16"}
    assert found.sentence == "The weights are the same after a cast: 4 of 4 tensors to bfloat16."


def test_both_sides_rounded_differently_are_not_the_same():
    one = table()
    found = compare({n: t.half() for n, t in one.items()}, {n: t.to(torch.bfloat16) for n, t in one.items()})
    assert found.counts == {"differs": 4}
    assert all(1e-4 < relation.relative_error < 4e-3 for relation in found.relations)


def test_old_tensors_name_the_checkpoint_they_are_of():
    first = table()
    second = {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in first.items()}
    third = {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in second.items()}
    engine = {name: tensor.to(torch.bfloat16) for name, tensor in {**third, HIDDEN: first[HIDDEN]}.items()}
    earlier = [fingerprint(state, label=f"step {i}") for i, state in enumerate((first, second, third))]
    found = compare(third, engine, checkpoints=earlier)
    assert (found[HIDDEN].status, found[HIDDEN].side, found[HIDDEN].other) == ("old", "B", "step 0")
    assert found[HIDDEN].relative_error == pytest.approx(0.014, rel=0.3)
    assert found.counts == {"equal after cast": 3, "old": 1}
    behind = compare({**third, HIDDEN: second[HIDDEN]}, third, checkpoints=earlier)
    assert (behind[HIDDEN].side, behind[HIDDEN].other) == ("A", "step 1")
    assert compare(third, first, checkpoints=earlier[:1]).counts == {"old": 4}
    assert compare(third, second, checkpoints=earlier[2:]).counts == {"differs": 4}


def test_tensors_that_changed_places_are_named():
    one = table()
    found = compare(one, {**one, HIDDEN: one[OTHER], OTHER: one[HIDDEN]})
    assert found.counts == {"equal": 2, "moved": 2}
    assert (found[HIDDEN].side, found[HIDDEN].other) == ("B", OTHER)


@pytest.mark.parametrize("turned", [False, True])
def test_missing_tensors_say_on_which_side(turned: bool):
    one, less = table(), table()
    del less[HIDDEN]
    found = compare(*((less, one) if turned else (one, less)))
    assert (found[HIDDEN].status, found[HIDDEN].side) == ("missing", "A" if turned else "B")
    assert found.counts == {"equal": 3, "missing": 1}


def test_a_layer_of_ones_is_not_taken_for_another():
    one = table() | {"model.layers.0.input_layernorm.weight": torch.ones(24)}
    found = compare(one, {**one, "model.norm.weight": torch.ones(24)})
    assert found["model.norm.weight"].status == "differs"


def test_permuted_heads_and_columns():
    one = table()
    heads = one[HIDDEN].view(24, 4, 10)[:, [2, 0, 3, 1]].reshape(24, 40)
    found = compare(one, {**one, HIDDEN: heads})
    assert (found[HIDDEN].status, found[HIDDEN].other) == ("permuted", "columns")


def test_the_result_as_text_and_data():
    one = table()
    found = compare(one, {**one, HIDDEN: one[HIDDEN] * 2, OTHER: torch.zeros(24, 40)})
    assert str(found).splitlines() == [
        "The weights differ: 2 of 4 tensors are not the same (1 scaled, 1 zero).",
        f"  {HIDDEN}: scaled (B = 2 × A)",
        f"  {OTHER}: zero (B is 0 throughout)",
    ]
    data = found.as_dict()
    assert data["counts"] == {"equal": 2, "scaled": 1, "zero": 1}
    assert data["tensors"][0]["factor"] == pytest.approx(2)
    assert set(MADE) | {"old", "moved", "missing"} == set(get_args(Status))
    with pytest.raises(InputError, match="Neither model has a tensor 'x'"):
        found["x"]


def each_piece(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a model as a view that can be edited."""
    for entry in open_module(model).entries:
        if not entry.transient:
            for name, cut in entry.pieces.items():
                yield name, cut(entry.load())


@pytest.mark.parametrize("family", FAMILIES)
def test_one_edited_tensor_anywhere_is_named_on_either_side(family: str, saved: Any):
    model, whole = make(family), fingerprint(saved(family))
    clean = compare(whole, model)
    assert clean.counts == {"equal": len(clean.relations)}
    seen = []
    for name, tensor in each_piece(model):
        before = tensor.detach().clone()
        with torch.no_grad():
            tensor.view(-1)[len(seen) % tensor.numel()] += 1e-3
            both = compare(whole, model), compare(model, whole)
            tensor.copy_(before)
        for found in both:
            assert [(r.name, r.status) for r in found.different] == [(name, "differs")]
        seen.append(name)
    assert set(seen) == {relation.name for relation in clean.relations if not whole[relation.name].transient}


def test_a_head_that_is_tied_is_one_tensor_and_a_stale_copy_of_it_is_named(saved: Any):
    folder, model = saved("qwen2"), make("qwen2")
    found = compare(folder, model)
    assert found.tied == (("model.embed_tokens.weight", "lm_head.weight"),)
    assert found["lm_head.weight"].name == "model.embed_tokens.weight"
    engine = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine["model.embed_tokens.weight"] += 0.01
    model.load_state_dict({**engine, "lm_head.weight": engine["model.embed_tokens.weight"]})
    stale = compare(model, engine, checkpoints=[folder])
    assert [(r.name, r.status, r.side) for r in stale.different] == [("lm_head.weight", "old", "B")]
    assert any(note.startswith("A ties lm_head.weight") for note in stale.notes)


def test_wrappers_and_adapters_do_not_hide_a_tensor():
    import peft

    model = make("llama")
    plain = fingerprint(model)
    assert compare(plain, torch.nn.ModuleDict({"module": copy.deepcopy(model)})).same
    assert compare(plain, {f"_orig_mod.{n}": t for n, t in model.state_dict().items()}).same
    bare = {n.removeprefix("model."): t for n, t in model.state_dict().items()}
    assert compare(plain, bare).same
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], r=2))
    found = compare(plain, adapted)
    assert {r.status for r in found.different} == {"missing"}
    assert all("lora_" in r.name for r in found.different)
    assert any("not merged" in note for note in found.notes)


def test_buffers_of_one_framework_are_left_out_but_compared_where_both_have_them():
    one, other = make("llama"), make("llama")
    found = compare(one, other)
    assert found["model.rotary_emb.inv_freq"].status == "equal"
    other.model.rotary_emb.inv_freq *= 2
    assert [r.name for r in compare(one, other).different] == ["model.rotary_emb.inv_freq"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"transformer.h.0.attn.weight": torch.ones(2, 2)}, "no tensor name in common"),
        ({HIDDEN: torch.ones(2, 2)}, "models of different sizes"),
        ({}, "is empty"),
        ({HIDDEN: [1.0]}, "holds list"),
        (3, "int is nothing that holds weights"),
    ],
)
def test_what_cannot_be_compared_is_refused(other: Any, words: str):
    with pytest.raises(InputError, match=words):
        compare(table(), other)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_quantised_parameters_are_refused(dtype: torch.dtype):
    layer = torch.nn.Linear(4, 4)
    layer.weight = torch.nn.Parameter(torch.zeros(4, 4).to(dtype), requires_grad=False)
    with pytest.raises(InputError, match="weight is quantised"):
        compare(layer, layer)


def test_meta_tensors_are_refused():
    with pytest.raises(InputError, match="meta device"):
        fingerprint(torch.nn.Linear(2, 2, device="meta"))
