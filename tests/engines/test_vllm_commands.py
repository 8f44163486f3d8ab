"""The commands with real vLLM in this process, bfloat16 against bfloat16.

A module of its own: a vLLM that goes away takes with it what another one in the same process stands on.
"""

import json
from pathlib import Path

import pytest

from samepolicy.cli.main import status
from tests.serving import smollm2_folder, with_settings

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model, with a generation config that asks for what nobody asked for."""
    return with_settings(smollm2_folder(), tmp_path_factory.mktemp("models") / "penalised", repetition_penalty=1.3)


def test_the_command_compares_vllm_with_the_trainer(folder: str, capsys: pytest.CaptureFixture[str]):
    asked = ["--rollout", "vllm", "--dtype", "bfloat16", "--device", "cpu", "--rollout-max-model-len", "512"]
    code = status(["check", folder, *asked, "--max-tokens", "24", "--top", "20", "--json"])
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (code, found["verdict"]) == (0, "numerics")
    assert 0.02 < found["metrics"]["logp_diff"]["mean"] < 0.08
    assert 5e-4 < found["metrics"]["k3"]["mean"] < 6e-3
    assert found["metrics"]["prob_corr"]["pearson"] > 0.998
    assert found["semantics"]["status"] == "agrees"
    assert "repetition_penalty 1.3" in printed.err
    assert "vLLM applies it unasked" in found["warnings"][0]
    assert found["vocabulary"]["top1"]["mean"] > 0.9
    assert 1e-5 < found["vocabulary"]["kl"]["mean"] < 0.02


def test_the_command_prints_the_matrix(folder: str, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "two.txt").write_text("Hi\nName a colour.\n")
    asked = ["--rollout", "vllm", "--dtype", "bfloat16", "--rollout-max-model-len", "512"]
    code = status(["paths", folder, *asked, "--prompts", str(tmp_path / "two.txt"), "--max-tokens", "3"])
    printed = capsys.readouterr().out
    assert code == 0
    assert "rollout next token, prefix cached" in printed
    assert "trainer: all paths hold" in printed
