"""SmolLM2 in real vLLM with its weights kept live, updated by the trainer as training frameworks do."""

from functools import partial
from typing import Any

import pytest
import torch

from samepolicy.engines import vllm_load
from samepolicy.errors import InputError
from samepolicy.weights import WeightSync, compare
from tests.serving import smollm2_folder

pytestmark = [pytest.mark.full, pytest.mark.e2e, pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def engine() -> Any:
    """The module inside vLLM, whose linear layers use their parameters as they are."""
    vllm_load.imported()
    from vllm.model_executor.layers import utils

    def kept(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "dispatch_cpu_unquantized_gemm", kept)
        options = {"enforce_eager": True, "max_model_len": 64, "max_num_seqs": 1}
        llm = vllm_load.build(smollm2_folder(), {"dtype": "bfloat16", **options})
        yield llm


@pytest.fixture(scope="module")
def trainer() -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(smollm2_folder(), dtype=torch.float32)


def test_a_training_run_and_its_faults(engine: Any, trainer: Any):
    sync = WeightSync(trainer, engine)
    live = engine.llm_engine.model_executor.driver_worker.model_runner.model
    first = sync(step=0)
    assert first.ok, str(first)
    assert first.tensors == 273

    def update(skip: str = "nothing") -> None:
        with torch.no_grad():
            for parameter in trainer.parameters():
                parameter.mul_(1.01)
        live.load_weights((n, t) for n, t in trainer.state_dict().items() if skip not in n)

    update()
    assert sync(step=1).ok
    update(skip="layers.7.self_attn.k_proj")
    report = sync(step=2)
    assert dict(report.stale) == {"model.layers.7.self_attn.k_proj.weight": 1}
    found = compare(trainer, engine, checkpoints=[smollm2_folder()])
    assert [r.name for r in found.different] == ["model.layers.7.self_attn.k_proj.weight"]
    assert found.counts["equal after cast"] == len(found.relations) - 1


def test_packed_weights_cannot_be_synced_and_it_says_so(engine: Any, trainer: Any):
    live = engine.llm_engine.model_executor.driver_worker.model_runner.model
    layer = live.model.layers[0].self_attn.o_proj
    kernel = layer.cpu_linear
    layer.cpu_linear = partial(kernel)
    try:
        with pytest.raises(InputError, match="has packed its linear weights"):
            WeightSync(trainer, engine)
    finally:
        layer.cpu_linear = kernel
