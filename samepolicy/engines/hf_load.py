"""Loading a transformers model: which files, in which numbers, without noise, and with errors a person can act on."""

import importlib
import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from logging import CRITICAL, getLogger
from pathlib import Path
from typing import Any

from samepolicy.errors import EngineError, InputError, MissingDependencyError

DTYPES = ("float32", "bfloat16", "float16", "float64")
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth")
"""Files of a model folder that may hold weights."""


def need(*packages: str) -> None:
    """Refuse to go on, with the pip line, if one of these packages is not installed."""
    for name in packages:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise MissingDependencyError(
                f"The hf engine needs {name}, which is not installed; run pip install 'samepolicy[hf]'."
            ) from error


def read_model(path: str, *, dtype: str, attention: str | None, trust_remote_code: bool) -> Any:
    """Read a causal language model from a folder, a .gguf file or a hub name.

    Args:
        path: where it is; a GGUF file is unpacked in float32 whatever its quantisation.
        dtype: dtype that the weights are rounded to, or "auto" for that of the files (float32 for GGUF).
        attention: attention implementation; None leaves it to transformers.
        trust_remote_code: run code that comes with the model.

    Returns:
        The transformers model on the CPU, in evaluation mode, without gradients.

    Raises:
        InputError: there is no model, or its files lack tensors.
        EngineError: it cannot be loaded.
    """
    need("torch", "transformers")
    import transformers

    where, extra = _source(path)
    extra = dict(extra)
    if "gguf_file" in extra:
        need("gguf", "accelerate")
        extra["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with _quiet(), _explained(path):
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            where,
            dtype="float32" if "gguf_file" in extra else dtype,
            attn_implementation=attention,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            **extra,
        )
    missing = sorted(loaded["missing_keys"])
    if missing:
        raise _incomplete(path, missing)
    if "gguf_file" in extra and dtype != "auto":
        cast(model, dtype)
    return model.eval().requires_grad_(False)


def check_files(path: str, model: Any, *, trust_remote_code: bool) -> None:
    """Refuse weights that cannot be another version of a model, from their config and the beginnings of their files.

    Args:
        path: a folder, or a .gguf file.
        model: the model.
        trust_remote_code: run code that comes with the weights.

    Raises:
        InputError: there is no such folder, it holds no weights or not all, or they are of another architecture or
            size.
        EngineError: a file is damaged.
    """
    import transformers
    from safetensors import safe_open

    where, packed = _source(path)
    if packed:
        need("gguf")
        import gguf

        with _explained(path):
            gguf.GGUFReader(path)
        return
    folder = Path(where)
    if not folder.is_dir():
        raise InputError(f"There is no folder {path!r}; give folders of saved models as checkpoints.")
    with _quiet(), _explained(path):
        other = transformers.AutoConfig.from_pretrained(where, trust_remote_code=trust_remote_code)
    given, own = other.get_text_config(), model.config.get_text_config()
    for name in ("model_type", *_SIZES):
        theirs, ours = getattr(given, name, None), getattr(own, name, None)
        if theirs != ours:
            raise InputError(
                f"The weights in {path!r} are of another architecture: {name} is {theirs}, where the model has {ours}; "
                "give checkpoints of the model that is trained."
            )
    if not any(file for pattern in WEIGHT_FILES for file in folder.glob(pattern)):
        raise InputError(f"{path!r} holds a config but no weights; give folders of saved models.")
    names: set[str] = set()
    for file in sorted(folder.glob("*.safetensors")):
        with _explained(path), safe_open(file, "pt") as held:
            names |= set(held.keys())
    missing = _missing(model, names)
    if missing:
        raise _incomplete(path, missing)


def _missing(model: Any, names: set[str]) -> list[str]:
    """Parameters of a model that files lack; none where most names are others, since files may name them so."""
    alike: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if "lora_" not in name:
            alike.setdefault(id(parameter), set()).add(name.replace(".base_layer.", "."))
    lacking = [min(aliases) for aliases in alike.values() if not aliases & names]
    return sorted(lacking) if 2 * len(lacking) < len(alike) else []


def _incomplete(path: str, missing: Sequence[str]) -> InputError:
    """What is wrong with a model that lacks tensors."""
    return InputError(
        f"The files of {path!r} lack {len(missing)} of the model's tensors, such as {missing[0]}, which would be "
        "random; give the whole model, with its tensors under their own names."
    )


def read_tokenizer(path: str, *, trust_remote_code: bool) -> Any:
    """Read the model's tokenizer; None where a local folder holds none."""
    import transformers

    where, extra = _source(path)
    if Path(where).is_dir() and not extra and not any(Path(where).glob("*token*")):
        return None
    with _quiet(), _explained(path):
        return transformers.AutoTokenizer.from_pretrained(where, trust_remote_code=trust_remote_code, **extra)


def add_adapter(model: Any, folder: str, *, dtype: str) -> None:
    """Put a LoRA adapter into the model, in place and not merged, its weights in `dtype`."""
    need("peft")
    import peft

    if not (Path(folder) / "adapter_config.json").is_file():
        raise InputError(f"{folder!r} is not an adapter: it holds no adapter_config.json; give the folder peft wrote.")
    with _quiet(), _explained(folder):
        if peft.PeftConfig.from_pretrained(folder).is_prompt_learning:
            raise InputError(
                f"{folder!r} is a prompt adapter, which changes the ids; only LoRA and its kin can be scored."
            )
        peft.PeftModel.from_pretrained(model, folder, autocast_adapter_dtype=False)
    cast(model, dtype)
    model.eval().requires_grad_(False)


def dtype_name(model: Any) -> str:
    """The name of the dtype that a model computes in, as `DTYPES` has it."""
    return str(model.dtype).removeprefix("torch.")


def to_device(model: Any, device: str) -> Any:
    """Move a model to a device; "auto" is the accelerator if there is one, else the CPU."""
    import torch

    if device == "auto":
        device = str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else "cpu"
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f'The device {device!r} cannot be used ({_first_line(error)}); use "cpu".') from error


def cast(model: Any, dtype: str) -> None:
    """Round parameters and saved buffers to a dtype, in place.

    What is computed rather than learned (rotary frequencies) keeps its precision, and so does what the model keeps in
    float32, as when it is loaded in that dtype.
    """
    import torch

    kept = tuple(model._keep_in_fp32_modules or ()) + tuple(model._keep_in_fp32_modules_strict or ())
    saved = model.state_dict(keep_vars=True)
    for name, tensor in saved.items():
        if torch.is_floating_point(tensor) and not any(part in name.split(".") for part in kept):
            tensor.data = tensor.data.to(getattr(torch, dtype))


def _source(path: str) -> tuple[str, dict[str, str]]:
    """What to hand to from_pretrained for a folder, a .gguf file or a hub name; refuse what is none of them."""
    here = Path(path).expanduser()
    if path.endswith(".gguf"):
        if not here.is_file():
            raise InputError(f"There is no file {path!r}; give the path of a GGUF file that exists.")
        with here.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise InputError(f"{path!r} is not a GGUF file: it does not start with GGUF; download it again.")
        return str(here.parent), {"gguf_file": here.name}
    if path and here.is_dir():
        if not (here / "config.json").is_file():
            raise InputError(
                f"{path!r} is not a model folder: it holds no config.json; give the folder of a saved model."
            )
        return str(here), {}
    if here.is_file():
        raise InputError(f"{path!r} is a file but no GGUF file; give a model folder, a .gguf file or a hub name.")
    if not path or path.startswith(("/", ".", "~")) or path.count("/") > 1:
        raise InputError(f"There is no model at {path!r}; give a model folder, a .gguf file or a hub name.")
    if not _may_be_on_hub(path):
        raise InputError(
            f"There is no model at {path!r}, and none of that name in the hub's cache; "
            "give a model folder, a .gguf file or a hub name as owner/name."
        )
    return path, {}


def _may_be_on_hub(name: str) -> bool:
    """Whether asking the hub makes sense: a name is owner/name, but for a few old ones that must be in the cache.

    A mistyped path would otherwise be looked for over the network, which where there is none takes a minute.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    if "/" in name and not constants.HF_HUB_OFFLINE:
        return True
    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # no name that the hub could have
        return False


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' and the hub's progress bars, notes and warnings off the terminal, then put everything back."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub = getLogger("huggingface_hub")
    hub_level = hub.level
    hub.setLevel(CRITICAL)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        hub.setLevel(hub_level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn whatever a loader raises into one sentence."""
    try:
        yield
    except (InputError, MissingDependencyError):
        raise
    except ImportError as error:
        told = _first_line(error)
        fix = "install that" if "pip install" in told else "run pip install 'samepolicy[hf]'"
        raise MissingDependencyError(f"Loading {path!r} needs a package that is missing ({told}); {fix}.") from error
    except Exception as error:
        if Path(path).expanduser().exists():
            fix = "check that its files are complete and of a causal language model"
        else:
            fix = "it is no local path, so give one, or a hub name that this machine can reach or has in its cache"
        raise EngineError(f"The model {path!r} could not be loaded ({_first_line(error)}): {fix}.") from error


def _first_line(error: Exception) -> str:
    """The first line of an error's message, shortened at a word, without its final stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return textwrap.shorten(lines[0], 200, placeholder=" …").rstrip(".")
