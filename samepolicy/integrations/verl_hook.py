"""Stands around verl's own debug metrics, in whichever process runs a trainer.

verl calls `calculate_debug_metrics(data)` from its trainers' methods and logs what comes back. Its config and step are
not among the arguments; they are read from the caller's `self`, and nothing else of the caller is looked at. verl's
own numbers go through unchanged, and with every switch off the very dict that verl made is given back.
"""

import functools
import logging
import sys
from collections.abc import Callable
from functools import partial
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from samepolicy.arrays import to_bool
from samepolicy.integrations import verl as ours
from samepolicy.integrations import verl_switches as switches
from samepolicy.monitor import prob_diff
from samepolicy.monitor.writer import Once, Writer

if TYPE_CHECKING:
    from samepolicy.monitor import Monitor
    from samepolicy.monitor.folders import Claim

CHECK = "validate_config"
"""verl's check of a whole configuration, in `verl.utils.config`."""
MARK = "samepolicy_hook"
"""Attribute of what stands in verl's place."""
LOST = "samepolicy/monitor/prob_diff"
SKIPPED = f"{LOST}_skipped"
"""What was not measured or written of single tokens, once there is something: skipped, dropped and failed steps."""
FRAMES = 4
"""Callers that are looked at: the trainer's method, or decorators between it and us."""


class Hook:
    """What is kept between the steps of one process.

    Attributes:
        say: says each thing once.
    """

    def __init__(self) -> None:
        self.say = Once()
        self._monitor: Monitor | None = None
        self._writer: Writer | None = None
        self._claim: Claim | None = None
        self._skipped = 0

    def check(self, config: Any) -> None:
        """Say once what is asked for and cannot be given; raises nothing."""
        try:
            wanted = switches.read(config)
            for fault in wanted.faults():
                self.say(fault, level=logging.ERROR if wanted.bypass else logging.WARNING)
            if wanted.asked and wanted.monitor is None:  # the whole monitor says it itself
                self._doubt(config)
        except Exception as error:
            self.say(f"the switches could not be read ({error}).")

    def _doubt(self, config: Any) -> None:
        """Say once what of the settings speaks against the pair."""
        from samepolicy.integrations.verl_sides import rollout_side, trainer_side
        from samepolicy.monitor.settings import doubts

        for sentence in doubts(rollout=rollout_side(config), trainer=trainer_side(config)).values():
            self.say(f"{sentence}.")

    def step(self, data: Any, trainer: Any) -> dict[str, float]:
        """Our metrics of one step; empty where nothing is asked for, and raises nothing."""
        return self._try(lambda: self._step(data, trainer))

    def _try(self, work: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What some work gives; a failure is counted and said once."""
        try:
            return work()
        except Exception as error:
            self._skipped += 1
            self.say.because(error, "a step could not be measured ({}); training goes on.")
            return {SKIPPED: float(self._skipped)}

    def _step(self, data: Any, trainer: Any) -> dict[str, float]:
        """The same, where an exception is still one."""
        config = getattr(trainer, "config", None)
        if config is None:
            self.say(
                "this verl calls calculate_debug_metrics from elsewhere than a trainer's method, so its switches "
                "cannot be read and nothing is measured; `samepolicy doctor verl` shows which call sites stand."
            )
            return {}
        wanted = switches.read(config)
        if not wanted.asked:
            return {}
        self.check(config)
        if wanted.bypass:
            return {}
        step = int(getattr(trainer, "global_steps", None) or 0)
        whole = self._try(lambda: self._monitored(data, wanted, step, config))
        return {**whole, **(self._try(lambda: self._token_level(data, wanted, step)) if wanted.token_level else {})}

    def _token_level(self, data: Any, wanted: switches.Switches, step: int) -> dict[str, float]:
        """The grid, and the pair of files from the background."""
        batch = ours.log_probs(data)
        if not batch:
            self._skipped += 1
            self.say(f"a batch lacks a log-prob, the responses or a mask; {switches.NEEDED} gives the rollout's.")
            return {SKIPPED: float(self._skipped)}
        if wanted.save_dir is not None:
            from samepolicy.monitor import records
            from samepolicy.monitor.folders import Claim

            self._writer = self._writer or Writer(say=self.say)
            self._claim = self._claim or Claim(Path(wanted.save_dir), self.say)
            self._writer.submit(partial(_save, self._claim, records.snapshot(batch), step))
        found = prob_diff.grid(**batch, samples=wanted.samples, positions=wanted.tokens)
        lost = {"skipped": self._skipped, **({} if self._writer is None else self._writer.lost)}
        return {**found, **{f"{LOST}_{name}": float(count) for name, count in lost.items() if count}}

    def _monitored(self, data: Any, wanted: switches.Switches, step: int, config: Any) -> dict[str, float]:
        """What the whole monitor says, if it is asked for."""
        if wanted.monitor is None:
            return {}
        if self._monitor is None:
            from samepolicy.integrations.verl_sides import rollout_side, trainer_side
            from samepolicy.monitor import Monitor

            grid = {"grid": None} if wanted.token_level else {}
            sides: dict[str, Any] = {"rollout": rollout_side(config), "trainer": trainer_side(config)}
            loggers = self._loggers(wanted.monitor.get("loggers") or ())
            self._monitor = Monitor(**{**wanted.monitor, **grid, "loggers": loggers}, **sides)
        return self._monitor(step=step, **ours.columns(data))

    def _loggers(self, wanted: Any) -> tuple[Any, ...]:
        """The loggers of a list of names, or of a mapping of names to options; one that cannot be made is said once.

        They leave the numbers to verl's own logger.
        """
        from samepolicy.integrations.loggers import logger

        found = []
        for name in [wanted] if isinstance(wanted, str) else wanted:
            options = wanted[name] if hasattr(wanted, "keys") else None
            try:
                found.append(logger(str(name), **{"scalars": False, **(options or {})}))
            except Exception as error:
                self.say(f"the logger {name} could not be made ({error}); training goes on without it.")
        return tuple(found)

    def flush(self) -> None:
        """Wait until everything is written."""
        for writer in (self._writer, self._monitor):
            if writer is not None:
                writer.flush()


def attach() -> bool:
    """Put the hook around verl's functions; False where it is there already."""
    from verl.utils import config as checks
    from verl.utils.debug import metrics

    if hasattr(metrics.calculate_debug_metrics, MARK):
        return False
    hook = Hook()
    metrics.calculate_debug_metrics = _measured(metrics.calculate_debug_metrics, hook)
    metrics.calculate_token_level_prob_diff = ours.calculate_token_level_prob_diff
    if hasattr(checks, CHECK):
        setattr(checks, CHECK, _checked(getattr(checks, CHECK), hook))
    else:
        hook.say(
            f"this verl has no {CHECK}, so the settings are not looked at before training and a correction cannot be "
            "given; `samepolicy doctor verl` shows what has moved."
        )
    return True


def _measured(original: Callable[..., dict[str, Any]], hook: Hook) -> Callable[..., dict[str, Any]]:
    """verl's metrics with ours beside them."""

    @functools.wraps(original)
    def calculate_debug_metrics(data: Any) -> dict[str, Any]:
        found = original(data)
        extra = hook.step(data, _trainer(sys._getframe(1)))
        return {**extra, **found} if extra else found

    setattr(calculate_debug_metrics, MARK, hook)
    return calculate_debug_metrics


def _checked(original: Callable[..., Any], hook: Hook) -> Callable[..., Any]:
    """verl's check of the configuration, and what ours has to say: in bypass mode nothing else is ever called.

    Workers are made after it, so a correction that is asked for is written into the configuration here; one that cannot
    be given is refused before anything is trained.
    """

    @functools.wraps(original)
    def validate_config(*args: Any, **kwargs: Any) -> Any:
        config = kwargs["config"] if "config" in kwargs else next(iter(args), None)
        hook.check(config)
        if switches.look(config, "trainer.samepolicy.correction") is not None:
            from samepolicy.integrations.verl_loss_config import expand

            expand(config)
        return original(*args, **kwargs)

    setattr(validate_config, MARK, hook)
    return validate_config


def _trainer(frame: FrameType | None) -> Any:
    """The trainer among the nearest callers: the first `self` that has a configuration; None where there is none."""
    for _ in range(FRAMES):
        if frame is None:
            break
        found = _self(frame)
        if hasattr(found, "config"):
            return found
        frame = frame.f_back
    return None


def _self(frame: FrameType) -> Any:
    """The `self` of a method that is being run."""
    held = frame.f_locals
    found = held.get("self")
    if type(held) is dict and sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED:
        held.clear()  # a function's are a copy, which would keep the caller's batch alive until the function ends
    return found


def _save(claim: "Claim", batch: dict[str, Any], step: int) -> None:
    """Write a step's pair of files, in the background."""
    prob_diff.save_pair(claim.folder(), prob_diff.difference(**batch), to_bool(batch["mask"]), step=step)
