"""`samepolicy correct`: what it prints, writes and refuses, and that the page's table of flags is true."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.cli.correct import _rules, _take, _Tokens
from samepolicy.corrections import PRESETS
from samepolicy.corrections.frameworks import all_frameworks
from samepolicy.demo import RECORDED
from samepolicy.whatif import Rule, preset
from tests.cli.conftest import Call

PAGE = Path(__file__).resolve().parents[2] / "docs" / "correcting.md"
ROWS = re.findall(r"^\| `([a-z0-9_]+(?: --.*)?)` \| `(.*)` \|$", PAGE.read_text("utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def leaning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two parts with advantages."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("leaning") / "run"
    for step in range(2):
        a = rng.standard_normal(32)
        rollout = [-rng.exponential(1.0, 20) - 5 for _ in a]
        trainer = [r + 0.2 * rng.standard_normal(20) - 0.2 * (x < 0) for r, x in zip(rollout, a, strict=True)]
        columns = {"rollout_logp": rollout, "trainer_logp": trainer, "advantage": [np.full(20, x) for x in a]}
        sp.write(sp.Run.from_lists(**columns, group=[f"{step}-{i // 2}" for i in range(32)]), folder, step=step)
    return folder


def test_the_bundled_run_needs_no_correction(call: Call, tmp_path: Path):
    done = call("correct", RECORDED, "--plots", tmp_path / "plots.html")
    assert done.code == 0
    assert done.out.startswith("No correction needed: the raw token ESS is 0.996")
    assert all(name in done.out for name in PRESETS)
    assert "it takes advantage, which this run does not have" in done.out
    assert "tis at other thresholds" in done.out
    assert done.err == f"The figures are in {tmp_path / 'plots.html'}.\n"
    assert "Plotly.newPlot" in (tmp_path / "plots.html").read_text("utf-8")


def test_json_is_what_the_library_returns(call: Call, leaning: Path):
    value = call("correct", leaning, "--json").value
    assert value == json.loads(json.dumps(sp.whatif(sp.stream(leaning)).as_dict()))
    assert list(value)[:3] == ["schema", "counts", "metrics"]
    assert value["advice"]["rule"] == sp.whatif(sp.read(leaning)).advice.rule


def test_switches_belong_to_what_stands_before_them(call: Call, leaning: Path):
    words = ["--with", "tis", "--threshold", "1.5", "--threshold=3", "--with", "icepop", "--sweep", "--from", "swift"]
    flags = ["--rollout_importance_sampling_mode", "token_mask", "--off-policy-sequence-mask-delta", "0.2"]
    value = call("correct", *words, *flags, leaning, "--json").value
    swift = {"rollout_importance_sampling_mode": "token_mask", "off_policy_sequence_mask_delta": 0.2}
    rules = [preset("tis", 1.5), preset("tis", 3.0), "icepop", Rule("swift", sp.Correction.from_swift(**swift))]
    assert value == json.loads(json.dumps(sp.whatif(sp.stream(leaning), rules, sweeps=["icepop"]).as_dict()))
    assert [o["name"] for o in value["outcomes"]] == ["none", "token-is", "tis", "tis", "icepop", "swift"]


def test_the_surrogate_is_shown(call: Call, leaning: Path):
    done = call("correct", leaning, "--divide-by", "kept", "--with", "mis", "--threshold", 1.2, "--all")
    assert "divided by the tokens that a rule keeps; 95 % intervals by a bootstrap over 32 prompts" in " ".join(
        done.out.split()
    )
    assert "mean abs d" in done.out
    assert "mis 1.2" in done.out


def test_a_switch_that_may_stand_alone(call: Call, leaning: Path):
    for words in (["--is-correction-enable"], ["--is-correction-enable", "true"], ["--is-correction-enable=1"]):
        value = call("correct", "--from", "openrlhf", *words, leaning, "--json").value
        assert value["outcomes"][-1]["correction"] == "Correction(Truncate(5.0, below=0.5))"
    off = call("correct", leaning, "--from", "openrlhf", "--is-correction-enable", "false", "--json").value
    assert off["outcomes"][-1]["correction"] == "Correction()"


@pytest.mark.parametrize(("words", "written"), ROWS, ids=[w for w, _ in ROWS])
def test_the_pages_table_of_flags_is_true(words: str, written: str):
    tokens, found = _Tokens(["--from", *words.split()]), []
    assert all(_take(token, tokens, found, set()) for token in tokens)
    (rule,) = _rules(found[0])
    assert str(rule.correction) == f"Correction({written})"


def test_the_page_has_every_framework():
    assert {words.split()[0] for words, _ in ROWS} == set(all_frameworks())
    assert len(ROWS) > 30


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--with tiss", "There is no correction 'tiss'; choose none, token-is, tis"),
        ("--with", "--with needs a value"),
        ("--with tis --threshold much", "--threshold needs a number, not 'much'"),
        ("--with tis --threshold 0", "must be above 0"),
        ("--with none --threshold 2", "none has no threshold"),
        ("--with none --sweep", "none has no threshold to sweep"),
        ("--threshold 2", "--threshold goes behind a --with"),
        ("--from swift --sweep", "--sweep goes behind a --with"),
        ("--with m2po", "m2po needs the column advantage, which the run does not have"),
        ("--with tis --jsn", "No such option: --jsn"),
        ("--divide-by tokens", "'tokens' is not one of 'mask', 'kept'"),
        ("--from swft", "There is no framework 'swft'; choose areal, m2po"),
        ("--from swift --mode token_mask", "swift has no flag --mode; it has --rollout-importance-sampling-mode"),
        ("--from swift --rollout-importance-sampling-mode token", "choose None, token_truncate, token_mask"),
        ("--from swift --rollout-importance-sampling-threshold x", "needs a number, not 'x'"),
        ("--from swift --has-teacher=maybe", "--has-teacher is true or false, not 'maybe'"),
        ("--from roll --filters x", "--filters is no switch; build it in Python with Correction.from_roll(…)"),
        ("--from verl --rollout-is token --rollout-is-threshold 5_0.5", "its lower bound not above its upper one"),
        ("--from trl --vllm-importance-sampling-clip-max none --vllm-importance-sampling-mode token_truncate", "needs"),
    ],
)
def test_what_it_refuses(call: Call, words: str, sentence: str):
    assert sentence in call("correct", RECORDED, *words.split()).refusal


def test_plots_are_never_overwritten(call: Call, tmp_path: Path):
    (tmp_path / "plots.html").write_text("mine")
    assert "is there already" in call("correct", RECORDED, "--plots", tmp_path / "plots.html").refusal
    assert "no folder" in call("correct", RECORDED, "--plots", tmp_path / "none" / "plots.html").refusal
    assert (tmp_path / "plots.html").read_text() == "mine"


def test_runs_that_cannot_be_corrected(call: Call, tmp_path: Path):
    assert "does not exist" in call("correct", tmp_path / "nowhere").refusal
    sp.write(sp.Run.from_lists(rollout_logp=[[-1.0]]), tmp_path / "one")
    assert "no trainer_logp" in call("correct", tmp_path / "one").refusal
