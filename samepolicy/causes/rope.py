"""One side computes positions or scales from other config fields."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import toy, toy_run
from samepolicy.causes.model import changeable, changed_toy
from samepolicy.causes.settings import Settings
from samepolicy.engines.change import Change
from samepolicy.records.run import Run

Fields: TypeAlias = tuple[tuple[str, Any], ...]
"""Fields of a config with their values, as `Change.config` takes them."""

FAMILIES: Mapping[str, tuple[float, ...]] = {
    "rope_theta": (10_000.0, 100_000.0, 150_000.0, 500_000.0, 1_000_000.0, 5_000_000.0, 8_000_000.0, 10_000_000.0),
    "rms_norm_eps": (1e-5, 1e-6, 1e-8),
    "layer_norm_eps": (1e-5, 1e-6, 1e-12),
    "layer_norm_epsilon": (1e-5, 1e-6, 1e-12),
    "norm_eps": (1e-5, 1e-6),
    "partial_rotary_factor": (1.0, 0.5, 0.25),
    "factor": (1.0, 2.0, 4.0, 8.0, 32.0),
    "attention_factor": (1.0,),
    "mscale": (1.0, 0.707),
    "mscale_all_dim": (0.0, 0.707, 1.0),
}
"""Defaults of model families, of transformers, and of the engines, by the last part of a field's name."""

FACTORS: Mapping[str, tuple[float, ...]] = {
    "rope_theta": (0.01, 0.02, 0.1, 0.5, 2.0, 10.0, 50.0, 100.0),
    "rms_norm_eps": (0.01, 0.1, 10.0, 100.0, 1000.0),
    "layer_norm_eps": (0.1, 10.0),
    "layer_norm_epsilon": (0.1, 10.0),
    "norm_eps": (0.1, 10.0),
}
"""Multiples of a field's own value that are tried besides, for slips in the exponent."""


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

ATTENTION = (0.95, 0.9, 0.8, 0.7), (1.05, 1.1, 1.2, 1.4)
"""Attention factors by themselves: YaRN that stretches nothing."""

SCALINGS: Sequence[Sequence[Mapping[str, Any]]] = (
    [{"rope_type": "linear", "factor": factor} for factor in (1.5, 2.0, 4.0, 8.0)],
    [{"rope_type": "yarn", "factor": factor} for factor in (2.0, 4.0)],
    [{"rope_type": "llama3", "factor": 8.0, **LLAMA3}],
    *([{"rope_type": "yarn", "factor": 1.0, "attention_factor": one} for one in way] for way in ATTENTION),
)
"""Scalings that one side may have where the config has none, by kind, mild ones first."""

FITTED = (
    "rope_theta",
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_eps",
    "factor",
    "attention_factor",
)
"""Fields whose value is fitted where one that was tried comes near."""

NEAR, WITHIN, STEP = 0.4, 4.0, 1.05
"""A value comes near if it takes this share of the error; the right one is within this factor of it, and is this one
where a step to either side is no better."""


class Rope(Cause):
    """One side runs with another RoPE base, scaling or epsilon than the model's config.

    What happens    A config field is lost between training framework and engine: transformers 5 moved rope_theta into
                    rope_parameters and older readers fall back to 10000; a scaling (YaRN, mscale, llama3 factor) or a
                    norm's epsilon is overridden or left at a default.
    How it shows    The base: small at first, growing with position. The attention factor (mscale, whose square scales
                    what the softmax of attention sees) and epsilon: flat from the first token on. No trend over steps.
    How to confirm  Print rope_parameters (or rope_theta and rope_scaling) and the norm's epsilon of both loaded models,
                    not of the files; compare inv_freq.
    How to fix      Give both sides the same numbers. vLLM: --hf-overrides '{"rope_parameters": {…}}' (rope_theta and
                    rope_scaling before it read transformers 5 configs). SGLang: --json-model-override-args. verl:
                    actor_rollout_ref.model.override_config and rollout.engine_kwargs. TRL, ms-swift: save config and
                    weights with the transformers version that the engine reads (--rope_scaling on both sides).
                    Megatron: --rotary-base, --rotary-scaling-factor, --norm-epsilon.
    References      vLLM pull requests 28542 and 42624 (rope_parameters lost between transformers 4 and 5); SGLang pull
                    request 14745; Su et al., RoFormer (2021)
    """

    rung = Rung.POSITIONS
    cost = 3
    separate = "print rope_parameters and the norm's epsilon of both loaded models"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The best value of a field: the other side's, those of model families, multiples of its own."""
        own = changeable(evidence, "config fields that act on positions (an hf engine as the trainer)").config
        ways = [*(way for name in own for way in _values(name, own[name])), *_scalings(own)]
        given = [_settings(fields) for fields in _declared(evidence, own)]
        tried = dict.fromkeys([*given, *evidence.promising([_settings(fields) for fields in way] for way in ways)])
        if not tried:
            return
        best = evidence.best(tried)
        assert best.change is not None
        fields = dict(_fitted(evidence, best.change.config))
        told = " and ".join(f"{name} {_plain(value)}" for name, value in fields.items())
        usual = " and ".join(_plain(own.get(name, "none")) for name in fields)
        yield Undone(
            settings=_settings(tuple(fields.items())),
            parameters={**fields, **{f"config_{name}": own[name] for name in fields if name in own}},
            sentence=f"with {told} in place of {usual} the reference gives what was recorded{_shape(evidence)}",
        )

    def reproduce(self, rng: Generator) -> Run:
        """The rollout's position features have a base 50 times smaller."""
        base = changed_toy(Change(config=(("rope_theta", 0.02 * toy().changeable().config["rope_theta"]),)))
        return toy_run(rng, rollout=base)


def _settings(fields: Fields) -> Settings:
    """A config with other values."""
    return Settings(change=Change(config=fields))


def _scalings(own: Mapping[str, Any]) -> Iterator[list[Fields]]:
    """Scalings more where the config has none, mild ones first, and none where it has one."""
    theta = next((name for name in own if name.endswith(".rope_theta")), None)
    if theta is None:
        return
    before = theta.removesuffix("rope_theta")
    if f"{before}factor" in own:
        yield [((f"{before}rope_type", "default"),)]
        return
    for way in SCALINGS:
        yield [tuple((f"{before}{name}", value) for name, value in scaling.items()) for scaling in way]


def _fitted(evidence: Evidence, fields: Fields) -> Fields:
    """The fields with their one free value fitted, where they come near and a step to one side comes nearer."""
    *others, (name, value) = sorted(fields, key=_free)
    tried = _settings(fields)
    if not _free((name, value)) or evidence.gain(tried) < NEAR:
        return fields

    def make(one: float) -> Settings:
        return _settings((*others, (name, one)))

    if evidence.best([tried, make(value / STEP), make(value * STEP)]) == tried:
        return fields
    found = evidence.fit(make, value / WITHIN, value * WITHIN, grid=5)
    return (*others, (name, found)) if evidence.error(make(found)) < evidence.error(tried) else fields


def _free(field: tuple[str, Any]) -> bool:
    """Whether a field's value can be fitted."""
    name, value = field
    return name.rpartition(".")[2] in FITTED and value > 0


def _plain(value: Any) -> str:
    """A field's value in a few characters."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _declared(evidence: Evidence, own: Mapping[str, Any]) -> Iterator[Fields]:
    """What the sides declare in `extra["config"]` where it differs from the reference, each alone and all at once."""
    for side in (evidence.run.rollout, evidence.run.trainer):
        told = side.extra.get("config", {})
        other = [(n, told[n]) for n in own if isinstance(told, Mapping) and told.get(n, own[n]) != own[n]]
        yield from ((pair,) for pair in other)
        if len(other) > 1:
            yield tuple(other)


def _values(name: str, value: float) -> Iterator[list[Fields]]:
    """Values of one field that are worth trying: those below its own and those above, nearest first."""
    last = name.rpartition(".")[2]
    found = {*FAMILIES.get(last, ()), *(float(f"{factor * value:.6g}") for factor in FACTORS.get(last, ()))}
    others = sorted((one for one in found if abs(one - value) > 1e-4 * abs(value)), key=lambda one: abs(one - value))
    for way in ([one for one in others if one < value], [one for one in others if one > value]):
        if way:
            yield [((name, one),) for one in way]


def _shape(evidence: Evidence) -> str:
    """How the gap goes with the place in the response."""
    fine = evidence.comparable & np.isfinite(evidence.residual)
    size, place = np.abs(evidence.residual[fine]), evidence.position[fine]
    early = place < np.median(place)
    if not early.any() or early.all():
        return ""
    return f"; mean abs gap {size[early].mean():.2g} nats early and {size[~early].mean():.2g} late in a response"
