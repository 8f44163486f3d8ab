"""A trainer that scores in training mode."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import TOKENS, toy_run
from samepolicy.causes.model import changeable, changed_toy
from samepolicy.causes.settings import Settings
from samepolicy.causes.unavailable import Unavailable
from samepolicy.engines.change import Change
from samepolicy.floor.levels import Level, level
from samepolicy.records.run import Run
from samepolicy.records.self_checks import rms, self_check
from samepolicy.records.side import Sampling

OVERALL, BIN = (0.5, 2.0), (0.35, 2.8)
"""How far the seen error may be from that of dropout, as a ratio of rms: over all tokens, and in a bin."""

CLEAR = 3.0
"""Standard errors by which the trainer's mean must lie below its prediction, and at most off dropout's own mean."""

VARIES = 0.5
"""Scored a second time, a side differs from itself by at least this share of its distance from the prediction."""


class Dropout(Cause):
    """The trainer scores in training mode, with dropout.

    What happens    model.train() is on (or a LoRA layer's dropout is) while old log-probs are computed.
    How it shows    The trainer differs from itself: two scorings of the same ids are not equal. Its mean log-prob lies
                    below the rollout's, for masked networks are worse on average.
    How to confirm  Score the same batch twice in the trainer; then once under model.eval().
    How to fix      Call model.eval() for every log-prob, or set dropout to 0. TRL: GRPOConfig(disable_dropout=True),
                    LoraConfig(lora_dropout=0). verl: actor in eval mode for compute_log_prob, lora dropout 0. ms-swift:
                    --lora_dropout 0. Megatron: --attention-dropout 0 --hidden-dropout 0. vLLM and SGLang never drop.
    References      TRL pull request 3234 (disable_dropout) and issue 2042; Huang et al., The N+ implementation details
                    of RLHF with PPO (2024)
    """

    rung = Rung.NUMERICS
    proof = "size"
    cost = 3
    separate = "score the same batch twice in the trainer"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """Training mode, where its error has size, shape and mean of what is left, and is another one each time."""
        found = dropped(evidence)
        if found is None or not (found.fits and found.lower):
            return
        again = rms(evidence.run, "trainer_alone")
        if again is None:  # a wrong prompt or old weights can look the same, and do so every time
            raise Unavailable("the trainer's scores of the same ids a second time, as sp.self_check keeps them")
        if again >= VARIES * float(np.sqrt(np.mean(found.seen**2))):
            yield Undone(
                side="trainer",
                parameters={"mode": "train"},
                sentence=f"{found}; scored a second time the trainer differs from itself by {again:.2g} nats rms",
            )

    def reproduce(self, rng: Generator) -> Run:
        """The trainer drops one in ten of what its layers add, and scores twice."""
        trainer = changed_toy(Change(train=True))
        run = toy_run(rng, trainer=trainer, sampling=Sampling(max_tokens=2 * TOKENS))
        again = trainer.score(run["prompt_ids"], run["response_ids"]).logp
        return self_check(run, "trainer_alone", first=run["trainer_logp"], second=again)


@dataclass(frozen=True)
class Dropped:
    """The error that is seen beside the one that training mode makes on the same tokens.

    Attributes:
        seen: what the trainer recorded minus its prediction, nats [tokens].
        made: what training mode changes, nats [tokens].
        base: the prediction, nats [tokens].
    """

    seen: Float[np.ndarray, " tokens"]
    made: Float[np.ndarray, " tokens"]
    base: Float[np.ndarray, " tokens"]

    @cached_property
    def levels(self) -> tuple[Level, Level]:
        """How large both are, by surprisal."""
        return level(self.seen, self.base), level(self.made, self.base)

    @property
    def ratio(self) -> float:
        """The one's rms over the other's."""
        seen, made = self.levels
        return seen.overall / made.overall

    @cached_property
    def spread(self) -> tuple[float, float]:
        """The least and the largest of that ratio in the bins of surprisal."""
        seen, made = self.levels
        by_bin = seen.at(self.base) / made.at(self.base)
        return float(by_bin.min()), float(by_bin.max())

    @property
    def fits(self) -> bool:
        """Whether both have one size, over all tokens and in every bin."""
        low, high = self.spread
        return OVERALL[0] <= self.ratio <= OVERALL[1] and BIN[0] <= low and high <= BIN[1]

    @property
    def lower(self) -> bool:
        """Whether the trainer's mean clearly lies below its prediction, and by as much as training mode takes it."""
        mean, root = self.seen.mean(), np.sqrt(len(self.seen))
        error = float(np.hypot(self.seen.std(), self.made.std()) / root)
        return bool(mean < -CLEAR * self.seen.std() / root and abs(mean - self.made.mean()) <= 2 * CLEAR * error)

    def __str__(self) -> str:
        """Size, shape and mean."""
        (low, high), size = self.spread, self.levels[0].overall
        return (
            f"the error is {size:.2g} nats rms, {self.ratio:.2f} times what training mode makes here, between {low:.2f}"
            f" and {high:.2f} times in every bin of surprisal, mean {self.seen.mean():+.2g} where training mode has "
            f"{self.made.mean():+.2g}"
        )


def dropped(evidence: Evidence) -> Dropped | None:
    """What training mode makes beside what is seen of the trainer; None of the rollout, or where a model never drops.

    Raises:
        Unavailable: there is no model that can score in training mode.
    """
    if evidence.mode != "trainer":
        return None
    changeable(evidence, "the trainer's model, to score in training mode (an hf engine)")
    made = evidence.rescore(Settings(change=Change(train=True))) - evidence.base
    fine = evidence.comparable & np.isfinite(made)
    if not np.any(np.abs(made[fine]) > 1e-4):
        return None
    return Dropped(evidence.residual[fine], made[fine], evidence.base[fine])
