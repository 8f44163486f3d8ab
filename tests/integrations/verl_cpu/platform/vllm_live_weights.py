"""vLLM's CPU backend packs linear weights when it loads them, and a weight sync would not reach the packed ones."""

import importlib

MODULES = ("utils", "linear", "vocab_parallel_embedding")


def live(layer, remove_weight):
    """Leave the weights as they are."""
    import torch

    layer.cpu_linear = torch.nn.functional.linear


def register():
    """Have every layer's weights left as they are."""
    for name in MODULES:
        module = importlib.import_module(f"vllm.model_executor.layers.{name}")
        if hasattr(module, "dispatch_cpu_unquantized_gemm"):
            module.dispatch_cpu_unquantized_gemm = live
