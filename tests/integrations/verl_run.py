"""Real GRPO training steps of verl with real vLLM on the CPU, and what the runs left behind as a page's table.

    python -m tests.integrations.verl_run build FOLDER          an environment beside this one, in FOLDER/venv
    python -m tests.integrations.verl_run train FOLDER NAME     one run of RUNS; FOLDER/NAME/… is what it left
    python -m tests.integrations.verl_run record FOLDER         put the results below FOLDER into the docs

verl has no CPU platform and vLLM's CPU build another name, so `verl_cpu/` beside this file holds two small packages: a
platform, by verl's own plugins, and live weights for vLLM's CPU backend, by vLLM's. Nothing of verl or vLLM is edited.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent / "verl_cpu"
PAGE = ROOT / "docs" / "integrations" / "verl.md"
BEGIN, END = "<!-- recorded: python -m tests.integrations.verl_run -->\n", "<!-- end -->"
BESIDE = ("TransferQueue==0.1.11", "torchdata==0.11.0", "pylatexenc==2.11", "mathruler==0.1.0", "pybind11==3.1.0")
"""What verl's trainers import and this project's environment has not."""
RUNS: dict[str, dict[str, Any]] = {
    "v1": {"v1": True, "actor": "bf16", "ours": True, "correction": "tis"},
    "legacy": {"v1": False, "actor": "fp32", "ours": True},
    "off": {"v1": False, "actor": "fp32", "ours": False},
}
"""v1 with the actor in bfloat16, our monitor and our correction; the legacy trainer in float32 with the monitor, and
with every switch off."""
LIMIT = 1800
"""Seconds that a run may take."""
BROKEN = ("WorkerProc hit an exception", "EngineCore failed to start")
"""After these verl waits for ever."""


def build(folder: Path) -> Path:
    """An environment that sees this one's packages and has what verl needs besides.

    Returns:
        Its Python.
    """
    place = folder / "venv"
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    beside = {str(Path(p)) for p in sys.path if p.endswith("site-packages")} | {str(ROOT)}
    (Path(found.stdout.strip()) / "beside.pth").write_text("\n".join(sorted(beside)) + "\n")
    pip = [python, "-m", "pip", "install", "-qq", "--no-deps"]
    subprocess.run([*pip, *BESIDE], check=True)
    for name in ("platform", "vllm_name"):
        shutil.copytree(HERE / name, folder / name, dirs_exist_ok=True)
        subprocess.run([*pip, "--no-build-isolation", folder / name], check=True)
    return python


def data(folder: Path) -> None:
    """Sums to solve, in verl's format."""
    import random

    import pyarrow as pa
    import pyarrow.parquet as pq

    def rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
        rng = random.Random(seed)
        for i in range(count):
            a, b = rng.randint(1, 20), rng.randint(1, 20)
            yield {
                "data_source": "sums",
                "prompt": [{"role": "user", "content": f"What is {a}+{b}? Reply with the number."}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                "extra_info": {"split": "train", "index": i},
            }

    for name, count, seed in (("train", 16, 0), ("val", 4, 1)):
        pq.write_table(pa.Table.from_pylist([*rows(count, seed)]), folder / f"{name}.parquet")


def overrides(folder: Path, run: dict[str, Any], model: str) -> list[str]:
    """verl's command line for a run."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    found = [
        f"trainer.use_v1={run['v1']}",
        "trainer.device=cpu",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=1",
        "trainer.total_training_steps=1",
        "trainer.total_epochs=1",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        'trainer.logger=["console","file"]',
        "trainer.project_name=samepolicy",
        "trainer.experiment_name=cpu",
        "algorithm.adv_estimator=grpo",
        "algorithm.use_kl_in_reward=False",
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/val.parquet",
        "data.train_batch_size=2",
        "data.max_prompt_length=64",
        "data.max_response_length=32",
        "data.dataloader_num_workers=0",
        "data.seed=0",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.use_remove_padding=False",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        f"{actor}.strategy=fsdp2",
        f"{actor}.use_kl_loss=False",
        f"{actor}.optim.lr=1e-5",
        f"{actor}.ppo_mini_batch_size=2",
        f"{actor}.ppo_micro_batch_size_per_gpu=4",
        f"{actor}.use_torch_compile=False",
        f"{actor}.fsdp_config.use_torch_compile=False",
        f"+{actor}.fsdp_config.mixed_precision.param_dtype={run['actor']}",
        f"+{actor}.fsdp_config.mixed_precision.reduce_dtype=fp32",
        f"{rollout}.name=vllm",
        f"{rollout}.mode=async",
        f"{rollout}.n=4",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.dtype=float32",
        f"{rollout}.calculate_log_probs=True",
        f"{rollout}.log_prob_micro_batch_size_per_gpu=4",
        f"{rollout}.enforce_eager=True",
        f"{rollout}.free_cache_engine=False",
        f"+{rollout}.enable_sleep_mode=False",
        f"{rollout}.max_model_len=128",
        f"{rollout}.max_num_seqs=8",
        f"{rollout}.max_num_batched_tokens=512",
        f"{rollout}.load_format=dummy",
        f"{rollout}.gpu_memory_utilization=0.1",
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes=768",
        f"{rollout}.agent.num_workers=1",
        "reward.num_workers=1",
        f"reward.custom_reward_function.path={HERE / 'reward.py'}",
        "reward.custom_reward_function.name=compute_score",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "ray_kwargs.ray_init.num_cpus=16",
        "+ray_kwargs.ray_init.num_gpus=1",
        "+ray_kwargs.ray_init.include_dashboard=False",
        f"+ray_kwargs.ray_init._temp_dir={folder}/ray",
        "+ray_kwargs.ray_init.object_store_memory=1000000000",
    ]
    if run["ours"]:
        found += [
            "+trainer.enable_token_level_prob_diff=True",
            f"+trainer.prob_diff_save_dir={folder}/prob_diff",
            f"+trainer.samepolicy.save_dir={folder}/run",
        ]
    if run.get("correction"):
        found.append(f"+trainer.samepolicy.correction={run['correction']}")
    return found


def environment(folder: Path) -> dict[str, str]:
    """What verl, Ray and vLLM are told by variables."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTEST_"))},
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",  # take the FSDP engine, which is registered for it
        "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARN",
        "OMP_NUM_THREADS": "2",
        "GLOO_SOCKET_IFNAME": "lo",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


@contextmanager
def shared_memory() -> Iterator[None]:
    """Take away what a run leaves in /dev/shm: nothing that was there before, or that a living process has open."""
    place = Path("/dev/shm")
    before = {*place.glob("psm_*")}
    try:
        yield
    finally:
        used = ""
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with suppress(OSError):
                used += maps.read_text(errors="replace")
        for file in {*place.glob("psm_*")} - before:
            if str(file) not in used:
                file.unlink(missing_ok=True)


def train(folder: Path, name: str, python: Path) -> int:
    """One run; its log goes to `log.txt`. A run that verl would wait in for ever is ended.

    Returns:
        verl's exit status.
    """
    from samepolicy.testing import smollm2_folder

    run, model = RUNS[name], Path(smollm2_folder()).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    data(folder)
    call = [str(python), "-m", "verl.trainer.main_ppo", *overrides(folder, run, str(model))]
    began = time.monotonic()
    with shared_memory(), (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            call, cwd=folder, env=environment(folder), stdout=log, stderr=log, start_new_session=True
        )
        while process.poll() is None:
            time.sleep(2)
            said = (folder / "log.txt").read_text(errors="replace")
            if time.monotonic() - began > LIMIT or any(word in said for word in BROKEN):
                os.killpg(process.pid, signal.SIGTERM)
                time.sleep(5)
                os.killpg(process.pid, signal.SIGKILL)
    (folder / "seconds.json").write_text(json.dumps(round(time.monotonic() - began)))
    return process.wait()


def logged(folder: Path) -> dict[str, float]:
    """What verl's file logger has of the run's last step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines() if line.strip()]
    found: dict[str, float] = lines[-1]["data"]
    return found


KEYS = ("training/rollout_probs_diff_mean", "training/rollout_probs_diff_max", "training/rollout_probs_diff_std")
KEYS += ("training/rollout_actor_probs_pearson_corr", "actor/pg_loss", "actor/grad_norm")
PREFIX = "actor/samepolicy/correction"
"""verl's trainers put `actor/` before what a loss gives back."""
CORRECTION = ("ratio_mean", "ess_token", "weight_mean", "clipped", "kept", "failed")


def table(folder: Path) -> str:
    """The results as Markdown tables."""
    found = {name: logged(folder / name) for name in RUNS if (folder / name / "metrics.jsonl").is_file()}
    titles = {"v1": "v1, actor bfloat16", "legacy": "legacy, float32", "off": "legacy, float32, switches off"}
    rows = ["| verl's own key | " + " | ".join(titles[name] for name in found) + " |", "|---" * (len(found) + 1) + "|"]
    rows += [f"| `{key}` | " + " | ".join(f"{run[key]:.4g}" for run in found.values()) + " |" for key in KEYS]
    ours = found["v1"]
    rows += ["", f"| `{PREFIX}/…` of `tis` in v1 | |", "|---|---|"]
    rows += [f"| `{name}` | {ours[f'{PREFIX}/{name}']:.4g} |" for name in CORRECTION]
    return "\n".join(rows) + "\n"


def record(folder: Path) -> None:
    """Put the results of all runs below a folder into the page."""
    text = PAGE.read_text("utf-8")
    block = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    PAGE.write_text(block.sub(lambda _: f"{BEGIN}{table(folder)}{END}", text), "utf-8")


def main(what: str, folder: str, *names: str) -> None:
    """The command."""
    place = Path(folder).resolve()
    place.mkdir(parents=True, exist_ok=True)
    if what == "build":
        build(place)
    elif what == "record":
        record(place)
    else:
        for name in names:
            status = train(place / name, name, place / "venv" / "bin" / "python")
            print(name, status, (place / name / "seconds.json").read_text(), "seconds")


if __name__ == "__main__":
    main(*sys.argv[1:])
