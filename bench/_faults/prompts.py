"""Mistakes in the ids that the trainer reads. Each maps the trainer and the ids to other ids."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from _faults.trainer import Trainer

Ids: TypeAlias = list[int]
ASSISTANT, USER = "<|im_start|>assistant\n", "<|im_start|>user\n"


def no_generation_prompt(trainer: "Trainer", ids: Ids) -> Ids:
    """The prompt without what opens the assistant's turn."""
    opening = trainer.tokenizer.encode(ASSISTANT, add_special_tokens=False)
    return ids[: -len(opening)] if ids[-len(opening) :] == opening else ids


def no_system(trainer: "Trainer", ids: Ids) -> Ids:
    """The prompt without its system turn."""
    text = trainer.tokenizer.decode(ids)
    return list(trainer.tokenizer.encode(text[text.index(USER) :], add_special_tokens=False))


def no_template(trainer: "Trainer", ids: Ids) -> Ids:
    """Only what the user said."""
    text = trainer.tokenizer.decode(ids)
    said = text[text.index(USER) + len(USER) :].partition("<|im_end|>")[0]
    return list(trainer.tokenizer.encode(said, add_special_tokens=False))


def more_bos(trainer: "Trainer", ids: Ids) -> Ids:
    """A BOS more."""
    return [trainer.tokenizer.bos_token_id, *ids]


def last(count: int) -> Callable[["Trainer", Ids], Ids]:
    """Only the last tokens of the prompt."""
    return lambda _, ids: ids[-count:]


def again(trainer: "Trainer", ids: Ids) -> Ids:
    """A response decoded to text and encoded again."""
    return list(trainer.tokenizer.encode(trainer.tokenizer.decode(ids), add_special_tokens=False))
