"""Calling the program inside the test's own process, and a run to call it on."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import samepolicy as sp
from samepolicy.cli.main import main


@dataclass(frozen=True)
class Result:
    """What a call left behind."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """Stdout as JSON; nothing else may be on it."""
        assert self.out, self.err
        return json.loads(self.out)

    @property
    def refusal(self) -> str:
        """The one sentence of a call that gave no result."""
        assert (self.code, self.out) == (2, ""), self
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("Error: "), lines
        assert lines[0].endswith("."), lines
        return lines[0].removeprefix("Error: ")


Call = Callable[..., Result]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """The program, as a function of its arguments."""

    def run(*arguments: object) -> Result:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(left.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """Twelve prompts that the toy model can read."""
    path = tmp_path / "short.txt"
    path.write_text("".join(f"prompt number {i}\n" for i in range(12)))
    return path


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder that the toy recorded in bfloat16, with both sides' log-probs and all evidence."""
    toy = sp.engine("toy:", dtype="bfloat16")
    prompts = [f"prompt number {i}" for i in range(12)]
    found = sp.check(rollout=toy, trainer=toy, prompts=prompts, sampling=sp.Sampling(max_tokens=8))
    folder = tmp_path_factory.mktemp("recorded") / "run"
    sp.write(found.run, folder)
    return folder
