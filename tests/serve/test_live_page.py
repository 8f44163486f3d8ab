"""The live page in a real browser: steps appear as a monitor writes them, and every control works."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import samepolicy as sp
from samepolicy.records.store import write
from samepolicy.serve.page import HERE, static
from samepolicy.serve.server import Live
from tests.report.conftest import Tab
from tests.report.runs import HOSTILE
from tests.report.test_browser import serious
from tests.serve.conftest import SIDES, batch, quiet, record, running, until, wait

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("browser")]

Visit = Callable[..., Tab]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A run of 28 steps whose gap grows at step 16, with a damaged part."""
    folder = tmp_path_factory.mktemp("outer") / "my run"
    folder.mkdir()
    record(folder, {step: 0.005 if step < 16 else 0.3 for step in range(28)})
    (folder / "part-00000028-000000.parquet").write_bytes(b"PAR1 half of")
    with running(folder) as started:
        yield started


def points(tab: Tab, series: str) -> list[list[float]]:
    """The steps and values of a chart's line."""
    tab.page.evaluate("SP.charts.all()")
    chart = f"document.querySelector('[data-series=\"{series}\"]')"
    wait(tab, f"{chart}.data && {chart}.data[0].x.length")
    return tab.page.evaluate(f"(() => {{ const t = {chart}.data[0]; return [[...t.x], [...t.y]]; }})()")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_opens_quietly_and_is_accessible(visit: Visit, live: Live, theme: str):
    tab = visit(live.url, color_scheme=theme)
    assert tab.text("h1") == "Step 27"
    assert tab.text("#link") == "connected"
    assert tab.page.title() == "▲ 27 · my run · samepolicy"
    tab.page.evaluate("SP.charts.all()")
    assert tab.page.locator("#lines figure:visible").count() == 8
    assert serious(tab) == []
    quiet(tab, live)


def test_lines_marks_and_tables_are_those_of_the_run(visit: Visit, live: Live):
    tab = visit(live.url)
    steps, values = points(tab, "k3.mean")
    assert steps == list(range(28))
    rows = dict(live.watch.history.rows())
    assert values == pytest.approx([rows[s].values["k3.mean"] for s in steps], rel=1e-6)
    chart = "document.querySelector('[data-series=\"logp_diff.mean\"]')"
    points(tab, "logp_diff.mean")
    assert tab.page.evaluate(f"[...{chart}.data[1].x]") == [16]
    points(tab, "ess_token.ess")
    drawn = "document.querySelector('[data-series=\"ess_token.ess\"]').layout.shapes"
    changes = tab.page.evaluate(f"{drawn}.filter((s) => s.yref === 'paper').map((s) => s.x0)")
    assert changes == [
        m[1] for m in live.watch.history.everything([])["marks"]["listed"] if m[:3:2] == ["change", "ess_token.ess"]
    ]
    assert changes
    assert tab.text("#tiles").startswith(
        f"Mean abs d {sp.measure(sp.read(live.watch.folder, steps=[27]))['logp_diff']['mean']:.3g}"
    )
    assert "beyond the usual" in tab.text("#tiles")
    assert "mean abs d since step 16" in tab.text("#active")
    assert tab.page.locator("#rows tbody tr:not(.pad)").nth(1).locator("td").first.inner_text() == "27"
    assert "▲ alarm" in tab.text("#marks")
    quiet(tab, live)


def test_a_step_appears_in_two_tabs_when_a_monitor_writes_it(visit: Visit, folder: Path):
    with running(folder) as live, sp.Monitor(save_dir=folder, calm=0, grid=None, **SIDES) as monitor:
        tabs = [visit(live.url), visit(live.url)]
        assert tabs[0].text("h1") == "Waiting for the first step"
        for step in (0, 1):
            monitor(step=step, **batch(step))
            for tab in tabs:
                wait(tab, f"document.querySelector('h1').textContent === 'Step {step}'")
                assert points(tab, "k3.mean")[0] == list(range(step + 1))
        tabs[1].page.close()
        monitor(step=2, **batch(2))
        wait(tabs[0], "document.querySelector('h1').textContent === 'Step 2'")
        assert tabs[0].page.evaluate("performance.getEntriesByType('navigation').length") == 1
        quiet(tabs[0], live)
        until(lambda: len(live._bell._heard) == 1)  # the page that went away is no longer told


def test_a_folder_without_a_step_shows_no_made_up_axes(visit: Visit, folder: Path):
    with running(folder) as live:
        tab = visit(live.url, shown=False)
        wait(tab, "document.querySelector('h1').textContent === 'Waiting for the first step'")
        tab.page.evaluate("SP.charts.all()")
        wait(tab, "document.querySelector('#lines .main-svg')")
        assert tab.page.locator("#lines .xtick, #lines .ytick").count() == 0
        assert tab.text("#add option") == "another metric"
        record(folder, {0: 0.01, 1: 0.01})
        wait(tab, "document.querySelectorAll('#lines .xtick').length > 0")
        quiet(tab, live)


def test_pausing_holds_and_going_on_catches_up(visit: Visit, folder: Path):
    record(folder, {0: 0.01})
    with running(folder) as live:
        tab = visit(live.url)
        tab.page.click("#pause")
        assert tab.text("#link") == "paused"
        record(folder, {1: 0.01})
        until(lambda: len(live.watch.history.rows()) == 2)
        tab.page.wait_for_timeout(300)
        assert tab.text("h1") == "Step 0"
        tab.page.keyboard.press("Escape")
        tab.page.locator("body").press("p")
        wait(tab, "document.querySelector('h1').textContent === 'Step 1'")
        assert tab.text("#link") == "connected"
        quiet(tab, live)


def test_damage_and_a_deleted_folder_are_said(visit: Visit, folder: Path):
    record(folder, {0: 0.01})
    with running(folder) as live:
        tab = visit(live.url)
        assert not tab.page.locator("#damaged").is_visible()
        (folder / "part-00000001-000000.parquet").write_bytes(b"broken")
        tab.page.wait_for_selector("#damaged:not([hidden])")
        assert "part-00000001-000000.parquet" in tab.text("#bad")
        assert "damaged parts left out: 1" in tab.text("#counted")
        assert tab.page.locator("#rows tbody tr:not(.pad)").first.locator("td").last.inner_text() == "1"
        folder.rename(folder.with_name("away"))
        tab.page.wait_for_selector("#problem:not([hidden])")
        assert "The folder is gone" in tab.text("#problem")
        assert tab.text("h1") == "Step 0"
        folder.with_name("away").rename(folder)
        tab.page.wait_for_selector("#problem", state="hidden")
        quiet(tab, live)


def test_the_range_of_steps(visit: Visit, live: Live):
    tab = visit(f"{live.url}#last=100&from=10-19")
    assert points(tab, "k3.mean")[0] == list(range(10, 20))
    assert tab.page.locator("#last [aria-pressed=true]").count() == 0
    tab.page.click("#last [data-last='0']")
    assert points(tab, "k3.mean")[0] == list(range(28))
    assert "last=0" in tab.page.url
    chart = tab.page.locator('[data-series="logp_diff.mean"]')
    chart.scroll_into_view_if_needed()
    box = chart.locator(".nsewdrag").bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40, steps=4)
    tab.page.mouse.up()
    wait(tab, "location.hash.includes('from=')")
    steps = points(tab, "k3.mean")[0]  # every chart follows
    assert 5 <= steps[0] < steps[-1] <= 25
    tab.page.check("#log")
    points(tab, "logp_diff.mean")
    assert tab.page.evaluate("document.querySelector('[data-series=\"logp_diff.mean\"]').layout.yaxis.type") == "log"
    assert "log=1" in tab.page.url
    quiet(tab, live)


def test_metrics_come_and_go(visit: Visit, live: Live):
    tab = visit(live.url)
    tab.page.click('[data-figure="k3.mean"] .off')
    assert tab.page.locator('[data-figure="k3.mean"]').count() == 0
    tab.page.select_option("#add", "logp_diff.p99")
    wait(tab, "SP.stream.held.values['logp_diff.p99']")
    rows = dict(live.watch.history.rows())
    assert points(tab, "logp_diff.p99")[1] == pytest.approx(
        [row.values["logp_diff.p99"] for row in rows.values() if row.responses], rel=1e-6
    )
    tab.page.reload()
    wait(tab, "document.documentElement.dataset.shown")
    assert tab.page.locator('[data-figure="logp_diff.p99"]').count() == 1
    assert tab.page.locator('[data-figure="k3.mean"]').count() == 0
    quiet(tab, live)


def test_tables_are_filtered_sorted_and_walked(visit: Visit, live: Live):
    tab = visit(live.url)
    first = tab.page.locator("#rows tbody tr:not(.pad)").first.locator("td").first
    assert first.inner_text() == "28"
    tab.page.click("#rows th[data-name='k3.mean'] button")
    rows = dict(live.watch.history.rows())
    worst = max((s for s in rows if rows[s].responses), key=lambda s: rows[s].values["k3.mean"])
    assert first.inner_text() == str(worst)
    assert tab.page.get_attribute("#rows th[data-name='k3.mean']", "aria-sort") == "descending"
    tab.page.click("#rows th[data-name='step'] button")
    tab.page.click("#rows th[data-name='step'] button")
    assert first.inner_text() == "0"
    tab.page.check("#only")
    assert first.inner_text() == str(min(s for s in rows if rows[s].outside or rows[s].damaged))
    tab.page.select_option("#kind", "change")
    assert "▲ alarm" not in tab.text("#marks")
    box = tab.page.locator("#rows")
    box.focus()
    box.press("ArrowDown")
    chosen = tab.page.locator("#rows tr.now td").first.inner_text()
    box.press("Enter")
    tab.page.wait_for_url(f"**/step/{chosen}")
    quiet(tab, live)


def test_ways_to_a_report_and_back(visit: Visit, live: Live):
    tab = visit(live.url)
    tab.page.locator("body").press("/")
    tab.page.keyboard.type("77")
    tab.page.keyboard.press("Enter")
    assert tab.page.get_attribute("#step", "aria-invalid") == "true"
    tab.page.fill("#step", "27")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/step/27")
    wait(tab, "document.documentElement.dataset.charts")
    assert "step 27" in tab.text(".bar .run")
    assert serious(tab) == []
    tab.page.click(".beside [rel=prev]")
    tab.page.wait_for_url("**/step/26")
    tab.page.click(".beside a:nth-of-type(2)")
    wait(tab, "document.documentElement.dataset.shown")
    points(tab, "logp_diff.mean")
    chart = tab.page.locator('[data-series="logp_diff.mean"]')
    chart.scroll_into_view_if_needed()
    at = tab.page.evaluate("""(() => {
        const chart = document.querySelector('[data-series="logp_diff.mean"]');
        const { xaxis, yaxis } = chart._fullLayout;
        const box = chart.getBoundingClientRect();
        const y = yaxis.d2p(chart.data[0].y[26]);
        return [box.x + xaxis._offset + xaxis.d2p(26), box.y + yaxis._offset + y];
    })()""")
    tab.page.mouse.move(*at)
    tab.page.wait_for_selector('[data-series="logp_diff.mean"] .hovertext')
    tab.page.mouse.click(*at)
    tab.page.wait_for_url("**/step/26")
    quiet(tab, live)


def test_languages_themes_keys_and_narrow_windows(visit: Visit, live: Live):
    tab = visit(live.url, width=390)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 391
    tab.page.locator("body").press("l")
    assert tab.text("h1") == "第 27 步"
    left = tab.page.evaluate("""[...document.querySelectorAll('[data-t]')].filter(e => e.textContent === e.dataset.t
        && /[a-z]{4}/.test(e.textContent)).map(e => e.textContent)""")
    assert left == []
    tab.page.click("#language")
    assert tab.text("h1") == "Step 27"
    before = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.page.click("#theme")
    assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    tab.page.locator("body").press("?")
    assert tab.page.locator("#keys").is_visible()
    tab.page.keyboard.press("Escape")
    tab.page.click("#help")
    tab.page.click("#keys button")
    assert not tab.page.locator("#keys").is_visible()
    quiet(tab, live)


def test_hostile_text_is_text(visit: Visit, tmp_path: Path):
    folder = tmp_path / "<img src=x onerror=window.hacked=1>"
    folder.mkdir()
    sides = {"rollout": sp.Side(engine=HOSTILE[0], model=HOSTILE[1], dtype="bfloat16")}
    logp = [[-1.0, -2.0]]
    write(sp.Run.from_lists(response_ids=[[0, 1]], rollout_logp=logp, trainer_logp=logp, **sides), folder, step=1)
    (folder / "part-00000002-000000.parquet").write_bytes(b"<script>window.hacked = 1</script>")
    with running(folder) as live:
        tab = visit(live.url)
        assert HOSTILE[1] in tab.page.locator("#declared").inner_text()
        assert tab.page.locator("#now script, #declared img").count() == 0
        tab.page.goto(f"{live.url}step/1")
        wait(tab, "document.documentElement.dataset.charts")
        assert tab.page.evaluate("window.hacked") is None
        quiet(tab, live)


def test_the_token_opens_the_page_once_and_stays_out_of_the_address(visit: Visit, folder: Path):
    record(folder, {3: 0.01})
    with running(folder, token="a-token-of-many-letters") as live:
        tab = visit(live.url)
        assert "token" not in tab.page.url
        assert tab.text("h1") == "Step 3"
        assert tab.text("#link") == "connected"
        quiet(tab, live)


def test_a_server_that_comes_back_is_found_again(visit: Visit, folder: Path):
    record(folder, {0: 0.01})
    with running(folder) as first:
        tab = visit(first.url)
        port = int(first.url.split(":")[2].strip("/"))
    wait(tab, "document.getElementById('link').className === 'away'")
    record(folder, {1: 0.01})
    with running(folder, port=port):
        wait(tab, "document.querySelector('h1').textContent === 'Step 1'")
        assert tab.text("#link") == "connected"


def test_thinning_keeps_every_extreme(visit: Visit, live: Live):
    tab = visit(live.url)
    found = tab.page.evaluate("""(() => {
        const values = Array.from({ length: 10000 }, (_, i) => Math.sin(i));
        [values[4321], values[8765], values[77]] = [99, -99, NaN];
        const kept = SP.lines.thinned(values, 0, 10000);
        const rising = kept.every((k, i) => !i || k > kept[i - 1]);
        return [kept.length, kept.includes(4321), kept.includes(8765), kept.includes(77), rising];
    })()""")
    assert found == [800, True, True, False, True]


def test_every_word_has_its_chinese():
    words = json.loads((HERE / "static" / "chinese.json").read_text("utf-8"))
    scripts = static()["live.js"].content.decode() + (HERE / "templates" / "live.html").read_text("utf-8")
    assert [word for word in words if word not in scripts] == []
