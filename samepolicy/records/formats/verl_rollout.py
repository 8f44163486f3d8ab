"""A folder of verl's rollouts as text: N.jsonl for each step, as trainer.rollout_data_dir has them written.

The files hold prompts, responses and scores but no token ids and no log-probs, so the run has `prompt_text`, `text`,
`reward`, `step` and `sample`; what a reward function added stays under its own name where every line has a number or
text there. Score such a run's texts with engines, or look at its worst responses.

Source: verl 0.9.1, `RayPPOTrainer._write_generations` in verl/trainer/ppo/ray_trainer.py, which also writes
trainer.validation_data_dir. Checked against files that it wrote.
"""

from pathlib import Path
from typing import Any

from samepolicy.records.dumps import USUAL, Options, each, gathered, is_json_lines, json_lines, number, numbered
from samepolicy.records.run import Run

NAME = r"(\d+)\.jsonl"
KEYS = ("input", "output", "score", "step")
OURS = {"input": "prompt_text", "output": "text", "score": "reward", "uid": "group"}


def detect(path: Path) -> bool:
    """Whether the path is such a file, or a folder with one."""
    files = numbered(path, NAME)
    return bool(files) and is_json_lines(files[0][1], KEYS)


def read(path: Path, options: Options = USUAL) -> Run:
    """All steps of a folder, or one file.

    Args:
        path: the folder, or one of its files.
        options: who is told of a file that cannot be read.

    Raises:
        CorruptFileError: a line that is no JSON object, or not as verl writes it.
    """
    return each([file for _, file in numbered(path, NAME)], _step, options)


def _step(file: Path) -> Run:
    """One file."""
    return gathered([_row(line, i) for i, (_, line) in enumerate(json_lines(file))], source="verl_rollout")


def _row(line: dict[str, Any], sample: int) -> dict[str, Any]:
    """One line as columns."""
    more = {OURS.get(name, name): value for name, value in line.items() if isinstance(value, int | float | str)}
    return {**more, "step": line["step"], "sample": sample, "reward": number(line["score"])}
