"""The file: what it allows, what it holds, and what it never overwrites."""

import html.parser
import re
from pathlib import Path

import pytest

import samepolicy as sp
from samepolicy.demo import recorded
from samepolicy.errors import InputError
from samepolicy.report import html as page
from samepolicy.report import report
from samepolicy.report.chinese import chinese, sentence
from tests.report.runs import FINDING, embedded_value, faulty, hostile, value_of, with_finding


@pytest.fixture(scope="module")
def value() -> dict:
    return value_of(sp.diagnose(recorded()), title="demo")


@pytest.fixture(scope="module")
def rendered(value: dict) -> str:
    return page.render(value)


class Elements(html.parser.HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def test_nothing_refers_to_a_network(rendered: str):
    elements = Elements(rendered).found
    for tag, attributes in elements:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("src", "href", "action", "data", "poster", "srcset", "style"):
            assert name not in attributes or str(attributes[name]).startswith("#"), (tag, attributes)
    assert [tag for tag, _ in elements if tag in ("link", "iframe", "object", "embed", "base", "img")] == []
    style = rendered[rendered.index("<style>") : rendered.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_names_scripts_by_their_hash(rendered: str):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', rendered)[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.replace("&#39;", "'").split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in rules["script-src"]
    assert "unsafe" not in rules["style-src"]
    assert rules["script-src"].count("sha256-") == 2  # the page's own, and plotly
    assert "connect-src" not in rules


def test_plotly_is_in_the_file_once(rendered: str):
    assert rendered.count("plotly.js v") == 1
    assert len(re.findall("<script>", rendered[rendered.index("<body") :])) >= 1


def test_the_value_in_the_page_is_the_value(value: dict, rendered: str):
    assert embedded_value(rendered) == value


def test_a_hostile_run_stays_inside_its_block():
    run, pieces = hostile()
    value = value_of(sp.diagnose(run), pieces=pieces, title="</title><script>window.hacked = 1</script>")
    text = page.render(value)
    assert len(text) < 12e6
    assert embedded_value(text) == value
    before = text[: text.index('<script type="application/json" id="chinese">')]
    assert "<script" not in before
    assert "<img" not in before
    tags = [tag for tag, _ in Elements(before).found]
    assert tags.count("title") == 1


def test_the_cause_stands_before_everything_but_the_verdict():
    text = page.render(with_finding(value_of(faulty(temperature=0.7))))
    body = text[text.index("<main>") : text.index('id="chinese"')]
    assert body.index("temperature") < body.index('id="ladder"')
    assert body.index("Two different policies") < body.index("temperature")
    card = body[body.index('class="cause"') :]
    for part in ("97 %", FINDING["evidence"], "93 – 100", "temperature = 0.7", "What happens"):
        assert part in card.replace("&#39;", "'"), part


def test_every_fixed_word_has_its_chinese():
    here = Path(page.__file__).parent
    words: set[str] = set()
    for file in (here / "templates").glob("*.html"):
        text = file.read_text("utf-8")
        words |= set(re.findall(r'\bt\("((?:[^"\\]|\\.)*)"', text))
        words |= set(re.findall(r'data-t(?:-label|-placeholder)?="([^"{]+)"', text))
    for file in (here / "static").glob("*.js"):
        words |= set(re.findall(r'SP\.(?:said|word)\(\s*"((?:[^"\\]|\\.)*)"', file.read_text("utf-8")))
    assert len(words) > 150
    assert sorted(words - set(chinese())) == []
    from samepolicy.report.words import RUNGS, STEPS

    assert sorted({*RUNGS, *RUNGS.values(), *STEPS} - set(chinese())) == []


def test_the_chinese_sentence_holds_the_numbers(value: dict):
    said = sentence(value)
    for number in ("0.733", "0.593", "0.924", "896", "16"):
        assert number in said


def test_a_report_is_written_and_replaced(tmp_path: Path):
    target = tmp_path / "report.html"
    assert report(target, recorded()) == target
    first = target.read_text("utf-8")
    report(target, diagnosis=sp.diagnose(recorded()), budget=10)
    assert target.read_text("utf-8") != first
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_what_is_no_report_is_never_overwritten(tmp_path: Path):
    target = tmp_path / "notes.html"
    target.write_text("<p>mine</p>")
    with pytest.raises(InputError, match="not overwritten"):
        report(target, recorded())
    assert target.read_text() == "<p>mine</p>"
    with pytest.raises(InputError, match="is a folder"):
        report(tmp_path, recorded())
    with pytest.raises(InputError, match="no folder"):
        report(tmp_path / "gone" / "x.html", recorded())
    with pytest.raises(InputError, match="nothing to report"):
        report(tmp_path / "x.html")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from samepolicy.cli.main import main
    from samepolicy.demo import RECORDED

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["report", str(RECORDED), *map(str, arguments)])
        return left.value.code, *capsys.readouterr()

    files = [tmp_path / name for name in ("r.html", "r.md", "r.xml")]
    code, out, err = call("-o", files[0], "--markdown", files[1], "--junit", files[2])
    assert (code, out.split(":")[0]) == (0, "numerics")
    assert err == f"The report is in {files[0]}.\n"
    assert all(file.stat().st_size > 500 for file in files)
    code, out, err = call("-o", files[0], "--markdown", files[1], "--junit", files[2])  # each may be replaced
    assert code == 0
    code, out, _ = call("--markdown", "-")
    assert (code, out[:23]) == (0, "### samepolicy: numeric")
    code, out, _ = call("--json", "--tokens", 100)
    assert embedded_value(f'<script type="application/json" id="data">{out}</script>')["verdict"] == "numerics"
    code, out, err = call("-o", files[1])
    assert (code, out) == (2, "")
    assert "not overwritten" in err
