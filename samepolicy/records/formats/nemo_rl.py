"""NeMo-RL's training data: train_data_stepN.jsonl in its log folder, one padded sequence a line.

Each line holds one-element lists: the padded `token_ids`, `token_loss_mask`, `generation_logprobs` (the rollout
engine's) and `prev_logprobs` (the trainer's), all by the position of the token itself. The response begins at the first
token with loss mask 1 and ends at `input_lengths`. The run's mask is token mask times sample mask, as in NeMo-RL's own
error metric, so a sample that was left out of the loss counts no token.

Source: NeMo-RL 0.6.0 (commit 7ea279abf), grpo_train in nemo_rl/algorithms/grpo.py and
`Logger.log_batched_dict_as_jsonl` in nemo_rl/utils/logger.py. Checked against a file that this logger wrote from
made-up batches; no NeMo-RL training was run. Files of its distillation recipe hold texts and lengths only.
"""

from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.records.dumps import USUAL, Options, begins, each, gathered, json_lines, number, numbered, numbers
from samepolicy.records.run import Run

NAME = r"train_data_step(\d+)\.jsonl"


def detect(path: Path) -> bool:
    """Whether the path is such a file, or a folder with one."""
    return bool(numbered(path, NAME))


def read(path: Path, options: Options = USUAL) -> Run:
    """All steps of a folder, or one file.

    Args:
        path: the folder, or one of its files.
        options: who is told of a file that cannot be read.

    Raises:
        CorruptFileError: a line that is no JSON object, or not as NeMo-RL writes it.
    """
    steps = {file: step for step, file in numbered(path, NAME)}
    return each(list(steps), lambda file: _step(file, steps[file]), options)


def _step(file: Path, step: int) -> Run:
    """One file."""
    rows = [_row({name: _one(value) for name, value in line.items()}) for _, line in json_lines(file)]
    return gathered([{**row, "step": step} for row in rows], source="nemo_rl")


def _one(value: Any) -> Any:
    """The one element of a batch of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _row(line: dict[str, Any]) -> dict[str, Any]:
    """One line as columns."""
    found: dict[str, Any] = {"sample": line["idx"], "text": line.get("content")}
    found["text"] = found["text"] if isinstance(found["text"], str) else None
    found["reward"] = number(line["rewards"]) if "rewards" in line else None
    if "token_ids" not in line:
        return found
    length, mask = int(line["input_lengths"]), [int(m) for m in _listed(line["token_loss_mask"])]
    start = min(begins(mask), length)
    cut = slice(start, length)
    return {
        **found,
        "prompt_ids": _listed(line["token_ids"])[:start],
        "response_ids": _listed(line["token_ids"])[cut],
        "mask": np.array(mask[cut]) * int(line["sample_loss_mask"]),
        "rollout_logp": numbers(_listed(line["generation_logprobs"])[cut]),
        "trainer_logp": numbers(_listed(line["prev_logprobs"])[cut]),
        "advantage": _advantage(line["advantages"], cut),
    }


def _advantage(value: Any, cut: slice) -> Any:
    """One for each token, or one for the sample."""
    return numbers(value[cut]) if isinstance(value, list) else numbers([value] * (cut.stop - cut.start))


def _listed(value: Any) -> list[Any]:
    """A list, also where it was a sequence of one token and lost its bracket."""
    return value if isinstance(value, list) else [value]
