"""The columns of a run, as data: name, how long each entry is, dtype and meaning. `schema.md` shows this table."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["token", "trainer token", "own length", "response"]
"""How long one response's entry is.

- `token`: one value per token of `response_ids`.
- `trainer token`: one value per token of `trainer_response_ids` where the run has them, else of `response_ids`.
- `own length`: a list of any length.
- `response`: a single value.
"""

Dtype: TypeAlias = Literal["float", "int", "bool", "str", "label", "any"]
"""What the values are: `float` keeps float32 and float64, `int` is int64, `label` is int64 or str."""


@dataclass(frozen=True)
class Column:
    """One column of a run.

    Attributes:
        name: the column's name, in memory and in every file.
        kind: how long one response's entry is.
        dtype: what the values are.
        meaning: one line for people.
        wide: whether each token holds k values (top-k) instead of one.
        spread: whether one value per response is taken, too, and repeated over its tokens.
    """

    name: str
    kind: Kind
    dtype: Dtype
    meaning: str
    wide: bool = False
    spread: bool = False


_TABLE = (
    Column("prompt_ids", "own length", "int", "ids of the prompt as the rollout engine read it"),
    Column("response_ids", "token", "int", "ids of the response as the rollout engine sampled it"),
    Column("mask", "token", "bool", "1 where the policy sampled the token, 0 for tool output, padding and the like"),
    Column("rollout_logp", "token", "float", "log-prob of the token that the rollout engine recorded, in nats"),
    Column("trainer_logp", "trainer token", "float", "log-prob of the token that the trainer computed, in nats"),
    Column("trainer_prompt_ids", "own length", "int", "ids of the prompt as the trainer read it, where they differ"),
    Column(
        "trainer_response_ids", "own length", "int", "ids of the response as the trainer scored it, where they differ"
    ),
    Column("ref_logp", "token", "float", "log-prob under the reference policy of the KL penalty, in nats"),
    Column("current_logp", "token", "float", "log-prob under the policy being updated, in nats"),
    Column("trainer_entropy", "trainer token", "float", "entropy of the trainer's distribution at the token, in nats"),
    Column(
        "advantage",
        "token",
        "float",
        "advantage of the token; one per response (as in GRPO) is repeated over its tokens",
        spread=True,
    ),
    Column("turn", "token", "int", "number of the turn that the token belongs to, from 0"),
    Column("policy_version", "token", "int", "version of the weights that sampled the token"),
    Column("trainer_version", "response", "int", "version of the weights that the trainer scored the response with"),
    Column("rollout_top_ids", "token", "int", "the rollout engine's k most likely ids at the token", wide=True),
    Column("rollout_top_logp", "token", "float", "their log-probs in the rollout engine, in nats", wide=True),
    Column("trainer_top_ids", "trainer token", "int", "the trainer's k most likely ids at the token", wide=True),
    Column("trainer_top_logp", "trainer token", "float", "their log-probs in the trainer, in nats", wide=True),
    Column("rollout_routes", "token", "int", "the experts that the engine sent the token through, as one hash"),
    Column("trainer_routes", "trainer token", "int", "the experts that the trainer sent it through, as the same hash"),
    Column("prob_diff", "token", "float", "abs(exp(trainer) - exp(rollout)), all that verl's monitor folder holds"),
    Column(
        "rollout_reference_logp",
        "token",
        "float",
        "fp32 log-prob of the token under the rollout's declaration, in nats",
    ),
    Column(
        "trainer_reference_logp",
        "token",
        "float",
        "fp32 log-prob of the token under the trainer's declaration, in nats",
    ),
    Column("rollout_rounded_logp", "token", "float", "the same in the rollout's declared dtype, in nats"),
    Column("trainer_rounded_logp", "token", "float", "the same in the trainer's declared dtype, in nats"),
    Column(
        "cast_reference_logp", "token", "float", "fp32 log-prob with the weights cast to the declared dtype, in nats"
    ),
    Column("step", "response", "int", "training step that the response belongs to"),
    Column("sample", "response", "int", "number of the response within its step or group"),
    Column("group", "response", "label", "identity of the prompt; responses to one prompt share it"),
    Column("reward", "response", "float", "reward of the response"),
    Column("finish_reason", "response", "str", 'why sampling ended, such as "stop" or "length"'),
    Column("token_text", "token", "str", "the token as text"),
    Column("text", "response", "str", "the response as text"),
    Column("prompt_text", "response", "str", "the prompt as text"),
)

COLUMNS = {column.name: column for column in _TABLE}
"""Every column that samepolicy knows, by name; a run may hold others beside them."""


def table() -> str:
    """The columns as a Markdown table, as `schema.md` shows it.

    >>> print(table().splitlines()[4])
    | `mask` | token | bool | 1 where the policy sampled the token, 0 for tool output, padding and the like |
    """
    rows = ["| column | one value per | dtype | meaning |", "|---|---|---|---|"]
    for c in COLUMNS.values():
        rows.append(f"| `{c.name}` | {c.kind}{' × k' if c.wide else ''} | {c.dtype} | {c.meaning} |")
    return "\n".join(rows)
