"""The hf engine on a real model, against plain loops over the whole logits and transformers' own processors."""

from dataclasses import replace

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.engines.hf import HuggingFace
from samepolicy.records.side import Sampling

pytestmark = pytest.mark.full

SETTINGS = (
    Sampling(temperature=0.7),
    Sampling(top_k=5),
    Sampling(top_p=0.8),
    Sampling(min_p=0.1),
    Sampling(repetition_penalty=1.3),
    Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, repetition_penalty=1.1),
)


def whole_logits(model, prompt: np.ndarray, response: np.ndarray) -> np.ndarray:
    """The logits that predict a response, by one plain forward and the slice [m - 1 : m - 1 + n]."""
    import torch

    ids = torch.from_numpy(np.concatenate([prompt, response]))[None]
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits[0].float()
    return logits[len(prompt) - 1 : len(prompt) - 1 + len(response)].numpy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """In float64, by the definition."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def theirs(logits: np.ndarray, context: np.ndarray, sampling: Sampling) -> np.ndarray:
    """One row of logits through transformers' own processors, as `generate` chains them."""
    import torch
    from transformers import generation

    chain = [generation.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)]
    chain += [generation.TemperatureLogitsWarper(sampling.temperature)] if sampling.temperature != 1 else []
    chain += [generation.TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    chain += [generation.TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    chain += [generation.MinPLogitsWarper(sampling.min_p)] if sampling.min_p else []
    ids, scores = torch.from_numpy(context)[None], torch.from_numpy(logits)[None]
    for processor in chain:
        scores = processor(ids, scores)
    return log_softmax(scores[0].numpy())


def test_scores_equal_a_plain_loop(smollm: HuggingFace, chat: Ragged, answers: Ragged):
    scores = smollm.score(chat, answers, entropy=True, top=5)
    for i in range(len(chat)):
        full = log_softmax(whole_logits(smollm.model, chat[i], answers[i]))
        rows = np.arange(len(full))
        np.testing.assert_allclose(scores.logp[i], full[rows, answers[i]], atol=5e-5)
        np.testing.assert_allclose(scores.entropy[i], -(np.exp(full) * full).sum(-1), atol=5e-5)
        np.testing.assert_allclose(scores.top_logp[i], -np.sort(-full, axis=-1)[:, :5], atol=5e-5)
        np.testing.assert_array_equal(scores.top_ids[i][:, 0], full.argmax(-1))
        np.testing.assert_allclose(scores.top_logp[i], np.take_along_axis(full, scores.top_ids[i], -1), atol=5e-5)


def test_a_batch_of_ragged_rows_equals_one_by_one(smollm: HuggingFace, chat: Ragged, answers: Ragged):
    together = smollm.score(chat, answers).logp
    for i in range(len(chat)):
        row = np.array([i])
        np.testing.assert_allclose(together[i], smollm.score(chat.take(row), answers.take(row)).logp[0], atol=5e-5)


def test_small_batches_and_chunks_change_nothing(monkeypatch, smollm: HuggingFace, chat: Ragged, answers: Ragged):
    whole = smollm.score(chat, answers, entropy=True, top=2)
    monkeypatch.setattr("samepolicy.engines.head.CHUNK", 3 * 49152)
    small = HuggingFace(smollm.path, smollm.model, smollm.tokenizer, replace(smollm.options, batch_tokens=20))
    chunked = small.score(chat, answers, entropy=True, top=2)
    for name in ("logp", "entropy", "top_logp"):
        np.testing.assert_allclose(getattr(chunked, name).values, getattr(whole, name).values, atol=5e-5)


@pytest.mark.parametrize("sampling", SETTINGS, ids=lambda s: ",".join(s.changed))
def test_processed_equals_transformers_own_processors(sampling: Sampling, smollm: HuggingFace, chat, answers):
    scores = smollm.score(chat, answers, sampling=sampling).logp
    raw = smollm.score(chat, answers, sampling=Sampling(**sampling.changed, logprobs="raw")).logp
    np.testing.assert_array_equal(raw.values, smollm.score(chat, answers).logp.values)
    outside = 0
    for i in range(len(chat)):
        logits = whole_logits(smollm.model, chat[i], answers[i])
        for t, token in enumerate(answers[i]):
            oracle = theirs(logits[t], np.concatenate([chat[i], answers[i][:t]]), sampling)[token]
            assert scores[i][t] == pytest.approx(oracle, abs=1e-4)
            outside += np.isneginf(oracle)
    assert (outside > 0) == bool({"top_k", "top_p", "min_p"} & set(sampling.changed))


@pytest.mark.parametrize("logprobs", ["raw", "processed"])
@pytest.mark.parametrize("sampling", [Sampling(), SETTINGS[-1]], ids=["neutral", "all"])
def test_recorded_equals_scored(logprobs: str, sampling: Sampling, smollm: HuggingFace, chat: Ragged):
    sampling = Sampling(**sampling.changed, logprobs=logprobs, max_tokens=10, seed=1)
    run = smollm.generate(chat, sampling)
    scored = smollm.score(run["prompt_ids"], run["response_ids"], sampling=sampling).logp
    np.testing.assert_allclose(run["rollout_logp"].values, scored.values, atol=1e-4)
    assert run["rollout_logp"].values.dtype == np.float32
    assert np.isfinite(scored.values).all()


def test_a_response_does_not_depend_on_its_batch(smollm: HuggingFace, chat: Ragged):
    together = smollm.generate(chat, Sampling(max_tokens=8), samples=2)
    alone = smollm.generate(chat.take(np.array([0])), Sampling(max_tokens=8), samples=2)
    for sample in range(2):
        np.testing.assert_array_equal(together["response_ids"][sample], alone["response_ids"][sample])
        np.testing.assert_allclose(together["rollout_logp"][sample], alone["rollout_logp"][sample], atol=5e-5)
    assert not np.array_equal(alone["response_ids"][0], alone["response_ids"][1])


def test_greedy_is_transformers_greedy(smollm: HuggingFace, chat: Ragged):
    import torch

    run = smollm.generate(chat.take(np.array([0])), Sampling(temperature=0, max_tokens=20))
    prompt = torch.from_numpy(chat[0])[None]
    out = smollm.model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=20)
    np.testing.assert_array_equal(run["response_ids"][0], out[0, len(chat[0]) :].numpy())
    assert run["finish_reason"].tolist() == ["stop"]
    assert run["response_ids"][0][-1] == smollm.tokenizer.eos_token_id
    assert run["text"].tolist() == ["The capital of France is Paris.<|im_end|>"]


def test_bfloat16_decoding_and_scoring_round_apart(smollm: HuggingFace, smollm_bf16: HuggingFace, chat: Ragged):
    run = smollm_bf16.generate(chat, Sampling(max_tokens=16))
    ids = run["prompt_ids"], run["response_ids"]
    trainer = smollm_bf16.score(*ids).logp.values
    reference = smollm.variant(dtype="float32", weights_dtype="bfloat16").score(*ids).logp.values
    for a, b in ((trainer, run["rollout_logp"].values), (trainer, reference)):
        assert 3e-3 < np.abs(a - b).mean() < 0.12


def test_variant_rounds_weights_first_and_leaves_the_original(smollm: HuggingFace, smollm_bf16: HuggingFace):
    import torch

    variant = smollm.variant(dtype="float32", weights_dtype="bfloat16")
    assert variant.describe(Sampling()).dtype == "float32"
    assert variant.describe(Sampling()).extra["weights_dtype"] == "bfloat16"
    for (name, own), rounded, half in zip(
        smollm.model.named_parameters(), variant.model.parameters(), smollm_bf16.model.parameters(), strict=True
    ):
        assert own.dtype == rounded.dtype == torch.float32, name
        assert half.dtype == torch.bfloat16
        assert torch.equal(rounded, own.to(torch.bfloat16).float())
        assert torch.equal(rounded, half.float())
    assert smollm_bf16.model.model.rotary_emb.inv_freq.dtype == torch.float32
    head = smollm_bf16.model.get_output_embeddings().weight
    assert head.data_ptr() == smollm_bf16.model.get_input_embeddings().weight.data_ptr()


def test_a_float32_head_on_a_bfloat16_body(smollm_bf16: HuggingFace, chat: Ragged, answers: Ragged):
    import torch

    options = replace(smollm_bf16.options, head_dtype="float32")
    mixed = HuggingFace(smollm_bf16.path, smollm_bf16.model, smollm_bf16.tokenizer, options)
    scores = mixed.score(chat, answers).logp
    with torch.inference_mode():
        ids = torch.from_numpy(np.concatenate([chat[0], answers[0]]))[None]
        hidden = smollm_bf16.model.model(ids)[0][0, len(chat[0]) - 1 : -1]
        logits = hidden.float() @ smollm_bf16.model.lm_head.weight.float().T
    oracle = log_softmax(logits.numpy())[np.arange(len(answers[0])), answers[0]]
    alone = mixed.score(chat.take(np.array([0])), answers.take(np.array([0]))).logp[0]
    np.testing.assert_allclose(alone, oracle, atol=1e-4)
    assert np.abs(scores.values - smollm_bf16.score(chat, answers).logp.values).max() > 1e-4
    assert mixed.describe(Sampling()).head_dtype == "float32"
    assert mixed.variant(dtype="bfloat16").describe(Sampling()).head_dtype == "float32"
    assert mixed.variant(dtype="float32", weights_dtype="bfloat16").describe(Sampling()).head_dtype is None


def test_prompts_become_chats(smollm: HuggingFace):
    turns = [{"role": "user", "content": "Hi"}]
    text = smollm.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    ids = smollm.encode("Hi")
    assert ids == smollm.encode(turns)
    assert smollm.decode(ids) == text
    assert text.endswith("<|im_start|>assistant\n")


def test_what_it_declares(smollm: HuggingFace, smollm_bf16: HuggingFace):
    import hashlib
    from pathlib import Path

    import transformers

    side, half = smollm.describe(Sampling()), smollm_bf16.describe(Sampling())
    assert side.engine == "hf"
    assert side.version == transformers.__version__
    assert side.weights == half.weights == hashlib.sha256(Path(smollm.path).read_bytes()).hexdigest()[:16]
    assert side.template == hashlib.sha256(smollm.tokenizer.chat_template.encode()).hexdigest()[:16]
    assert side.tokenizer == half.tokenizer
    assert (side.dtype, half.dtype) == ("float32", "bfloat16")
    assert side.extra["device"] == "cpu"
    assert side.extra["attention"] == "sdpa"
