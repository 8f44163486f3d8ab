"""One recorded batch under every correction, part by part."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from samepolicy.corrections import PRESETS
from samepolicy.errors import InputError, MissingColumnError
from samepolicy.records.run import Run
from samepolicy.summary import Summary, measure
from samepolicy.whatif.advice import advise
from samepolicy.whatif.part import Part, lacking
from samepolicy.whatif.ratios import Ratios
from samepolicy.whatif.result import DivideBy, Outcome, WhatIf
from samepolicy.whatif.rules import Rule, preset, sweep
from samepolicy.whatif.surrogate import Surrogate, surrogates
from samepolicy.whatif.tally import Tally

REFERENCES = ("none", "token-is")
"""What every rule is compared with: no correction, and full importance weights."""
FACTOR = float(np.log(2.0))
"""Tokens whose abs d is beyond this are far."""


def whatif(
    run: Run | Iterable[Run],
    rules: Sequence[Rule | str] | None = None,
    *,
    sweeps: Sequence[Rule | str] = (),
    divide_by: DivideBy = "mask",
    seed: int = 0,
) -> WhatIf:
    """Say what each correction would do to a recorded batch, before anything is trained with it.

    For every rule: the share of tokens and responses kept, clipped and dropped, what the weights are worth (ESS, Pareto
    k, mean, max), which responses fall first, and, where the run has advantages, bias and variance of the surrogate
    mean(w·A) by a bootstrap over prompts. Raw statistics of the same batch stand beside them.

    Args:
        run: the run, or its parts one after another (`stream`), of which only one is in memory at a time. Rules that
            look at a whole batch (`Normalise`, `SecondMoment`) take each training step of a part for a batch.
        rules: what to try, presets by their names; by default every preset that the run's columns allow. No correction
            and full importance weights are tried in any case.
        sweeps: what to try at seven thresholds around its own, too.
        divide_by: what a loss divides by: "mask", all tokens under the mask, or "kept", those that the rule leaves in.
        seed: seed of the bootstrap.

    Returns:
        The outcomes and an advice. Responses to one prompt (`group`) are one unit of the bootstrap; without groups
        each response is.

    Raises:
        MissingColumnError: a side's log-probs are missing, or a column that a rule which was asked for needs.
        InputError: no run at all, or an unknown divide_by.

    >>> from samepolicy.demo import recorded
    >>> found = whatif(recorded())
    >>> found.advice.rule, found["tis"].kept, found["tis"].clipped
    ('none', 1.0, 0.0)
    """
    if divide_by not in ("mask", "kept"):
        raise InputError(f"There is no divide_by={divide_by!r}; choose mask or kept.")
    gathered: _Gathered | None = None
    for one in [run] if isinstance(run, Run) else run:
        if gathered is None:
            gathered = _Gathered(*_chosen(rules, one), _swept(sweeps, one))
        gathered.add(one)
    if gathered is None:
        raise InputError("There is no run to look at; give at least one.")
    return gathered.result(divide_by, seed)


def _chosen(rules: Sequence[Rule | str] | None, run: Run) -> tuple[list[Rule], dict[str, tuple[str, ...]]]:
    """The rules to try, and the presets that cannot be, with the columns that they need."""
    asked = _named(PRESETS if rules is None else rules)
    if rules is not None:
        _refuse_lacking(asked, run)
    wanted = [*_named(REFERENCES), *(r for r in asked if r.name not in REFERENCES or r != preset(r.name))]
    untried = {r.name: needs for r in wanted if (needs := lacking(r.correction, run))}
    return [r for r in wanted if r.name not in untried], untried


def _swept(sweeps: Sequence[Rule | str], run: Run) -> list[Rule]:
    """The rules of every sweep."""
    found = [one for rule in _named(sweeps) for one in sweep(rule)]
    _refuse_lacking(found, run)
    return found


def _named(rules: Iterable[Rule | str]) -> list[Rule]:
    """Rules, with presets in the place of names."""
    return [preset(rule) if isinstance(rule, str) else rule for rule in rules]


def _refuse_lacking(rules: Iterable[Rule], run: Run) -> None:
    """Refuse a rule whose columns the run does not have."""
    for rule in rules:
        for column in lacking(rule.correction, run):
            raise MissingColumnError(
                f"{rule.name} needs the column {column}, which the run does not have; record it to try this one."
            )


class _Gathered:
    """All rules over the parts so far."""

    def __init__(self, rules: Sequence[Rule], untried: Mapping[str, tuple[str, ...]], sweeps: Sequence[Rule]) -> None:
        self.tallies, self.untried, self.tried = [Tally(r) for r in (*rules, *sweeps)], untried, len(rules)
        self.summaries: list[Summary] = []
        self.ratios: list[Ratios] = []
        self.labels: list[np.ndarray] = []
        self.sums: list[np.ndarray] = []  # each [prompts, 3, 2 + rules]: Σ w·A, kept tokens, Σ w
        self.responses = self.filled = self.far = self.with_far = 0

    def add(self, run: Run) -> None:
        """Measure and correct one part."""
        part = Part(run.aligned(), self.responses)
        self.responses += len(run)
        self.summaries = [reduce(add, [*self.summaries, measure(run)])]
        self.ratios = [reduce(add, [*self.ratios, Ratios.of(part)])]
        self.filled += int(np.count_nonzero(part.lengths))
        far = part.per_response(np.abs(part.log_ratio) > FACTOR)
        self.far, self.with_far = self.far + int(far.sum()), self.with_far + int(np.count_nonzero(far))
        pairs = [tally.add(part) for tally in self.tallies]
        found = [pair for pair in pairs if pair is not None]
        if found:
            with np.errstate(over="ignore", invalid="ignore"):
                full = [part.per_prompt(np.exp(part.log_ratio) * x) for x in (part.advantage, part.usable)]
            count, plain = part.per_prompt(part.usable), part.per_prompt(part.advantage)
            numerators, kept, weights = zip(*found, strict=True)
            self.labels.append(part.prompts[0])
            tables = [(plain, full[0], *numerators), (count, count, *kept), (count, full[1], *weights)]
            self.sums.append(np.stack([np.stack(t, axis=1) for t in tables], axis=1))

    def result(self, divide_by: DivideBy, seed: int) -> WhatIf:
        """Every rule's outcome."""
        prompts, found = self._surrogates(divide_by, seed)
        every = [_outcome(t, s) for t, s in zip(self.tallies, found, strict=True)]
        outcomes, swept = tuple(every[: self.tried]), every[self.tried :]
        summary = self.summaries[0]
        advice = advise(
            summary,
            outcomes,
            prompts=prompts,
            far=self.far,
            sequences_with_far=self.with_far,
            sequences=max(self.filled, 1),
        )
        return WhatIf(
            summary=summary,
            outcomes=outcomes,
            sweeps={name: tuple(o for o in swept if o.name == name) for name in dict.fromkeys(o.name for o in swept)},
            untried=self.untried,
            advice=advice,
            ratios=self.ratios[0],
            prompts=prompts,
            divide_by=divide_by,
        )

    def _surrogates(self, divide_by: DivideBy, seed: int) -> tuple[int, Sequence[Surrogate | None]]:
        """How many prompts there are, and the surrogate of each rule; None where there is no advantage at all."""
        if not self.sums or not any(s[:, 1, 0].any() for s in self.sums):
            return 0, [None] * len(self.tallies)
        labels, unit = np.unique(np.concatenate(self.labels), return_inverse=True)
        sums = np.zeros((len(labels), *self.sums[0].shape[1:]))
        np.add.at(sums, unit, np.concatenate(self.sums))
        sums = sums[sums[:, 1, 0] > 0]
        numerators, kept, weights = sums.swapaxes(0, 1)
        tokens = kept if divide_by == "kept" else np.broadcast_to(kept[:, :1], kept.shape)
        skews = [t.skew for t in self.tallies]
        return len(sums), surrogates(numerators, tokens, weights, skews, seed=seed)


def _outcome(tally: Tally, surrogate: Surrogate | None) -> Outcome:
    """What one rule did."""
    stats: Any = tally.stats
    tokens, applied = stats.tokens, stats.applied
    return Outcome(
        name=tally.rule.name,
        correction=tally.rule.correction,
        threshold=tally.rule.threshold,
        kept=_share(tally.carrying, tokens),
        clipped=stats.clipped,
        zeroed=_share(tally.zeroed, tokens),
        dropped=_share(tokens - applied.tokens, tokens),
        kept_sequences=_share(tally.sequences, int(stats.sums["filled"])),
        clipped_sequences=stats.clipped_sequences,
        ess_token=applied.ess_token,
        ess_sequence=applied.ess_sequence,
        pareto_k=tally.tail.readouts()["k"],
        weight_mean=applied.weight_mean,
        weight_max=applied.weight_max,
        surrogate=surrogate,
        first=tally.first,
    )


def _share(part: int, whole: int) -> float:
    """part/whole, NaN where there is nothing."""
    return part / whole if whole else float("nan")
