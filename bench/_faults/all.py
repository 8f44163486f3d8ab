"""Real faults on a real model: a trainer scores, or a rollout records, something else than it declares.

Nothing here uses the code of `samepolicy.causes`: the trainer is a plain transformers forward with the mistake in it.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault at one severity.

    Attributes:
        name: what it is called in the results.
        cause: the name that the diagnosis should give; "" for one on no list, "numerics" for a healthy run.
        severity: its parameter, in words.
        rollout: how the tokens are sampled (fields of `Sampling`), and "raw" where raw values are kept.
        trainer: the mistake: keyword arguments of `Trainer.score`.
        arrays: the mistake on the recorded columns: from a dict of columns and a generator to the same.
        declared: what both sides say of the sampling, where that is not the rollout's own.
        expected: the parameter to be found and its true value.
    """

    name: str
    cause: str
    severity: str
    rollout: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    arrays: Callable[[dict[str, Any], np.random.Generator], dict[str, Any]] | None = None
    declared: dict[str, Any] | None = None
    expected: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Name and severity."""
        return f"{self.name} {self.severity}".strip()


class Trainer:
    """A transformers model that scores responses one by one, with a mistake on request."""

    def __init__(self, folder: str, dtype: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch, self.folder, self.dtype = torch, folder, dtype
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.cast = copy.deepcopy(self.plain).to(getattr(torch, dtype))

    def score(
        self,
        prompts: list[list[int]],
        responses: list[list[int]],
        *,
        temperature: float = 1.0,
        scale: float = 1.0,
        model: Callable[[Any], Any] | None = None,
        prompt: Callable[["Trainer", list[int]], list[int]] | None = None,
        response: Callable[["Trainer", list[int]], list[int]] | None = None,
        layout: str = "",
        train: bool = False,
        head: str = "float32",
    ) -> list[np.ndarray]:
        """Log-probs of each response's tokens; every keyword is a mistake."""
        torch = self.torch
        network = self.cast
        if model is not None:
            network = model(copy.deepcopy(self.plain)).to(getattr(torch, self.dtype))
        network.train(train)
        found, before = [], []
        for row, (asked, answer) in enumerate(zip(prompts, responses, strict=True)):
            ids = prompt(self, asked) if prompt else asked
            told = response(self, answer) if response else answer
            arguments, begin = _arguments(torch, layout, ids, told, before, row)
            with torch.no_grad():
                logits = network(**arguments).logits[0, begin - 1 : begin - 1 + len(told)]
            logits = (logits.to(getattr(torch, head)) / temperature).log_softmax(-1).float() / scale
            found.append(logits.gather(-1, torch.tensor(told)[:, None])[:, 0].numpy())
            before = ids + told
        network.eval()
        return found


def _arguments(
    torch: Any, layout: str, ids: list[int], answer: list[int], before: list[int], row: int
) -> tuple[dict[str, Any], int]:
    """What the forward is called with, and where the response begins."""
    tokens = ids + answer
    mask = [1] * len(tokens)
    positions = list(range(len(tokens)))
    begin = len(ids)
    if layout == "hidden prompt":
        mask[: len(ids)] = [0] * len(ids)
    elif layout == "seen padding":
        pad = 5 + 7 * (row % 4)
        tokens, mask, begin = [0] * pad + tokens, [1] * (pad + len(mask)), begin + pad
        positions = list(range(len(tokens)))
    elif layout == "gap":
        pad = 5 + 7 * (row % 4)
        positions = [*range(len(ids)), *(len(ids) + pad + i for i in range(len(answer)))]
    elif layout == "packed" and before:
        tokens, begin = before + tokens, begin + len(before)
        mask, positions = [1] * len(tokens), list(range(len(tokens)))
    arguments = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
    return {name: torch.tensor([value]) for name, value in arguments.items()}, begin


def _noisy(share: float, match: Callable[[str], bool] = lambda _: True) -> Callable[[Any], Any]:
    """Weights as some optimizer steps would leave them: noise of this share of each tensor's own size."""

    def change(model: Any) -> Any:
        import torch

        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                noise = share * tensor.std() * torch.randn(tensor.shape, generator=generator)
                if match(name):
                    tensor.add_(noise)
        return model

    return change


def _layers(low: int, high: int) -> Callable[[str], bool]:
    """Tensors of the layers from low to high."""
    return lambda name: any(f"layers.{i}." in name for i in range(low, high))


def _config(**changes: Any) -> Callable[[Any], Any]:
    """The same weights under another config."""

    def change(model: Any) -> Any:
        config = copy.deepcopy(model.config)
        for name, value in changes.items():
            if name == "rope_theta":
                config.rope_parameters = {**config.rope_parameters, "rope_theta": value}
            else:
                setattr(config, name, value)
        other = type(model)(config).eval()
        other.load_state_dict(model.state_dict())
        return other

    return change


def _rounded(bits: int) -> Callable[[Any], Any]:
    """Weights of linear layers rounded to that many bits, one scale a row."""

    def change(model: Any) -> Any:
        import torch

        with torch.no_grad():
            for name, tensor in model.named_parameters():
                if "proj" in name:
                    step = tensor.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
                    tensor.copy_((tensor / step).round() * step)
        return model

    return change


def _swapped_heads(layer: int) -> Callable[[Any], Any]:
    """Two query heads of a layer in each other's place."""

    def change(model: Any) -> Any:
        import torch

        with torch.no_grad():
            weight = model.model.layers[layer].self_attn.q_proj.weight
            rows = weight.clone()
            weight[:64], weight[64:128] = rows[64:128], rows[:64]
        return model

    return change


def _scaled(part: str, factor: float) -> Callable[[Any], Any]:
    """Some tensors times a factor."""

    def change(model: Any) -> Any:
        import torch

        with torch.no_grad():
            for name, tensor in model.named_parameters():
                if part in name:
                    tensor.mul_(factor)
        return model

    return change


def _roll(by: int) -> Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]:
    """The trainer's values by places later or earlier in each row."""
    return lambda columns, _: columns | {"trainer_logp": [np.roll(row, by) for row in columns["trainer_logp"]]}


def _permuted(share: float) -> Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]:
    """The trainer's rows in another order; values are cut or repeated to their new row's length."""

    def change(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        rows = columns["trainer_logp"]
        chosen = rng.permutation(len(rows))[: max(2, int(share * len(rows)))]
        order = np.arange(len(rows))
        order[chosen] = np.roll(chosen, 1)
        return columns | {"trainer_logp": [np.resize(rows[j], len(rows[i])) for i, j in enumerate(order)]}

    return change


def _zero_ends(columns: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
    """The rollout's last value is 0 in every row."""
    return columns | {"rollout_logp": [np.append(row[:-1], 0.0) for row in columns["rollout_logp"]]}


def _constants(value: float, share: float) -> Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]:
    """Some of the rollout's values are a constant that stands for "none"."""

    def change(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        rows = [np.where(rng.random(len(row)) < share, value, row) for row in columns["rollout_logp"]]
        return columns | {"rollout_logp": rows}

    return change


def _noise(size: float) -> Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]:
    """A fault on no list: noise that has nothing to do with the model."""
    return lambda columns, _: (
        columns
        | {"trainer_logp": [np.minimum(r + size * rng.standard_normal(len(r)), 0) for r in columns["trainer_logp"]]}
    )


def _drift(size: float) -> Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]:
    """A fault on no list: values sink with the position."""
    return lambda columns, _: (
        columns | {"trainer_logp": [r - size * np.arange(len(r)) / len(r) for r in columns["trainer_logp"]]}
    )


def _no_generation_prompt(trainer: Trainer, ids: list[int]) -> list[int]:
    """The prompt without what opens the assistant's turn."""
    opening = trainer.tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    return ids[: -len(opening)] if ids[-len(opening) :] == opening else ids


def _no_system(trainer: Trainer, ids: list[int]) -> list[int]:
    """The prompt without its system turn."""
    text = trainer.tokenizer.decode(ids)
    kept = text[text.index("<|im_start|>user") :] if "<|im_start|>user" in text else text
    return list(trainer.tokenizer.encode(kept, add_special_tokens=False))


def _twice_bos(trainer: Trainer, ids: list[int]) -> list[int]:
    """A BOS more."""
    return [trainer.tokenizer.bos_token_id, *ids]


def _last(count: int) -> Callable[[Trainer, list[int]], list[int]]:
    """Only the last tokens of the prompt."""
    return lambda _, ids: ids[-count:]


def listed() -> Iterator[Fault]:
    """The faults of the catalogue, three severities each where there are three."""
    for t in (0.6, 0.8, 1.3):
        raw = {"temperature": t, "raw": True}
        declared = {"temperature": t}
        yield Fault(
            name="raw log-probs",
            cause="temperature",
            severity=f"T {t}",
            rollout=raw,
            declared=declared,
            trainer={"temperature": t},
        )
    for t in (0.9, 1.1, 1.5):
        yield Fault(
            name="trainer's temperature",
            cause="temperature",
            severity=f"{t}",
            trainer={"temperature": t},
            expected={"temperature": t},
        )
    for t in (0.8, 1.25):
        yield Fault(name="divided log-probs", cause="temperature", severity=f"{t}", trainer={"scale": t})
    for by in (1, -1, 2):
        yield Fault(name="shift", cause="shift", severity=f"{by:+d}", arrays=_roll(by))
    for share in (0.3, 0.6, 1.0):
        yield Fault(name="permuted rows", cause="row_order", severity=f"{share:.0%}", arrays=_permuted(share))
    yield Fault(name="zero at the end", cause="end_token", severity="", arrays=_zero_ends)
    for value in (0.0, 1.0, -9999.0):
        yield Fault(name="placeholder", cause="placeholder_logp", severity=f"{value:g}", arrays=_constants(value, 0.1))
    yield Fault(name="two BOS", cause="bos_doubled", severity="", trainer={"prompt": _twice_bos})
    yield Fault(name="no generation prompt", cause="template", severity="", trainer={"prompt": _no_generation_prompt})
    yield Fault(name="no system turn", cause="template", severity="", trainer={"prompt": _no_system})
    for count in (8, 16, 24):
        yield Fault(name="cut prompt", cause="prompt_truncated", severity=f"{count}", trainer={"prompt": _last(count)})
    yield Fault(name="hidden prompt", cause="context_hidden", severity="", trainer={"layout": "hidden prompt"})
    yield Fault(name="padding attended to", cause="padding", severity="", trainer={"layout": "seen padding"})
    yield Fault(name="positions skip", cause="padding", severity="", trainer={"layout": "gap"})
    yield Fault(name="packed without a mask", cause="packing_leak", severity="", trainer={"layout": "packed"})
    for p in (0.95, 0.9, 0.8):
        yield Fault(
            name="top-p inside R",
            cause="truncated_support",
            severity=f"{p}",
            rollout={"top_p": p},
            declared={},
            expected={"top_p": p},
        )
        yield Fault(
            name="top-p, raw R",
            cause="truncated_hidden",
            severity=f"{p}",
            rollout={"top_p": p, "raw": True},
            declared={},
            expected={"top_p": p},
        )
    for penalty in (1.05, 1.1, 1.3):
        yield Fault(
            name="repetition penalty",
            cause="penalty",
            severity=f"{penalty}",
            rollout={"repetition_penalty": penalty},
            declared={},
            expected={"repetition_penalty": penalty},
        )
    for theta in (1_000.0, 2_000.0, 500_000.0):
        yield Fault(name="RoPE base", cause="rope", severity=f"{theta:g}", trainer={"model": _config(rope_theta=theta)})
    for eps in (1e-4, 1e-3, 1e-2):
        yield Fault(
            name="norm epsilon", cause="rope", severity=f"{eps:g}", trainer={"model": _config(rms_norm_eps=eps)}
        )
    for share in (0.01, 0.02, 0.05):
        yield Fault(
            name="older weights", cause="stale_weights", severity=f"{share:.0%}", trainer={"model": _noisy(share)}
        )
    for low, high in ((0, 15), (10, 20), (25, 30)):
        yield Fault(
            name="older layers",
            cause="partial_sync",
            severity=f"{low}-{high}",
            trainer={"model": _noisy(0.05, _layers(low, high))},
        )
    for bits in (8, 6, 4):
        yield Fault(
            name="rounded weights",
            cause="quantised_rollout",
            severity=f"{bits} bits",
            trainer={"model": _rounded(bits)},
        )
    yield Fault(name="log-softmax in bf16", cause="precision", severity="", trainer={"head": "bfloat16"})


def unlisted() -> Iterator[Fault]:
    """Faults on no list: the answer is that the cause is unknown."""
    for size in (0.2, 0.5):
        yield Fault(name="noise", cause="", severity=f"{size}", arrays=_noise(size))
        yield Fault(name="drift", cause="", severity=f"{size}", arrays=_drift(size))
    for layer in (3, 15, 28):
        yield Fault(name="swapped heads", cause="", severity=f"layer {layer}", trainer={"model": _swapped_heads(layer)})
    for part, factor in (("layers.5.mlp", 1.1), ("layers.20.self_attn.o_proj", 0.7), ("model.norm", 1.05)):
        yield Fault(
            name="scaled tensor", cause="", severity=f"{part} × {factor}", trainer={"model": _scaled(part, factor)}
        )


def healthy() -> Iterator[Fault]:
    """Runs without a fault."""
    yield Fault(name="healthy", cause="numerics", severity="T 1")
    for t in (0.6, 1.3):
        yield Fault(
            name="healthy",
            cause="numerics",
            severity=f"T {t}",
            rollout={"temperature": t},
            trainer={"temperature": t},
            declared={"temperature": t},
        )
    yield Fault(name="healthy", cause="numerics", severity="raw", rollout={"raw": True}, declared={})


def stacked() -> Iterator[tuple[Fault, Fault]]:
    """Two faults at once: one of the trainer's forward, one of the recorded arrays or of the sampling."""
    known = {fault.key: fault for fault in listed()}
    pairs = (
        ("trainer's temperature 1.1", "shift +1"),
        ("trainer's temperature 1.5", "zero at the end"),
        ("top-p inside R 0.8", "older weights 5%"),
        ("repetition penalty 1.3", "RoPE base 2000"),
        ("two BOS", "placeholder 0"),
        ("no generation prompt", "permuted rows 30%"),
        ("older weights 5%", "shift +1"),
        ("top-p inside R 0.9", "two BOS"),
    )
    for one, other in pairs:
        yield known[one], known[other]
