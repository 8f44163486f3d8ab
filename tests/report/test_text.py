"""What a terminal shows: complete at any width, never read as markup, and true to the numbers behind it."""

import re
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

import samepolicy as sp
from samepolicy.demo import recorded
from samepolicy.records.side import Side
from samepolicy.report import measures, text
from samepolicy.report.tables import number


def shown(view: object, width: int = 100, **options: object) -> str:
    """What rich prints."""
    console = Console(file=StringIO(), width=width, highlight=False, **options)
    console.print(view, crop=False)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def numerics() -> sp.Diagnosis:
    return sp.diagnose(recorded())


@pytest.fixture(scope="module")
def different() -> sp.Diagnosis:
    toys = {"rollout": sp.engine("toy:", dtype="bfloat16"), "trainer": sp.engine("toy:", dtype="bfloat16", shift=1)}
    return sp.check(**toys, prompts=[f"prompt {i}" for i in range(12)], sampling=sp.Sampling(max_tokens=8))


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("everything", [False, True])
def test_no_line_is_wider_than_the_terminal(
    numerics: sp.Diagnosis, different: sp.Diagnosis, width: int, everything: bool
):
    for found in (numerics, different):
        lines = shown(text.diagnosis(found, everything=everything), width).splitlines()
        assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_no_number_is_cut_at_any_width(numerics: sp.Diagnosis, width: int):
    page = shown(text.diagnosis(numerics), width)
    for value in (numerics.gap.mean_abs, numerics.sides[0].mean_abs, numerics.self_checks["trainer_alone"]["rms"]):
        assert number(value, 3) in page
    for metric, readout in measures.MAIN:
        assert number(numerics.summary[metric][readout]) in page
    assert "…" not in page


def test_the_verdict_comes_first_and_the_next_step_last(numerics: sp.Diagnosis, different: sp.Diagnosis):
    for found in (numerics, different):
        page = shown(text.diagnosis(found), 400)
        assert page.startswith(f"Verdict: {found.verdict}\n {found.sentence}")
        assert page.rstrip().endswith(f"Next: {found.next}")


def test_who_is_further_from_float32_is_said_only_where_structure_holds(different: sp.Diagnosis):
    told = "Further from the float32 forward of its own declaration, by the trainer's model: the rollout."
    assert any(fact.breaks for fact in different.facts)
    assert different.further is None
    assert different.as_dict()["sides"]["further_from_float32"] is None
    assert "Further from" not in shown(text.diagnosis(different), 400)
    sound = replace(different, facts=tuple(fact for fact in different.facts if not fact.breaks))
    assert sound.further == "rollout"
    assert told in shown(text.diagnosis(sound), 400)


def test_capped_tokens_are_said_to_be_capped(numerics: sp.Diagnosis, different: sp.Diagnosis):
    assert "none beyond 8 floors." in shown(text.diagnosis(numerics), 400)
    assert f"{different.gap.tails:.2%} beyond 8 floors, which count as 8." in shown(text.diagnosis(different), 400)


def test_steps_rungs_and_why_are_all_there(different: sp.Diagnosis):
    page = " ".join(shown(text.diagnosis(different), 400).split())
    for rung in (*different.steps, *different.ladder):
        assert f"{rung.name.split()[0]} " in page
        assert f" {rung.status} {rung.why[:60]}" in page
    assert f"Not checked: {', '.join(rung.name for rung in different.open_rungs)} (" in page


def test_the_pairs_floor_is_that_of_its_tokens(numerics: sp.Diagnosis):
    square = numerics.floor.pair_square(numerics.run)[numerics.run.mask.values]
    assert text.pair_floor(numerics.floor) == pytest.approx(np.sqrt(square.mean()), rel=1e-12)


def test_health_is_shown_with_its_source(numerics: sp.Diagnosis):
    page = shown(text.diagnosis(numerics), 160)
    assert "a measured floor beats all of these" in page
    for reading in numerics.readings:
        row = next(line for line in page.splitlines() if reading.threshold.source in line)
        assert reading.state in ("normal", "high", "low")
        assert row
    assert re.search(r"prob_diff mean +0\.\d+ +0 +0 to 0\.005 +(high|normal) +verl FAQ", page)


def test_square_brackets_are_text(numerics: sp.Diagnosis):
    odd = replace(numerics, sentence="read [red]logits[/red] at [m-1 : m-1+n].", next="[/]")
    page = shown(text.diagnosis(odd), 100)
    assert "\n read [red]logits[/red] at [m-1 : m-1+n]. " in page
    assert page.rstrip().endswith("Next: [/]")


def test_colours_are_for_terminals(numerics: sp.Diagnosis):
    assert "\x1b[1;32mnumerics" in shown(text.diagnosis(numerics), force_terminal=True, color_system="standard")
    assert "\x1b" not in shown(text.diagnosis(numerics))


@pytest.mark.parametrize(
    "run",
    [
        sp.Run.from_lists(rollout_logp=[[-1.0]]),
        sp.Run.from_lists(rollout_logp=[[-1.0, -2.0]], trainer_logp=[[-1.0, float("nan")]]),
        sp.Run.from_lists(rollout_logp=[[]], trainer_logp=[[]]),
        sp.Run.from_lists(rollout_logp=[[-1.0, -2.0]], trainer_logp=[[-1.1, -2.2]]),
        sp.Run.from_lists(rollout_logp=[[-1.0]], trainer_logp=[[-1.1]], trainer=Side(dtype="float32")),
        sp.Run.from_lists(prob_diff=[[0.1, 0.2]]),
    ],
)
@pytest.mark.parametrize("everything", [False, True])
def test_whatever_is_missing_the_page_is_whole(run: sp.Run, everything: bool):
    found = sp.diagnose(run)
    page = shown(text.diagnosis(found, everything=everything))
    assert page.startswith(f"Verdict: {found.verdict}\n")
    assert "nan" not in page.replace("finance", "")
    assert "declares nothing" in page


def test_oddities_among_the_counts_are_named():
    logp = [[-1.0, float("nan"), 0.5, -2.0]]
    found = sp.measure(sp.Run.from_lists(rollout_logp=logp, trainer_logp=[[-1.0, -1.0, -1.0, 0.0]]))
    line = measures.counts(found).plain
    assert line.startswith("2 of 4 tokens measured, in 1 response, ")
    assert "1 nonfinite rollout" in line
    assert "1 positive rollout" in line


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [(0.0, 4, "0"), (-0.00385, 4, "-0.00385"), (12345.678, 4, "1.235e+04"), (99999.0, 3, "1e+05"), (1.0, 4, "1")],
)
def test_numbers(value: float, digits: int, expected: str):
    assert number(value, digits) == expected
