"""Mistakes in the model: other weights, other config fields, other arithmetic. Each maps a model to a model."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

Change: TypeAlias = Callable[[Any], Any]


def noisy(share: float, match: Callable[[str], bool] = lambda _: True) -> Change:
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


def trained(steps: int, rate: float = 1e-4) -> Change:
    """Weights after real AdamW steps on a text."""

    def change(model: Any) -> Any:
        import torch

        torch.manual_seed(3)
        ids = torch.randint(5, 40_000, (4, 64))
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        for _ in range(steps):
            optimizer.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
        return model

    return change


CHECKPOINTS: dict[str, Change] = {
    **{f"noisy {share}": noisy(share) for share in (0.01, 0.02, 0.05)},
    **{f"trained {steps}": trained(steps) for steps in (1, 2, 4)},
}
"""Earlier weights that faults take and the diagnosis is given, by name."""


def layers(low: int, high: int) -> Callable[[str], bool]:
    """Tensors of the layers from low to before high."""
    return lambda name: any(f"layers.{i}." in name for i in range(low, high))


def embedding(name: str) -> bool:
    """Whether a tensor is the embedding, which is the head's, too."""
    return "embed_tokens" in name


def config(**changes: Any) -> Change:
    """The same weights under another config."""

    def change(model: Any) -> Any:
        told = copy.deepcopy(model.config)
        for name, value in changes.items():
            if name in ("rope_theta", "rope_scaling"):
                told.rope_parameters = {**told.rope_parameters, **(value if isinstance(value, dict) else {name: value})}
            else:
                setattr(told, name, value)
        other = type(model)(told).eval()
        other.load_state_dict(model.state_dict())
        return other

    return change


def rounded(bits: int) -> Change:
    """Weights of linear layers rounded to that many bits, one scale a row."""
    return _cast(lambda w: _steps(w, w.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)))


def float8(kind: str) -> Change:
    """Weights of linear layers cast to an 8-bit float and back: one scale a tensor, a row, or none."""

    def cast(weight: Any) -> Any:
        import torch

        most = torch.finfo(torch.float8_e4m3fn).max
        scales = {"tensor": weight.abs().max(), "row": weight.abs().amax(-1, keepdim=True), "none": torch.tensor(most)}
        scale = scales[kind] / most
        return (weight / scale).to(torch.float8_e4m3fn).float() * scale

    return _cast(cast)


def _steps(weight: Any, step: Any) -> Any:
    """A tensor rounded to multiples of a step."""
    return (weight / step).round() * step


def _cast(cast: Callable[[Any], Any]) -> Change:
    """Every weight of the layers' linear maps through a function."""

    def change(model: Any) -> Any:
        import torch

        with torch.no_grad():
            for name, tensor in model.named_parameters():
                if "proj" in name:
                    tensor.copy_(cast(tensor))
        return model

    return change


def swapped_heads(layer: int) -> Change:
    """Two query heads of a layer in each other's place."""

    def change(model: Any) -> Any:
        import torch

        with torch.no_grad():
            weight = model.model.layers[layer].self_attn.q_proj.weight
            rows = weight.clone()
            weight[:64], weight[64:128] = rows[64:128], rows[:64]
        return model

    return change


def scaled(part: str, factor: float) -> Change:
    """Some tensors times a factor."""

    def change(model: Any) -> Any:
        import torch

        with torch.no_grad():
            for name, tensor in model.named_parameters():
                if part in name:
                    tensor.mul_(factor)
        return model

    return change


def without_layer(layer: int) -> Change:
    """One layer left out."""

    def change(model: Any) -> Any:
        del model.model.layers[layer]
        for i, block in enumerate(model.model.layers):
            block.self_attn.layer_idx = i
        model.config.num_hidden_layers -= 1
        return model

    return change


def attention_scale(factor: float) -> Change:
    """The softmax of all attention at another scale."""

    def change(model: Any) -> Any:
        for block in model.model.layers:
            block.self_attn.scaling *= factor
        return model

    return change


def adapter(folder: Path, scale: float, dropout: float, base: Any) -> Path:
    """A LoRA adapter with random weights of that size, kept in a folder."""
    if not folder.exists():
        import torch
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(11)
        told = LoraConfig(r=8, lora_alpha=16, lora_dropout=dropout, target_modules=["q_proj", "v_proj", "down_proj"])
        model = get_peft_model(copy.deepcopy(base), told)
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                if "lora_B" in name:
                    tensor.normal_(0, scale)
        model.save_pretrained(folder)
    return folder


def adapted(folder: Path) -> Change:
    """The model with its adapter beside the weights, so that its dropout acts in training mode."""

    def change(model: Any) -> Any:
        from peft import PeftModel

        return PeftModel.from_pretrained(model, folder)

    return change
