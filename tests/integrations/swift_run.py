"""Real GRPO training with ms-swift's own trainer and command on the CPU; runs in an environment that has ms-swift.

    python tests/integrations/swift_run.py FOLDER MODEL [NAME …]      train the runs of RUNS, below FOLDER

The trainer, its sampling engine (`TransformersEngine`), its scoring, its loss, its callbacks and its logging are
ms-swift's. It asks this engine for no log-probs, only vLLM, and switches its own metrics and correction off where there
is no vLLM, so the callback `engine` switches both on; the log-probs are those of temperature 1 while the trainer has
0.8, which makes the gap. The callback `watch` keeps what the loss was given.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

VERSION, STEPS, TEMPERATURE, THRESHOLD = "4.6.0", 2, 0.8, 1.05
BESIDE = ("msgspec==0.23.0", "torch==2.13.0", "array-api-compat==1.16.0", "jaxtyping", "pyarrow", "scipy")
"""What ms-swift and samepolicy import and ms-swift does not ask for."""
RUNS: dict[str, dict[str, Any]] = {
    "off": {"callbacks": ("engine", "watch")},
    "plain": {"callbacks": ("engine", "samepolicy", "watch")},
    "logged": {"callbacks": ("engine", "samepolicy", "watch"), "flags": ("--log_rollout_offpolicy_metrics", "true")},
    "corrected": {"callbacks": ("engine", "samepolicy", "watch"), "corrected": True},
}
"""Nothing of ours; the monitor; the monitor beside ms-swift's own metrics; and a correction that ms-swift has not."""


def correction() -> Any:
    """Truncated token ratios, without the tokens whose probability moved by more than 0.02."""
    import samepolicy as sp

    return sp.Correction(sp.Truncate(THRESHOLD), sp.Reject("abs_prob_diff", above=0.02))


def plugin(folder: Path, run: dict[str, Any]) -> Path:
    """What `--external_plugins` names; of ours it is the lines that the docs show."""
    file = folder / "plugin.py"
    correct = "swift_run.correction()" if run.get("corrected") else "None"
    lines = [
        "import sys",
        f"sys.path[:0] = [{str(Path(__file__).parent)!r}]",
        "import swift_run",
        "from samepolicy.integrations import swift",
        f"swift.register(monitor={str(folder / 'run')!r}, correction={correct})",
        f"swift_run.watch({str(folder)!r})",
    ]
    file.write_text("\n".join(lines) + "\n")
    return file


def watch(folder: str) -> None:
    """Register a callback that has the engine give log-probs, and keeps what each loss read and what was logged."""
    from swift.callbacks.base import TrainerCallback
    from swift.callbacks.mapping import callbacks_map
    from swift.rewards import ORM, orms

    class Digits(ORM):
        """A reward that samples differ in."""

        def __call__(self, completions: Any, **more: Any) -> list[float]:
            return [float(len(set(text))) for text in completions]

    class Engine(TrainerCallback):
        """Has ms-swift's own engine do what vLLM does."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.trainer.request_config.logprobs = True
            self.trainer.disable_rollout_importance_sampling = False

    class Watch(TrainerCallback):
        """Keeps what is compared afterwards."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.read: list[dict[str, Any]] = []
            inner: Callable[..., Any] = self.trainer._compute_loss_and_metrics
            weigh: Callable[..., Any] = self.trainer._apply_rollout_importance_sampling

            def loss(model: Any, inputs: Any, batch: Any) -> Any:
                mask = batch.completion_mask
                columns = {"trainer": batch.old_per_token_logps, "rollout": batch.rollout_per_token_logps}
                kept = {
                    name: None if x is None else [r[m].tolist() for r, m in zip(x, mask, strict=True)]
                    for name, x in columns.items()
                }
                self.read.append(kept)
                return inner(model, inputs, batch)

            def weights(log_ratio: Any, mask: Any) -> Any:
                found = weigh(log_ratio, mask)
                self.read[-1]["weight"] = [row[m].tolist() for row, m in zip(found, mask, strict=True)]
                return found

            self.trainer._compute_loss_and_metrics = loss
            self.trainer._apply_rollout_importance_sampling = weights

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            log = [entry for entry in state.log_history if "loss" in entry]
            Path(folder, "result.json").write_text(json.dumps({"log": log, "read": self.read}))

    orms["digits"] = Digits
    callbacks_map.update({"engine": Engine, "watch": Watch})


def arguments(folder: Path, model: str, run: dict[str, Any]) -> list[str]:
    """ms-swift's command line."""
    prompts = [{"messages": [{"role": "user", "content": f"Write about the number {n}."}]} for n in range(16)]
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in prompts))
    given = {
        "rlhf_type": "grpo",
        "model": model,
        "model_type": "llama",
        "template": "chatml",
        "dataset": data,
        "output_dir": folder / "out",
        "tuner_type": "full",
        "torch_dtype": "float32",
        "use_vllm": "false",
        "num_generations": 4,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_completion_length": 16,
        "max_steps": STEPS,
        "logging_steps": 1,
        "learning_rate": "1e-4",
        "optim": "sgd",
        "temperature": TEMPERATURE,
        "top_p": 1.0,
        "top_k": 0,
        "beta": 0.0,
        "reward_funcs": "digits",
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "gradient_checkpointing": "false",
        "split_dataset_ratio": 0,
        "dataset_num_proc": 1,
        "dataloader_num_workers": 0,
        "seed": 0,
        "check_model": "false",
        "external_plugins": plugin(folder, run),
    }
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    return [*words, "--callbacks", *run["callbacks"], *run.get("flags", ())]


def main(folder: str, model: str, *names: str) -> None:
    """The command."""
    from swift.pipelines import rlhf_main

    for name in names or RUNS:
        place = Path(folder) / name
        place.mkdir(parents=True, exist_ok=True)
        rlhf_main(arguments(place, model, RUNS[name]))


if __name__ == "__main__":
    main(*sys.argv[1:])
