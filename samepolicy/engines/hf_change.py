"""A transformers model with other weights, other config fields, or rounded weights."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from samepolicy.engines.change import Change
from samepolicy.engines.weight_formats import rounded
from samepolicy.errors import InputError

FIELDS = (
    "rope_theta",
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_eps",
    "sliding_window",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "partial_rotary_factor",
    "logit_scale",
    "logits_scaling",
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
)
"""Fields of a config that act on positions and scales; those of `rope_parameters` are taken besides."""

SCALING = (
    "rope_type",
    "factor",
    "attention_factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)
"""Entries of `rope_parameters` that a scaling brings along where there was none."""


def changed(model: Any, change: Change, other: Any = None) -> Any:
    """Apply a change to a model; the model may be used up.

    Args:
        model: a copy nobody else holds, in float32 where its weights are changed.
        change: what to change.
        other: the model that weights are taken from; None where none are.

    Raises:
        InputError: weights of another architecture, a pattern that matches nothing, or an unknown config field.
    """
    if other is not None:
        _swap(model, other, change)
    if change.config:
        model = _configured(model, change.config)
    if change.quantise is not None:
        _quantise(model, change.quantise)
    return model.train(change.train)


def fields_of(config: Any) -> dict[str, Any]:
    """The numbers in a config that act on positions and scales, by the name that `Change.config` takes."""
    text = config.get_text_config()
    before = "" if text is config else next((f"{n}." for n in vars(config) if getattr(config, n) is text), "")
    found = {name: getattr(text, name, None) for name in FIELDS}
    rope = getattr(text, "rope_parameters", None)
    found |= {f"rope_parameters.{name}": value for name, value in rope.items()} if isinstance(rope, dict) else {}
    return {f"{before}{n}": v for n, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def _swap(model: Any, other: Any, change: Change) -> None:
    """Take tensors over from another model."""
    ours, theirs = model.state_dict(), other.state_dict()
    shapes = [{name: tuple(t.shape) for name, t in state.items()} for state in (ours, theirs)]
    if shapes[0] != shapes[1]:
        odd = sorted(n for n in {*shapes[0], *shapes[1]} if shapes[0].get(n) != shapes[1].get(n))
        raise InputError(
            f"The weights in {change.weights!r} are of another architecture: {len(odd)} tensors differ in name or "
            f"shape, such as {odd[0]}; give checkpoints of the model that is trained."
        )
    for name, other_name in _tied(ours):
        if not bool((theirs[name] == theirs[other_name]).all()):
            raise InputError(
                f"In the model {name} and {other_name} are one tensor, in {change.weights!r} they are two; give "
                "checkpoints of the model that is trained."
            )
    taken = [n for n in ours if _matches(n, change.tensors)]
    if not taken:
        raise InputError(f"No tensor of the model is called {' or '.join(change.tensors)}; look at its state dict.")
    for name in taken:
        ours[name].copy_(theirs[name])


def _tied(state: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names of one tensor."""
    first: dict[int, str] = {}
    for name, tensor in state.items():
        if tensor.numel() and (known := first.setdefault(tensor.data_ptr(), name)) != name:
            yield known, name


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name fits one of the patterns, or there is none."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _configured(model: Any, fields: Sequence[tuple[str, Any]]) -> Any:
    """The same weights, not copied, under a config with other fields."""
    from accelerate import init_empty_weights

    config = copy.deepcopy(model.config)
    for name, value in fields:
        _set(config, name.split("."), value)
    with init_empty_weights(include_buffers=False):
        made = type(model)(config)
    made.load_state_dict(model.state_dict(), assign=True)
    made.tie_weights()
    return made.to(model.device).eval().requires_grad_(False)


def _set(config: Any, path: Sequence[str], value: Any) -> None:
    """Set a field, or an entry of a nested one."""
    *outer, last = path
    for part in outer:
        config = config[part] if isinstance(config, dict) else getattr(config, part, None)
    known = last in config or last in SCALING if isinstance(config, dict) else hasattr(config, last)
    if not known:
        raise InputError(f"The model's config has no field {'.'.join(path)}; look at its config.json.")
    if isinstance(config, dict):
        config[last] = value
    else:
        setattr(config, last, value)


def _quantise(model: Any, form: str) -> None:
    """Round the weights of the linear layers but for the head, in place."""
    import torch

    head = model.get_output_embeddings()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module is not head:
            module.weight.copy_(rounded(module.weight, form))
