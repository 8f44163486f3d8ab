"""The page in a real browser: every control, nothing asked of a network, and text that stays text."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.demo import recorded
from samepolicy.fleet import in_turn, plan_of, sample
from samepolicy.report import data, whole
from samepolicy.whatif import preset
from tests.report.conftest import Open, Tab, written
from tests.report.runs import HOSTILE, large, value_of
from tests.whatif_runs import run_of

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("browser")]


def worst(run: sp.Run) -> tuple[int, int]:
    """Response and position of the token with the largest abs d."""
    d = np.abs(run["trainer_logp"].values - run["rollout_logp"].values)
    row = int(np.searchsorted(run.offsets, d.argmax(), side="right")) - 1
    return row, int(d.argmax() - run.offsets[row])


def serious(tab: Tab) -> list[str]:
    """What axe calls serious or critical."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(tab.page).response["violations"]
    return [
        f"{v['id']}: {node['html'][:120]}"
        for v in found
        if v["impact"] in ("serious", "critical")
        for node in v["nodes"][:3]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_opens_quietly_and_is_accessible(visit: Open, demo: Path, theme: str):
    tab = visit(demo, color_scheme=theme)
    assert tab.text("h1") == "The same, within rounding"
    assert tab.page.evaluate("document.documentElement.dataset.theme") == theme
    tab.drawn()
    assert tab.page.locator(".chart[data-drawn] .main-svg").count() >= 6
    assert serious(tab) == []
    tab.quiet()


def test_a_narrow_window_and_paper(visit: Open, demo: Path):
    tab = visit(demo, width=390)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 391
    tab.page.emulate_media(media="print")
    assert not tab.page.locator(".bar").is_visible()
    assert len(tab.page.pdf()) > 50_000
    tab.quiet()


def test_figures_fit_on_paper_and_a_dark_page_is_printed_light(visit: Open, demo: Path):
    tab = visit(demo, width=703, color_scheme="dark")
    tab.drawn()
    tab.page.emulate_media(media="print", color_scheme="dark")
    tab.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.page.evaluate("document.documentElement.dataset.theme") == "light"
    tab.until(
        "[...document.querySelectorAll('.main-svg')].every(s => s.clientWidth <= s.closest('figure').clientWidth)"
    )
    assert tab.page.evaluate("document.getElementById('metrics').querySelector('table').offsetWidth") <= 703
    assert tab.page.evaluate("[...document.querySelectorAll('.rung')].every(r => r.scrollWidth <= r.clientWidth + 1)")
    tab.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.page.evaluate("document.documentElement.dataset.theme") == "dark"
    tab.quiet()


def test_language_and_theme(visit: Open, demo: Path):
    tab = visit(demo)
    tab.page.click("#language")
    assert tab.text("h1") == "在舍入误差内相同"
    assert "0.733" in tab.text(".sentence")
    assert tab.page.get_attribute("html", "lang") == "zh-CN"
    tab.drawn()
    assert "每个词元的比值" in tab.page.locator("[data-chart=ratios]").inner_text()
    left = tab.page.evaluate("""[...document.querySelectorAll('[data-t]')].filter(e => e.textContent === e.dataset.t
        && /[a-z]{4}/.test(e.textContent) && !['nats', 'Pareto k'].includes(e.textContent)).map(e => e.textContent)""")
    assert left == []
    assert serious(tab) == []
    tab.page.reload()
    assert tab.text("h1") == "在舍入误差内相同"
    tab.page.keyboard.press("l")
    assert tab.text("h1") == "The same, within rounding"
    before = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.page.click("#theme")
    assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    tab.page.keyboard.press("t")
    assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == before
    tab.quiet()


def test_the_ladder_opens(shared: Tab):
    tab = shared
    rung = tab.page.locator(".rung").nth(2)
    rung.click()
    assert "correlation of trainer and rollout" in tab.text("#why-3")
    rung.click()
    assert not tab.page.locator("#why-3").is_visible()
    tab.page.click(".steps summary")
    assert tab.page.locator(".steps tr").count() == 8
    tab.quiet()


def test_a_page_of_a_sample_calls_responses_by_their_own_numbers(visit: Open, tmp_path: Path):
    sp.write(run_of(40, spread=0.5), tmp_path / "run")
    plan = plan_of(tmp_path / "run", by="step", also=whole.asked({"trainer_logp", "rollout_logp"}))
    drawn = sample(plan, in_turn, most=5)
    some = replace(whole.whole(plan, in_turn, drawn), run=drawn.run, numbers=sorted(drawn.numbers.tolist()))
    value = data.of_report(data.of_all(sp.diagnose(drawn.run), drawn), whole=some, drawn=drawn)
    tab = visit(written(tmp_path, value))
    tab.drawn()
    assert "5 / 40 responses" in tab.text(".next >> nth=1")
    assert tab.page.evaluate("[0, 1, 2, 3, 4].map(SP.numberOf)") == some.numbers
    tab.page.fill("#search", str(some.numbers[3]))
    tab.page.locator("#hits button").first.click()
    assert tab.token() == (3, 0)
    assert tab.text("#strip-title") == f"Response {some.numbers[3]}"
    assert f"token={some.numbers[3]}:0" in tab.page.url
    tab.page.reload()
    tab.until("document.documentElement.dataset.ready")
    assert tab.token() == (3, 0)
    assert "5 of 40 responses" in tab.text("#limits")
    assert serious(tab) == []
    tab.quiet()


def test_the_cause_of_a_faulty_run_is_seen_first(visit: Open, different: Path):
    tab = visit(different)
    box = tab.page.locator(".because").bounding_box()
    assert box["y"] + box["height"] < 860
    assert tab.text(".because") == "Cause temperature temperature 0.7"
    tab.page.keyboard.press("l")
    assert "原因是 temperature（解释了差距的 97%）" in tab.text(".sentence")
    assert "保持英文" in tab.text(".only-zh")
    tab.page.keyboard.press("l")
    assert not tab.page.locator(".only-zh").is_visible()
    tab.page.click(".because a")
    tab.drawn()
    assert tab.page.locator("[data-chart=ledger] .main-svg").count() > 0
    tab.page.click("#ledger-rows button")
    assert tab.token() == tuple(tab.page.evaluate("[SP.responses.list.row[0], SP.responses.list.at[0]]"))
    assert serious(tab) == []
    tab.quiet()


def test_curves(visit: Open, demo: Path):
    tab = visit(demo)
    tab.page.locator("#curve").scroll_into_view_if_needed()
    tab.page.wait_for_selector("#curve .main-svg")
    title = "#curve .xtitle"
    assert tab.page.text_content(title) == "position in the response, from 0"
    tab.page.click("#curve-by [data-by=probability]")
    tab.until("document.querySelector('#curve .xtitle').textContent.startsWith('probability')")
    tab.page.select_option("#curve-of", "k3")
    tab.until("document.querySelector('#curve .ytitle').textContent === 'mean k3, nats'")
    assert "by=probability" in tab.page.url
    assert "of=k3" in tab.page.url
    tab.page.reload()
    tab.until("document.documentElement.dataset.charts")
    assert tab.page.locator("#curve-by [aria-pressed=true]").get_attribute("data-by") == "probability"
    tab.quiet()


def test_a_cell_of_the_heat_map_leads_to_its_token(shared: Tab):
    tab, run = shared, recorded()
    canvas = tab.page.locator("#heat-map")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    at = {"x": (5 + 0.5) * box["width"] / 64, "y": (3 + 0.5) * box["height"] / 16}
    canvas.hover(position=at)
    d = run["trainer_logp"][3][5] - run["rollout_logp"][3][5]
    assert tab.text("#heat-says").startswith("response 3, position 5: ")
    assert float(tab.text("#heat-says").split(": ")[1].replace("−", "-")) == pytest.approx(d, rel=0.01)
    canvas.click(position=at)
    assert tab.token() == (3, 5)
    assert "token=3:5" in tab.page.url
    canvas.focus()
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    assert tab.token() == (4, 6)
    tab.page.click("#heat-whole")
    assert tab.page.get_attribute("#heat-whole", "aria-pressed") == "true"
    tab.page.select_option("#heat-order", "table")
    canvas.click(position={"x": 2, "y": 2})
    assert tab.token()[0] == worst(run)[0]
    before = tab.page.evaluate("document.getElementById('heat-map').toDataURL()")
    tab.page.locator("#saturation").press("Home")
    assert tab.page.evaluate("document.getElementById('heat-map').toDataURL()") != before
    tab.quiet()


def test_a_token_shows_its_numbers(shared: Tab):
    tab, run = shared, recorded()
    tab.page.evaluate("location.hash = 'token=3:5'")
    tab.until("SP.state.at === 5")
    assert tab.token() == (3, 5)
    shown = tab.text("#detail")
    t, r = float(run["trainer_logp"][3][5]), float(run["rollout_logp"][3][5])
    for number in (f"{t - r:.4g}", f"{np.exp(t - r):.4g}", f"{t:.5g}", f"{r:.5g}", f"id {run['response_ids'][3][5]}"):
        assert number.replace("-", "−").replace("id −", "id -") in shown, (number, shown)
    tab.page.locator("#strip .tok").nth(9).hover()
    assert "position 9" in tab.text("#detail")
    assert tab.token() == (3, 5)
    tab.page.locator("#strip .tok").nth(9).click()
    assert tab.token() == (3, 9)
    tab.page.keyboard.press("ArrowRight")
    assert tab.token() == (3, 10)
    said = tab.page.locator("#strip").inner_text().replace("↵", "")
    assert " ".join(said.split()) == " ".join(run["text"][3].split())
    tab.quiet()


def test_corrections_that_would_drop_a_token(visit: Open, different: Path):
    tab = visit(different)
    row, at = tab.token()
    ratio = tab.page.evaluate(f"Math.exp(SP.strip.columns.value[SP.strip.find({row}, {at})])")
    chips = set(tab.page.locator("#detail .drop").all_inner_texts())
    assert ("mis" in chips) == (ratio > 2)
    assert ("icepop" in chips) == (ratio > 5 or ratio < 0.5)
    assert chips


def test_keys_walk_over_outliers(visit: Open, demo: Path):
    tab, run = visit(demo), recorded()
    tab.page.keyboard.press("j")
    first = tab.token()
    tab.page.keyboard.press("j")
    second = tab.token()
    assert second != first
    tab.page.keyboard.press("k")
    assert tab.token() == first
    tab.page.goto(tab.page.url.split("#")[0] + f"#token={second[0]}:{second[1]}")
    assert tab.token() == second
    tab.page.reload()
    tab.until("document.documentElement.dataset.ready")
    assert tab.token() == second
    tab.page.locator("#outliers tbody tr:not(.pad)").first.click()
    assert tab.token() == worst(run)
    tab.page.keyboard.press("?")
    assert tab.page.locator("#keys").is_visible()
    tab.page.keyboard.press("Escape")
    assert not tab.page.locator("#keys").is_visible()
    tab.quiet()


def test_search(shared: Tab):
    tab, run = shared, recorded()
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("practice")
    tab.page.wait_for_selector("#hits mark")
    assert tab.text("#hits mark") == "practice"
    tab.page.keyboard.press("Enter")
    row, at = tab.token()
    assert "practice" in run["text"][row]
    assert "practice" in tab.page.locator("#detail h3").inner_text()
    some = int(run["response_ids"][2][4])
    tab.page.keyboard.press("/")
    tab.page.keyboard.type(f"#{some}")
    tab.page.wait_for_selector("#hits button")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    row, at = tab.token()
    assert run["response_ids"][row][at] == some
    tab.page.fill("#search", "nowhere to be found")
    tab.page.wait_for_selector("#hits .note")
    tab.page.keyboard.press("Escape")
    assert not tab.page.locator("#hits").is_visible()
    tab.quiet()


def cells(tab: Tab, column: str) -> list[str]:
    """The visible cells of a column of the table of responses."""
    return tab.page.evaluate(
        """name => {
            const at = [...document.querySelectorAll('#responses th')].findIndex(t => t.dataset.name === name);
            const rows = [...document.querySelectorAll('#responses tbody tr:not(.pad)')];
            return rows.map(row => row.cells[at].innerText.trim());
        }""",
        column,
    )


def test_responses_are_sorted_and_filtered(visit: Open, tmp_path: Path):
    run = run_of(24, finish_reason=["stop", "length", None] * 8, reward=[i / 10 for i in range(24)])
    tab = visit(written(tmp_path, value_of(sp.diagnose(run))))
    number = tab.page.evaluate("[...document.querySelectorAll('#responses th')].map(t => t.dataset.name)")
    assert {"step", "mean_abs", "advantage", "reward", "ess", "finish_reason", "group"} <= set(number)
    tab.page.click("#responses th[data-name=reward] button")
    rewards = [float(x) for x in cells(tab, "reward")]
    assert rewards == sorted(rewards, reverse=True)
    assert tab.page.get_attribute("#responses th[data-name=reward]", "aria-sort") == "descending"
    tab.page.click("#responses th[data-name=reward] button")
    rewards = [float(x) for x in cells(tab, "reward")]
    assert rewards == sorted(rewards)
    tab.page.select_option("[data-filter=finish_reason]", "length")
    assert set(cells(tab, "finish_reason")) == {"length"}
    assert tab.text("#row-count") == "8 / 24"
    tab.page.select_option("[data-filter=step]", "1")
    assert set(cells(tab, "step")) == {"1"}
    assert "finish_reason=length" in tab.page.url
    tab.page.reload()
    tab.until("document.documentElement.dataset.ready")
    assert set(cells(tab, "finish_reason")) == {"length"}
    tab.page.locator("#responses tbody tr:not(.pad)").first.click()
    assert tab.token()[0] == int(cells(tab, "number")[0])
    tab.quiet()


def test_a_hundred_thousand_rows_are_windowed(visit: Open, tmp_path: Path):
    rng = np.random.default_rng(0)
    rollout = -rng.exponential(1.0, (100_000, 4))
    trainer = np.minimum(rollout + rng.normal(0, 0.1, rollout.shape), 0)
    run = sp.Run.from_padded(rollout_logp=rollout, trainer_logp=trainer, mask=np.ones(rollout.shape, dtype=int))
    tab = visit(written(tmp_path, value_of(replace(sp.diagnose(run.select(range(50))), run=run))))
    assert tab.page.locator("#responses tr").count() < 60
    tab.page.click("#responses th[data-name=number] button")
    tab.page.evaluate("document.getElementById('responses').scrollTop = 1e9")
    tab.until("document.querySelector('#responses tbody').innerText.includes('99999')")
    assert tab.page.locator("#responses tr").count() < 60
    tab.page.click("#heat-whole")
    assert "positions from" in tab.page.evaluate(
        "SP.said('responses from {row} on, positions from {place} on: {text}')"
    )
    tab.quiet()


def test_the_slider_computes_what_the_corrections_do(visit: Open, tmp_path: Path):
    run = run_of(40, spread=0.6)
    tab = visit(written(tmp_path, value_of(sp.diagnose(run))))
    tab.page.locator("#rule").scroll_into_view_if_needed()
    for rule, name in (("truncate", "tis"), ("mask", "mis"), ("band", "icepop"), ("geo-truncate", "geometric-tis")):
        tab.page.select_option("#rule", rule)
        for place in (300, 650, 760):
            tab.page.locator("#threshold").fill(str(place))
            tau = tab.page.evaluate(f"SP.whatif.tauAt({place})")
            found = tab.page.evaluate(f"SP.whatif.at('{rule}', {tau})")
            expected = sp.whatif(run, [preset(name, tau)])[name]
            for key, wanted in (("ess", expected.ess_token), ("kept", expected.kept), ("clipped", expected.clipped)):
                assert found[key] == pytest.approx(wanted, rel=0.02, abs=0.004), (name, key, tau)
            assert tab.text("#effect dd").startswith(f"{found['ess']:.3g}"[:4])
    tab.page.wait_for_selector("#sweep .main-svg")
    tab.quiet()


def test_only_what_differs(shared: Tab):
    tab = shared
    rows = tab.page.locator("#declared tbody tr:visible")
    before = rows.count()
    tab.page.check("#only-different")
    assert 0 < rows.count() < before
    assert rows.count() == tab.page.locator("#declared tbody tr.free, #declared tbody tr.differs").count()
    tab.quiet()


def test_hostile_text_is_text(visit: Open, attack: Path):
    tab = visit(attack)
    for row in range(len(HOSTILE)):
        tab.page.evaluate(f"SP.choose({row}, 0)")
    for query in ("script", "x", "<img", "#102"):
        tab.page.fill("#search", query)
        tab.page.wait_for_selector("#hits li")
    tab.page.keyboard.press("Escape")
    tab.page.click("#language")
    tab.page.evaluate("SP.responses.next()")
    assert tab.page.evaluate("window.hacked") is None
    assert (
        tab.page.evaluate("document.images.length + document.querySelectorAll('main script, iframe, b > b').length")
        == 0
    )
    assert tab.page.title().endswith(" · <b>attack · samepolicy")
    tab.page.evaluate("SP.choose(0, 0)")
    strip = tab.page.locator("#strip").inner_text()
    assert HOSTILE[0] in strip
    assert HOSTILE[1] in strip
    assert "⟨U+202E⟩right to left⟨U+202C⟩" in strip
    assert "⟨FF FE 80⟩" in strip
    assert "⟨E4 BD⟩" in strip
    assert "⟨U+2028⟩" in strip
    assert "正常的文字 😀" in strip
    assert re.search(r"x{600}… 10,000,000", strip)
    assert not re.search("[\u202e\u2028\u200f\x00]", strip)
    tab.drawn()
    tab.quiet()


@pytest.mark.parametrize(
    "columns",
    [
        {"rollout_logp": [[-1.0, -2.0], []]},
        {"prob_diff": [[0.1, 0.2], [0.3, 0.0]], "mask": [[1, 1], [0, 1]]},
        {"text": ["only text"]},
        {"rollout_logp": [[float("nan"), -1.0]], "trainer_logp": [[-1.0, 0.5]]},
        {"rollout_logp": [[-1.0, -2.0]], "trainer_logp": [[-1.0, -2.0]], "mask": [[0, 0]]},
        {"rollout_logp": [[]], "trainer_logp": [[]]},
        {"rollout_logp": [[-1.0]], "trainer_logp": [[-1.5]]},
        {"rollout_logp": [[-1e30, -1.0]], "trainer_logp": [[-1.0, -1e30]]},
    ],
    ids=["one side", "prob_diff", "text", "nothing finite", "all masked", "no token", "one token", "enormous"],
)
def test_a_run_that_lacks_almost_everything_opens_quietly(visit: Open, tmp_path: Path, columns: dict[str, Any]):
    tab = visit(written(tmp_path, value_of(sp.diagnose(sp.Run.from_lists(**columns)))))
    tab.page.keyboard.press("j")
    tab.page.keyboard.press("t")
    tab.page.keyboard.press("l")
    tab.page.click("#heat-whole")
    tab.page.evaluate("SP.charts.all()")
    if tab.page.locator("#rule").count():
        for rule in ("band", "geo-truncate", "geo-band"):
            tab.page.select_option("#rule", rule)
    assert tab.page.locator("#responses tbody tr:not(.pad)").count() == len(next(iter(columns.values())))
    if not tab.page.evaluate("SP.data.counts.measured"):
        assert tab.page.locator("#rule, .state.out").count() == 0  # what has no value lies beyond nothing
    tab.quiet()


@pytest.mark.parametrize(
    "address", ["#%", "#%zz=%&=", "#token=9999:0", "#token=0:9999", "#sort=-nothing&by=x&of=y&full=z&tau=w&rule=v"]
)
def test_an_address_that_means_nothing_is_passed_over(visit: Open, demo: Path, address: str):
    tab = visit(demo, address)
    assert tab.token() == worst(recorded())
    tab.quiet()


def test_a_filter_of_any_text_and_a_step_of_any_size_come_back(visit: Open, tmp_path: Path):
    reasons, steps = ["a&b=c %41+d", "stop"], [1_700_000_000_001, 1_700_000_000_002]
    run = run_of(2, finish_reason=reasons, step=steps)
    tab = visit(written(tmp_path, value_of(sp.diagnose(run))))
    tab.page.select_option("[data-filter=finish_reason]", reasons[0])
    tab.page.select_option("[data-filter=step]", str(steps[0]))
    tab.page.reload()
    tab.until("document.documentElement.dataset.ready")
    assert tab.text("#row-count") == "1 / 2"
    assert cells(tab, "step") == ["1,700,000,000,001"]
    tab.quiet()


def test_the_most_likely_tokens_of_both_sides(visit: Open, tmp_path: Path):
    top = {"ids": [[[5, 6], [7, 5]]], "logp": [[[-0.1, -3.0], [-0.5, -1.0]]]}
    run = sp.Run.from_lists(
        response_ids=[[5, 7]],
        rollout_logp=[[-0.1, -0.5]],
        trainer_logp=[[-0.2, -0.6]],
        rollout_top_ids=top["ids"],
        rollout_top_logp=top["logp"],
        trainer_top_ids=[[[5, 6], [5, 7]]],
        trainer_top_logp=[[[-0.2, -2.0], [-0.4, -0.6]]],
        turn=[[0, 1]],
        policy_version=[[3, 3]],
    )
    pieces = {5: b"five", 6: b"six", 7: b"seven"}
    tab = visit(written(tmp_path, value_of(sp.diagnose(run), pieces=pieces)), "#token=0:1")
    shown = tab.text("#detail")
    assert re.search(r"Most likely in the rollout seven ● 7 0\.607 five 5 0\.368", shown), shown
    assert re.search(r"Most likely in the trainer five 5 0\.67 seven ● 7 0\.549", shown), shown
    assert "turn 1" in shown
    assert "policy version 3" in shown


def test_a_large_batch_opens(visit: Open, tmp_path: Path):
    tab = visit(written(tmp_path, value_of(sp.diagnose(large(64, 4096)), budget=20_000)))
    tab.page.click("#heat-whole")
    canvas = tab.page.locator("#heat-map")
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] / 3, "y": box["height"] / 2})
    row, at = tab.token()
    assert abs(row - 32) <= 1
    assert abs(at - 4096 / 3) < 10
    held = tab.page.evaluate("[...Array(64).keys()].map(r => SP.strip.holds(r))")
    assert {0, 1, 2} >= set(held) >= {1, 2}
    part = held.index(1)
    tab.page.evaluate(f"SP.choose({part}, 0)")
    assert "tokens that this file does not hold" in tab.text("#strip")
    assert "one by one" in tab.text("#kept")
    whole = held.index(2)
    tab.page.evaluate(f"SP.choose({whole}, 4000)")
    assert tab.page.locator("#strip .now").count() == 1
    assert tab.text("#pager").startswith("‹ 2 / 2")
    tab.page.locator("#pager button").first.click()
    assert tab.page.locator("#strip [data-at='0']").count() == 1
    tab.quiet()
