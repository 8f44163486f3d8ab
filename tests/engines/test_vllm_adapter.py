"""Real vLLM in this process with a LoRA adapter, against the Hugging Face trainer with and without it.

A module of its own: a vLLM that goes away takes with it what another one in the same process stands on.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.engines import vllm_load
from samepolicy.engines.base import Engine, engine
from samepolicy.errors import EngineError, InputError
from samepolicy.records.side import Sampling
from tests.serving import smollm2_folder, with_adapter

pytestmark = [pytest.mark.full, pytest.mark.e2e, pytest.mark.xdist_group("vllm")]
TEXTS = ("What is the capital of France?", "Hi")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> str:
    return with_adapter(smollm2_folder(), tmp_path_factory.mktemp("adapter"))


@pytest.fixture(scope="module")
def real(adapter: str) -> Engine:
    return engine(f"vllm:{smollm2_folder()}", dtype="float32", max_model_len=512, max_num_seqs=16, adapter=adapter)


def test_the_adapter_is_the_trainers(real: Engine, adapter: str):
    prompts = Ragged.from_lists([real.encode(text) for text in TEXTS])
    run = real.generate(prompts, Sampling(max_tokens=12))
    ids = (run["prompt_ids"], run["response_ids"])
    trainer = {
        name: engine(f"hf:{smollm2_folder()}", dtype="float32", device="cpu", **options)
        for name, options in (("with", {"adapter": adapter}), ("without", {}))
    }
    mine = run["rollout_logp"].values
    assert np.abs(mine - trainer["with"].score(*ids).logp.values).mean() < 1e-4
    assert np.abs(mine - trainer["without"].score(*ids).logp.values).mean() > 0.05
    assert np.abs(mine - real.score(*ids).logp.values).mean() < 1e-4
    warm = Sampling(temperature=0.7, top_p=0.9)
    np.testing.assert_allclose(
        real.score(*ids, sampling=warm).logp.values, trainer["with"].score(*ids, sampling=warm).logp.values, atol=1e-3
    )
    assert run.rollout.extra["adapter"] == adapter
    assert run.rollout.weights == trainer["with"].describe(Sampling()).weights
    assert run.rollout.weights != trainer["without"].describe(Sampling()).weights
    assert "chunked prefill" not in real.ways()  # on a CPU this vLLM fails at prompt log-probs under an adapter


def test_an_adapter_that_vllm_cannot_take_is_one_sentence(real: Engine, tmp_path: Path, adapter: str):
    from vllm.lora.request import LoRARequest

    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_text((Path(adapter) / "adapter_config.json").read_text())
    with pytest.raises(EngineError, match="cannot take the adapter .*: merge it into the model"):
        vllm_load.add_adapter(real.llm, LoRARequest("broken", 2, str(broken)))


def test_the_rank_is_read_from_the_adapter(adapter: str, tmp_path: Path):
    assert vllm_load.adapter_rank(adapter) == 16
    config = json.loads((Path(adapter) / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "rank_pattern": {"q_proj": 200}}))
    assert vllm_load.adapter_rank(str(tmp_path)) == 256
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "r": 2000}))
    with pytest.raises(EngineError, match="rank 2000, but vLLM takes 512"):
        vllm_load.adapter_rank(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "PROMPT_TUNING"}')
    for folder in (str(tmp_path), "/nowhere"):
        with pytest.raises(InputError, match="not a LoRA adapter"):
            vllm_load.adapter_rank(folder)
