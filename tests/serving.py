"""Real vLLM for the tests: a model folder, and a server process on loopback."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from samepolicy import testing

MODELS = Path(__file__).parent.parent / "build" / "models"
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # vLLM would compile its sampler for half a minute


def smollm2_folder() -> str:
    """SmolLM2-135M-Instruct as a folder with float32 safetensors, made once and kept below build/."""
    return testing.smollm2_folder(MODELS)


def with_settings(folder: str, target: Path, **settings: object) -> str:
    """The same model with other values in its generation_config.json."""
    target.mkdir()
    for file in Path(folder).iterdir():
        (target / file.name).symlink_to(file)
    config = json.loads((target / "generation_config.json").read_text())
    (target / "generation_config.json").unlink()
    (target / "generation_config.json").write_text(json.dumps({**config, **settings}))
    return str(target)


def with_adapter(folder: str, target: Path) -> str:
    """A LoRA adapter of rank 12 that changes what the model says."""
    import peft
    import torch
    import transformers

    torch.manual_seed(0)
    config = peft.LoraConfig(r=12, lora_alpha=24, target_modules=["q_proj", "v_proj", "up_proj"])
    model = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(folder), config)
    for name, weights in model.named_parameters():
        if "lora_" in name:
            weights.data.normal_(0, 0.02)
    model.save_pretrained(target)
    return str(target)


def in_int8(folder: str, target: Path) -> str:
    """The same model with int8 linear layers, a scale per row, activations by token, as compressed-tensors has it."""
    import torch
    from safetensors.torch import load_file, save_file

    target.mkdir()
    for file in Path(folder).iterdir():
        if file.suffix != ".safetensors" and file.name != "config.json":
            (target / file.name).symlink_to(file)
    tensors = load_file(Path(folder) / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        scale = tensors[name].float().abs().amax(1, keepdim=True) / 127
        tensors |= {name: (tensors[name].float() / scale).round().to(torch.int8), f"{name}_scale": scale}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    eight: dict[str, object] = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**eight, "strategy": "channel", "dynamic": False},
        "input_activations": {**eight, "strategy": "token", "dynamic": True},
    }
    how = {"quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed"}
    config = json.loads((Path(folder) / "config.json").read_text())
    config["quantization_config"] = {**how, "ignore": ["lm_head"], "config_groups": {"group_0": group}}
    (target / "config.json").write_text(json.dumps(config))
    return str(target)


@contextmanager
def vllm_server(model: str, log: Path, *arguments: str) -> Iterator[str]:
    """A vLLM server process of its own, ready to answer; gives its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fixed = ["--model", model, "--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--max-model-len", "512"]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *fixed, *arguments]
    chosen = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    chosen |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"), "TORCHDYNAMO_DISABLE": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **chosen})
        try:
            _wait(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server is healthy; if it ends before, show its log."""
    for _ in range(1200):
        if process.poll() is not None:
            break
        try:
            urlopen(url, timeout=1).close()
        except (URLError, OSError):
            time.sleep(0.5)
        else:
            return
    raise RuntimeError(f"the vLLM server did not start:\n{log.read_text()[-3000:]}")
