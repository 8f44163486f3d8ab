"""TRL's completions: completions_N.parquet in the completions folder of an output_dir, with log_completions=True.

The files hold texts, rewards and advantages but no token ids and no log-probs, so the run has `prompt_text`, `text`,
`step` and `sample`. Each reward function keeps its own column (name the one that counts with a map, such as
reward=accuracy_reward), and the advantage of a completion is `completion_advantage`, since nothing says how many tokens
it has. Chat messages become JSON text.

Source: TRL 1.16.0, `GRPOTrainer.log` in trl/trainer/grpo_trainer.py. Checked against a file that this trainer wrote.
"""

import json
from pathlib import Path
from typing import Any

from samepolicy.records.dumps import USUAL, Options, each, mapped, numbered
from samepolicy.records.formats.parquet import columns_of
from samepolicy.records.run import Run

NAME = r"completions_(\d+)\.parquet"
OURS = {"prompt": "prompt_text", "completion": "text", "advantage": "completion_advantage"}


def detect(path: Path) -> bool:
    """Whether the path is such a file, or a folder with one."""
    return bool(numbered(_folder(path), NAME))


def read(path: Path, options: Options = USUAL) -> Run:
    """All steps of a folder, or one file.

    Args:
        path: a file, the completions folder, or the output_dir that holds it.
        options: who is told of a file that cannot be read.

    Raises:
        CorruptFileError: a file that is truncated or is no Parquet file.
    """
    return each([file for _, file in numbered(_folder(path), NAME)], _step, options)


def _folder(path: Path) -> Path:
    """The completions folder of an output_dir, or the path itself."""
    return path / "completions" if (path / "completions").is_dir() else path


def _step(file: Path) -> Run:
    """One file."""
    columns, _ = columns_of(file)
    rows = len(columns["completion"])
    named = {OURS.get(name, name): _simple(values) for name, values in columns.items()}
    kept = {name: values for name, values in named.items() if values is not None}
    return Run({**mapped(kept, USUAL), "sample": list(range(rows))}, info={"source": "trl"})


def _simple(values: list[Any]) -> list[Any] | None:
    """A column of text, numbers or messages as a run can hold it; None where it cannot."""
    if all(v is None or isinstance(v, str) for v in values):
        return values
    if all(v is None or isinstance(v, int | float) for v in values):
        whole = all(isinstance(v, int) for v in values)
        return values if whole else [float("nan") if v is None else float(v) for v in values]
    try:
        return [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
    except TypeError:
        return None
