"""slime's and miles' dumps of samples: .pt files of --save-debug-rollout-data or of slime's --save-debug-train-data.

A rollout dump holds the engine's log-probs; slime's train dump holds the trainer's beside them, so import that where
there are both. A folder of --dump-details is read through its train_data. Files are loaded with weights_only: whatever
could run code is refused.

Source: slime 0.3.1 (commit 624b824a8), slime/observability/rollout_data_utils.py and train_data_utils.py
(format_version 2); miles (commit 31f1ca961), miles/ray/rollout/debug_data.py. Checked against files that these
functions wrote from made-up samples; no training of either was run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.records.dumps import USUAL, Options, each, gathered, number, numbers
from samepolicy.records.run import Run
from samepolicy.records.torch_files import first_bytes, load

FINISHED = {"completed": "stop", "truncated": "length", "aborted": "abort"}
PER_TOKEN = {
    "rollout_log_probs": "rollout_logp",
    "log_probs": "trainer_logp",
    "ref_log_probs": "ref_logp",
    "advantages": "advantage",
    "entropy": "trainer_entropy",
}


def detect(path: Path) -> bool:
    """Whether the path is a .pt file with samples, or a folder with one."""
    return any(b"samples" in first_bytes(file) for file in files_in(path)[:1])


def files_in(path: Path) -> list[Path]:
    """The .pt files of a dump, evaluation left out where there is training, in the order of their numbers."""
    folder = next((path / name for name in ("train_data", "rollout_data") if (path / name).is_dir()), path)
    files = [f for f in (folder.iterdir() if folder.is_dir() else [folder]) if f.suffix == ".pt" and f.is_file()]
    training = [f for f in files if not f.name.startswith("eval_")] or files
    return sorted(training, key=lambda f: ([int(n) for n in _digits(f.stem)], f.name))


def _digits(text: str) -> list[str]:
    """The numbers in a name."""
    return "".join(c if c.isdigit() else " " for c in text).split()


def read(path: Path, options: Options = USUAL) -> Run:
    """All rollouts of a folder, or one file.

    Args:
        path: a file, a folder of them, or the folder of --dump-details.
        options: who is told of a file that cannot be read.

    Raises:
        CorruptFileError: a file that is damaged, holds Python objects, or is not as slime or miles writes it.
        MissingDependencyError: torch is not installed.
    """
    return each(files_in(path), _rollout, options)


def _rollout(file: Path) -> Run:
    """One file."""
    content = load(file)
    rows = [row(sample, i) for i, sample in enumerate(content["samples"])]
    return gathered([{**found, "step": int(content["rollout_id"])} for found in rows], source="slime")


def row(sample: Mapping[str, Any], place: int) -> dict[str, Any]:
    """One sample as columns; a train dump names the same things in the plural.

    Args:
        sample: the fields of one sample, as either dump has them.
        place: its number in the file.
    """
    length = int(_either(sample, "response_length", "response_lengths"))
    ids = plain(sample["tokens"])
    start = len(ids) - length
    mask = _either(sample, "loss_mask", "loss_masks")
    found = {ours: numbers(plain(sample[n])) for n, ours in PER_TOKEN.items() if sample.get(n) is not None}
    index = _either(sample, "index", "sample_index")
    return {
        **found,
        "prompt_ids": np.array(ids[:start], dtype=np.int64),
        "response_ids": np.array(ids[start:], dtype=np.int64),
        "mask": np.array(plain(mask), dtype=np.int64) if mask is not None else np.ones(length, dtype=np.int64),
        "sample": place if index is None else int(index),
        "group": sample.get("group_index"),
        "reward": _reward(_either(sample, "reward", "rewards")),
        "finish_reason": FINISHED.get(str(sample.get("status")), sample.get("status")),
        "policy_version": _version(sample.get("weight_versions"), length),
        **{name: sample[key] for name, key in (("prompt_text", "prompt"), ("text", "response")) if _text(sample, key)},
    }


def plain(values: Any) -> Sequence[Any]:
    """A list of a tensor, an array or a list."""
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _either(sample: Mapping[str, Any], *names: str) -> Any:
    """The first of these fields that the sample has; None without any."""
    return next((sample[name] for name in names if sample.get(name) is not None), None)


def _text(sample: Mapping[str, Any], key: str) -> bool:
    """Whether a field holds text (a prompt may be a list of messages)."""
    return isinstance(sample.get(key), str)


def _reward(value: Any) -> float | None:
    """A number, where the reward is one."""
    return number(value) if isinstance(value, int | float) else None


def _version(versions: Any, length: int) -> np.ndarray | None:
    """The version of the weights for each token, where one version sampled them all."""
    known = {str(v) for v in versions or []}
    return np.full(length, int(min(known))) if len(known) == 1 and min(known).isdigit() else None
