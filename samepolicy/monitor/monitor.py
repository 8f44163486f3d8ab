"""The monitor that a trainer calls at each step."""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from samepolicy.arrays import Array
from samepolicy.errors import InputError
from samepolicy.monitor import records
from samepolicy.monitor.alarms import Alarms, History, outside_usual
from samepolicy.monitor.folders import Claim
from samepolicy.monitor.measuring import flat, measure_step
from samepolicy.monitor.prob_diff import VERL_GRID, grid
from samepolicy.monitor.reference import reference_kl, warnings
from samepolicy.monitor.seen import Logger, Seen, show
from samepolicy.monitor.settings import doubts
from samepolicy.monitor.writer import Once, WhenFull, Writer
from samepolicy.names import metrics_of
from samepolicy.records.side import Side

OWN = "samepolicy/monitor"


@dataclass(kw_only=True, eq=False)
class Monitor:
    """Called once a step, gives flat metrics for a logger and writes what it saw in the background.

    After it is made it raises nothing: what could not be measured or written is counted (`samepolicy/monitor/…`) and
    said once in the log. Call it from one thread, in the one process that logs; a process forked from it writes to
    folders of its own.

    Attributes:
        save_dir: run folder that each step is appended to; None keeps no records. A folder that another living run
            writes to is left to it, as is one with a run whose sides declare other things, and `…-2` is taken.
        npy_dir: folder for verl's pair of files per step (`prob_diff_step_N.npy`, `prob_mask_step_N.npy`); None writes
            none.
        names: the names of the metrics: "samepolicy", or a framework such as "verl".
        every: measure every so many steps; 0 is off and costs nothing.
        grid: samples and positions whose probability difference is given one by one; None gives none.
        rollout: what the rollout side declares; its dtype chooses the usual ranges.
        trainer: what the trainer side declares.
        calm: steps inside the usual range that end an alarm; 0 has no alarms.
        queue: steps that may wait to be written.
        when_full: "wait" holds training until there is room, two minutes at most if nothing is written meanwhile;
            "drop" leaves the step out. Both are counted.
        loggers: called with each step (`Seen`) in the background; `samepolicy.integrations.loggers` has some.

    >>> monitor, logp = Monitor(names="verl"), np.log([[0.5, 0.25]])
    >>> found = monitor(step=1, trainer=logp, rollout=logp, mask=np.ones((1, 2)))
    >>> found["training/rollout_probs_diff_max"], found["training/rollout_probs_diff/s0_p0001"]
    (0.0, 0.0)
    """

    save_dir: str | os.PathLike[str] | None = None
    npy_dir: str | os.PathLike[str] | None = None
    names: str = "samepolicy"
    every: int = 1
    grid: tuple[int, int] | None = (8, 10)
    rollout: Side = field(default_factory=Side)
    trainer: Side = field(default_factory=Side)
    calm: int = 3
    queue: int = 4
    when_full: WhenFull = "wait"
    loggers: tuple[Logger, ...] = ()

    def __post_init__(self) -> None:
        """Refuse settings that could only fail later.

        Raises:
            InputError: one of them; the sentence says what it may be.
        """
        metrics_of(self.names)
        for fault in self._faults():
            raise InputError(fault)
        self._say = Once()
        self._writer = Writer(limit=self.queue, when_full=self.when_full, say=self._say)
        self._alarms, self._history = Alarms(self._say, max(self.calm, 1)), History()
        self._claims = {
            kind: Claim(Path(place), self._say)
            for kind, place in (("records", self.save_dir), ("npy", self.npy_dir))
            if place is not None
        }
        self._started, self._skipped = time.time_ns() // 1000, 0
        self._events: list[str] = []
        self._doubted = False

    def __call__(
        self,
        *,
        step: int,
        trainer: Array | None,
        rollout: Array | None,
        mask: Array | None,
        offsets: Any = None,
        **columns: Any,
    ) -> dict[str, float]:
        """Measure one step and hand it to the background writer.

        Args:
            step: training step.
            trainer: log-probs under the policy that is trained, [batch, time], or [tokens] with offsets; None where
                this step has none, which is counted.
            rollout: log-probs under the policy that sampled, same shape.
            mask: 1 where the policy sampled the token, same shape.
            offsets: where each packed sequence begins and the last ends, int [sequences + 1].
            **columns: further columns of a run: current_logp, ref_logp, advantage, trainer_entropy are measured, too;
                all are recorded (response_ids, reward, group, …).

        Returns:
            One number per name, for the logger; empty on a step that is not measured.
        """
        if not self.every:
            return {}
        batch = {"trainer": trainer, "rollout": rollout, "mask": mask, "offsets": offsets}
        found: dict[str, float] = {}
        number = None
        try:
            number = _whole(step)
            if number % self.every:
                return {}
            found = self._step(number, batch, columns)
        except Exception as error:
            self._skipped += 1
            self._say.because(error, "a step could not be measured ({}); training goes on.")
        measured = batch if found else {}
        found = {**found, **self._own()}
        if number is not None:
            self._show(number, found, measured)
        return found

    def _step(self, step: int, batch: Mapping[str, Any], columns: Mapping[str, Any]) -> dict[str, float]:
        """The metrics of one step; its arrays are copied before anything is left to the background."""
        missing = [name for name in ("trainer", "rollout", "mask") if batch[name] is None]
        if missing:
            raise InputError(f"step {step} has no {' and no '.join(missing)}, so it is not measured")
        summary = measure_step(**batch, names=self.names, columns=columns)
        found = flat(summary, self.names)
        outside = outside_usual(summary, rollout=self.rollout, trainer=self.trainer)
        if columns.get("ref_logp") is not None:
            current = columns.get("current_logp")
            policy = batch["trainer"] if current is None else current
            kl = reference_kl(
                policy=policy, reference=columns["ref_logp"], mask=batch["mask"], offsets=batch["offsets"]
            )
            found, outside = {**found, **kl}, {**outside, **warnings(kl)}
        sides = {name: batch[name] for name in ("trainer", "rollout", "mask")}
        if self.grid is not None and batch["offsets"] is None:
            prefix = VERL_GRID if self.names == "verl" else "samepolicy/prob_diff"
            found |= grid(**sides, samples=self.grid[0], positions=self.grid[1], prefix=prefix)
        self._doubt()
        self._watch(step, outside, summary)
        self._record(step, batch, columns)
        return found

    def _watch(self, step: int, outside: Mapping[str, str], summary: Any) -> None:
        """Alarms from the usual ranges, and from the run's own history (looked at in the background)."""
        if not self.calm:
            return
        self._events += [f"alarm: {sentence}." for sentence in self._alarms.update(outside, step=step)]
        self._history.add(summary, step=step)
        if work := self._history.look(self._changed):
            self._writer.submit(work)

    def _changed(self, name: str, sentence: str) -> None:
        """A change of level counts as an alarm."""
        self._alarms.raised += 1
        self._events.append(f"alarm: {sentence}.")
        self._say(f"alarm: {sentence}.")

    def _doubt(self) -> None:
        """Say once what speaks against the declared settings."""
        if self._doubted:
            return
        self._doubted = True
        for sentence in doubts(rollout=self.rollout, trainer=self.trainer).values():
            self._say(f"{sentence}.")
            self._events.append(f"settings: {sentence}.")

    def _show(self, step: int, metrics: Mapping[str, float], batch: Mapping[str, Any]) -> None:
        """Hand a step to the loggers, in the background."""
        said = tuple(self._events)
        del self._events[: len(said)]  # the background may have added one meanwhile
        if not self.loggers:
            return
        try:
            seen = Seen(step=step, metrics=metrics, batch=records.snapshot(batch), events=said)
            self._writer.submit(partial(show, self.loggers, seen))
        except Exception as error:
            self._writer.fail(error)

    def _record(self, step: int, batch: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
        """Leave the step's files to the background."""
        if not self._claims:
            return
        kept = records.Step(
            step=step,
            attempt=self._started,
            batch=records.snapshot(batch),
            columns=records.snapshot(columns if "records" in self._claims else {}),
            sides=(self.rollout, self.trainer),
        )
        self._writer.submit(partial(records.write, kept, self._claims))

    def _own(self) -> dict[str, float]:
        """What happened to the monitor itself."""
        own = {"skipped": self._skipped, **self._writer.lost, "waited": self._writer.waited}
        alarms = {"alarms": len(self._alarms.active), "alarms_raised": self._alarms.raised} if self.calm else {}
        return {f"{OWN}/{name}": float(value) for name, value in {**own, **alarms}.items()}

    def _faults(self) -> Iterator[str]:
        """What is wrong with the settings, in a sentence each."""
        given: Mapping[str, Any] = vars(self)  # of any type, whatever was annotated
        if not all(isinstance(given[name], int) and given[name] >= 0 for name in ("every", "calm")):
            yield f"every and calm must be whole numbers from 0, but they are {self.every!r} and {self.calm!r}."
        if given["grid"] is not None and not (isinstance(given["grid"], tuple) and len(given["grid"]) == 2):
            yield f"grid is how many samples and positions to show, such as (8, 10), not {self.grid!r}."
        if not (isinstance(given["loggers"], tuple) and all(map(callable, given["loggers"]))):
            yield f"loggers is a tuple of what takes a step, such as (log,), not {self.loggers!r}."
        for name in ("rollout", "trainer"):
            if not isinstance(given[name], Side):
                yield f'{name} declares a side, such as Side(dtype="bfloat16"), not {given[name]!r}.'
        folders = [Path(place).absolute() for place in (self.save_dir, self.npy_dir) if place is not None]
        if len(folders) > len(set(folders)):
            yield f"Records and npy files cannot share {self.save_dir}; give each a folder of its own."

    @property
    def alarms(self) -> tuple[str, ...]:
        """The alarms that are on, by name."""
        return self._alarms.active

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is written; False where the time (seconds) was not enough."""
        return self._writer.flush(timeout)

    def close(self) -> None:
        """Write what is left and let another run have the folders; the end of the process does the same."""
        self._writer.close()
        for claim in self._claims.values():
            claim.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _whole(step: Any) -> int:
    """A step as a whole number."""
    if step is None or isinstance(step, str) or int(step) != step:
        raise InputError(f"{step!r} is no step; give whole numbers")
    return int(step)
