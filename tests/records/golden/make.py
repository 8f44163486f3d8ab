"""Make the golden files anew, each with its tool's own writer.

    python tests/records/golden/make.py verl trl vllm
    python tests/records/golden/make.py slime --src CHECKOUT    (a checkout of the tool's repository)

verl, TRL and vLLM are installed; of the others a checkout at the commit that the format's docstring names is given.
Packages that a checkout imports and that the writer itself does not use are replaced by empty stand-ins.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2]))

from tests.records import truth  # noqa: E402
from tests.records.golden.stand_ins import StandIns  # noqa: E402


def verl(_: Path | None) -> None:
    """verl's rollouts as text."""
    sys.meta_path.insert(0, StandIns("torchdata"))
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    more = {"acc": [bool(r) for r in truth.REWARD], "uid": ["a", "a", "b"], "pred": [None, ["x"], {}]}
    write = RayPPOTrainer._write_generations
    write(truth.PROMPT_TEXT, truth.TEXT, ["1", "2", "3"], truth.REWARD, more, HERE / "verl_rollout", truth.STEP)


def trl(_: Path | None) -> None:
    """TRL's completions, by one real step of GRPO on a tiny model."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>", *(" ".join(truth.PROMPT_TEXT)).split(), "a", "b"])}
    base = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=base, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), pad_token_id=0, eos_token_id=1, **sizes))
    with tempfile.TemporaryDirectory() as out:
        settings = {"per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 4, "use_cpu": True}
        config = GRPOConfig(
            out, max_steps=1, logging_steps=1, log_completions=True, report_to=[], save_strategy="no", bf16=False,
            **settings,
        )  # fmt: skip
        GRPOTrainer(
            model=model, args=config, processing_class=tokenizer, reward_funcs=longest,
            train_dataset=Dataset.from_list([{"prompt": p} for p in truth.PROMPT_TEXT]),
        ).train()  # fmt: skip
        (file,) = (Path(out) / "completions").iterdir()
        (HERE / "trl").mkdir(exist_ok=True)
        (HERE / "trl" / file.name).write_bytes(file.read_bytes())


def longest(completions: list[str], **_: Any) -> list[float]:
    """A reward."""
    return [float(len(c.split())) for c in completions]


def nemo_rl(src: Path | None) -> None:
    """NeMo-RL's logger, with what grpo_train gives it."""
    sys.meta_path.insert(0, StandIns("mlflow", "swanlab", "wandb", "matplotlib", "prometheus_client", "ray", "git"))
    from nemo_rl.utils.logger import Logger

    width = 9
    mask = truth.padded(truth.whole(truth.MASK), width)
    rows = {
        "token_ids": truth.padded([p + r for p, r in zip(truth.PROMPTS, truth.RESPONSES, strict=True)], width),
        "token_loss_mask": mask,
        "advantages": mask * np.array(truth.ADVANTAGE)[:, None],
        "generation_logprobs": truth.padded(truth.whole(truth.ROLLOUT), width),
        "prev_logprobs": truth.padded(truth.whole(truth.TRAINER), width),
    }
    lengths = [len(p) + len(r) for p, r in zip(truth.PROMPTS, truth.RESPONSES, strict=True)]
    data = {"content": truth.TEXT, "rewards": truth.REWARD, "input_lengths": lengths, "sample_loss_mask": [1.0] * 3}
    data |= {name: values.tolist() for name, values in rows.items()}
    Logger.log_batched_dict_as_jsonl(
        SimpleNamespace(base_log_dir=HERE / "nemo_rl"), data, f"train_data_step{truth.STEP}.jsonl"
    )


def prime_rl(src: Path | None) -> None:
    """prime-rl's token exporter, with one packed micro-batch."""
    sys.meta_path.insert(0, StandIns("prime_rl.configs", "prime_rl.trainer.rl.loss"))
    from prime_rl.trainer.rl import token_export

    def packed(values: list[list[float]], dtype: Any) -> torch.Tensor:
        return torch.tensor([v for row in truth.whole(values) for v in row], dtype=dtype)[None]

    def ratio(trainer: torch.Tensor, rollout: torch.Tensor) -> tuple[torch.Tensor, ...]:
        d = trainer - rollout
        return d, d.exp(), d.exp() - 1 - d

    token_export.compute_importance_ratio_and_mismatch_kl, token_export.DefaultLossConfig = ratio, SimpleNamespace
    lengths = [len(p) + len(r) for p, r in zip(truth.PROMPTS, truth.RESPONSES, strict=True)]
    ids = [i for p, r in zip(truth.PROMPTS, truth.RESPONSES, strict=True) for i in p + r]
    advantage = [[a * m for m in row] for a, row in zip(truth.ADVANTAGE, truth.MASK, strict=True)]
    batch = {
        "input_ids": torch.tensor(ids)[None],
        "position_ids": torch.tensor([i for n in lengths for i in range(n)])[None],
        "loss_mask": packed(truth.MASK, torch.bool),
        "advantages": packed(advantage, torch.float32),
        "inference_logprobs": packed(truth.ROLLOUT, torch.float32),
        "env_names": ["maths"] * len(ids),
    }
    entropy = torch.full((1, len(ids)), 0.5)
    entropy[0, 3] = float("nan")
    output = {"logprobs": packed(truth.TRAINER, torch.bfloat16), "entropy": entropy}
    exporter = token_export.TokenExporter(HERE / "prime_rl", 0)
    loss = SimpleNamespace(dppo_mask_high=0.2, dppo_mask_low=0.2)
    exporter.export(truth.STEP, 0, batch, output, lengths, loss)
    exporter.mark_stable()


def samples(kind: Any) -> list[Any]:
    """The truth as samples of slime or miles."""
    made = []
    statuses = {"stop": kind.Status.COMPLETED, "length": kind.Status.TRUNCATED}
    for i, prompt in enumerate(truth.PROMPTS):
        made.append(
            kind(
                group_index=i // 2, index=i, prompt=truth.PROMPT_TEXT[i], tokens=prompt + truth.RESPONSES[i],
                response=truth.TEXT[i], response_length=len(truth.RESPONSES[i]), reward=truth.REWARD[i],
                loss_mask=truth.MASK[i], weight_versions=["3"], rollout_log_probs=truth.ROLLOUT[i],
                status=statuses[truth.FINISH[i]],
            )
        )  # fmt: skip
    made[0].metadata = {"note": np.arange(2)}
    return made


def training(indices: str) -> dict[str, Any]:
    """The truth as the columns that slime's and miles' trainers hold."""
    lengths = [len(r) for r in truth.RESPONSES]
    tensors = {"log_probs": truth.TRAINER, "rollout_log_probs": truth.ROLLOUT}
    columns: dict[str, Any] = {name: [torch.tensor(v) for v in values] for name, values in tensors.items()}
    return columns | {
        "tokens": [torch.tensor(p + r) for p, r in zip(truth.PROMPTS, truth.RESPONSES, strict=True)],
        "loss_masks": [torch.tensor(m, dtype=torch.int) for m in truth.MASK],
        "advantages": [torch.full((n,), a) for n, a in zip(lengths, truth.ADVANTAGE, strict=True)],
        "response_lengths": lengths,
        "total_lengths": [n + len(p) for n, p in zip(lengths, truth.PROMPTS, strict=True)],
        "rewards": truth.REWARD,
        "raw_reward": truth.REWARD,
        indices: [0, 1, 2],
    }


def slime(src: Path | None) -> None:
    """slime's rollout dump, and its train dump of two data-parallel ranks."""
    from slime.observability import rollout_data_utils, train_data_utils
    from slime.utils.types import Sample

    folder = HERE / "slime"
    template = str(folder / "rollout_data" / "{rollout_id}.pt")
    rollout_data_utils.save_debug_rollout_data(template, samples(Sample), rollout_id=truth.STEP, evaluation=False)
    columns, parts = training("sample_indices"), []
    for rank, rows in enumerate(([2], [0, 1])):
        held = {name: [values[i] for i in rows] for name, values in columns.items()}
        held |= {"raw_reward": truth.REWARD, "partition": rows, "micro_batch_indices": [[0]]}
        parts.append({"rank": rank, "data_parallel_rank": rank, "rollout_data": held})
    payload = train_data_utils._build_dump_payload(parts, rollout_id=truth.STEP, writer_rank=0)
    (folder / "train_data").mkdir(parents=True, exist_ok=True)
    torch.save(payload, folder / "train_data" / f"{truth.STEP}.pt")


def miles(src: Path | None) -> None:
    """miles' rollout dump, and the train dumps of two tensor-parallel ranks."""
    from miles.ray.rollout.debug_data import save_debug_rollout_data
    from miles.utils.train_dump_utils import save_debug_train_data_for_rank
    from miles.utils.types import Sample

    folder = HERE / "miles"
    args = SimpleNamespace(
        save_debug_rollout_data=str(folder / "rollout_data" / "{rollout_id}.pt"), qkv_format="thd",
        save_debug_trajectory_data=None, save_debug_train_data=str(folder / "train_data" / "{rollout_id}_{rank}.pt"),
    )  # fmt: skip
    save_debug_rollout_data(args, samples(Sample), rollout_id=truth.STEP, evaluation=False)
    data = training("sample_indices")
    (folder / "dashboard_columns" / f"rollout_{truth.STEP}.parquet").unlink(missing_ok=True)
    (folder / "dashboard_columns").rmdir()
    first = {name: column for name, column in data.items() if name not in ("log_probs", "advantages")}
    for rank, held in enumerate((first, data)):
        save_debug_train_data_for_rank(args, rollout_id=truth.STEP, rollout_data=held, rank=rank)


def skyrl(src: Path | None) -> None:
    """SkyRL's batch, padded on the left, with a padding row."""
    sys.meta_path.insert(0, StandIns("skyrl.backends.skyrl_train.utils.replay_utils"))
    for name in ("skyrl", "skyrl.backends", "skyrl.backends.skyrl_train"):  # without what their __init__ imports
        sys.modules[name] = module = ModuleType(name)
        module.__path__ = [str(Path(src or ".", *name.split(".")))]
    from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch, pad_training_input_batch

    width, ids = 4, [p + r for p, r in zip(truth.PROMPTS, truth.RESPONSES, strict=True)]
    inside = [[1] * len(r) for r in truth.RESPONSES]
    advantage = [[a] * len(r) for a, r in zip(truth.ADVANTAGE, truth.RESPONSES, strict=True)]
    rewards = [[0.0] * (len(r) - 1) + [x] for x, r in zip(truth.REWARD, truth.RESPONSES, strict=True)]

    def left(rows: list[list[float]], size: int = width, dtype: Any = torch.float32) -> torch.Tensor:
        return torch.tensor(truth.padded(rows, size, left=True), dtype=dtype)

    batch = TrainingInputBatch(
        {
            "sequences": left(ids, 8, torch.int64),
            "attention_mask": left([[1] * len(i) for i in ids], 8, torch.int64),
            "response_mask": left(inside, dtype=torch.int64),
            "loss_mask": left(truth.MASK),
            "rollout_logprobs": left(truth.ROLLOUT),
            "action_log_probs": left(truth.TRAINER, dtype=torch.bfloat16),
            "advantages": left(advantage),
            "rewards": left(rewards),
            "values": None,
        }
    )
    batch.metadata = {"uids": ["a", "b", "c"]}
    (HERE / "skyrl").mkdir(exist_ok=True)
    padded = pad_training_input_batch(batch, 1)
    padded.save(HERE / "skyrl" / f"global_step_{truth.STEP}_training_input.pkl")


def msprobe(src: Path | None) -> None:
    """msProbe's single saver, with two micro-batches."""
    from msprobe.core.single_save.single_saver import SingleSave

    saver = SingleSave(str(HERE / "msprobe"))
    saver.rank = 0
    names = {
        "responses": truth.RESPONSES, "response_mask": truth.MASK, "rollout_log_probs": truth.ROLLOUT,
        "old_log_probs": truth.TRAINER,
    }  # fmt: skip
    for _ in range(truth.STEP):
        SingleSave.step()
    for rows in (slice(0, 2), slice(2, 3)):
        SingleSave.save({n: torch.tensor(truth.padded(v, 4)[rows]) for n, v in names.items()})


def vllm(_: Path | None) -> None:
    """Responses of vLLM's real server: two completions with ids, and two chat completions."""
    from tests.serving import smollm2_folder, vllm_server

    asked = {"max_tokens": 4, "n": 2, "seed": 0, "temperature": 1.0}
    completion = {"prompt": [1, 2, 3, 4], "logprobs": 0, "return_token_ids": True}
    chat = {"messages": [{"role": "user", "content": "Name a colour."}], "logprobs": True}
    (HERE / "vllm_response").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as out, vllm_server(smollm2_folder(), Path(out) / "log") as url:
        model = json.loads(urlopen(f"{url}/v1/models").read())["data"][0]["id"]
        for name, path, body in (("completion", "completions", completion), ("chat", "chat/completions", chat)):
            data = json.dumps({"model": model, **asked, **body}).encode()
            request = Request(f"{url}/v1/{path}", data, {"Content-Type": "application/json"})
            reply = json.loads(urlopen(request).read()) | {"model": "SmolLM2-135M-Instruct"}
            (HERE / "vllm_response" / f"{name}.json").write_text(json.dumps(reply, indent=1))


MAKERS: dict[str, Callable[[Path | None], None]] = {
    f.__name__: f for f in (verl, trl, nemo_rl, prime_rl, slime, miles, skyrl, msprobe, vllm)
}


def main() -> None:
    """Make what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=MAKERS)
    parser.add_argument("--src", type=Path)
    given = parser.parse_args()
    if given.src is not None:
        sys.path.insert(0, str(given.src))
    for name in given.names:
        MAKERS[name](given.src)


if __name__ == "__main__":
    main()
