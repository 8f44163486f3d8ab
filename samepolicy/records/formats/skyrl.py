"""SkyRL's dumped batches: global_step_N_training_input.pkl, which are pickles, so only behind an explicit flag.

A pickle can run code when it is read. With the flag (--unsafe-pickle, unsafe_pickle=True) the file is read by a reader
that knows SkyRL's batch, tensors and plain values and refuses every other object; give it all the same only for files
whose writer you trust. Tokens of a response are those of `response_mask`, and the run's mask is the loss mask.

Source: SkyRL 0.3.0 (commit a9564572e), `dump_data` in skyrl/train/trainer.py (trainer.dump_data_batch) and
`TensorBatch` in skyrl/backends/skyrl_train/training_batch.py. Checked against a file that this class wrote from a
made-up batch; no SkyRL training was run.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records.dumps import USUAL, Options, each, gathered, numbered
from samepolicy.records.run import Run

NAME = r".*?global_step_(\d+)\D*\.pkl"
PER_TOKEN = {
    "rollout_logprobs": "rollout_logp",
    "action_log_probs": "trainer_logp",
    "base_action_log_probs": "ref_logp",
    "advantages": "advantage",
}


def detect(path: Path) -> bool:
    """Whether the path is a dump, or a folder with one."""
    return bool(numbered(path, NAME))


def read(path: Path, options: Options = USUAL) -> Run:
    """All steps of a folder, or one file.

    Args:
        path: a .pkl file, or the folder dumped_data.
        options: whether a pickle may be read, and who is told of a file that cannot.

    Raises:
        InputError: nobody allowed pickles.
        CorruptFileError: a file that is damaged, holds other objects, or is not as SkyRL writes it.
    """
    steps = {file: step for step, file in numbered(path, NAME)}
    if not steps:
        raise InputError(f"{path} holds no file global_step_N_training_input.pkl; give the folder dumped_data.")
    if not options.unsafe_pickle:
        raise InputError(
            f"{next(iter(steps))} is a pickle, and reading one can run code that it holds; "
            "if you trust who wrote it, allow it with --unsafe-pickle (unsafe_pickle=True)."
        )
    return each(list(steps), lambda file: _step(file, steps[file]), options)


def _step(file: Path, step: int) -> Run:
    """One file."""
    state = _load(file)
    batch = {name: _array(value) for name, value in state["batch_dict"].items() if _is_array(value)}
    rows = len(batch["sequences"]) - int((state["metadata"] or {}).get("pad_size", 0))
    return gathered([{**_row(batch, i), "step": step, "sample": i} for i in range(rows)], source="skyrl")


def _row(batch: dict[str, np.ndarray], i: int) -> dict[str, Any]:
    """One sequence as columns."""
    inside = batch["response_mask"][i] == 1
    ids = batch["sequences"][i][batch["attention_mask"][i] == 1]
    length = int(inside.sum())
    rewards = batch.get("rewards")
    return {
        **{ours: batch[name][i][inside] for name, ours in PER_TOKEN.items() if name in batch},
        "prompt_ids": ids[: len(ids) - length],
        "response_ids": ids[len(ids) - length :],
        "mask": batch["loss_mask"][i][inside],
        "reward": None if rewards is None else float(rewards[i][inside].sum()),
    }


def _load(file: Path) -> dict[str, Any]:
    """The state of the batch that a file holds."""
    try:
        with file.open("rb") as opened:
            state = _Reader(opened).load()
        return dict(state)
    except (PermissionError, FileNotFoundError):
        raise
    except _ForeignError as error:
        raise CorruptFileError(f"{file} {error}.") from error
    except Exception as error:
        raise CorruptFileError(f"{file} is truncated or damaged ({error}); copy it again.") from error


class _ForeignError(Exception):
    """The pickle names something that SkyRL's batches do not hold."""


class _Batch(dict[str, Any]):
    """Stands for SkyRL's class, whose state is all that is wanted."""


class _Reader(pickle.Unpickler):
    """Reads SkyRL's batch and nothing else that has code behind it."""

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name in the pickle; only names that are known to be harmless."""
        if module.startswith("skyrl") and name.endswith("Batch"):
            return _Batch
        if module.startswith("skyrl") and name == "_rebuild_tensor_batch":
            return _state
        if (module, name) == ("torch", "device"):
            return str
        raise _ForeignError(
            f"holds {module}.{name}, which SkyRL's batches do not hold and which could run code; do not trust it"
        )


def _state(_: type, state: dict[str, Any]) -> dict[str, Any]:
    """Stands for the function that makes a batch of its state."""
    return state


def _is_array(value: Any) -> bool:
    """Whether a field of a batch holds one tensor."""
    return isinstance(value, dict) and value.get("format") != "tensor_list"


def _array(value: dict[str, Any]) -> np.ndarray:
    """A tensor of a batch as NumPy; those of half precision, which NumPy lacks, as float32."""
    if value.get("format") == "torch":
        import torch

        tensor: np.ndarray = torch.load(io.BytesIO(value["data"]), weights_only=True).float().numpy()
        return tensor
    return np.frombuffer(value["data"], dtype=np.dtype(value["dtype"])).reshape(value["shape"])
