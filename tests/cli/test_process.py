"""The program as a process of its own: what it loads, what it does without torch, how it meets pipes and signals."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-m", "samepolicy"]
BLOCKER = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "scipy"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
from samepolicy.cli.main import main
main(sys.argv[1:])
"""


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """The program's result."""
    environment = {**os.environ, "COLUMNS": "100"}
    call = {"capture_output": True, "text": True, "encoding": "utf-8", "env": environment, **options}
    return subprocess.run([*PROGRAM, *arguments], check=False, **call)


def test_the_demo_needs_no_torch():
    call = [sys.executable, "-c", BLOCKER, "demo", "--json"]
    done = subprocess.run(call, capture_output=True, text=True, check=False, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["verdict"] == "numerics"


def test_piped_output_has_no_colours_and_no_loose_blanks():
    done = run("demo")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert [line for line in done.stdout.splitlines() if line != line.rstrip()] == []


def test_a_terminal_that_lacks_signs_gets_question_marks():
    done = run("demo", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "rounding floor? (95 %" in " ".join(done.stdout.split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["check", "--help"], ["nonsense"]])
def test_what_computes_nothing_loads_nothing_heavy(arguments: list[str]):
    shown = (
        f"import sys\nfrom samepolicy.cli.main import status\nstatus({arguments!r})\n"
        "print(*{m.split('.')[0] for m in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.splitlines()[-1].split())
    assert not loaded & {"torch", "transformers", "numpy", "scipy", "pyarrow"}


def test_measuring_loads_no_torch(recorded: Path):
    shown = (
        f"import sys\nfrom samepolicy.cli.main import status\nstatus(['measure', {str(recorded)!r}])\n"
        "print(*{m.split('.')[0] for m in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers"} & set(done.stderr.splitlines()[-1].split())


@pytest.mark.skipif(os.name != "posix", reason="pipes and signals of POSIX")
def test_a_reader_that_goes_away_changes_nothing():
    shell = f"{' '.join(PROGRAM)} demo | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.skipif(os.name != "posix", reason="pipes and signals of POSIX")
def test_an_interrupt_ends_it_quietly(tmp_path: Path):
    os.mkfifo(tmp_path / "prompts.txt")  # reading it waits for a writer
    call = [*PROGRAM, "check", "toy:", "--prompts", str(tmp_path / "prompts.txt")]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        writer = os.open(tmp_path / "prompts.txt", os.O_WRONLY)  # returns once it is being read
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            os.close(writer)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.skipif(os.name != "posix", reason="pipes and signals of POSIX")
@pytest.mark.parametrize(("arguments", "code"), [("nonsense", 2), ("check toy: --max-tokens 2", 0)])
def test_a_closed_stderr_changes_no_status(arguments: str, code: int):
    shell = f"{' '.join(PROGRAM)} {arguments} >/dev/null 2>&-; echo $?"
    assert subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False).stdout == f"{code}\n"


def test_an_engine_that_does_not_exist_is_one_sentence():
    done = run("check", "nobody:model")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: There is no 'nobody' engine; the kinds are hf, ")
    assert done.stderr.count("\n") == 1
