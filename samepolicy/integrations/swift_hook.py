"""Stands around a few methods of ms-swift's GRPO trainers, whose names its two trainers share.

Where they generate, the micro-batches of all ranks are measured as one batch. Where they compute their loss,
`_compute_rollout_offpolicy_metrics` is handed the two columns of log-probs, `_apply_rollout_importance_sampling` gives
the weights, and `_compute_is_correction_metrics` says of them what is logged. ms-swift's own code runs between them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from samepolicy.arrays import to_bool
from samepolicy.corrections import Correction, Stats
from samepolicy.integrations import swift as ours
from samepolicy.integrations.swift_sides import is_megatron, rollout_side, trainer_side
from samepolicy.monitor.writer import Once
from samepolicy.records.side import Side

if TYPE_CHECKING:
    from samepolicy.monitor import Monitor

GENERATE = "_generate_and_score_completions"
COMPARE, WEIGH, TELL = (
    "_compute_rollout_offpolicy_metrics",
    "_apply_rollout_importance_sampling",
    "_compute_is_correction_metrics",
)
NEEDED = (COMPARE, WEIGH, TELL)
"""What a correction stands around."""
LIGER = "_get_rollout_is_correction"
"""What the Hugging Face trainer's fused loss calls in the place of `COMPARE`."""
MODE = "rollout_importance_sampling_mode"
OWN, THEIRS = "samepolicy/swift", "rollout_correction/"


class Attached:
    """What `attach` put around a trainer.

    Attributes:
        trainer: the trainer.
        correction: the correction, or None.
        monitor: the monitor.
        failed: generation steps and micro-batches in which something of ours failed.
    """

    def __init__(self, trainer: Any, *, correction: Correction | None, monitor: "Monitor") -> None:
        self.trainer, self.correction, self.monitor = trainer, correction, monitor
        self.failed = 0
        self.say = Once()
        self._mode_before = getattr(trainer, MODE, None)
        self._pair: tuple[Any, Any, Any] | None = None
        self._last: Stats | None = None
        lacking = [name for name in NEEDED if not hasattr(trainer, name)]
        if correction is not None and lacking:
            self.say(f"this ms-swift has no {lacking[0]}, so the correction is off; samepolicy is tested with 4.6.0.")
            self.correction = None
        hooked = (GENERATE, *(NEEDED if self.correction is not None else ()))
        if self.correction is not None and hasattr(trainer, LIGER):
            hooked = (*hooked, LIGER)
        self._theirs = {name: getattr(trainer, name) for name in hooked}
        for name in hooked:
            setattr(trainer, name, getattr(self, name.lstrip("_")))
        if self.correction is not None and self._mode_before is None:
            setattr(trainer, MODE, "token_truncate")  # so that ms-swift asks for weights; ours are what it gets
        self._try(self._declare)

    def _declare(self) -> None:
        """Have the monitor judge the settings, too."""
        for name, read in (("rollout", rollout_side), ("trainer", trainer_side)):
            if getattr(self.monitor, name) == Side():
                setattr(self.monitor, name, read(self.trainer))

    def detach(self) -> None:
        """Give the trainer its own methods back, and write what the monitor still has."""
        for name in self._theirs:
            vars(self.trainer).pop(name, None)
        if hasattr(self.trainer, MODE):
            setattr(self.trainer, MODE, self._mode_before)
        self.monitor.close()

    # --------------------------------------------------------------------------------------- where ms-swift generates

    def generate_and_score_completions(self, inputs: Any) -> Any:
        """ms-swift's generation step, then ours."""
        found = self._theirs[GENERATE](inputs)
        self._try(lambda: self._seen(found))
        return found

    def _seen(self, batches: Any) -> None:
        """Measure what was generated, if the monitor looks at this step, and say what failed so far."""
        every, step = self.monitor.every, self._step
        if self._training and every and step % every == 0:
            self._try(lambda: self._measure(batches, step))
            self._log({f"{OWN}/failed": self.failed})

    def _measure(self, batches: Any, step: int) -> None:
        """The monitor's metrics of what all ranks generated."""
        parts = gathered(self.trainer, [ours._part(batch) for batch in batches])
        if not is_megatron(self.trainer) and not self.trainer.accelerator.is_main_process:
            return
        batch = ours.merged(parts)
        found = self.monitor(step=step, **batch)
        if logs_itself(self.trainer):
            found = {name: value for name, value in found.items() if not name.startswith(THEIRS)}
        self._log(found)

    # --------------------------------------------------------------------------------- where ms-swift computes its loss

    def compute_rollout_offpolicy_metrics(self, trainer: Any, rollout: Any, mask: Any) -> Any:
        """ms-swift's metrics of a micro-batch; its columns are kept for the weights, which it asks for next."""
        self._pair = (trainer, rollout, mask)
        return self._theirs[COMPARE](trainer, rollout, mask)

    def get_rollout_is_correction(self, trainer: Any, rollout: Any, mask: Any) -> Any:
        """The same where the loss is fused."""
        self._pair = (trainer, rollout, mask)
        return self._theirs[LIGER](trainer, rollout, mask)

    def apply_rollout_importance_sampling(self, log_ratio: Any, mask: Any) -> Any:
        """The weights of a micro-batch; where ours fail, those of ms-swift's own mode, or 1 where it has none."""
        pair, self._pair, self._last = self._pair, None, None
        found: list[Any] = []
        self._try(lambda: found.append(self._weights(pair, mask)))
        if found:
            return found[0].to(log_ratio.dtype)
        return (
            log_ratio.new_ones(log_ratio.shape) if self._mode_before is None else self._theirs[WEIGH](log_ratio, mask)
        )

    def _weights(self, pair: tuple[Any, Any, Any] | None, mask: Any) -> Any:
        """What the correction gives for the columns that ms-swift has just compared."""
        assert self.correction is not None
        if pair is None or pair[2] is not mask:
            raise RuntimeError("the weights were asked for without the log-probs before them")
        trainer, rollout = (side.detach() for side in pair[:2])
        weights, _, stats = self.correction(trainer=trainer, rollout=rollout, mask=to_bool(mask))
        self._last = stats
        return weights

    def compute_is_correction_metrics(self, log_ratio: Any, weights: Any, mask: Any) -> Any:
        """What ms-swift logs of the weights, of ours; its own function of those that it gave itself."""
        stats, self._last = self._last, None
        if stats is None:
            return self._theirs[TELL](log_ratio, weights, mask)
        self._log(stats.flat())
        return {name: log_ratio.new_tensor(value) for name, value in _told(stats).items()}

    # ------------------------------------------------------------------------------------------------- small things

    @property
    def _training(self) -> bool:
        """Whether the model is being trained, not evaluated."""
        return bool((self.trainer.unwrapped_models[0] if is_megatron(self.trainer) else self.trainer.model).training)

    @property
    def _step(self) -> int:
        """The optimizer step that these samples are for."""
        state = self.trainer.state
        return int(state.iteration if is_megatron(self.trainer) else state.global_step) + 1

    def _log(self, found: Mapping[str, float]) -> None:
        """Leave numbers where the trainer's own are; it averages them over its logging steps."""
        try:
            held = self.trainer._metrics["train" if self._training else "eval"]
            for name, value in found.items():
                held[name].append(self._number(name, float(value)))
        except (AttributeError, KeyError, TypeError):
            self.say("this ms-swift keeps its metrics elsewhere, so ours are not logged.")

    def _number(self, name: str, value: float) -> Any:
        """A number as the trainer wants it: the Hugging Face one stacks tensors below `rollout_correction/`."""
        if is_megatron(self.trainer) or not name.startswith(THEIRS):
            return value
        import torch

        return torch.tensor(value, device=self.trainer.accelerator.device)

    def _try(self, work: Any) -> None:
        """Do something of ours; a failure is counted and said once."""
        try:
            work()
        except Exception as error:
            self.failed += 1
            self.say.because(error, "a step could not be seen ({}); training goes on.")


def _told(stats: Stats) -> dict[str, float]:
    """ms-swift's three keys: its own definitions where the correction was built from its switches, else ours."""
    if "swift.tokens" in stats.sums:
        return {name.removeprefix(THEIRS): value for name, value in stats.flat("swift").items()}
    kept, tokens = stats.applied, stats.raw.tokens
    mean = kept.weight_mean * kept.tokens / tokens if tokens and kept.tokens else 0.0
    return {"is_weight_mean": mean, "ess": kept.ess_token, "clipped_frac": stats.clipped}


def logs_itself(trainer: Any) -> bool:
    """Whether ms-swift logs the keys below `rollout_correction/` in this run."""
    on = getattr(trainer, MODE, None) is not None or getattr(trainer, "log_rollout_offpolicy_metrics", False)
    return bool(on and not getattr(trainer, "disable_rollout_importance_sampling", False))


def gathered(trainer: Any, mine: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The packed micro-batches of all ranks that hold other samples than this one does."""
    if is_megatron(trainer):
        import torch
        from megatron.core import mpu

        group = mpu.get_data_parallel_group()
        found: list[Any] = [None] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(found, mine, group=group)
        return [part for rank in found for part in rank]
    if trainer.accelerator.num_processes == 1:
        return mine
    from accelerate.utils import gather_object

    every: list[dict[str, Any]] = gather_object(mine)
    return every
