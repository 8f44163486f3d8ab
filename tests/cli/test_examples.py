"""Every script of examples/ runs, stays short, and says what it should."""

import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))
SAYS = {
    "bring_your_own_logprobs": ["inconclusive: ", "mean abs d by step:", "  2: 0.0"],
    "correct_in_your_loop": [
        "token ESS 0.998 raw",
        "What-if over all steps:\nNo correction needed",
        "ess: 0.9976 before step 12",
    ],
    "check_two_engines": ["numerics: ", "different: ", "Read back from disk: different"],
    "framework_batches": [
        "slime   : k3 5.019e-05, sign skew -6.50e-03",
        "OpenRLHF: k3 5.019e-05, sign skew -6.50e-03",
        "NeMo-RL : k3 5.019e-05, sign skew -6.50e-03",
        "prime-rl: k3 5.019e-05, sign skew -6.50e-03",
    ],
    "measure_batch": ["125 tokens in 5 responses", "rollout_corr/k3_kl: ", "sign_skew"],
    "monitor_in_your_loop": [
        "step 4: k3 7.6e-07, 0 alarms on",
        "step 5: k3 0.12, 6 alarms on",
        "  8: mean abs d 0.36 nats",
    ],
    "trl_grpo": ["step 1: 2 alarms on", "72 tokens recorded"],
}
NEEDS_TORCH = ("trl_grpo",)
CASES = [pytest.param(s, id=s.stem, marks=[pytest.mark.full] if s.stem in NEEDS_TORCH else []) for s in SCRIPTS]


def test_every_example_is_known():
    assert [script.stem for script in SCRIPTS] == sorted(SAYS)


@pytest.mark.parametrize("script", CASES)
def test_it_runs(script: Path, capsys: pytest.CaptureFixture[str]):
    assert len(script.read_text("utf-8").splitlines()) < 120
    runpy.run_path(str(script), run_name="__main__")
    out = capsys.readouterr().out
    assert [words for words in SAYS[script.stem] if words not in out] == []
