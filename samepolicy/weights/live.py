"""Weights of a model that is loaded: a torch module, an engine of this package, or vLLM in this process."""

from collections.abc import Iterator
from typing import Any

from samepolicy.arrays import Array
from samepolicy.errors import InputError
from samepolicy.weights.files import refuse_quantised
from samepolicy.weights.names import Entry, canonical, derived, pieces
from samepolicy.weights.source import KINDS, Source

_NOT_HERE = (
    "The model of this vLLM is not in this process, so its weights cannot be read; set "
    "VLLM_ENABLE_V1_MULTIPROCESSING=0 before vLLM is imported, or take the fingerprint or the sample inside the worker."
)


def module_of(model: Any) -> Any:
    """The torch module behind an engine or a `vllm.LLM`; a module as it is.

    Raises:
        InputError: there is none in this process.
    """
    import torch

    if isinstance(model, torch.nn.Module):
        return model
    if hasattr(model, "llm_engine"):
        return _of_vllm(model)
    if hasattr(model, "llm"):
        return _of_vllm(model.llm)
    inner = getattr(model, "model", None)
    if isinstance(inner, torch.nn.Module):
        return inner
    raise InputError(f"{type(model).__name__} is nothing that holds weights; give {KINDS}, a torch module or an LLM.")


def load_vllm(path: str, *, dtype: str = "auto") -> Source:
    """The weights as vLLM holds them after loading a folder.

    Args:
        path: a model folder.
        dtype: the dtype that it loads them in; "auto" is vLLM's choice.

    Raises:
        InputError: no model there.
        EngineError: vLLM cannot load it.
    """
    from samepolicy.engines import vllm_load

    vllm_load.imported()
    small = {"enforce_eager": True, "max_model_len": 64, "max_num_seqs": 1, "skip_tokenizer_init": True}
    options = {"dtype": dtype, **small}
    llm = vllm_load.build(path, options)
    found = open_module(_of_vllm(llm))
    return Source(label=f"vllm:{path}", entries=found.entries, tied=found.tied, notes=found.notes)


def open_module(module: Any) -> Source:
    """The parameters and buffers of a module, those of vLLM cut into what a checkpoint holds.

    Raises:
        InputError: parameters that are sharded, not loaded or quantised.
    """
    if any(type(part).__module__.startswith("vllm.") for part in module.modules()):
        from samepolicy.weights import vllm_module

        return vllm_module.open_module(module)
    saved = module.state_dict(keep_vars=True)
    first: dict[tuple[Any, ...], str] = {}
    tied, kept = [], {}
    for name, tensor in saved.items():
        check(name, tensor)
        same = first.setdefault(_place(tensor), name)
        if same == name:
            kept[name] = tensor
        else:
            tied.append((canonical(same), canonical(name)))
    refuse_quantised("The model", list(kept))
    shapes = {name: tuple(tensor.shape) for name, tensor in kept.items()}
    found = [_entry(name, tensor, shapes) for name, tensor in kept.items()]
    found += [_buffer(name, tensor) for name, tensor in module.named_buffers() if name not in saved]
    return Source(label=type(module).__name__, entries=found, tied=tuple(tied), notes=tuple(_unmerged(module)))


def check(name: str, tensor: Any) -> None:
    """Refuse a parameter whose values are not all here.

    Raises:
        InputError: it is a shard, on the meta device, or packed numbers.
    """
    import torch

    if hasattr(tensor, "full_tensor") or type(tensor).__name__ == "DTensor":
        raise InputError(
            f"The parameter {name} is sharded over processes, so its values are not all here; gather the model first "
            "(FSDP: full_state_dict), or compare the checkpoint that it writes."
        )
    if tensor.is_meta:
        raise InputError(f"The parameter {name} is on the meta device and has no values; load the model first.")
    whole = tensor.dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    if isinstance(tensor, torch.nn.Parameter) and not whole:
        raise InputError(
            f"The parameter {name} is quantised ({tensor.dtype}), so its numbers mean nothing without their scales; "
            "compare the model that it was made from."
        )


def _of_vllm(llm: Any) -> Any:
    """The module of a `vllm.LLM`."""
    config = getattr(llm.llm_engine, "vllm_config", None)
    shards = getattr(getattr(config, "parallel_config", None), "tensor_parallel_size", 1)
    if shards > 1:
        raise InputError(
            f"This vLLM shares each tensor between {shards} processes; only tensor_parallel_size=1 can be read."
        )
    worker = getattr(getattr(llm.llm_engine, "model_executor", None), "driver_worker", None)
    runner = getattr(worker, "model_runner", None) or getattr(getattr(worker, "worker", None), "model_runner", None)
    if runner is None:
        raise InputError(_NOT_HERE)
    return runner.model


def _place(tensor: Array) -> tuple[Any, ...]:
    """Where a tensor's values are; tied names have one place. An empty tensor is nowhere else."""
    if not tensor.numel():
        return (id(tensor),)
    return (str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tensor.stride())


def _entry(name: str, tensor: Array, shapes: dict[str, tuple[int, ...]]) -> Entry:
    """A parameter or saved buffer."""
    known = canonical(name)
    return Entry(name, tuple(tensor.shape), lambda: tensor, pieces(known, shapes[name], shapes, name), derived(known))


def _buffer(name: str, tensor: Array) -> Entry:
    """A buffer that no file holds."""
    return Entry(name, tuple(tensor.shape), lambda: tensor, {canonical(name): lambda whole: whole}, True)


def _unmerged(module: Any) -> Iterator[str]:
    """A warning where an adapter is beside the weights, not in them."""
    parts = [part for part in module.modules() if hasattr(part, "lora_A")]
    if parts and not all(getattr(part, "merged", False) for part in parts):
        yield f"{type(module).__name__} holds an adapter that is not merged: its base weights are compared"
