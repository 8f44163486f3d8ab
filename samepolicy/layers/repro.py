"""Write the one module that differs as a script with its tensors, so that it can be run, shared and mended alone."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samepolicy.errors import InputError
from samepolicy.layers import taps
from samepolicy.layers.capture import Capture
from samepolicy.layers.hf_taps import Model
from samepolicy.layers.passes import put_in

SCRIPT = '''"""{tap}: one module of the trainer on the rollout's inputs, beside what the rollout gave for them.

Needs torch and transformers. case.pt holds a pickled module: run it only if you trust whoever made it.
"""

from pathlib import Path

import torch

case = torch.load(Path(__file__).parent / "case.pt", weights_only=False)
with torch.inference_mode():
    output = case["module"](*case["args"], **case["kwargs"])
output = output[0] if isinstance(output, tuple) else output
ours, theirs = output.reshape(case["rollout"].shape).double(), case["rollout"].double()
error = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp(min=1e-30)
print(f"{tap}, {{type(case['module']).__name__}}, {{len(error)}} tokens")
whole = float((ours - theirs).norm() / theirs.norm())
print(f"relative error {{whole:.3e}}, largest {{float((ours - theirs).abs().max()):.3e}}")
worst = error.argsort(descending=True)[:8]
print("worst tokens:", ", ".join(f"{{int(i)}} ({{float(error[i]):.1e}})" for i in worst))
'''


@dataclass(frozen=True)
class Case:
    """A module, and the tap that holds the rollout's output of it."""

    module: Any
    tap: str


def write_repro(a: Any, rollout: Capture, tap: str, folder: str | Path) -> Path:
    """Write a script and the tensors for the module that a tap belongs to.

    The module runs on the rollout's inputs of the longest sequence. For a step inside attention it is the attention as
    a whole, for a sum, or in models with norms after the blocks, the layer.

    Args:
        a: the trainer: a transformers model, or an hf engine.
        rollout: what the rollout computed.
        tap: where the two part.
        folder: a new or empty folder.

    Returns:
        The script; run it with python.

    Raises:
        InputError: no such tap, a folder that holds something, or a module that cannot be saved.
    """
    import torch

    where = Path(folder)
    if where.exists() and (not where.is_dir() or any(where.iterdir())):
        raise InputError(f"{where} is there and not an empty folder, so nothing is written; give a new one.")
    model = Model(a if isinstance(a, torch.nn.Module) else a.model)
    if tap not in rollout.slots:
        raise InputError(f"There is no tap {tap!r}; the first is {rollout.taps[0]!r}.")
    case = _case(model, tap)
    row = int(rollout.ids.lengths.argmax())
    args, kwargs = _inputs(model, rollout, row, case.module)
    start, stop = (int(rollout.ids.offsets[row + i]) for i in (0, 1))
    content = {
        "module": _bare(case.module),
        "args": args,
        "kwargs": kwargs,
        "rollout": rollout.read(case.tap, start, stop),
        "ids": rollout.ids[row].tolist(),
    }
    where.mkdir(parents=True, exist_ok=True)
    try:
        torch.save(content, where / "case.pt")
    except Exception as error:
        (where / "case.pt").unlink(missing_ok=True)
        raise InputError(
            f"{type(case.module).__name__} cannot be saved ({error}); give the model without functions put into it."
        ) from error
    script = where / "repro.py"
    script.write_text(SCRIPT.format(tap=tap), "utf-8")
    return script


def _case(model: Model, tap: str) -> Case:
    """The smallest module whose inputs and outputs are taps."""
    layer, part, parts = taps.layer_of(tap), taps.part_of(tap), model.parts
    if layer is None:
        module = {
            taps.EMBEDDING: model.module.get_input_embeddings(),
            taps.FINAL_NORM: parts.norm,
            taps.LOGITS: model.module.get_output_embeddings(),
        }[tap]
        return Case(module, tap)
    one = parts.layers[layer]
    whole = Case(one.module, taps.name(layer, "residual"))
    if part in ("attention_norm", "mlp_norm", "router"):
        return Case(getattr(one, part), tap)
    if part in ("experts", "mlp"):
        return Case(one.mlp, taps.name(layer, "mlp")) if one.mlp is one.mlp_block else whole
    inside = part in ("q", "k", "v", "attention", "attention_block")
    plain = any(one.attention_block is child for child in one.attention.modules())
    return Case(one.attention, taps.name(layer, "attention_block")) if inside and plain else whole


def _inputs(model: Model, rollout: Capture, row: int, module: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the module is called with when every tap is the rollout's; of the head, all calls together."""
    import torch

    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def hook(_: Any, args: Any, kwargs: Any) -> None:
        calls.append((_kept(args), _kept(kwargs)))

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        put_in(model, rollout, None, rows=[row])
    finally:
        handle.remove()
    if len(calls) > 1:
        return (torch.cat([call[0][0] for call in calls]),), {}
    return calls[0]


def _kept(value: Any) -> Any:
    """A copy of what a module was called with."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _kept(one) for key, one in value.items()}
    return tuple(map(_kept, value)) if isinstance(value, tuple | list) else value


def _bare(module: Any) -> Any:
    """A copy without hooks."""
    made = copy.deepcopy(module)
    for part in made.modules():
        for hooks in (part._forward_hooks, part._forward_pre_hooks):
            hooks.clear()
    return made
