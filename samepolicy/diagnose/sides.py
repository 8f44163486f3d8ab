"""Each side against what its own declaration predicts."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from samepolicy.floor import Floor, column
from samepolicy.floor.gap import Gap, Pairs, measure
from samepolicy.records.run import Run
from samepolicy.summary import json_number

CLEARLY = 1.05
"""One side is called further from float32 only where its rms is larger by this factor."""


@dataclass(frozen=True, kw_only=True)
class SideGap:
    """How far one side lies from the float32 forward of its own declaration, as the reference engine scores it.

    Attributes:
        name: "rollout" or "trainer".
        mean_abs: token mean of abs(side - S), nats.
        rms: root mean square of side - S, nats.
        gap: the same in multiples of the side's own floor².
    """

    name: str
    mean_abs: float
    rms: float
    gap: Gap

    @property
    def misses(self) -> bool:
        """Whether it clearly misses what its declaration predicts."""
        return self.gap.place == "above"

    @property
    def floors(self) -> float:
        """How many of its own floors it lies from its prediction, as a ratio of rms values, each token capped."""
        return float(np.sqrt(self.gap.ratio))

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        sizes = {"mean_abs": json_number(self.mean_abs), "rms": json_number(self.rms)}
        return sizes | {"misses": self.misses, "gap": self.gap.as_dict()}

    def __str__(self) -> str:
        """Distance from float32, and whether the prediction is met."""
        word = {"above": "misses", "below": "meets", "unclear": "may miss"}[self.gap.place]
        return (
            f"{self.name}: {self.mean_abs:.2g} nats from float32 on average (rms {self.rms:.2g}), "
            f"{word} its own prediction ({self.floors:.2g} floors rms)"
        )


def sides(run: Run, found: Pairs, floor: Floor) -> tuple[SideGap, ...]:
    """Both sides against their own predictions; a side whose floor is not known is left out."""
    levels = {"rollout": floor.rollout, "trainer": floor.trainer}
    out = []
    for name, level in levels.items():
        if level is None:
            continue
        reference = column(run, f"{name}_reference_logp")[found.index]
        error = (found.rollout if name == "rollout" else found.trainer) - reference
        gap = measure(error, level.at(reference) ** 2, found.prompt)
        out.append(SideGap(name=name, mean_abs=gap.mean_abs, rms=float(np.sqrt(gap.mean_square)), gap=gap))
    return tuple(out)


def further(found: tuple[SideGap, ...]) -> str | None:
    """The side that lies clearly further from float32; None where neither does or one is not known."""
    if len(found) < 2:
        return None
    near, far = sorted(found, key=lambda side: side.rms)
    return far.name if far.rms > CLEARLY * near.rms else None
