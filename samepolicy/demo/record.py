"""Record the run that `samepolicy demo` reads: `python -m samepolicy.demo.record FOLDER`.

Real vLLM samples up to 64 tokens of SmolLM2-135M-Instruct to each of the sixteen prompts in bfloat16; the hf trainer
scores the same ids in one bfloat16 forward, and its float32 and bfloat16 forwards are kept as evidence. The text of
each id is kept, too, so that a report shows words without the tokenizer. It takes a few minutes on two cores. Paths
of the machine are taken out.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from samepolicy.demo import PROMPTS, RECORDED
from samepolicy.diagnose import Diagnosis, check
from samepolicy.engines.base import engine
from samepolicy.errors import InputError
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling, Side
from samepolicy.records.store import write
from samepolicy.report.pieces import with_pieces
from samepolicy.testing import smollm2_folder

SAMPLING = Sampling(max_tokens=64)


def record(folder: Path) -> Diagnosis:
    """Roll out, score, and write the run to a new folder.

    Args:
        folder: the run folder to make.

    Returns:
        The diagnosis of what was recorded.

    Raises:
        InputError: the folder exists; nothing is overwritten.
    """
    if folder.exists():
        raise InputError(f"{folder} is there already; remove it first, or give another folder.")
    model = smollm2_folder()
    rollout = engine(f"vllm:{model}", dtype="bfloat16", max_model_len=512, max_num_seqs=16)
    trainer = engine(f"hf:{model}", dtype="bfloat16", device="cpu")
    prompts = PROMPTS.read_text(encoding="utf-8").splitlines()
    found = check(rollout=rollout, trainer=trainer, prompts=prompts, sampling=SAMPLING)
    write(with_pieces(without_paths(found.run), model), folder)
    return found


def without_paths(run: Run) -> Run:
    """The run with the file name in place of the model's path, on both sides and in the reference's declaration."""
    info: dict[str, Any] = {**run.info}
    if "model" in info.get("reference", {}):
        info["reference"] = {**info["reference"], "model": Path(info["reference"]["model"]).name}
    return replace(run, rollout=_named(run.rollout), trainer=_named(run.trainer), info=info)


def _named(side: Side) -> Side:
    """The side with its model's file name only."""
    return side if side.model is None else replace(side, model=Path(side.model).name)


if __name__ == "__main__":
    print(record(Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDED))  # noqa: T201 - a script
