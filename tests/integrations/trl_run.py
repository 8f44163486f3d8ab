"""Real GRPO training of SmolLM2 with real vLLM on the CPU, and what a run of it left behind as a page's table.

    python -m tests.integrations.trl_run train FOLDER      train; FOLDER/MODE/result.json says how each run went
    python -m tests.integrations.trl_run record FOLDER     put the results below FOLDER into the docs

MODE is one of ms-swift's four modes, or `temperature`: the engine samples at 0.7, the trainer divides its logits by 1.
One trainer and one engine serve all of them, one after the other, since they take long to load.
"""

import json
import os
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
STEPS, WRONG_STEPS, THRESHOLD, WRONG = 10, 2, 1.05, 0.7
"""Optimizer steps of a run, and of the one with a wrong temperature; τ, inside the ratios that bf16 makes; and that
temperature."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "integrations" / "trl.md"
BEGIN, END = "<!-- recorded: python -m tests.integrations.trl_run -->\n", "<!-- end -->"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}


def prepare_vllm() -> None:
    """Have vLLM's CPU backend leave its linear weights unpacked, so that TRL's weight sync reaches them.

    It also runs eagerly, since compiling the model would take longer than the steps.
    """
    import torch
    import vllm
    from vllm.model_executor.layers import utils

    def unpacked(layer: Any, **_: Any) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = unpacked
    vllm.LLM = partial(vllm.LLM, enforce_eager=True)


def make_trainer(folder: Path) -> Any:
    """A real `GRPOTrainer` with a real colocated vLLM; float32 trainer, the engine's dtype is vLLM's own choice."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from samepolicy.testing import smollm2_folder

    model = smollm2_folder()
    prompts = [f"Write one sentence about the number {n}." for n in range(64)]
    config = GRPOConfig(
        output_dir=str(folder / "trainer"),
        use_cpu=True,
        bf16=False,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.05,
        vllm_max_model_length=256,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=16,
        temperature=1.0,
        learning_rate=1e-3,
        optim="sgd",  # a quarter of AdamW's memory traffic
        max_steps=STEPS,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        gradient_checkpointing=False,
        disable_tqdm=True,
        seed=0,
    )
    return GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions],
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        args=config,
    )


def run(trainer: Any, mode: str, folder: Path) -> None:
    """Train with one mode, and keep the log of each step and the ratios that TRL's loss really read."""
    from samepolicy.integrations import trl

    wrong = mode == "temperature"
    switches: dict[str, Any] = {"rollout_importance_sampling_mode": mode}
    switches["rollout_importance_sampling_threshold"] = THRESHOLD
    trainer.vllm_generation.temperature = WRONG if wrong else 1.0
    trainer.args.max_steps = WRONG_STEPS if wrong else STEPS
    attached = trl.attach(trainer, monitor=folder / "run", **({} if wrong else switches))
    read_by_loss: list[dict[str, Any]] = []
    inner = attached._theirs["_compute_loss"]

    def watch(model: Any, inputs: Any) -> Any:
        names = ("importance_sampling_ratio", "completion_ids", "completion_mask")
        read_by_loss.append({name: inputs[name].tolist() for name in names})
        return inner(model, inputs)

    attached._theirs["_compute_loss"] = watch
    began = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - began
    attached.detach()
    result = {
        "mode": mode,
        "seconds_per_step": seconds / trainer.state.global_step,
        "engine_dtype": attached.monitor.rollout.dtype,
        "trainer_dtype": attached.monitor.trainer.dtype,
        "failed": attached.failed,
        "said": sorted(attached.monitor._say.said),
        "log": [entry for entry in trainer.state.log_history if "loss" in entry],
        "read_by_loss": read_by_loss,
    }
    (folder / "result.json").write_text(json.dumps(result))


def table(results: list[dict[str, Any]]) -> str:
    """The results as two Markdown tables."""
    found = {result["mode"]: result for result in results}
    rows = ["| mode | steps | mean abs d | k3 | token ESS, lowest | mean weight | clipped |", "|" + "---|" * 7]
    for mode in MODES:
        log = found[mode]["log"]
        names = ("sampling/sampling_logp_difference/mean", "rollout_correction/k3_kl")
        names += ("rollout_correction/is_weight_mean", "rollout_correction/clipped_frac")
        d, k3, weight, clipped = (sum(entry[name] for entry in log) / len(log) for name in names)
        least = min(entry["samepolicy/correction/raw/ess_token"] for entry in log)
        rows.append(f"| `{mode}` | {len(log)} | {d:.4f} | {k3:.5f} | {least:.4f} | {weight:.4f} | {clipped:.1%} |")
    wrong = found["temperature"]["log"][0]
    right = found[MODES[0]]["log"][0]
    keys = ("sampling/sampling_logp_difference/mean", "samepolicy/monitor/alarms")
    rows += ["", f"| at step 1 | same temperature | engine {WRONG}, trainer 1 |", "|---|---|---|"]
    rows += [f"| `{key}` | {right[key]:.3g} | {wrong[key]:.3g} |" for key in keys]
    return "\n".join(rows) + "\n"


def record(folder: Path) -> None:
    """Put the results of all runs below a folder into the page."""
    results = [json.loads(file.read_text()) for file in sorted(folder.glob("*/result.json"))]
    text = PAGE.read_text("utf-8")
    block = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    PAGE.write_text(block.sub(lambda _: f"{BEGIN}{table(results)}{END}", text), "utf-8")


def main(what: str, folder: str) -> None:
    """The command."""
    if what == "record":
        record(Path(folder))
        return
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    prepare_vllm()
    trainer = make_trainer(Path(folder))
    for mode in ("temperature", *MODES):
        run(trainer, mode, Path(folder) / mode)


if __name__ == "__main__":
    main(*sys.argv[1:])
