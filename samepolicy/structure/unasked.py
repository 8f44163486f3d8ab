"""What an engine would do to the distribution unasked: settings that nobody wrote into a request."""

from typing import Any

from samepolicy.records.run import Run
from samepolicy.records.side import Side


def unasked(run: Run) -> tuple[str, ...]:
    """Sentences about settings that an engine takes by itself where a client leaves them out.

    samepolicy says every setting, so none of them reached this run; whoever samples without saying them gets them.

    >>> side = Side(engine="vllm", extra={"generation_config_not_applied": {"temperature": 0.6}})
    >>> unasked(Run(rollout=side))[0]
    'The generation_config.json of the rollout asks for temperature 0.6: not applied here, but vLLM applies it unasked.'
    """
    found = [text for name, side in (("rollout", run.rollout), ("trainer", run.trainer)) for text in _of(name, side)]
    return tuple(found)


def _of(name: str, side: Side) -> list[str]:
    """The sentences about one side."""
    found = []
    config = side.extra.get("generation_config_not_applied") or side.extra.get("generation_config")
    if isinstance(config, dict) and config:
        who = {"vllm": "vLLM", "hf": "generate()", "sglang": "SGLang"}.get(side.engine or "", "its engine")
        found.append(
            f"The generation_config.json of the {name} asks for {_told(config)}: not applied here, "
            f"but {who} applies it unasked."
        )
    defaults = str(side.extra.get("server_defaults", "neutral"))
    if defaults.startswith("not neutral"):
        found.append(
            f"The {name}'s server reshapes the distribution of a client that leaves its sampling settings out "
            "(seen by asking it); send every setting, as was done here."
        )
    return found


def _told(config: dict[str, Any]) -> str:
    """Settings in words."""
    return ", ".join(f"{key} {value}" for key, value in config.items())
