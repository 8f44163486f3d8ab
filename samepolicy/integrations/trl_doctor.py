"""Do the places in TRL that we stand around still look as they did?"""

import ast
import importlib.util
import inspect
import textwrap
import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from samepolicy.errors import MissingDependencyError
from samepolicy.integrations.verl_doctor import Check

TESTED = "1.16.0"
PLACES = {
    "_generate_and_score_completions": (
        "_prepare_inputs",
        ("sampling_per_token_logps", "old_per_token_logps", "completion_mask", "importance_sampling_ratio"),
    ),
    "_compute_loss": ("compute_loss", ("importance_sampling_ratio", "tool_mask", "completion_mask")),
    "get_off_policy_mask": ("_compute_loss", ()),
}
"""Each method of the trainer that we stand around: the method that calls it, and the names that it must still know."""
READ = ("vllm_importance_sampling_correction", "use_vllm", "off_policy_mask_threshold")
"""What the loss must still read from the trainer, since that is how it is told of our weights."""


def faults(trainer: type) -> dict[str, str]:
    """What has moved in a trainer's class, in a sentence for each place; empty where everything stands.

    Args:
        trainer: the class of the trainer; its source is read, nothing of it is run.

    Returns:
        Sentences by the name of the method.

    >>> list(faults(type("Trainer", (), {})))
    ['_generate_and_score_completions', '_compute_loss', 'get_off_policy_mask']
    """
    found = {}
    for place, (caller, names) in PLACES.items():
        why = _fault(trainer, place, caller, names)
        if why:
            found[place] = (
                f"this TRL ({_version()}) has changed: {why}; samepolicy is tested with {TESTED}, and "
                "`samepolicy doctor trl` shows which places stand."
            )
    return found


def _fault(trainer: type, place: str, caller: str, names: tuple[str, ...]) -> str:
    """What is wrong with one place."""
    if not hasattr(trainer, place):
        return f"{trainer.__name__} has no {place}"
    if not _says(trainer, caller, f"self.{place}"):
        return f"{caller} does not call self.{place}"
    lacking = [name for name in names if not _says(trainer, place, f"'{name}'")]
    if lacking:
        return f"{place} does not know {lacking[0]!r}"
    unread = [n for n in READ if place == "_compute_loss" and not _says(trainer, place, f"self.{n}")]
    return f"{place} does not read self.{unread[0]}" if unread else ""


def _says(trainer: type, method: str, what: str) -> bool:
    """Whether a method's code, or what it overrides, holds an expression."""
    return any(what in _code(vars(cls)[method]) for cls in trainer.__mro__ if method in vars(cls))


@cache
def _code(function: object) -> str:
    """A function's code without comments, quotes made equal; nothing where there is none to read."""
    try:
        return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))))  # type: ignore[arg-type]
    except (OSError, TypeError, SyntaxError):
        return ""


def _version() -> str:
    """The installed TRL's version."""
    try:
        return version("trl")
    except PackageNotFoundError:
        return "of no known version"


def examine() -> tuple[Check, ...]:
    """Look at the installed TRL.

    Returns:
        A check of the version, and one for each place that we stand around.

    Raises:
        MissingDependencyError: TRL is not installed.
    """
    if importlib.util.find_spec("trl") is None:
        raise MissingDependencyError("TRL is not installed; `pip install trl` installs it.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL's words about its own plans
        from trl.trainer.grpo_trainer import GRPOTrainer
    here = _version()
    why = f"trl {here}" if here == TESTED else f"trl {here} is here; samepolicy is tested with {TESTED}"
    found, first = faults(GRPOTrainer), Check(name="version", status=_as(here == TESTED), why=why)
    return (first, *(_place(GRPOTrainer, name, found.get(name)) for name in PLACES))


def _as(same: bool) -> Literal["passed", "not checked"]:
    """What another version than the tested one is."""
    return "passed" if same else "not checked"


def _place(trainer: type, name: str, fault: str | None) -> Check:
    """One place that we stand around."""
    if fault is not None:
        return Check(name=f"call site {name}", status="failed", why=fault)
    line = inspect.getsourcelines(inspect.unwrap(getattr(trainer, name)))[1]
    return Check(name=f"call site {name}", status="passed", why=f"defined in line {line}, called by {PLACES[name][0]}")
