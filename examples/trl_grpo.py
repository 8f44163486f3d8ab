"""Train with TRL's GRPO, watch every sample and correct the loss, on a tiny random model.

    python examples/trl_grpo.py

With a real model and vLLM only the first function changes: leave `rollout_func` out and set `use_vllm=True`. Here a
plain sampling loop stands for the engine. It samples at temperature 1 while the trainer divides by 0.8, so alarms are
on from step 1.
"""

import tempfile
import warnings
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import samepolicy as sp
from samepolicy.integrations import trl as same

WORDS = ["<pad>", "<eos>", *(f"w{i}" for i in range(62))]
TRAINER_TEMPERATURE, ENGINE_TEMPERATURE = 0.8, 1.0


def engine(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Sample six tokens for each prompt and keep their log-probs, as an engine of your own would."""
    ids = [trainer.processing_class(text)["input_ids"] for text in prompts]
    tokens, logps = torch.tensor(ids), []
    for _ in range(6):
        with torch.no_grad():
            logits = trainer.model(input_ids=tokens).logits[:, -1] / ENGINE_TEMPERATURE
        drawn = torch.multinomial(logits.softmax(-1), 1)
        logps.append(logits.log_softmax(-1).gather(1, drawn))
        tokens = torch.cat([tokens, drawn], dim=1)
    length = len(ids[0])
    return {"prompt_ids": ids, "completion_ids": tokens[:, length:].tolist(), "logprobs": torch.cat(logps, 1).tolist()}


def make_trainer(folder: str) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=64, **sizes, initializer_range=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=1)
    return GRPOTrainer(
        model=LlamaForCausalLM(config),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"),
        reward_funcs=lambda completion_ids, **_: [float(sum(ids) % 7) for ids in completion_ids],
        train_dataset=Dataset.from_dict({"prompt": ["w1 w2", "w3 w4"] * 8}),
        rollout_func=engine,
        args=GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=6,
            temperature=TRAINER_TEMPERATURE,
            max_steps=3,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = make_trainer(folder)
        attached = same.attach(
            trainer,
            correction=sp.Correction(sp.Truncate(2.0), sp.OffPolicyMask(0.5)),
            monitor=sp.Monitor(save_dir=f"{folder}/run", grid=None),
        )
        trainer.train()
        attached.detach()
        for entry in trainer.state.log_history[:-1]:
            alarms, weight = entry["samepolicy/monitor/alarms"], entry["samepolicy/correction/applied/weight_mean"]
            print(f"step {entry['step']}: {alarms:.0f} alarms on, mean weight {weight:.3f}")
        run = sp.read(f"{folder}/run")
        print(f"{run.tokens} tokens recorded; mean abs d {sp.measure(run)['logp_diff']['mean']:.2f} nats")


if __name__ == "__main__":
    main()
