"""verl's switches as this package reads them, and what is wrong with a combination of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samepolicy.errors import InputError

NEEDED = "actor_rollout_ref.rollout.calculate_log_probs=True"
BYPASS = "algorithm.rollout_correction.bypass_mode"
MONITOR = ("save_dir", "npy_dir", "names", "every", "grid", "calm", "queue", "when_full", "loggers")
"""What `trainer.samepolicy.…` may hold beside `enable`: the settings of `Monitor` that are no declarations."""


@dataclass(frozen=True, kw_only=True)
class Switches:
    """What a configuration asks for.

    Attributes:
        token_level: `trainer.enable_token_level_prob_diff`.
        save_dir: `trainer.prob_diff_save_dir`.
        tokens: `trainer.prob_diff_token_max_print`.
        samples: `trainer.prob_diff_sample_max_print`.
        log_probs: `actor_rollout_ref.rollout.calculate_log_probs`.
        bypass: `algorithm.rollout_correction.bypass_mode`.
        monitor: settings of `Monitor` from `trainer.samepolicy.…`; None where it is not asked for.
    """

    token_level: bool = False
    save_dir: str | None = None
    tokens: int = 10
    samples: int = 8
    log_probs: bool = False
    bypass: bool = False
    monitor: Mapping[str, Any] | None = field(default=None)

    @property
    def asked(self) -> bool:
        """Whether anything is to be done."""
        return self.token_level or self.monitor is not None

    def faults(self) -> tuple[str, ...]:
        """Why what is asked for cannot be given, in a sentence each."""
        if not self.asked:
            return ()
        found = []
        if self.bypass:
            found.append(
                f"{BYPASS}=True makes the trainer's log-probs a copy of the rollout's, so there is nothing to compare "
                "and no probability difference is reported; set it to False to measure."
            )
        if not self.log_probs:
            found.append(f"The monitor needs the rollout's log-probs, which are off; add {NEEDED}.")
        return (*found, *self._refused())

    def _refused(self) -> Iterator[str]:
        """What the monitor says to the settings that it is given."""
        if self.monitor is None:
            return
        from samepolicy.integrations.loggers import all_loggers
        from samepolicy.monitor import Monitor

        settings = dict(self.monitor)
        loggers = settings.pop("loggers", None) or ()
        for name in [loggers] if isinstance(loggers, str) else loggers:
            if name not in all_loggers():
                yield f"There is no logger {name!r}; trainer.samepolicy.loggers may hold {', '.join(all_loggers())}."
        try:
            Monitor(**settings)
        except InputError as error:
            yield f"trainer.samepolicy: {error}"


def read(config: Any) -> Switches:
    """Read the switches of a verl configuration (OmegaConf or nested mappings).

    Raises:
        InputError: a setting below `trainer.samepolicy` that there is none of.

    >>> print(*read({"trainer": {"enable_token_level_prob_diff": True}}).faults())
    The monitor needs the rollout's log-probs, which are off; add actor_rollout_ref.rollout.calculate_log_probs=True.
    """
    save_dir = look(config, "trainer.prob_diff_save_dir")
    return Switches(
        token_level=bool(look(config, "trainer.enable_token_level_prob_diff", False)),
        save_dir=None if save_dir is None else str(save_dir),
        tokens=int(look(config, "trainer.prob_diff_token_max_print", 10)),
        samples=int(look(config, "trainer.prob_diff_sample_max_print", 8)),
        log_probs=bool(look(config, "actor_rollout_ref.rollout.calculate_log_probs", False)),
        bypass=bool(look(config, BYPASS, False)),
        monitor=_monitor(look(config, "trainer.samepolicy")),
    )


def look(config: Any, path: str, default: Any = None) -> Any:
    """The value at a dotted path of a configuration; the default where a part of it is not there."""
    for name in path.split("."):
        config = config.get(name) if hasattr(config, "get") else getattr(config, name, None)
        if config is None:
            return default
    return config


def _monitor(settings: Any) -> dict[str, Any] | None:
    """What is below `trainer.samepolicy`, as arguments of `Monitor`."""
    if settings is None or not settings:
        return None
    given = {str(name): settings[name] for name in settings.keys()}  # noqa: SIM118 - an OmegaConf mapping
    correction = given.pop("correction", None)  # `verl_loss_config` reads it; it asks for no monitor
    if (correction is not None and not given) or not given.pop("enable", True):
        return None
    unknown = sorted({*given} - {*MONITOR})
    if unknown:
        raise InputError(
            f"There is no setting trainer.samepolicy.{unknown[0]}; there are enable, correction, {', '.join(MONITOR)}."
        )
    if isinstance(given.get("grid"), Sequence) and not isinstance(given["grid"], str):
        given["grid"] = tuple(given["grid"])
    return {"names": "verl", **given}
