"""prime-rl's token export: token_exports/step_N/rank_R.jsonl, one sequence a line, schema_version 1.

Each line holds lists of one value per token, by the position of the token itself: `token_ids`, `loss_mask`,
`inference_logprobs` (the rollout engine's), `trainer_logprobs`, `advantages` and `entropy`; null is a number that was
not finite. The response begins at the first token with loss mask 1.

Source: prime-rl 0.8.0 (commit 559b44772), `TokenExporter` in src/prime_rl/trainer/rl/token_export.py, switched on by
trainer.enable_token_export. Checked against files that this class wrote from made-up batches; no prime-rl training was
run. A step folder gets the mark STABLE once every rank has written; one without it is read as it is, and said.
"""

import re
from pathlib import Path
from typing import Any

from samepolicy.errors import CorruptFileError
from samepolicy.records.dumps import USUAL, Options, begins, each, gathered, json_lines, numbers
from samepolicy.records.overlap import LOG
from samepolicy.records.run import Run

VERSION = 1
FOLDER, RANK, STEP = "token_exports", r"rank_(\d+)\.jsonl", r"step_(\d+)"
COLUMNS = {
    "inference_logprobs": "rollout_logp",
    "trainer_logprobs": "trainer_logp",
    "advantages": "advantage",
    "entropy": "trainer_entropy",
}


def detect(path: Path) -> bool:
    """Whether the path is a file, a step, an export folder, or a run with one."""
    return bool(_files(path))


def read(path: Path, options: Options = USUAL) -> Run:
    """All steps and ranks.

    Args:
        path: the run's folder, its export folder, a step's folder or a rank's file.
        options: who is told of a file that cannot be read.

    Raises:
        CorruptFileError: a line that is no JSON object or not as prime-rl writes it, or another schema version.
    """
    files = _files(path)
    unfinished = sorted({file.parent for file in files if not (file.parent / "STABLE").exists()})
    if unfinished:
        LOG.warning("%s has no mark STABLE, so ranks may be missing there; it is read as it is.", unfinished[0])
    return each(files, _rank, options)


def _files(path: Path) -> list[Path]:
    """The files of all ranks, by step and rank."""
    root = path / FOLDER if (path / FOLDER).is_dir() else path
    if root.is_file() or re.fullmatch(STEP, root.name):
        folders = [root]
    else:
        folders = [f for f in root.iterdir() if re.fullmatch(STEP, f.name) and f.is_dir()]
    files = [file for folder in folders for file in (folder.iterdir() if folder.is_dir() else [folder])]
    found = [(file, match) for file in files if (match := re.fullmatch(RANK, file.name))]
    return [file for file, _ in sorted(found, key=lambda pair: (_number(pair[0].parent.name), int(pair[1][1])))]


def _number(name: str) -> int:
    """A step folder's number."""
    match = re.fullmatch(STEP, name)
    return int(match[1]) if match else -1


def _rank(file: Path) -> Run:
    """One file."""
    return gathered([_row(file, line) for _, line in json_lines(file)], source="prime_rl")


def _row(file: Path, line: dict[str, Any]) -> dict[str, Any]:
    """One line as columns."""
    if line["schema_version"] != VERSION:
        raise CorruptFileError(
            f"{file} has schema_version {line['schema_version']}, but this samepolicy reads {VERSION}; update it."
        )
    start = begins(line["loss_mask"])
    found = {ours: numbers(line[theirs][start:]) for theirs, ours in COLUMNS.items()}
    return {
        **found,
        "prompt_ids": line["token_ids"][:start],
        "response_ids": line["token_ids"][start:],
        "mask": line["loss_mask"][start:],
        "step": line["step"],
        "rank": line["rank"],
        "sample": line["export_sequence_idx"],
        "env_name": line.get("env_name") or "",
    }
