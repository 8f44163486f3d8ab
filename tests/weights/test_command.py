"""`samepolicy weights` on small saved models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from samepolicy.cli.main import status
from samepolicy.weights import fingerprint

pytestmark = pytest.mark.full


@pytest.fixture
def stale(saved: Any, tmp_path: Path) -> Path:
    """The random Llama after an update, but for one tensor."""
    tensors = load_file(saved("llama") / "model.safetensors")
    for name, tensor in tensors.items():
        if name != "model.layers.1.mlp.up_proj.weight":
            tensor.add_(0.1 * torch.randn_like(tensor))
    save_file(tensors, tmp_path / "updated.safetensors")
    return tmp_path / "updated.safetensors"


def test_the_status_is_the_verdict(saved: Any, stale: Path, capsys: pytest.CaptureFixture[str]):
    folder = str(saved("llama"))
    assert status(["weights", folder, f"hf:{folder}"]) == 0
    assert "The weights are the same: all 21 tensors are equal." in capsys.readouterr().out
    assert status(["weights", folder, str(stale)]) == 1
    assert "20 of 21 tensors are not the same (20 differs)" in capsys.readouterr().out
    assert status(["weights", folder, f"{folder}/nowhere"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.startswith("Error: There is no model at")) == ("", True)


def test_a_checkpoint_names_what_is_old(saved: Any, stale: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = saved("llama")
    current = load_file(stale)
    current["model.layers.1.mlp.up_proj.weight"] += 0.1
    save_file(current, tmp_path / "trainer.safetensors")
    fingerprint(folder).write(tmp_path / "step0.json")
    call = ["weights", str(tmp_path / "trainer.safetensors"), str(stale), "--checkpoint", str(tmp_path / "step0.json")]
    assert status([*call, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["counts"] == {"equal": 20, "old": 1}
    (old,) = (tensor for tensor in found["tensors"] if tensor["status"] == "old")
    assert (old["name"], old["side"]) == ("model.layers.1.mlp.up_proj.weight", "B")
    assert status(call) == 1
    page = capsys.readouterr().out
    assert "model.layers.1.mlp.up_proj.weight" in page
    assert "model.layers.0.mlp.up_proj.weight" not in page
    assert status([*call, "--all"]) == 1
    assert "model.layers.0.mlp.up_proj.weight" in capsys.readouterr().out
