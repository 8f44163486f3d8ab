"""The keywords of the hf engine, and the model that a path gives under them."""

from dataclasses import dataclass
from typing import Any

from samepolicy.engines import hf_load
from samepolicy.errors import InputError
from samepolicy.kinds import choose


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keywords of the hf engine.

    Attributes:
        dtype: dtype of weights and arithmetic; "auto" is that of the files (float32 for GGUF).
        weights_dtype: dtype that the weights are rounded to first, before they are cast to `dtype`.
        device: where it runs, such as "cpu" or "cuda:0"; "auto" is the accelerator if there is one.
        attention: attention implementation, such as "sdpa" or "eager"; None leaves it to transformers.
        adapter: folder of a LoRA adapter.
        head_dtype: dtype of the output head; None is `dtype`.
        batch_tokens: tokens of a batch, padding included.
        trust_remote_code: run code that comes with the model.
    """

    dtype: str = "auto"
    weights_dtype: str | None = None
    device: str = "auto"
    attention: str | None = None
    adapter: str | None = None
    head_dtype: str | None = None
    batch_tokens: int = 4096
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        """Refuse dtypes and sizes that do not exist."""
        choose("dtype", self.dtype, ("auto", *hf_load.DTYPES))
        for name in ("weights_dtype", "head_dtype"):
            choose(name, getattr(self, name) or "float32", hf_load.DTYPES)
        if self.batch_tokens < 1:
            raise InputError(f"batch_tokens must be 1 or more, but it is {self.batch_tokens}.")


def read(path: str, options: Options) -> Any:
    """The model on its device, with its adapter, rounded to `weights_dtype` and cast to `dtype`."""
    model = hf_load.read_model(
        path,
        dtype=options.weights_dtype or options.dtype,
        attention=options.attention,
        trust_remote_code=options.trust_remote_code,
    )
    if options.adapter:
        hf_load.add_adapter(model, options.adapter, dtype=options.weights_dtype or hf_load.dtype_name(model))
    if options.weights_dtype and options.dtype != "auto":
        hf_load.cast(model, options.dtype)
    return hf_load.to_device(model, options.device)
