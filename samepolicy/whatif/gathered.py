"""Every rule over the parts of a run: gathered from each by itself, in any process, and added up."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from samepolicy.corrections import PRESETS
from samepolicy.errors import MissingColumnError
from samepolicy.records.run import Run
from samepolicy.summary import Summary
from samepolicy.whatif.advice import advise
from samepolicy.whatif.part import LOADED, Part, lacking
from samepolicy.whatif.prompts import Prompts
from samepolicy.whatif.ratios import Ratios
from samepolicy.whatif.result import DivideBy, Outcome, WhatIf
from samepolicy.whatif.rules import Rule, preset, sweep
from samepolicy.whatif.surrogate import Surrogate, surrogates
from samepolicy.whatif.tally import Tally

REFERENCES = ("none", "token-is")
"""What every rule is compared with: no correction, and full importance weights."""
FACTOR = float(np.log(2.0))
"""Tokens whose abs d is beyond this are far."""


@dataclass(frozen=True)
class Gather:
    """Corrects any part of a run; small enough to be sent to another process.

    Attributes:
        rules: what to try, presets by their names; None is every preset that the part's columns allow.
        sweeps: what to try at seven thresholds around its own, too.
    """

    rules: tuple[Rule | str, ...] | None = None
    sweeps: tuple[Rule | str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a run that rules can use."""
        return LOADED

    def __call__(self, run: Run, first: int) -> "Gathered":
        """Correct one part.

        Args:
            run: the part.
            first: number of its first response among all.

        Raises:
            MissingColumnError: a side's log-probs are missing, or a column that a rule which was asked for needs.
        """
        rules, untried = _chosen(self.rules, run)
        sweeps = [one for rule in _named(self.sweeps) for one in sweep(rule)]
        _refuse_lacking(sweeps, run)
        return Gathered.of(Part(run.aligned(), first), rules, untried, sweeps)


@dataclass(frozen=True, kw_only=True, eq=False)
class Gathered:
    """What every rule did to some responses; `+` is that of two sets of responses together.

    Attributes:
        tallies: what each rule did, by rule and whether it belongs to a sweep.
        untried: presets that could not be tried, with the columns that they need.
        ratios: how the ratios are spread.
        prompts: sums of each prompt; None where there are no advantages. Its first two rules are the references.
        filled: responses with tokens.
        far: tokens whose ratio is beyond a factor of 2, either way.
        with_far: responses with such a token.
    """

    tallies: Mapping[tuple[Rule, bool], Tally]
    untried: Mapping[str, tuple[str, ...]]
    ratios: Ratios
    prompts: Prompts | None
    filled: int
    far: int
    with_far: int

    @classmethod
    def of(
        cls, part: Part, rules: Sequence[Rule], untried: Mapping[str, tuple[str, ...]], sweeps: Sequence[Rule]
    ) -> Self:
        """That of one part."""
        tried = list(dict.fromkeys([*((rule, False) for rule in rules), *((rule, True) for rule in sweeps)]))
        found = [Tally.of(rule, part) for rule, _ in tried]
        far = part.per_response(np.abs(part.log_ratio) > FACTOR)
        sums = [s for _, s in found if s is not None]
        return cls(
            tallies={key: tally for key, (tally, _) in zip(tried, found, strict=True)},
            untried=untried,
            ratios=Ratios.of(part),
            prompts=_prompts(part, sums) if sums else None,
            filled=int(np.count_nonzero(part.lengths)),
            far=int(far.sum()),
            with_far=int(np.count_nonzero(far)),
        )

    def __add__(self, other: Self) -> Self:
        """That of both, for the rules that both tried; a preset that one could not try is untried."""
        shared = [key for key in self.tallies if key in other.tallies]
        prompts = [p for one in (self, other) if (p := one._prompts_of(shared)) is not None]
        return type(self)(
            tallies={key: self.tallies[key] + other.tallies[key] for key in shared},
            untried={**self.untried, **other.untried},
            ratios=self.ratios + other.ratios,
            prompts=prompts[0] + prompts[1] if len(prompts) == 2 else next(iter(prompts), None),
            filled=self.filled + other.filled,
            far=self.far + other.far,
            with_far=self.with_far + other.with_far,
        )

    def _prompts_of(self, keys: Sequence[tuple[Rule, bool]]) -> Prompts | None:
        """The sums of each prompt under some of the rules."""
        if self.prompts is None or len(keys) == len(self.tallies):
            return self.prompts
        place = {key: 2 + i for i, key in enumerate(self.tallies)}
        return self.prompts.only(np.asarray([0, 1, *(place[key] for key in keys)]))

    def result(self, summary: Summary, divide_by: DivideBy = "mask", seed: int = 0) -> WhatIf:
        """Every rule's outcome.

        Args:
            summary: the metrics of the same responses.
            divide_by: what a loss divides by.
            seed: seed of the bootstrap.
        """
        prompts, found = self._surrogates(divide_by, seed)
        every = [(swept, _outcome(t, s)) for ((_, swept), t), s in zip(self.tallies.items(), found, strict=True)]
        outcomes, sweeps = (tuple(o for swept, o in every if swept is wanted) for wanted in (False, True))
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
            sweeps={name: tuple(o for o in sweeps if o.name == name) for name in dict.fromkeys(o.name for o in sweeps)},
            untried=self.untried,
            advice=advice,
            ratios=self.ratios,
            prompts=prompts,
            divide_by=divide_by,
        )

    def _surrogates(self, divide_by: DivideBy, seed: int) -> tuple[int, Sequence[Surrogate | None]]:
        """How many prompts there are, and the surrogate of each rule; None where there is no advantage at all."""
        if self.prompts is None or not self.prompts.sums[:, 1, 0].any():
            return 0, [None] * len(self.tallies)
        sums = self.prompts.sums[self.prompts.sums[:, 1, 0] > 0]
        numerators, kept, weights = sums.swapaxes(0, 1)
        tokens = kept if divide_by == "kept" else np.broadcast_to(kept[:, :1], kept.shape)
        skews = [t.skew for t in self.tallies.values()]
        return len(sums), surrogates(numerators, tokens, weights, skews, seed=seed)


def _prompts(part: Part, sums: Sequence[tuple[np.ndarray, ...]]) -> Prompts:
    """Σ w·A, kept tokens and Σ w of each prompt: uncorrected, fully importance-weighted, then under each rule."""
    with np.errstate(over="ignore", invalid="ignore"):
        full = [part.per_prompt(np.exp(part.log_ratio) * x) for x in (part.advantage, part.usable)]
    count, plain = part.per_prompt(part.usable), part.per_prompt(part.advantage)
    numerators, kept, weights = zip(*sums, strict=True)
    tables = [(plain, full[0], *numerators), (count, count, *kept), (count, full[1], *weights)]
    return Prompts(part.prompts[0], np.stack([np.stack(t, axis=1) for t in tables], axis=1))


def _chosen(rules: Sequence[Rule | str] | None, run: Run) -> tuple[list[Rule], dict[str, tuple[str, ...]]]:
    """The rules to try, and the presets that cannot be, with the columns that they need."""
    asked = _named(PRESETS if rules is None else rules)
    if rules is not None:
        _refuse_lacking(asked, run)
    wanted = [*_named(REFERENCES), *(r for r in asked if r.name not in REFERENCES or r != preset(r.name))]
    untried = {r.name: needs for r in wanted if (needs := lacking(r.correction, run))}
    return [r for r in wanted if r.name not in untried], untried


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


def _outcome(tally: Tally, surrogate: Surrogate | None) -> Outcome:
    """What one rule did."""
    stats = tally.stats
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
