"""A trainer that scores in training mode."""

from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import TOKENS, toy_run
from samepolicy.causes.model import changeable, changed_toy
from samepolicy.causes.settings import Settings
from samepolicy.causes.unavailable import Unavailable
from samepolicy.engines.change import Change
from samepolicy.floor.levels import level
from samepolicy.records.run import Run
from samepolicy.records.self_checks import rms, self_check
from samepolicy.records.side import Sampling

OVERALL, BIN = (0.5, 2.0), (0.35, 2.8)
"""How far the seen error may be from that of dropout, as a ratio of rms: over all tokens, and in a bin."""

CLEAR = 3.0
"""Standard errors by which the trainer's mean must lie below its prediction, and at most off dropout's own mean."""

VARIES = 0.5
"""Scored a second time, the trainer differs from itself by at least this share of the error."""


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
        """Training mode, where its error has the size, shape and mean of what is left, and is another one each time."""
        if evidence.mode != "trainer":
            return
        changeable(evidence, "the trainer's model, to score in training mode (an hf engine)")
        dropped = evidence.rescore(Settings(change=Change(train=True))) - evidence.base
        fine = evidence.comparable & np.isfinite(dropped)
        dropped, seen, base = dropped[fine], evidence.residual[fine], evidence.base[fine]
        if not np.any(np.abs(dropped) > 1e-4):
            return
        mine, theirs = level(seen, base), level(dropped, base)
        ratio, spread = mine.overall / theirs.overall, mine.at(base) / theirs.at(base)
        error = float(np.hypot(seen.std(), dropped.std()) / np.sqrt(len(seen)))
        lower = seen.mean() < 0 and abs(seen.mean() - dropped.mean()) <= 2 * CLEAR * error
        fits = OVERALL[0] <= ratio <= OVERALL[1] and BIN[0] <= spread.min() and spread.max() <= BIN[1]
        if not (fits and lower and seen.mean() < -CLEAR * seen.std() / np.sqrt(len(seen))):
            return
        again = rms(evidence.run, "trainer_alone")
        if again is None:  # a wrong prompt or old weights can look the same, and do so every time
            raise Unavailable("the trainer's scores of the same ids a second time, as sp.self_check keeps them")
        if again >= VARIES * float(np.sqrt(np.mean(seen**2))):
            yield Undone(
                side="trainer",
                parameters={"mode": "train"},
                sentence=(
                    f"the error is {mine.overall:.2g} nats rms, {ratio:.2f} times what training mode makes here, "
                    f"between {spread.min():.2f} and {spread.max():.2f} times in every bin of surprisal, mean "
                    f"{seen.mean():+.2g} where training mode has {dropped.mean():+.2g}; scored a second time the "
                    f"trainer differs from itself by {again:.2g} nats rms"
                ),
            )

    def reproduce(self, rng: Generator) -> Run:
        """The trainer drops one in ten of what its layers add, and scores twice."""
        trainer = changed_toy(Change(train=True))
        run = toy_run(rng, trainer=trainer, sampling=Sampling(max_tokens=2 * TOKENS))
        again = trainer.score(run["prompt_ids"], run["response_ids"]).logp
        return self_check(run, "trainer_alone", first=run["trainer_logp"], second=again)
