"""The hf engine on tiny random models of several families: heads, paddings, ends, adapters, and what is refused."""

import json
import sys
from collections import UserList
from pathlib import Path

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.engines import hf_load
from samepolicy.engines.base import engine
from samepolicy.engines.hf_network import Network
from samepolicy.errors import EngineError, InputError, MissingDependencyError
from samepolicy.records.side import Sampling
from samepolicy.testing import engine_laws, smollm2_path

pytestmark = pytest.mark.full

FAMILIES = ("llama", "gemma2", "granite", "cohere", "gpt2")


def oracle(model, prompt: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Log-probs of a response by one plain forward and a float64 log-softmax over the whole logits."""
    import torch

    with torch.inference_mode():
        logits = model(torch.from_numpy(np.concatenate([prompt, response]))[None], use_cache=False).logits[0]
    logp = torch.log_softmax(logits.double(), -1)[len(prompt) - 1 : -1].numpy()
    return logp[np.arange(len(response)), response]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_laws_hold(family: str, tiny, ragged_ids):
    one = engine(f"hf:{tiny(family)}", device="cpu")
    engine_laws(one, prompts=ragged_ids[0], responses=ragged_ids[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_head_of_body_is_the_models_own_logits(family: str, tiny, ragged_ids):
    one = engine(f"hf:{tiny(family)}", device="cpu", attention="eager")
    assert one._network.split
    logp = one.score(*ragged_ids).logp
    for i in range(len(logp)):
        np.testing.assert_allclose(logp[i], oracle(one.model, ragged_ids[0][i], ragged_ids[1][i]), atol=2e-5)


def test_a_head_that_cannot_be_taken_apart_falls_back_to_the_models_logits(tiny, ragged_ids):
    one = engine(f"hf:{tiny('gemma2')}", device="cpu")
    one.model.config.final_logit_softcapping, cap = None, one.model.config.final_logit_softcapping
    assert Network.of(one.model).split
    one.model.config.final_logit_softcapping = cap
    whole = one.score(*ragged_ids).logp.values

    def double(module, args, out):
        out.logits = out.logits * 2
        return out

    one.model.register_forward_hook(double)
    network = Network.of(one.model)
    assert not network.split
    one._network = network
    doubled = one.score(*ragged_ids, sampling=Sampling(temperature=2))
    np.testing.assert_allclose(doubled.logp.values, whole, atol=1e-5)
    with pytest.raises(EngineError, match="cannot be taken apart"):
        Network.of(one.model, head_dtype="float32")


def test_an_empty_prompt_leaves_the_first_token_unknown(tiny, ragged_ids):
    one = engine(f"hf:{tiny('llama')}", device="cpu")
    responses = ragged_ids[1]
    empty = Ragged.from_lists([[] for _ in range(len(responses))])
    scores = one.score(empty, responses, entropy=True, top=2)
    first = np.isin(np.arange(len(responses.values)), responses.offsets[:-1])
    for values in (scores.logp.values, scores.entropy.values, scores.top_logp.values[:, 0]):
        np.testing.assert_array_equal(np.isnan(values), first)
    np.testing.assert_array_equal(scores.top_ids.values[:, 0] == -1, first)
    for i, row in enumerate(responses):
        rest = one.score(Ragged.from_lists([row[:1]]), Ragged.from_lists([row[1:]], dtype=np.int64)).logp[0]
        np.testing.assert_allclose(scores.logp[i][1:], rest, atol=1e-5)


def test_empty_responses_have_no_rows(tiny):
    one = engine(f"hf:{tiny('llama')}", device="cpu")
    logp = one.score(Ragged.from_lists([[5, 6], [7]]), Ragged.from_lists([[], [8]], dtype=np.int64)).logp
    assert logp.lengths.tolist() == [0, 1]
    assert np.isfinite(logp.values).all()


def test_every_end_token_of_the_generation_config_ends(tiny):
    one = engine(f"hf:{tiny('llama')}", device="cpu")
    one.model.generation_config.eos_token_id = list(range(48))
    prompts = Ragged.from_lists([[5, 6, 7], [8]])
    run = one.generate(prompts, Sampling(max_tokens=6), samples=20)
    assert set(run["finish_reason"]) == {"stop", "length"}
    for ids, reason in zip(run["response_ids"], run["finish_reason"], strict=True):
        assert (ids < 48).sum() == (reason == "stop") == (ids[-1] < 48)
        assert reason == "stop" or len(ids) == 6
    assert run.mask.values.all()


def test_a_cache_under_another_name_is_used(tiny):
    """Versions of transformers rename what `forward` takes and gives back."""

    class Renamed(UserList):
        def __init__(self, values, *, cache=None):
            super().__init__(values)
            self.cache = cache

    prompts, sampling = Ragged.from_lists([[5, 6, 7], [8]]), Sampling(max_tokens=6, temperature=0)
    one, other = (engine(f"hf:{tiny('llama')}", device="cpu") for _ in range(2))
    body, forward = other.model.base_model, other.model.base_model.forward

    def renamed(input_ids, attention_mask=None, position_ids=None, cache=None, use_cache=None):
        out = forward(input_ids, attention_mask, position_ids, past_key_values=cache, use_cache=use_cache)
        return Renamed([out[0]], cache=out.past_key_values)

    body.forward = renamed
    np.testing.assert_array_equal(
        one.generate(prompts, sampling)["response_ids"].values, other.generate(prompts, sampling)["response_ids"].values
    )


def test_a_model_that_forgets_its_cache_does_not_sample(tiny):
    def sampled(forward_of):
        one = engine(f"hf:{tiny('llama')}", device="cpu")
        body = one.model.base_model
        body.forward = forward_of(body.forward)
        return one.generate(Ragged.from_lists([[5, 6, 7]]), Sampling(max_tokens=2))

    with pytest.raises(EngineError, match="its samples would be wrong"):
        sampled(lambda forward: lambda input_ids, past_key_values=None, **how: forward(input_ids, **how))
    with pytest.raises(EngineError, match="takes no cache"):
        sampled(lambda forward: lambda input_ids, use_cache=None: forward(input_ids, use_cache=use_cache))


def test_generation_stops_at_the_models_limit(tiny):
    one = engine(f"hf:{tiny('gpt2')}", device="cpu")
    one.model.generation_config.eos_token_id = None
    one.model.config.eos_token_id = None
    prompts = Ragged.from_lists([np.arange(3, 63), [5, 6]])
    run = one.generate(prompts, Sampling(max_tokens=30))
    assert run["response_ids"].lengths.tolist() == [4, 30]
    assert run["finish_reason"].tolist() == ["length", "length"]
    scored = one.score(run["prompt_ids"], run["response_ids"]).logp
    np.testing.assert_allclose(scored.values, run["rollout_logp"].values, atol=1e-4)


def test_the_generation_config_is_named_and_not_applied(tiny, tmp_path: Path, ragged_ids):
    import shutil

    shutil.copytree(tiny("llama"), tmp_path / "m")
    config = {"temperature": 0.2, "top_p": 0.9, "do_sample": True, "repetition_penalty": 1.1, "eos_token_id": 2}
    (tmp_path / "m" / "generation_config.json").write_text(json.dumps(config))
    one, other = engine(f"hf:{tmp_path / 'm'}"), engine(f"hf:{tiny('llama')}")
    named = one.describe(Sampling()).extra["generation_config_not_applied"]
    assert named == {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1}
    assert "generation_config_not_applied" not in other.describe(Sampling()).extra
    np.testing.assert_array_equal(one.score(*ragged_ids).logp.values, other.score(*ragged_ids).logp.values)
    a, b = (e.generate(ragged_ids[0], Sampling(max_tokens=5)) for e in (one, other))
    np.testing.assert_array_equal(a["rollout_logp"].values, b["rollout_logp"].values)


def test_an_adapter_is_the_base_plus_its_product(tiny, tmp_path: Path, ragged_ids):
    import peft
    import torch

    base = engine(f"hf:{tiny('llama')}", device="cpu")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    tuned = peft.get_peft_model(engine(f"hf:{tiny('llama')}", device="cpu").model, config)
    tuned.save_pretrained(tmp_path / "lora")
    with_adapter = engine(f"hf:{tiny('llama')}", device="cpu", adapter=str(tmp_path / "lora"))
    merged = tuned.merge_and_unload()
    logp = with_adapter.score(*ragged_ids).logp
    for i in range(len(logp)):
        np.testing.assert_allclose(logp[i], oracle(merged, ragged_ids[0][i], ragged_ids[1][i]), atol=1e-4)
    plain, side = base.describe(Sampling()), with_adapter.describe(Sampling())
    assert np.abs(base.score(*ragged_ids).logp.values - logp.values).mean() > 0.01
    assert side.weights != plain.weights
    assert side.extra["adapter"] == str(tmp_path / "lora")
    again = with_adapter.variant(dtype="bfloat16").variant(dtype="float32").score(*ragged_ids).logp
    np.testing.assert_allclose(again.values, logp.values, atol=1e-5)
    with pytest.raises(InputError, match="not an adapter"):
        engine(f"hf:{tiny('llama')}", adapter=str(tmp_path))


def test_a_variant_reads_the_files_again_where_its_own_weights_are_rounded(tiny, ragged_ids):
    full = engine(f"hf:{tiny('llama')}", device="cpu")
    half = engine(f"hf:{tiny('llama')}", device="cpu", dtype="bfloat16")
    own = full.score(*ragged_ids).logp.values
    np.testing.assert_array_equal(half.variant(dtype="float32").score(*ragged_ids).logp.values, own)
    rounded = half.variant(dtype="float32", weights_dtype="bfloat16").score(*ragged_ids).logp.values
    loaded = engine(f"hf:{tiny('llama')}", device="cpu", dtype="float32", weights_dtype="bfloat16")
    np.testing.assert_array_equal(rounded, loaded.score(*ragged_ids).logp.values)
    assert np.abs(rounded - own).max() > 1e-4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes(dtype: str, tiny, ragged_ids):
    own = engine(f"hf:{tiny('llama')}", device="cpu").score(*ragged_ids).logp.values
    one = engine(f"hf:{tiny('llama')}", device="cpu", dtype=dtype)
    low, high = {"bfloat16": (1e-3, 0.2), "float16": (1e-4, 0.03), "float64": (0, 1e-5)}[dtype]
    assert low <= np.abs(one.score(*ragged_ids).logp.values - own).mean() <= high
    assert one.describe(Sampling()).dtype == dtype


def test_ids_that_the_model_does_not_have(tiny):
    one = engine(f"hf:{tiny('llama')}", device="cpu")
    with pytest.raises(InputError, match="response of sequence 1 holds id 97"):
        one.score(Ragged.from_lists([[3], [4]]), Ragged.from_lists([[5], [97]]))
    with pytest.raises(InputError, match="Sequence 1 has 70 tokens, but the model takes 64"):
        one.score(Ragged.from_lists([[3], [4]]), Ragged.from_lists([[5], [6] * 69]))
    with pytest.raises(InputError, match="top must lie"):
        one.score(Ragged.from_lists([[3]]), Ragged.from_lists([[5]]), top=98)
    with pytest.raises(InputError, match="Prompt 0 has no tokens"):
        one.generate(Ragged.from_lists([[]]), Sampling())
    with pytest.raises(EngineError, match="holds no tokenizer"):
        one.encode("hello")


def test_paths_that_are_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text("{}")
    (tmp_path / "cut.gguf").write_bytes(Path(smollm2_path()).read_bytes()[:5000])
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "notes.txt").write_text("hello")
    cases = {
        "missing": (InputError, "no model at"),
        "missing.gguf": (InputError, "no file"),
        "empty": (InputError, "no config.json"),
        "text.gguf": (InputError, "not a GGUF file"),
        "notes.txt": (InputError, "no GGUF file"),
        "odd": (EngineError, "files are complete"),
        "cut.gguf": (EngineError, "files are complete"),
    }
    for name, (kind, words) in cases.items():
        with pytest.raises(kind, match=words) as caught:
            engine(f"hf:{tmp_path / name}")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no model at"):
        engine("hf:")


def test_a_model_that_needs_another_package_gets_one_fix(tiny, tmp_path: Path):
    config = json.loads((Path(tiny("llama")) / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(MissingDependencyError, match="pip install optimum") as caught:
        engine(f"hf:{tmp_path}")
    assert str(caught.value).count("pip install") == 1


def test_a_folder_without_weights(tiny, tmp_path: Path):
    (tmp_path / "config.json").write_text((Path(tiny("llama")) / "config.json").read_text())
    with pytest.raises(EngineError, match="could not be loaded"):
        engine(f"hf:{tmp_path}")


def test_a_device_that_is_not_there(tiny):
    with pytest.raises(InputError, match="cannot be used"):
        engine(f"hf:{tiny('llama')}", device="nonsense")


def test_missing_packages_are_named_with_their_pip_line(tiny, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"needs transformers.*pip install 'samepolicy\[hf\]'"):
        engine(f"hf:{tiny('llama')}")


def test_loading_says_nothing(tiny, capfd: pytest.CaptureFixture[str]):
    engine(f"hf:{tiny('llama')}")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("offline", "name"), [(False, "mistyped"), (True, "mistyped"), (True, "owner/mistyped")])
def test_a_mistyped_name_is_refused_without_asking_the_network(monkeypatch, offline: bool, name: str):
    import transformers
    from huggingface_hub import constants

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", asked)
    with pytest.raises(InputError, match=rf"^There is no model at '{name}', and none .* as owner/name\.$"):
        engine(f"hf:{name}")


def test_what_the_hub_logs_stays_off_the_terminal(capfd: pytest.CaptureFixture[str]):
    import logging

    import huggingface_hub  # noqa: F401 - sets up its logger

    logger = logging.getLogger("huggingface_hub.utils._http")
    with hf_load._quiet():
        logger.warning("Retrying in 8s [Retry 5/5].")
    assert capfd.readouterr() == ("", "")
    assert logger.isEnabledFor(logging.WARNING)
