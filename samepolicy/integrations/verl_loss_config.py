"""From `+trainer.samepolicy.correction=…` to the keys by which verl calls our policy loss, and back to a `Correction`.

verl hands a policy loss no rollout log-probs. It does hand it its own importance weights, so verl is asked for those of
each token without a bound, `algorithm.rollout_correction.rollout_is=token` with a threshold above the e^20 that verl
clamps at: they are the ratios, and the loss reads the rollout's log-probs out of them. In bypass mode the old log-probs
are the rollout's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samepolicy.corrections import Correction, all_steps
from samepolicy.corrections.base import BatchMaskStep, ScaleStep, WeightStep
from samepolicy.corrections.frameworks import all_frameworks, builder
from samepolicy.errors import InputError
from samepolicy.integrations.verl_switches import BYPASS, NEEDED, look

LOSS = "samepolicy"
"""Our name in verl's registry of policy losses."""
LIBRARY = "samepolicy.integrations.verl_loss_plugin"
"""What verl's workers import, by `actor_rollout_ref.model.external_lib`, so that the registry has it."""
SWITCH = "trainer.samepolicy.correction"
POLICY_LOSS = "actor_rollout_ref.actor.policy_loss"
UNBOUNDED = 1e9
"""A threshold above e^20, so that verl truncates nothing."""
REINFORCE = "reinforce"
"""verl's loss without a ratio of its own; it has no name in verl's registry."""
NO_WEIGHTS = ("geo_mean",)
"""Losses of verl 0.9.1 that take weights and do not use them."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the actor's configuration asks of our policy loss.

    Attributes:
        correction: the correction; None leaves everything to the loss beneath, verl's own weights included.
        loss: the policy loss of verl's that is corrected.
        bypass: whether the old log-probs are the rollout's, and the current policy is the trainer.
    """

    correction: Correction | None = None
    loss: str = "vanilla"
    bypass: bool = False


def correction_of(spec: Any) -> Correction:
    """The correction that a configuration names.

    Args:
        spec: the name of a preset; a framework's own flags, with the framework under `from`; or a list of steps, each a
            mapping with its class under `step`.

    Raises:
        InputError: there is no such preset, framework, flag or step, or the steps do not go together.

    >>> print(correction_of("tis"))
    Correction(Truncate(2.0))
    >>> print(correction_of([{"step": "Truncate", "above": 3.0}, {"step": "Veto", "below": 1e-4}]))
    Correction(Truncate(3.0), Veto(below=0.0001))
    >>> print(correction_of({"from": "swift", "rollout_importance_sampling_mode": "token_mask"}).steps[0])
    Band(None, 2.0, clamp=20.0)
    """
    if isinstance(spec, str):
        from samepolicy.whatif import preset

        return preset(spec).correction
    if isinstance(spec, Mapping):
        flags = {str(name): value for name, value in spec.items()}
        framework = flags.pop("from", None)
        if framework not in all_frameworks():
            raise InputError(f"{SWITCH} has no from: {framework!r}; choose {', '.join(all_frameworks())}.")
        return builder(framework)(**flags)
    if not isinstance(spec, list | tuple):
        raise InputError(f"{SWITCH}={spec!r} is no correction; give a preset's name, or a list of steps.")
    return Correction(*(_step(given) for given in spec))


def _step(given: Any) -> Any:
    """One step of a list."""
    fields = {str(name): value for name, value in given.items()} if isinstance(given, Mapping) else {}
    name = fields.pop("step", None)
    if name not in all_steps():
        raise InputError(f"{given!r} is no step of {SWITCH}; write {{step: NAME, …}} with {', '.join(all_steps())}.")
    try:
        return all_steps()[name](**fields)
    except TypeError as error:
        raise InputError(f"{name} cannot be made of {fields}: {error}.") from None


def expand(config: Any) -> bool:
    """Write the keys by which verl calls our loss into its configuration, where the switch asks for a correction.

    Args:
        config: verl's whole configuration (OmegaConf), before workers are made from it; it is changed.

    Returns:
        Whether a correction is asked for.

    Raises:
        InputError: a correction that is none, or that verl cannot be given; the sentence says what to change.
    """
    spec = plain(look(config, SWITCH))
    if spec is None or not look(config, "trainer.samepolicy.enable", True):
        return False
    asked = Asked(
        correction=correction_of(spec),
        loss=_beneath(config),
        bypass=bool(look(config, BYPASS, False)),
    )
    check(asked)
    _check_ratios(config, asked)
    from omegaconf import OmegaConf, open_dict

    held = {"samepolicy": {"correction": spec, "loss": asked.loss, "bypass": asked.bypass}}
    libraries = plain(look(config, "actor_rollout_ref.model.external_lib")) or []
    libraries = libraries if isinstance(libraries, list) else [libraries]
    with open_dict(config):
        OmegaConf.update(config, f"{POLICY_LOSS}.loss_mode", LOSS, force_add=True)
        OmegaConf.update(config, f"{POLICY_LOSS}.rollout_correction", held, force_add=True)
        both = [*libraries, *({LIBRARY} - {*libraries})]
        OmegaConf.update(config, "actor_rollout_ref.model.external_lib", both, force_add=True)
        if not asked.bypass:
            OmegaConf.update(config, "algorithm.rollout_correction.rollout_is", "token", force_add=True)
            OmegaConf.update(config, "algorithm.rollout_correction.rollout_is_threshold", UNBOUNDED, force_add=True)
    return True


def _beneath(config: Any) -> str:
    """The loss of verl's that is to be corrected."""
    mode = str(look(config, f"{POLICY_LOSS}.loss_mode", "vanilla"))
    if mode == LOSS:
        mode = str(look(config, f"{POLICY_LOSS}.rollout_correction.samepolicy.loss", "vanilla"))
    if not look(config, BYPASS, False):
        return mode
    mode = "vanilla" if mode == "bypass_mode" else mode
    reinforce = look(config, "algorithm.rollout_correction.loss_type", "ppo_clip") == REINFORCE
    return REINFORCE if reinforce and mode == "vanilla" else mode


def _check_ratios(config: Any, asked: Asked) -> None:
    """Refuse a configuration in which the loss would not get the ratios."""
    if not look(config, "actor_rollout_ref.rollout.calculate_log_probs", False):
        raise InputError(f"{SWITCH} needs the rollout's log-probs, which are off; add {NEEDED}.")
    own = look(config, "algorithm.rollout_correction.rollout_is")
    bound = look(config, "algorithm.rollout_correction.rollout_is_threshold", 2.0)
    if not asked.bypass and own is not None and (own, bound) != ("token", UNBOUNDED):
        raise InputError(
            f"verl's own rollout_is={own} and {SWITCH} would both weigh the loss; leave one of them out "
            "(rollout_rs may stay: what verl drops stays dropped)."
        )
    if look(config, "algorithm.rollout_correction.rollout_is_batch_normalize", False):
        raise InputError(f"rollout_is_batch_normalize=True would change the ratios that {SWITCH} reads; set it False.")


def check(asked: Asked) -> None:
    """Refuse what a policy loss cannot do.

    Raises:
        InputError: a step that looks at the whole batch, a column that is not there, or weights that the loss beneath
            has no use for.
    """
    steps = asked.correction.steps if asked.correction is not None else ()
    for step in steps:
        if isinstance(step, BatchMaskStep | ScaleStep):
            raise InputError(f"{step} looks at the whole batch, but a policy loss of verl's sees a part; leave it out.")
        if "turn" in step.needs:
            raise InputError(f"{step} needs turns, which a policy loss of verl's is not told; leave it out.")
    weighing = [step for step in steps if isinstance(step, WeightStep)]
    if weighing and asked.loss in NO_WEIGHTS:
        raise InputError(f"verl's loss {asked.loss!r} uses no weights, so {weighing[0]} would do nothing; use vanilla.")
    if weighing and asked.bypass and asked.loss != REINFORCE:
        raise InputError(
            f"In bypass mode the ratio of the loss {asked.loss!r} is the one that {weighing[0]} would weigh with, so "
            "it would count twice; keep steps that reject, or set algorithm.rollout_correction.loss_type=reinforce."
        )


def read(policy_loss: Any) -> Asked:
    """What `actor.policy_loss` asks for, in a worker.

    Raises:
        InputError: as `correction_of` and `check`.

    >>> held = {"rollout_correction": {"samepolicy": {"correction": "tis"}}}
    >>> print(read(held).correction, read({}).correction)
    Correction(Truncate(2.0)) None
    """
    held = plain(look(policy_loss, "rollout_correction.samepolicy"))
    if held is None:
        return Asked()
    spec = held.get("correction")
    asked = Asked(
        correction=None if spec is None else correction_of(spec),
        loss=str(held.get("loss", "vanilla")),
        bypass=bool(held.get("bypass", False)),
    )
    check(asked)
    return asked


def plain(value: Any) -> Any:
    """A value of a configuration without OmegaConf's own types."""
    if hasattr(value, "_metadata"):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(value, resolve=True)
    return value
