"""Tokens that went to other experts on one side."""

from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

from samepolicy.causes.base import POSSIBLE, Cause, Check, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.inside import parts_at
from samepolicy.causes.making import toy, toy_run
from samepolicy.causes.unavailable import Unavailable
from samepolicy.floor.gap import CAP
from samepolicy.records.run import Run

COLUMNS = ("rollout_routes", "trainer_routes")
"""One number per token and side: a hash of the experts that it went to in all layers."""

ENOUGH = 10
"""Tokens with other experts that prove something at least."""

HELD = 0.85
"""The share of the gap that they must hold."""

DENSE = 3.0
"""The gap of the other tokens, as a multiple of floor², is at most this."""


class RouterFlip(Cause):
    """In a mixture of experts, some tokens went to other experts in the trainer than in the engine.

    What happens    The router's scores of two experts are close, and rounding or another kernel turns their order
                    round. About a tenth of the routers disagree in one forward, and most tokens in some layer.
    How it shows    Most tokens are fine, few are far off. Among tokens whose experts are equal on both sides the gap is
                    that of a dense model.
    How to confirm  Record the experts of every token on both sides; compare the gap where they are equal and where they
                    are not.
    How to fix      Replay the engine's routes in the trainer: ids, weights and slot order, in old log-probs and in the
                    update. vLLM: enable_return_routed_experts=True. SGLang: --enable-return-routed-experts. verl:
                    router replay (R2, R3) with Megatron. Megatron: --moe-enable-routing-replay. NeMo RL:
                    router_replay.enabled. ms-swift: --router_replay_mode R3 with Megatron. TRL: no replay yet, use
                    sequence-level weights (GSPO). Keep the router in float32 on both sides.
    References      Ma et al., Stabilizing MoE reinforcement learning by aligning training and inference routers (2025,
                    arXiv 2510.11370); Megatron-LM issue 4168 and pull request 2101; NeMo RL pull request 2590
    """

    rung = Rung.ROUTING
    cost = 0
    separate = "compare the gap of tokens with equal experts and with other experts"

    def check(self, evidence: Evidence) -> Check:
        """Proved by the layers, or where tokens with other experts hold the gap and the rest is as in a dense model."""
        run = evidence.run
        if any(name not in run for name in COLUMNS):
            return parts_at(evidence, "experts")
        fine = evidence.comparable & np.isfinite(evidence.residual)
        routes = [np.asarray(run[name].values) for name in COLUMNS]
        other = (routes[0] != routes[1])[fine] if len(routes[0]) == len(routes[1]) == len(fine) else np.zeros(0, bool)
        if other.sum() < ENOUGH or other.all():
            return POSSIBLE
        floor = evidence.floor[fine]
        excess = np.minimum(np.abs(evidence.residual[fine]), CAP * floor) ** 2
        dense = float(excess[~other].mean() / np.mean(floor[~other] ** 2))
        flipped = float(excess[other].mean() / np.mean(floor[other] ** 2))
        held = float((excess - floor**2)[other].sum() / max((excess - floor**2).sum(), 1e-30))
        if dense > DENSE or flipped < 2 * dense or held < HELD:
            return POSSIBLE
        sentence = (
            f"{other.mean():.1%} of the tokens went to other experts and hold {min(held, 1):.0%} of the gap: "
            f"{flipped:.3g} times floor² there, {dense:.2g} times where the experts are equal"
        )
        return Check(status="proved", sentence=sentence, parameters={"tokens_with_other_experts": float(other.mean())})

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """Only what routes prove."""
        declared = [side.extra.get("experts") for side in (evidence.run.rollout, evidence.run.trainer)]
        if 0 not in declared and any(name not in evidence.run for name in COLUMNS):
            raise Unavailable(
                "the experts of every token on both sides, if the model has experts: columns rollout_routes and "
                "trainer_routes, one hash per token"
            )
        yield from ()

    def reproduce(self, rng: Generator) -> Run:
        """One token in ten went through other layers in the rollout, and its experts are recorded as other ones."""
        run = toy_run(rng)
        count = int(run.offsets[-1])
        flipped, routes = rng.random(count) < 0.1, rng.integers(0, 2**31, count)
        other = toy(stale=0.3).score(run["prompt_ids"], run["response_ids"]).logp.values
        values = run["rollout_logp"].with_values(np.where(flipped, other, run["rollout_logp"].values))
        columns = {"rollout_routes": routes + flipped, "trainer_routes": routes}
        ragged = {name: values.with_values(column) for name, column in columns.items()}
        return run.with_columns(rollout_logp=values, **ragged)
