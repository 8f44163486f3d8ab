"""What a run, a side or a stored run is made of: refused in one sentence where no reader could use it."""

import json
from pathlib import Path

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.errors import CorruptFileError, InputError, SamePolicyError, ShapeError

LOGP = [[-1.0, -2.0], [-3.0]]
SIDES = '"rollout_logp": [-1.0], "trainer_logp": [-1.5]'


def refusal(error: type[SamePolicyError], what, *given: object, **named: object) -> str:
    """The sentence of a refusal."""
    with pytest.raises(error) as caught:
        what(*given, **named)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    return str(caught.value)


@pytest.fixture
def dump(tmp_path: Path):
    """Writes bytes as a .jsonl file."""

    def write(content: bytes | str) -> Path:
        path = tmp_path / "dump.jsonl"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_a_number_too_large_for_a_float():
    assert "must hold numbers" in refusal(InputError, sp.Run.from_lists, rollout_logp=[[-(10**400)]])


def test_a_masked_entry_of_a_masked_array_is_missing():
    column = np.ma.masked_array([[-1.0, -2.0]], mask=[[False, True]])
    np.testing.assert_array_equal(sp.Run.from_lists(rollout_logp=column)["rollout_logp"].values, [-1.0, np.nan])


@pytest.mark.parametrize("which", [[[0], [1]], True, [[True, False]]])
def test_a_selection_that_is_no_list(which: object):
    refusal(ShapeError, sp.Run.from_lists(rollout_logp=LOGP).select, which)


def test_an_advantage_of_each_response_is_repeated_over_its_tokens():
    spread = [[0.5, 0.5], [-1.0]]
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    padded = sp.Run.from_padded(mask=mask, rollout_logp=-np.ones((2, 3)), advantage=np.array([0.5, -1.0]))
    lists = sp.Run.from_lists(rollout_logp=LOGP, advantage=[0.5, -1.0])
    for run in (padded, lists, lists.without("advantage").with_columns(advantage=np.array([0.5, -1.0]))):
        assert [row.tolist() for row in run["advantage"]] == spread
    assert lists == sp.Run.from_lists(rollout_logp=LOGP, advantage=spread)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"advantage": [0.5]}, "how many tokens each has"),
        ({"advantage": [0.5], "reward": [1.0]}, "how many tokens each has"),
        ({"advantage": [0.5], "rollout_logp": LOGP}, "one entry per response"),
        ({"trainer_entropy": [0.5, 0.1], "rollout_logp": LOGP}, "one list of values"),
    ],
)
def test_values_of_responses_that_nothing_can_be_made_of(columns: dict[str, list], words: str):
    assert words in refusal(ShapeError, sp.Run.from_lists, **columns)


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": float("inf")},
        {"temperature": float("nan")},
        {"temperature": 1e-300},
        {"temperature": True},
        {"repetition_penalty": float("inf")},
        {"seed": -1},
    ],
    ids=str,
)
def test_settings_that_no_sampler_has(setting: dict[str, object]):
    assert next(iter(setting)) in refusal(InputError, sp.Sampling, **setting)


@pytest.mark.parametrize(
    "declared",
    [
        {"extra": {"eos_ids": "</s>"}},
        {"extra": {"eos_ids": [2, "x"]}},
        {"extra": {"vocab_size": 1.5}},
    ],
    ids=str,
)
def test_declarations_that_no_check_could_read(declared: dict[str, object]):
    refusal(InputError, sp.Side, **declared)


def test_info_that_json_cannot_hold(tmp_path: Path):
    run = sp.Run.from_lists(rollout_logp=LOGP, info={"loss": float("nan")})
    assert "JSON" in refusal(InputError, sp.write, run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_header_without_an_end(tmp_path: Path):
    sp.write(sp.Run.from_lists(rollout_logp=LOGP), tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("[" * 100_000)
    refusal(CorruptFileError, sp.read, tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"rollout_logp": [-1.0], "rollout_logp": [-2.0]}', "'rollout_logp' twice"),
        (f"{{{SIDES}}}".encode("utf-16"), "not UTF-8"),
        (f"{{{SIDES}}}\n".encode() + b"\xff", "not UTF-8"),
        ('{"rollout_logp": [-1' + "0" * 400 + "]}", "must hold numbers"),
    ],
    ids=["twice", "utf-16", "bytes", "huge"],
)
def test_lines_that_are_refused(dump, content: bytes | str, words: str):
    assert words in refusal(InputError, sp.read, dump(content))


@pytest.mark.parametrize("content", [f"\ufeff{{{SIDES}}}", f"{{{SIDES}}}\r\n", f"\n\n{{{SIDES}}}"])
def test_marks_of_another_editor_are_no_content(dump, content: str):
    assert sp.read(dump(content))["trainer_logp"].values.tolist() == [-1.5]


def test_a_number_for_each_response_in_a_dump(dump):
    lines = [{"rollout_logp": [-1.0, -2.0], "advantage": 0.5}, {"rollout_logp": [-3.0], "advantage": None}]
    run = sp.read(dump("\n".join(map(json.dumps, lines))))
    np.testing.assert_array_equal(run["advantage"].values, [0.5, 0.5, np.nan])
