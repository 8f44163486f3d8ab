"""Callbacks in ms-swift's two tables, made from its own base classes."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from samepolicy.errors import MissingDependencyError

if TYPE_CHECKING:
    from samepolicy.integrations.swift_hook import Attached


def hugging_face(name: str, given: Mapping[str, Any]) -> None:
    """Put a callback into `swift.callbacks.callbacks_map`."""
    try:
        from swift.callbacks.base import TrainerCallback
        from swift.callbacks.mapping import callbacks_map
    except ImportError as error:
        raise MissingDependencyError("ms-swift is not installed; `pip install ms-swift` installs it.") from error

    class Samepolicy(TrainerCallback):  # type: ignore[misc]
        """Attaches when training begins, and writes what is left when it ends."""

        attached: "Attached | None" = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.attached = _attach(self.trainer, given)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.attached is not None:
                self.attached.detach()

    callbacks_map[name] = Samepolicy


def megatron(name: str, given: Mapping[str, Any]) -> None:
    """Put a callback into `swift.megatron.callbacks.megatron_callbacks_map`."""
    from swift.megatron.callbacks.base import MegatronCallback
    from swift.megatron.callbacks.mapping import megatron_callbacks_map

    class Samepolicy(MegatronCallback):  # type: ignore[misc]
        """The same."""

        attached: "Attached | None" = None

        def on_train_begin(self) -> None:
            self.attached = _attach(self.trainer, given)

        def on_train_end(self) -> None:
            if self.attached is not None:
                self.attached.detach()

    megatron_callbacks_map[name] = Samepolicy


def _attach(trainer: Any, given: Mapping[str, Any]) -> "Attached | None":
    """Attach to a trainer; one of another algorithm than GRPO is left alone, which is said."""
    from samepolicy.integrations.swift import attach
    from samepolicy.integrations.swift_hook import GENERATE

    if not hasattr(trainer, GENERATE):
        logging.getLogger("samepolicy").warning(
            "samepolicy: %s generates nothing, so there is nothing to compare; the callback is for GRPO.",
            type(trainer).__name__,
        )
        return None
    return attach(trainer, **given)
