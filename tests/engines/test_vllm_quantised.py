"""Real vLLM in this process with int8 linear layers and without its caches, and options that this build refuses.

A module of its own: a vLLM that goes away takes with it what another one in the same process stands on.
"""

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Engine, engine
from samepolicy.errors import EngineError
from samepolicy.records.side import Sampling
from tests.serving import in_int8, smollm2_folder

pytestmark = [pytest.mark.full, pytest.mark.e2e, pytest.mark.xdist_group("vllm")]
TEXTS = ("What is the capital of France?", "Name three colours of the rainbow.", "Hi")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = in_int8(smollm2_folder(), tmp_path_factory.mktemp("models") / "int8")
    chosen = {"no_prefix_caching": True, "no_chunked_prefill": True, "engine_seed": 3}
    return engine(f"vllm:{folder}", dtype="bfloat16", max_model_len=512, max_num_seqs=16, **chosen)


def test_int8_is_declared_and_measured(real: Engine):
    prompts = Ragged.from_lists([real.encode(text) for text in TEXTS])
    run = real.generate(prompts, Sampling(max_tokens=16))
    trainer = engine(f"hf:{smollm2_folder()}", dtype="float32", device="cpu")
    ids, mine = (run["prompt_ids"], run["response_ids"]), run["rollout_logp"].values
    apart = np.abs(mine - trainer.score(*ids).logp.values).mean()
    assert 0.05 < apart < 1.5  # bfloat16 alone stays below 0.05, and another model is several nats away
    assert np.abs(mine - real.score(*ids).logp.values).mean() < 0.1
    told = run.rollout.extra
    assert told["quantization"] == "compressed-tensors"
    assert (told["prefix_caching"], told["chunked_prefill"], told["engine_seed"]) == (False, False, 3)
    assert run.rollout.weights != trainer.describe(Sampling()).weights
    assert "chunked prefill" not in real.ways()


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"quantization": "nonsense"}, r"could not load .*Unknown quantization method: nonsense.*leave out what"),
        ({"kv_cache_dtype": "nonsense"}, r"could not load .*cache_dtype: Input should be.*leave out what"),
    ],
)
def test_an_option_that_vllm_refuses_is_one_sentence(option: dict[str, str], sentence: str):
    with pytest.raises(EngineError, match=sentence):
        engine(f"vllm:{smollm2_folder()}", dtype="bfloat16", max_model_len=64, **option)
