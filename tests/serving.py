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
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            urlopen(url, timeout=1).close()
        except (URLError, OSError):
            time.sleep(0.5)
        else:
            return
    raise RuntimeError(f"the vLLM server did not start:\n{log.read_text()[-3000:]}")
