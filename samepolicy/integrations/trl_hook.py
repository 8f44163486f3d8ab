"""Stands around three methods of a TRL trainer: where it generates, where it computes its loss, its off-policy mask.

TRL's own code runs unchanged between them. Where a correction is given, its weights take the place of TRL's
importance-sampling ratio in the batch, and TRL's switches are on while the loss reads them and at no other time.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from samepolicy.arrays import to_bool
from samepolicy.corrections import Correction, OffPolicyMask, RolloutPresence
from samepolicy.integrations import trl as ours
from samepolicy.integrations import trl_ranks as ranks
from samepolicy.integrations.trl_doctor import faults
from samepolicy.integrations.trl_loggers import follow
from samepolicy.integrations.trl_sides import rollout_side, trainer_side
from samepolicy.monitor.writer import Once
from samepolicy.records.side import Side

if TYPE_CHECKING:
    from samepolicy.monitor import Monitor

HOOKED = ("_generate_and_score_completions", "_compute_loss", "get_off_policy_mask")
OWN = "samepolicy/trl"
RATIO = "importance_sampling_ratio"
IMAGES = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)
"""Of a batch, what TRL's forward takes beside ids and masks."""


class Attached:
    """What `attach` put around a trainer.

    Attributes:
        trainer: the trainer.
        correction: the correction, or None.
        monitor: the monitor.
        failed: generation steps and losses in which something of ours failed.
        faults: call sites of this TRL that have moved, in a sentence each; what needs them is off.
    """

    def __init__(
        self, trainer: Any, *, correction: Correction | None, monitor: "Monitor", divide_by: Literal["kept", "mask"]
    ) -> None:
        self.trainer, self.correction, self.monitor = trainer, correction, monitor
        self._accelerator = trainer.accelerator
        self.failed = 0
        self.say = Once()
        self._by_kept = divide_by == "kept"
        steps = correction.steps if correction is not None else ()
        missing = correction.missing if correction is not None else "drop"
        moving = tuple(step for step in steps if isinstance(step, OffPolicyMask))
        self._at_once = Correction(*(step for step in steps if step not in moving), missing=missing)
        self._moving = Correction(*moving, missing=missing) if moving else None
        self._present = RolloutPresence(lambda mine: ranks.least(trainer.accelerator, mine))
        self._inputs: Mapping[str, Any] = {}
        self._undo: list[Callable[[], None]] = []
        self.faults = faults(type(trainer))
        for fault in self.faults.values():
            self.say(fault)
        self._theirs = {name: getattr(trainer, name) for name in HOOKED if name not in self.faults}
        self._attach()

    def _attach(self) -> None:
        """Take the places; each on the trainer itself, so that its class and other trainers stay as they are."""
        for name in self._theirs:
            setattr(self.trainer, name, getattr(self, name.lstrip("_")))
        needed = HOOKED if self._moving is not None else HOOKED[:2]
        if self.correction is not None and {*self.faults} & {*needed}:
            self.correction = self._moving = None
            self.say("the correction is off, since this TRL cannot be given one.")
        for name, read in (("rollout", rollout_side), ("trainer", trainer_side)):
            if getattr(self.monitor, name) == Side():
                self._try(lambda name=name, read=read: setattr(self.monitor, name, read(self.trainer)))
        self._try(lambda: self._undo.append(follow(self.trainer, self.monitor)))

    def detach(self) -> None:
        """Give the trainer its own methods back, and write what the monitor still has."""
        for name in self._theirs:
            vars(self.trainer).pop(name, None)
        self.monitor.close()
        for undo in self._undo:
            undo()
        self._undo.clear()

    # --------------------------------------------------------------------------------------- where TRL generates

    def generate_and_score_completions(self, inputs: Any) -> Any:
        """TRL's generation step, then ours."""
        output = self._theirs[HOOKED[0]](inputs)
        if self._wanted:
            self._try(lambda: output.update(self._seen(output)))
            self._log({f"{OWN}/failed": self.failed, f"{OWN}/skipped": self._present.skipped})
        return output

    @property
    def _measures(self) -> bool:
        """Whether the monitor looks at this step."""
        every = self.monitor.every
        return bool(self.trainer.model.training and every and (self.trainer.state.global_step + 1) % every == 0)

    @property
    def _wanted(self) -> bool:
        """Whether there is anything to do; all ranks say the same."""
        return self.correction is not None or self._measures

    def _seen(self, output: Mapping[str, Any]) -> dict[str, Any]:
        """Correct a batch and measure it; what is to be changed in it, which no failure of the monitor takes back."""
        if not self._present(output.get("sampling_per_token_logps")):
            return {}
        if output.get("old_per_token_logps") is None:
            output = {**output, "old_per_token_logps": self._score(output)}
        changes, weights = self._correct(output) if self.correction is not None else ({}, None)
        if self._measures:
            self._try(lambda: self._measure({**output, **({} if weights is None else {"weight": weights})}))
        return changes

    def _score(self, output: Mapping[str, Any]) -> Any:
        """The trainer's log-probs of the sampled tokens, where TRL itself does without them."""
        import torch

        ids, attention = (
            torch.cat([output[f"prompt_{kind}"], output[f"completion_{kind}"]], dim=1) for kind in ("ids", "mask")
        )
        args = self.trainer.args
        rows = args.per_device_train_batch_size if self.trainer.model.training else args.per_device_eval_batch_size
        with torch.no_grad():
            found = self.trainer._get_per_token_logps_and_entropies(
                self.trainer.model,
                ids,
                attention,
                output["completion_ids"].size(1),
                batch_size=rows,
                **{name: output[name] for name in IMAGES if output.get(name) is not None},
            )
        return found[0]

    def _correct(self, output: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """What of a batch a correction changes, and the weights."""
        import torch

        batch = ours.columns({**output, "prompt_ids": None})
        mask = to_bool(batch["mask"])
        more = {"advantage": batch["advantage"]} if "advantage" in self._at_once.needs else {}
        weights, keep, stats = self._at_once(trainer=batch["trainer"], rollout=batch["rollout"], mask=mask, **more)
        changes = {RATIO: torch.where(mask, weights, torch.ones_like(weights))}
        if self._by_kept:
            tools = output.get("tool_mask")
            left = (keep | ~mask).to(output["completion_mask"].dtype)
            changes["tool_mask"] = left if tools is None else left * tools
            items = (output["completion_mask"] * changes["tool_mask"]).sum()
            changes["num_items_in_batch"] = self._accelerator.gather(items).sum()
        whole = ranks.total(self._accelerator, stats)
        self._log({**whole.flat(), **(whole.flat("swift") if "swift.tokens" in whole.sums else {})})
        self._show_applied(whole)
        return changes, weights

    def _show_applied(self, stats: Any) -> None:
        """TRL's keys for the ratio it would have applied, corrected to what is applied."""
        held = self.trainer._metrics[self._mode]
        for readout in ("min", "mean", "max"):
            values = held.get(f"sampling/{RATIO}/{readout}")
            if values:
                values[-1] = getattr(stats.applied, f"weight_{readout}")

    def _measure(self, output: Mapping[str, Any]) -> None:
        """The monitor's metrics of a batch, gathered from all ranks and measured on the one that logs."""
        whole = ranks.gathered(self._accelerator, output)
        if not self._accelerator.is_main_process:
            return
        step, size = self.trainer.state.global_step + 1, self.trainer.num_generations
        batch = ours.columns(whole) | {"weight": whole["weight"]} if "weight" in whole else ours.columns(whole)
        batch["group"] = [f"{step}-{row // size}" for row in range(len(batch["mask"]))]
        self._log(self.monitor(step=step, **batch))

    # --------------------------------------------------------------------------------- where TRL computes its loss

    def compute_loss(self, model: Any, inputs: Any) -> Any:
        """TRL's loss, with our weights and mask in it."""
        if self.correction is None:
            return self._theirs[HOOKED[1]](model, inputs)
        if self._moving is not None and self._by_kept and "tool_mask" not in inputs:
            ones = inputs["completion_mask"].new_ones(inputs["completion_mask"].shape)
            inputs = {**inputs, "tool_mask": ones}  # so that TRL's mask is a tensor of its own, which we may change
        with self._switched_on(inputs):
            return self._theirs[HOOKED[1]](model, inputs)

    @contextmanager
    def _switched_on(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        """TRL's switches while its loss looks at them: it reads the ratio of a batch that has one, and asks for a mask.

        TRL's own threshold stays where it is set, and `off_policy_mask` heeds it.
        """
        wanted: dict[str, Any] = {}
        if RATIO in inputs:
            wanted |= {"use_vllm": True, "vllm_importance_sampling_correction": True}
        if self._moving is not None and self.trainer.off_policy_mask_threshold is None:
            wanted["off_policy_mask_threshold"] = float("inf")  # which drops nothing by itself
        before = {name: getattr(self.trainer, name) for name in wanted}
        self._inputs = inputs
        try:
            for name, value in wanted.items():
                setattr(self.trainer, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self.trainer, name, value)
            self._inputs = {}

    def get_off_policy_mask(self, *args: Any, **given: Any) -> Any:
        """TRL's mask of the sequences that the policy has moved away from, and ours, with the current log-probs."""
        theirs, moving = self._theirs[HOOKED[2]](*args, **given), self._moving
        if moving is None:
            return theirs
        found: list[Any] = []
        self._try(lambda: found.append(self._still_near(moving, given)))
        mask, keep = (given["mask"], found[0]) if found else (None, None)
        self._log({"samepolicy/correction/off_policy_dropped_sequences": ranks.share(self._accelerator, mask, keep)})
        if mask is None or keep is None:
            return theirs
        if self._by_kept:
            mask.mul_(keep.to(mask.dtype))
        return theirs * keep.to(theirs.dtype)

    def _still_near(self, moving: Correction, given: Mapping[str, Any]) -> Any:
        """What the correction's off-policy masks keep of a micro-batch."""
        current, advantage = given["per_token_logps"].detach(), given["advantages"]
        trainer = self._inputs.get("old_per_token_logps")
        return moving(
            trainer=current if trainer is None else trainer,
            current=current,
            rollout=given["sampling_per_token_logps"],
            mask=to_bool(given["mask"]),
            advantage=advantage.squeeze(1) if advantage.shape[1] == 1 else advantage,
        ).keep

    # ------------------------------------------------------------------------------------------------- small things

    @property
    def _mode(self) -> str:
        """Which of the trainer's two sets of metrics is filled."""
        return "train" if self.trainer.model.training else "eval"

    def _log(self, found: Mapping[str, float]) -> None:
        """Leave numbers where the trainer's own are; it averages them over its logging steps and logs them."""
        try:
            held = self.trainer._metrics[self._mode]
            for name, value in found.items():
                held[name].append(float(value))
        except (AttributeError, KeyError, TypeError):
            self.say("this TRL keeps its metrics elsewhere, so ours are not logged.")

    def _try(self, work: Any) -> None:
        """Do something of ours; a failure is counted and said once."""
        try:
            work()
        except Exception as error:
            self.failed += 1
            self.say.because(error, "a step could not be seen ({}); training goes on.")
