"""What each side of a run declares about itself: the engine, its numbers and how it samples.

`None` means *not declared*, which is different from a default: a check that needs an undeclared value says so.
"""

from dataclasses import asdict, dataclass, field, fields, replace
from math import inf
from typing import Any, Literal, Self

from samepolicy.errors import InputError
from samepolicy.kinds import check_kind, require


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is drawn, and which log-prob of it is recorded.

    The defaults are neutral: they leave the model's own distribution untouched.

    Attributes:
        temperature: logits are divided by it; 0 means greedy (the log-probs then are those at temperature 1).
        top_p: keep the smallest set of tokens whose probability reaches it; 1 keeps all.
        top_k: keep the k most likely tokens; 0 keeps all.
        min_p: keep tokens with at least this share of the most likely token's probability; 0 keeps all.
        repetition_penalty: divides positive and multiplies negative logits of tokens already seen; 1 is off.
        logprobs: "processed" records log-probs after the settings above, "raw" before any of them.
        max_tokens: longest response, in tokens.
        seed: seed of the sampler.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: Literal["raw", "processed"] = "processed"
    max_tokens: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that no sampler has."""
        for f in fields(self):
            check_kind(f.name, getattr(self, f.name), type(f.default))
        checks = {
            "temperature must be 0 (greedy) or lie in [1e-5, inf)": self.temperature == 0
            or 1e-5 <= self.temperature < inf,
            "top_p must lie in (0, 1]": 0 < self.top_p <= 1,
            "top_k must be 0 (off) or more": self.top_k >= 0,
            "min_p must lie in [0, 1)": 0 <= self.min_p < 1,
            "repetition_penalty must lie in (0, inf)": 0 < self.repetition_penalty < inf,
            'logprobs must be "raw" or "processed"': self.logprobs in ("raw", "processed"),
            "max_tokens must be 1 or more": self.max_tokens >= 1,
            "seed must be 0 or more": self.seed >= 0,
        }
        require(self, checks)

    @property
    def changed(self) -> dict[str, Any]:
        """The settings that reshape the distribution and are not neutral, by name."""
        neutral = type(self)()
        shaping = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return {name: getattr(self, name) for name in shaping if getattr(self, name) != getattr(neutral, name)}


_NUMBERS = frozenset({"vocab_size", "bos_id", "pad_id", "eos_ids", "experts"})
"""What `extra` holds as whole numbers."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one side (rollout or trainer) declares; every field may be None, "not declared".

    Attributes:
        engine: kind of engine, such as "hf" or "vllm".
        version: the engine's version.
        framework: the training framework around it, such as "verl 0.9.1".
        model: path or name of the model.
        weights: fingerprint of the weights.
        tokenizer: fingerprint of the tokenizer.
        template: fingerprint of the chat template.
        dtype: dtype of weights and arithmetic, such as "bfloat16".
        head_dtype: dtype of the output head where it differs.
        sampling: how tokens are drawn and which log-prob is recorded.
        extra: anything else that can change a log-prob (attention kernel, device, batch size, …).
    """

    engine: str | None = None
    version: str | None = None
    framework: str | None = None
    model: str | None = None
    weights: str | None = None
    tokenizer: str | None = None
    template: str | None = None
    dtype: str | None = None
    head_dtype: str | None = None
    sampling: Sampling | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a declaration of another kind than its readers expect."""
        for f in fields(self):
            value = getattr(self, f.name)
            wanted: type = {"sampling": Sampling, "extra": dict}.get(f.name, str)
            if not isinstance(value, wanted) and not (value is None and f.name != "extra"):
                raise InputError(f"A side's {f.name} must be a {wanted.__name__}, but it is {value!r}.")
        for name in _NUMBERS & {*self.extra}:
            value = self.extra[name]
            values = value if isinstance(value, list | tuple) else [value]
            if not all(v is None or isinstance(v, int) for v in values):
                raise InputError(f"A side's extra[{name!r}] must be a whole number, but it is {value!r}.")

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping of what is declared."""
        return {name: value for name, value in asdict(self).items() if value not in (None, {})}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `as_dict`; names of a later version are kept in `extra`."""
        known = {f.name for f in fields(cls)}
        side = cls(**{k: v for k, v in data.items() if k in known and k not in ("sampling", "extra")})
        names = {f.name for f in fields(Sampling)}
        sampling = data.get("sampling")
        if sampling is not None:
            side = replace(side, sampling=Sampling(**{k: v for k, v in sampling.items() if k in names}))
        later = {k: v for k, v in data.items() if k not in known}
        return replace(side, extra={**data.get("extra", {}), **later})
