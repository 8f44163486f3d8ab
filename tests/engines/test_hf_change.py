"""Models that are another than they declare, against transformers' own model made so from the start."""

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.engines.base import engine
from samepolicy.engines.change import Change
from samepolicy.engines.layout import Layout
from samepolicy.engines.states import Shaping
from samepolicy.engines.weight_formats import rounded
from samepolicy.errors import EngineError, InputError
from samepolicy.records.side import Sampling
from samepolicy.testing import smollm2_path

pytestmark = pytest.mark.full

LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@pytest.fixture(scope="module")
def network(tiny):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny("llama")).eval()


def changed(tiny, change: Change):
    return engine(f"hf:{tiny('llama')}", dtype="float32", device="cpu").variant(
        dtype="float32", weights_dtype="float32", change=change
    )


def plain(network, prompts: Ragged, responses: Ragged) -> list[np.ndarray]:
    """Log-probs by one forward a sequence."""
    import torch

    found = []
    for prompt, response in zip(prompts, responses, strict=True):
        ids = torch.tensor(np.concatenate([prompt, response]))[None]
        with torch.no_grad():
            logp = network(input_ids=ids).logits[0].log_softmax(-1)
        found.append(logp[len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None])[:, 0].numpy())
    return found


def same(tiny, ids, change: Change, other) -> None:
    found = changed(tiny, change).score(*ids).logp
    np.testing.assert_allclose(found.values, np.concatenate(plain(other, *ids)), atol=1e-5)


@pytest.mark.parametrize("scaling", [LINEAR, YARN, LLAMA3])
def test_a_scaling_that_the_config_does_not_have(tiny, network, ragged_ids, scaling: dict):
    config = copy.deepcopy(network.config)
    config.rope_parameters = {**config.rope_parameters, **scaling}
    other = type(network)(config).eval()
    other.load_state_dict(network.state_dict())
    fields = tuple((f"rope_parameters.{name}", value) for name, value in scaling.items())
    same(tiny, ragged_ids, Change(config=fields), other)
    apart = np.abs(np.concatenate(plain(other, *ragged_ids)) - np.concatenate(plain(network, *ragged_ids)))
    assert apart.max() > 0.01


def test_an_attention_factor_alone_is_another_scale_of_the_softmax(tiny, network, ragged_ids):
    other = copy.deepcopy(network)
    for block in other.model.layers:
        block.self_attn.scaling *= 1.5**2
    yarn = {"rope_type": "yarn", "factor": 1.0, "attention_factor": 1.5}
    same(tiny, ragged_ids, Change(config=tuple((f"rope_parameters.{name}", one) for name, one in yarn.items())), other)


def test_an_epsilon_and_a_base(tiny, network, ragged_ids):
    config = copy.deepcopy(network.config)
    config.rms_norm_eps, config.rope_parameters["rope_theta"] = 0.05, 500.0
    other = type(network)(config).eval()
    other.load_state_dict(network.state_dict())
    change = Change(config=(("rms_norm_eps", 0.05), ("rope_parameters.rope_theta", 500.0)))
    same(tiny, ragged_ids, change, other)


@pytest.mark.parametrize("form", ["int8", "int4_g32", "fp8_tensor"])
def test_weights_of_linear_layers_are_rounded_and_the_head_is_not(tiny, network, ragged_ids, form: str):
    import torch

    other = copy.deepcopy(network)
    with torch.no_grad():
        for name, weight in other.named_parameters():
            if "proj" in name:
                weight.copy_(rounded(weight, form))
    same(tiny, ragged_ids, Change(quantise=form), other)


def test_what_a_model_does_not_have_is_refused(tiny):
    with pytest.raises(InputError, match="no field rope_parameters.twist"):
        changed(tiny, Change(config=(("rope_parameters.twist", 2.0),)))
    with pytest.raises(InputError, match="'int3' is not known"):
        changed(tiny, Change(quantise="int3"))


@pytest.fixture
def saved(tiny, tmp_path):
    """A copy of a tiny model's folder, to damage."""
    return Path(shutil.copytree(tiny("llama"), tmp_path / "saved"))


def test_weights_of_another_size_are_refused(tiny, saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(InputError, match="num_hidden_layers is 3, where the model has 2"):
        engine(f"hf:{tiny('llama')}").check_weights(str(saved))


@pytest.mark.parametrize(("keep", "said"), [(0, "could not be loaded"), (1000, "could not be loaded")])
def test_damaged_weights_are_refused_before_they_are_read(tiny, saved, keep: int, said: str):
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(EngineError, match=said):
        engine(f"hf:{tiny('llama')}").check_weights(str(saved))


def test_a_folder_without_weights_and_no_folder_are_refused(tiny, saved):
    (saved / "model.safetensors").unlink()
    one = engine(f"hf:{tiny('llama')}")
    with pytest.raises(InputError, match="holds a config but no weights"):
        one.check_weights(str(saved))
    with pytest.raises(InputError, match="no (folder|model at) 'nowhere/model'"):
        one.check_weights("nowhere/model")


def test_a_model_whose_files_lack_tensors_is_refused(saved):
    from safetensors.torch import load_file, save_file

    tensors = load_file(saved / "model.safetensors")
    lost = tensors.pop("model.layers.1.mlp.down_proj.weight")
    assert lost.numel()
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lack 1 of the model's tensors, such as model.layers.1.mlp.down_proj.weight"):
        engine(f"hf:{saved}")


def test_weights_in_hand_that_are_rounded_are_read_again_to_be_changed(tiny, ragged_ids):
    change = Change(quantise="int8")
    found = [
        engine(f"hf:{tiny('llama')}", device="cpu", dtype=dtype).variant(dtype="float32", change=change)
        for dtype in ("bfloat16", "float32")
    ]
    np.testing.assert_array_equal(*(one.score(*ragged_ids).logp.values for one in found))


def test_a_checkpoint_whose_files_lack_tensors_is_refused_before_it_is_read(tiny, saved):
    from safetensors.torch import load_file, save_file

    one = engine(f"hf:{tiny('llama')}")
    one.check_weights(str(saved))
    tensors = load_file(saved / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lack 1 of the model's tensors, such as model.layers.1.mlp.down_proj.weight"):
        one.check_weights(str(saved))


def test_a_gguf_file_that_is_cut_off_is_refused_before_it_is_read(tiny, tmp_path):
    file = tmp_path / "cut.gguf"
    file.write_bytes(Path(smollm2_path()).read_bytes()[:100_000])
    with pytest.raises(EngineError, match="could not be loaded"):
        engine(f"hf:{tiny('llama')}").check_weights(str(file))


def test_an_untied_head_does_not_overwrite_a_tied_embedding(network, tmp_path):
    for name, tie in (("tied", True), ("untied", False)):
        config = copy.deepcopy(network.config)
        config.tie_word_embeddings = tie
        type(network)(config).save_pretrained(tmp_path / name)
    with pytest.raises(InputError, match="are one tensor, in .*untied' they are two"):
        engine(f"hf:{tmp_path / 'tied'}", dtype="float32").variant(
            dtype="float32", change=Change(weights=str(tmp_path / "untied"))
        )


@pytest.mark.parametrize("family", ["gpt2", "granite"])
def test_weights_of_another_architecture_are_refused_even_where_their_tensors_fit(tiny, family):
    with pytest.raises(InputError, match=f"another architecture: model_type is {family}, where the model has llama"):
        changed(tiny, Change(weights=tiny(family)))


@pytest.mark.parametrize("pads", ["hidden", "seen", "removed"])
def test_each_sequence_has_padding_of_its_own(tiny, ragged_ids, pads: str):
    """Against one forward a sequence, with ids, mask and positions written out."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(tiny("llama")).eval()
    prompts, responses = ragged_ids
    pad_to = tuple(int(n) + 2 * i for i, n in enumerate(prompts.lengths))
    layout = Layout(pad_to=pad_to, pads=pads, pad_right=True, pad_id=3)
    model = engine(f"hf:{tiny('llama')}", dtype="float32", device="cpu")
    states = model.states(prompts, responses, layout=layout)
    found = states.logp(Shaping(sampling=Sampling()), np.arange(len(responses.values)))
    expected = []
    for prompt, response, to in zip(prompts, responses, pad_to, strict=True):
        some = to - len(prompt)
        ids = np.concatenate([prompt, [3] * (0 if pads == "removed" else some), response]).astype(np.int64)
        mask = np.ones(len(ids), dtype=np.int64)
        positions = np.arange(len(ids))
        if pads == "hidden":
            mask[len(prompt) : to] = 0
        if pads == "removed":
            positions[len(prompt) :] += some
        given = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        with torch.no_grad():
            logp = network(**{k: torch.tensor(v)[None] for k, v in given.items()}).logits[0].log_softmax(-1)
        begin = len(ids) - len(response)
        expected.append(logp[begin - 1 : -1].gather(-1, torch.tensor(ids[begin:])[:, None])[:, 0].numpy())
    np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-5)
    with pytest.raises(InputError, match="pads 2 sequences, but there are 5"):
        model.states(prompts, responses, layout=Layout(pad_to=(3, 4)))
