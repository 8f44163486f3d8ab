"""Models in files: whole, in shards, as .bin; and files that are refused in a sentence."""

import json
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from samepolicy.errors import CorruptFileError, InputError, SamePolicyError
from samepolicy.weights import Fingerprints, compare, fingerprint
from tests.weights.conftest import make

pytestmark = pytest.mark.full


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_shards_one_file_bin_and_live_hold_the_same(family: str, saved: Any, tmp_path: Path):
    model = make(family)
    model.save_pretrained(tmp_path / "shards", max_shard_size="30KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    whole = fingerprint(saved(family))
    for other in (tmp_path / "shards", f"hf:{saved(family)}", saved(family) / "model.safetensors", tmp_path, model):
        found = compare(whole, other)
        assert found.counts == {"equal": len(found.relations)}, str(found)


def test_a_bf16_copy_is_the_same_after_a_cast(saved: Any, tmp_path: Path):
    make("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    found = compare(saved("llama"), tmp_path)
    assert found.counts == {"equal after cast": len(found.relations)}
    assert found["model.norm.weight"].dtype == "bfloat16"
    assert compare(tmp_path, saved("llama")).counts == found.counts


def test_fingerprints_in_a_file_stand_for_the_model(saved: Any, tmp_path: Path):
    found = fingerprint(saved("qwen2"), label="engine")
    found.write(tmp_path / "engine.json")
    again = fingerprint(tmp_path / "engine.json")
    assert again.as_dict() | {"label": "engine"} == found.as_dict()
    assert (again.label, len(again)) == (str(tmp_path / "engine.json"), len(found))
    assert compare(again, make("qwen2").to(torch.bfloat16)).counts == {"equal after cast": len(found) - 1}
    with pytest.raises(InputError, match="exists already"):
        found.write(tmp_path / "engine.json")
    with pytest.raises(InputError, match="does not end in"):
        found.write(tmp_path / "engine.txt")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "no table of fingerprints"),
        ('{"format": "samepolicy weights", "schema": 99}', "layout version 99"),
        ('{"format": "samepolicy weights", "schema": 1, "tensors": {"a": {}}}', "not readable"),
        ('{"format": "samepolicy weights", "schema": 1, "tensors": {}, "tied": 3}', "not readable"),
    ],
)
def test_a_file_of_fingerprints_that_is_none(tmp_path: Path, content: str, words: str):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(CorruptFileError, match=words):
        fingerprint(tmp_path / "x.json")
    with pytest.raises(CorruptFileError):
        Fingerprints.from_dict([])


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_safetensors_file(saved: Any, tmp_path: Path, share: float):
    whole = (saved("llama") / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CorruptFileError, match=r"model.safetensors is truncated or no safetensors file") as caught:
        fingerprint(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_bin_file(tmp_path: Path, share: float):
    torch.save(make("llama").state_dict(), tmp_path / "pytorch_model.bin")
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(CorruptFileError, match=r"pytorch_model.bin is truncated"):
        fingerprint(tmp_path)


class Trap:
    """What a pickle could do to whoever opens it."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("opened"),))


def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model.norm.weight": Trap()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="loading it could run any code"):
        fingerprint(tmp_path)
    assert not (tmp_path / "opened").exists()


def test_a_pickle_that_torch_warns_about_is_refused_without_its_warning(tmp_path: Path):
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(), protocol=3))
    with warnings.catch_warnings(record=True) as told, pytest.raises(InputError, match="any code|no file of weights"):
        fingerprint(tmp_path)
    assert not told


def test_a_missing_shard_is_named(tmp_path: Path):
    make("llama").save_pretrained(tmp_path, max_shard_size="30KB")
    sorted(tmp_path.glob("*.safetensors"))[1].unlink()
    with pytest.raises(CorruptFileError, match=r"names model-00002-of-\d+\.safetensors, which is missing \(1 of"):
        fingerprint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(CorruptFileError, match="no index of weights"):
        fingerprint(tmp_path)


def test_quantised_folders_and_files_are_refused(saved: Any, tmp_path: Path):
    shutil.copytree(saved("llama"), tmp_path / "gptq")
    config = json.loads((tmp_path / "gptq" / "config.json").read_text())
    (tmp_path / "gptq" / "config.json").write_text(
        json.dumps({**config, "quantization_config": {"quant_method": "gptq"}})
    )
    with pytest.raises(InputError, match=r"are quantised \(gptq\)"):
        fingerprint(tmp_path / "gptq")
    save_file({"model.layers.0.mlp.up_proj.qweight": torch.zeros(2, 2)}, tmp_path / "packed.safetensors")
    with pytest.raises(InputError, match="holds quantised weights"):
        fingerprint(tmp_path / "packed.safetensors")


def test_what_is_no_model_is_refused(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "text.gguf").write_text("hello")
    torch.save([1, 2], tmp_path / "list.bin")
    cases = {
        "missing": "There is no model at",
        "empty": "There are no weights in",
        "broken": "is not JSON",
        "notes.txt": "no file of weights that can be read",
        "text.gguf": "truncated or no GGUF file",
        "list.bin": "no table of tensors",
        "missing.json": "There is no file",
    }
    for name, words in cases.items():
        with pytest.raises(SamePolicyError, match=words) as caught:
            fingerprint(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="There is no model at ''"):
        fingerprint("hf:")


def test_another_architecture_is_refused(saved: Any, tmp_path: Path):
    import transformers

    sizes = {"vocab_size": 97, "n_embd": 32, "n_layer": 1, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="of different architectures"):
        compare(saved("llama"), tmp_path)
    mixed = compare(saved("llama"), saved("qwen3_moe"))
    assert mixed.exit_code == 1
    assert mixed["model.layers.0.mlp.up_proj.weight"].status == "missing"
