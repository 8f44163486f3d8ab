"""Real `GRPOTrainer`s on a tiny random model, fast enough for every test.

The trainer, its generation step, its scoring forward, its loss, its optimizer and its logging are TRL's own. The engine
samples from the trainer's own network in a plain loop, at a temperature of its own, and returns log-probs as an engine
would. It comes in as a `rollout_func`, which TRL offers for engines of one's own, or as `Colocated`
in the place of TRL's `VLLMGeneration`, so that everything TRL does with `use_vllm=True` runs, its own
importance-sampling correction included. Real vLLM stands there in the end-to-end test.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np

WORDS = [f"w{i}" for i in range(61)]


def tokenizer() -> Any:
    """One token a word."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<bos>", "<eos>", *WORDS]
    made = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="<pad>"))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left"
    )


def model() -> Any:
    """Two layers, 64 words."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


class Engine:
    """Samples from the trainer's network.

    Attributes:
        temperature: what the logits are divided by; None takes the trainer's.
        spread: standard deviation of noise on the log-probs it reports, as another kernel's rounding makes.
        silent: report no log-probs.
        mask: the policy sampled only every other token; the rest came from a tool.
    """

    def __init__(
        self, *, temperature: float | None = None, spread: float = 0.0, silent: bool = False, mask: bool = False
    ) -> None:
        self.temperature, self.spread, self.silent, self.mask = temperature, spread, silent, mask
        self.said: list[list[float]] = []

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        import torch

        ids = [trainer.processing_class(text)["input_ids"] if isinstance(text, str) else text for text in prompts]
        network = trainer.accelerator.unwrap_model(trainer.model)
        temperature = self.temperature or trainer.temperature
        found: dict[str, Any] = {"prompt_ids": ids, "completion_ids": [], "logprobs": []}
        for row in ids:
            tokens, logps = list(row), []
            for _ in range(trainer.max_completion_length):
                with torch.no_grad():
                    logits = network(input_ids=torch.tensor([tokens])).logits[0, -1].float() / temperature
                dist = logits.log_softmax(-1)
                tokens.append(int(torch.multinomial(dist.exp(), 1)))
                logps.append(float(dist[tokens[-1]]) + self.spread * float(torch.randn(1)))
                if tokens[-1] == 2:
                    break
            found["completion_ids"].append(tokens[len(row) :])
            found["logprobs"].append([min(x, 0.0) for x in logps])
        if self.mask:
            found["env_mask"] = [[i % 2 == 0 for i in range(len(row))] for row in found["completion_ids"]]
        if self.silent:
            found["logprobs"] = None
        self.said = found["logprobs"]
        return found


class Colocated:
    """What TRL asks of its `VLLMGeneration`, with an `Engine` behind it."""

    def __init__(self, engine: Engine, **given: Any) -> None:
        self.engine, self.synced = engine, 0
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs")
        for name in names:
            setattr(self, name, given[name])
        config = SimpleNamespace(dtype="torch.float32", logprobs_mode="processed_logprobs")
        self.llm = SimpleNamespace(llm_engine=SimpleNamespace(model_config=config))
        self.trainer = SimpleNamespace(
            processing_class=given["processing_class"],
            accelerator=given["accelerator"],
            model=given["model"],
            temperature=given["temperature"],
            max_completion_length=given["max_completion_length"],
        )

    def sync_weights(self) -> None:
        self.synced += 1

    def generate(self, *, prompts: list[list[int]], **_: Any) -> tuple[Any, ...]:
        found = self.engine(prompts, self.trainer)
        return found["prompt_ids"], found["completion_ids"], [[[x] for x in row] for row in found["logprobs"]], None


def trainer(folder: Any, engine: Engine, **settings: Any) -> Any:
    """A trainer of two optimizer steps, four responses each; with `use_vllm=True` the engine is `Colocated`."""
    import warnings
    from unittest.mock import patch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL's and transformers' words about their own plans
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer
        from trl.trainer import grpo_trainer

        defaults: dict[str, Any] = {
            "use_cpu": True,
            "bf16": False,
            "per_device_train_batch_size": 4,
            "num_generations": 4,
            "max_completion_length": 6,
            "max_steps": 2,
            "logging_steps": 1,
            "learning_rate": 1e-2,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "gradient_checkpointing": False,
            "seed": 0,
        }

        def reward(completion_ids: Any, **_: Any) -> list[float]:
            return [float(sum(ids) % 7) for ids in completion_ids]

        with patch.object(grpo_trainer, "VLLMGeneration", lambda **given: Colocated(engine, **given)):
            return GRPOTrainer(
                model=model(),
                processing_class=tokenizer(),
                reward_funcs=reward,
                train_dataset=Dataset.from_dict({"prompt": ["w1 w2", "w3", "w4 w5 w6", "w7"] * 4}),
                args=GRPOConfig(output_dir=str(folder), **{**defaults, **settings}),
                rollout_func=None if settings.get("use_vllm") else engine,
            )


def watched(attached: Any, monkeypatch: Any) -> list[dict[str, Any]]:
    """Every micro-batch that TRL's loss was given, and the loss it made of it."""
    seen, inner = [], attached._theirs["_compute_loss"]

    def watch(model, inputs):
        loss = inner(model, inputs)
        seen.append({n: v.detach().cpu().numpy() for n, v in {**inputs, "loss": loss}.items() if hasattr(v, "detach")})
        return loss

    monkeypatch.setitem(attached._theirs, "_compute_loss", watch)
    return seen


def logged(made: Any) -> list[dict[str, Any]]:
    """What the trainer logged at each step."""
    return [entry for entry in made.state.log_history if "loss" in entry]


def by_hand(mode: str, threshold: float, trainer_logp: Any, rollout_logp: Any) -> list[float]:
    """The weights of one response, token by token, as the modes are written down."""
    d = np.clip(np.asarray(trainer_logp, np.float64) - np.asarray(rollout_logp, np.float64), -20, 20)
    ratio, whole = np.exp(d), float(np.exp(d.mean()))
    return {
        "token_truncate": [min(r, threshold) for r in ratio],
        "token_mask": [r if r <= threshold else 0.0 for r in ratio],
        "sequence_truncate": [min(whole, threshold)] * len(ratio),
        "sequence_mask": [r if whole <= threshold else 0.0 for r in ratio],
    }[mode]


def said(caplog: Any) -> list[str]:
    """The lines of the monitor's log."""
    return [r.getMessage() for r in caplog.records if r.name == "samepolicy.monitor"]
