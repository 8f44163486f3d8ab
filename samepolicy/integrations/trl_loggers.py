"""What a trainer reports to gets histograms, heat maps and alarms, too; the numbers go there by the trainer's own log.

The handles (a writer, a run) exist only once training has begun, and are closed when it ends, so a callback at either
end of the trainer's list adds the loggers and flushes them.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from samepolicy.integrations.loggers import Logger, logger

if TYPE_CHECKING:
    from samepolicy.monitor import Monitor

HANDLES: dict[str, Callable[[Any], dict[str, Any] | None]] = {
    "TensorBoardCallback": lambda c: {"writer": c.tb_writer} if c.tb_writer is not None else None,
    "WandbCallback": lambda c: {"run": c._wandb.run} if c._wandb is not None and c._wandb.run is not None else None,
    "MLflowCallback": lambda c: {} if c._ml_flow is not None and c._ml_flow.active_run() is not None else None,
    "SwanLabCallback": lambda c: {} if c._swanlab is not None and c._swanlab.has_run() else None,
    "TrackioCallback": lambda c: {} if c._trackio is not None and _open_in(c._trackio) else None,
}
"""How each callback of transformers says where it logs to: options of our logger, or None where nothing is open."""
NAMES = {"TensorBoardCallback": "tensorboard", "MLflowCallback": "mlflow", "SwanLabCallback": "swanlab"}
NAMES |= {"WandbCallback": "wandb", "TrackioCallback": "trackio"}


def follow(trainer: Any, monitor: "Monitor") -> Callable[[], None]:
    """Have a monitor's pictures and events go where a trainer reports to, while it trains.

    Args:
        trainer: a trainer of transformers or TRL.
        monitor: the monitor.

    Returns:
        What stops it.
    """
    from transformers import TrainerCallback

    given = monitor.loggers

    class Begin(TrainerCallback):  # type: ignore[misc]
        """Behind the trainer's own callbacks, which have opened their runs by then."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                monitor.loggers = (*given, *found_in(trainer.callback_handler.callbacks, monitor))

    class End(TrainerCallback):  # type: ignore[misc]
        """Before them, while their runs are still open."""

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            monitor.flush(60.0)
            monitor.loggers = given

    begin, end = Begin(), End()
    trainer.callback_handler.callbacks.insert(0, end)
    trainer.add_callback(begin)

    def stop() -> None:
        for callback in (begin, end):
            trainer.remove_callback(callback)
        monitor.loggers = given

    return stop


def found_in(callbacks: list[Any], monitor: "Monitor") -> Iterator[Logger]:
    """A logger for each callback whose run is open; one that cannot be made is said once."""
    for callback in callbacks:
        names = [kind.__name__ for kind in type(callback).__mro__ if kind.__name__ in HANDLES]
        try:
            options = HANDLES[names[0]](callback) if names else None
            if options is not None:
                yield logger(NAMES[names[0]], scalars=False, **options)
        except Exception as error:
            monitor._say(f"pictures cannot go to {NAMES[names[0]]} ({error}); its numbers still do.")


def _open_in(trackio: Any) -> bool:
    """Whether this thread has a run of trackio's."""
    return trackio.context_vars.current_run.get() is not None
