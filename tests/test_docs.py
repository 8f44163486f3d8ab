"""What the docs show is run or generated, every relative link leads somewhere, and nothing names the maker's tools."""

import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import samepolicy

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
WRITTEN = [page for page in PAGES if "reference" not in page.parts]
BLOCK = re.compile(
    r"(?P<output><!-- output: .+? -->\n)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)|(?:src|href)=\"(?P<attribute>[^\"]+)\"")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)

# Each class of one letter keeps this file from matching itself.
FORBIDDEN = {
    "a path of a machine": r"(?<![\w.])/(wor[k]|roo[t]|hom[e]|User[s]|op[t]/pypi|tm[p]/w)(/|\b)",
    "a host of a package registry": r"\b(pyp[i]\.org|pythonhoste[d]|npmj[s]\.|deb\.debia[n]|download\.pytorc[h])",
    "a word of the maker's tools": r"\b(issue[s] show|workplac[e]|share[d]/(design|spec|causes|parts)|tracke[r]'s)",
}


def blocks(page: Path, *kinds: str) -> Iterator[str]:
    """The code blocks of these kinds that no command generated."""
    for block in BLOCK.finditer(page.read_text("utf-8")):
        if block["kind"] in kinds and not block["output"]:
            yield block["body"]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made on the web."""
    titles = HEADING.findall(page.read_text("utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def project_files() -> list[Path]:
    """Every file of the project that git would keep."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture
def reader_folder(tmp_path: Path) -> Path:
    """A folder as a reader would have it: `run/` is the recorded run, `MODEL.gguf` a real model where there is one."""
    shutil.copytree(Path(samepolicy.__file__).parent / "demo" / "run", tmp_path / "run")
    from samepolicy.testing import smollm2_path

    (tmp_path / "MODEL.gguf").symlink_to(smollm2_path())
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


@pytest.mark.full
@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: p.name)
def test_python_blocks_run(page: Path, reader_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(reader_folder)
    names: dict[str, object] = {}
    for body in blocks(page, "python", "pycon"):
        if ">>> " in body:
            test = doctest.DocTestParser().get_doctest(body, names, page.name, str(page), 0)
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            assert runner.run(test, clear_globs=False).failed == 0
            names.update(test.globs)
        else:
            exec(compile(body, f"a block of {page.name}", "exec"), names)


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Commands of the console blocks, each with the output shown below it."""
    for body in blocks(page, "console"):
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def test_the_chinese_page_shows_the_commands_of_the_english_one():
    english, chinese = (
        [command.partition(" #")[0].rstrip() for command, _ in commands(ROOT / name)]
        for name in ("README.md", "README.zh-CN.md")
    )
    assert chinese == english


@pytest.mark.full
@pytest.mark.parametrize("page", [p for p in WRITTEN if p.name != "README.zh-CN.md"], ids=lambda p: p.name)
def test_console_blocks_run(page: Path, reader_folder: Path):
    places = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    plain = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    for name in (name for command, _ in commands(page) for name in re.findall(r"--out (\S+)", command)):
        shutil.rmtree(reader_folder / name, ignore_errors=True)  # a page that writes a run begins without it
    for command, output in commands(page):
        if command.startswith(("make ", "pip install ")):
            continue  # the tests below look at these
        call = {"cwd": reader_folder, "env": os.environ | places | plain, "capture_output": True, "text": True}
        done = subprocess.run(command, shell=True, check=False, **call)
        assert done.returncode in (0, 1, 3), f"$ {command}\n{done.stdout}{done.stderr}"
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        shown = doctest.OutputChecker().check_output(output or "...\n", done.stdout or "\n", flags)
        assert shown, f"$ {command}\n{done.stdout}"


def test_make_targets_and_extras_exist():
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    extras = set(re.findall(r"^([a-z]\w*) = \[", (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE))
    for page in WRITTEN:
        text = page.read_text("utf-8")
        assert {
            t for line in re.findall(r"^(?:\$ | {4})make ([\w \-]+)", text, re.MULTILINE) for t in line.split()
        } <= targets
        assert {e for group in re.findall(r"samepolicy\[([\w,]+)\]", text) for e in group.split(",")} <= extras


def test_generated_pages_are_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path):
    for link in LINK.finditer(page.read_text("utf-8")):
        target, _, anchor = (link["target"] or link["attribute"]).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(there), f"{page.name} links to {target}#{anchor}"


def test_a_page_of_reference_is_reached_from_the_index():
    linked = (ROOT / "docs" / "index.md").read_text("utf-8")
    causes = (ROOT / "docs" / "reference" / "causes.md").read_text("utf-8")
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT / "docs").as_posix()
        if name.startswith("reference/causes/"):
            assert f"({name.removeprefix('reference/')})" in causes, f"docs/reference/causes.md has no link to {name}"
        else:
            assert name == "index.md" or f"({name})" in linked, f"docs/index.md has no link to {name}"


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_names(what: str):
    pattern = re.compile(FORBIDDEN[what], re.IGNORECASE)
    found = []
    for path in project_files():
        if path.suffix in (".parquet", ".npy", ".pkl", ".png", ".pt", ".gguf"):
            continue
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == [], f"these name {what}"


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a path of a machine", "see " + "/" + "work/main"),
        ("a path of a machine", "/" + "root/x"),
        ("a host of a package registry", "https://" + "pypi" + ".org/simple"),
        ("a word of the maker's tools", "as in shared" + "/design.md"),
    ],
)
def test_a_forbidden_word_is_found(what: str, line: str):
    assert re.search(FORBIDDEN[what], line)
