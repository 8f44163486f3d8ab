"""A run in memory: what both sides recorded about the same responses, as named columns of NumPy values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from samepolicy.arrays import Ragged, offsets_of
from samepolicy.errors import InputError, MissingColumnError, ShapeError
from samepolicy.records import lineup, merge
from samepolicy.records.align import align_all
from samepolicy.records.columns import Packed, pack, unpad
from samepolicy.records.side import Side


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """Responses with what the rollout engine and the trainer recorded about them.

    Build one with `Run.from_lists` or `Run.from_padded`; `schema.md` lists the columns.

    Attributes:
        columns: by name, `Ragged` where a response has a list of values, an array [responses] where it has one.
        rollout: what the rollout side declares about itself.
        trainer: what the trainer side declares about itself.
        info: anything else worth keeping, JSON-ready.

    >>> run = Run.from_lists(rollout_logp=[[-0.5, -1.0], [-2.0]], trainer_logp=[[-0.5, -1.1], [-2.0]])
    >>> len(run), run.tokens, run["trainer_logp"][0].tolist()
    (2, 3, [-0.5, -1.1])
    """

    columns: Mapping[str, Any] = field(default_factory=dict)
    rollout: Side = Side()
    trainer: Side = Side()
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Pack every column and refuse those that do not line up."""
        for name, kind in (("rollout", Side), ("trainer", Side), ("info", Mapping)):
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"{name} must be a {kind.__name__}, but it is {getattr(self, name)!r}.")
        columns = lineup.lined_up({name: pack(name, value) for name, value in self.columns.items()})
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "info", dict(self.info))

    @classmethod
    def from_lists(
        cls,
        *,
        response_ids: Any = None,
        rollout_logp: Any = None,
        trainer_logp: Any = None,
        prompt_ids: Any = None,
        mask: Any = None,
        rollout: Side = Side(),
        trainer: Side = Side(),
        info: Mapping[str, Any] | None = None,
        **columns: Any,
    ) -> Self:
        """A run from lists of sequences, each as long as its response.

        Args:
            response_ids: ids that the engine sampled, one int sequence per response.
            rollout_logp: the engine's log-probs of them in nats, one float sequence per response.
            trainer_logp: the trainer's log-probs of the same ids (or of `trainer_response_ids`, where given), in nats.
            prompt_ids: ids of the prompts, one int sequence per response.
            mask: 1 where the policy sampled the token, 0 elsewhere; all 1 where not given.
            rollout: what the rollout side declares about itself.
            trainer: what the trainer side declares about itself.
            info: anything else worth keeping, JSON-ready.
            **columns: any other column, known to the schema or not; None is "not given".

        Returns:
            The run; sequences may be lists, NumPy arrays or torch tensors, and float32 stays float32.

        Raises:
            ShapeError: columns that do not line up; the message names the sequence and both lengths.
            MaskError: a mask with other values than 0 and 1.

        >>> run = Run.from_lists(response_ids=[[5, 6], [7]], mask=[[1, 0], [1]], finish_reason=["stop", "length"])
        >>> run.lengths.tolist(), run.tokens
        ([2, 1], 2)
        """
        main = {"prompt_ids": prompt_ids, "response_ids": response_ids, "mask": mask}
        given = {**main, "rollout_logp": rollout_logp, "trainer_logp": trainer_logp, **columns}
        present = {name: value for name, value in given.items() if value is not None}
        return cls(present, rollout=rollout, trainer=trainer, info=info or {})

    @classmethod
    def from_padded(
        cls,
        *,
        mask: Any,
        rollout_logp: Any = None,
        trainer_logp: Any = None,
        response_ids: Any = None,
        rollout: Side = Side(),
        trainer: Side = Side(),
        info: Mapping[str, Any] | None = None,
        **columns: Any,
    ) -> Self:
        """A run from padded [batch, time] arrays (NumPy or torch).

        A row runs to its last position with mask 1, so right padding is cut; masked positions before that stay, with
        mask 0. A row without any 1 becomes an empty sequence.

        Args:
            mask: 1 where the policy sampled the token, 0 elsewhere, any dtype [batch, time].
            rollout_logp: the engine's log-probs in nats, float [batch, time].
            trainer_logp: the trainer's log-probs of the same ids in nats, float [batch, time].
            response_ids: ids that the engine sampled, int [batch, time].
            rollout: what the rollout side declares about itself.
            trainer: what the trainer side declares about itself.
            info: anything else worth keeping, JSON-ready.
            **columns: others, [batch, time] per token, [batch] per response, or lists of own length (prompt_ids).

        Raises:
            ShapeError: an array that is not shaped like the mask ([batch, 1] is refused, too).
            MaskError: a mask with other values than 0 and 1.

        >>> logp = np.array([[-1.0, -2.0, 0.0], [-3.0, 0.0, 0.0]])
        >>> run = Run.from_padded(rollout_logp=logp, trainer_logp=logp, mask=np.array([[1, 1, 0], [1, 0, 0]]))
        >>> run["rollout_logp"].values.tolist()
        [-1.0, -2.0, -3.0]
        """
        if columns.get("trainer_response_ids") is not None:
            raise InputError(
                "trainer_response_ids has lengths that the mask does not tell; cut the padding and use Run.from_lists."
            )
        named = {"response_ids": response_ids, "rollout_logp": rollout_logp, "trainer_logp": trainer_logp, **columns}
        packed = unpad(mask, {name: value for name, value in named.items() if value is not None})
        return cls(packed, rollout=rollout, trainer=trainer, info=info or {})

    @classmethod
    def concat(cls, runs: Sequence["Run"]) -> "Run":
        """The responses of several runs, one run after another.

        A float column that some runs lack is NaN there and a text column None; a missing mask is all 1, and missing
        trainer ids are the rollout's, as they are in a single run. `info` keeps what all runs agree on; coverage is
        added up.

        Raises:
            InputError: no run at all, sides that declare different things, or a column that cannot be missing.

        >>> a, b = Run.from_lists(rollout_logp=[[-1.0]]), Run.from_lists(rollout_logp=[[-2.0]], trainer_logp=[[-2.5]])
        >>> Run.concat([a, b])["trainer_logp"].values.tolist()
        [nan, -2.5]
        """
        if not runs:
            raise InputError("There is no run to concatenate; give at least one.")
        merge.check_sides(runs)
        columns = merge.columns([run.columns for run in runs])
        return cls(
            columns,
            rollout=runs[0].rollout,
            trainer=runs[0].trainer,
            info=merge.infos([(r.info, r.tokens) for r in runs]),
        )

    def __len__(self) -> int:
        """Number of responses."""
        return len(next(iter(self.columns.values()), ()))

    def __contains__(self, name: object) -> bool:
        """Whether the run has a column of this name."""
        return name in self.columns

    def __getitem__(self, name: str) -> Any:
        """The column of this name: `Ragged`, or an array [responses].

        Raises:
            MissingColumnError: the run has no such column; the message says which it has.
        """
        if name not in self.columns:
            has = ", ".join(sorted(self.columns)) or "none"
            raise MissingColumnError(f"This run has no column {name}; it has: {has}.")
        return self.columns[name]

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same columns (dtypes included, NaN equal to NaN), sides and info."""
        if not isinstance(other, Run):
            return NotImplemented
        mine, others = (self.rollout, self.trainer, self.info), (other.rollout, other.trainer, other.info)
        return mine == others and merge.same_columns(self.columns, other.columns)

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash

    def __str__(self) -> str:
        """What the run holds, in four lines."""
        names = ", ".join(self.columns) or "none"
        sides = {side: getattr(self, side).as_dict() for side in ("rollout", "trainer")}
        declared = [f"\n  {s}: " + (", ".join(f"{k}={v}" for k, v in d.items()) or "—") for s, d in sides.items()]
        return f"{self!r}\n  columns: {names}" + "".join(declared)

    def __repr__(self) -> str:
        """The size of the run in one line."""
        return f"Run({len(self)} responses, {self.tokens} valid of {int(self.lengths.sum())} tokens)"

    @property
    def offsets(self) -> np.ndarray:
        """Where each response begins among the packed tokens, and the end of the last, int64 [responses + 1]."""
        return lineup.offsets(self.columns)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each response, masked ones included, int64 [responses]."""
        return np.diff(self.offsets)

    @property
    def mask(self) -> Ragged:
        """True where the policy sampled the token; all true where the run has no mask column."""
        everywhere = Ragged(np.ones(self.offsets[-1], dtype=bool), self.offsets)
        mask: Ragged = self.columns.get("mask", everywhere)
        return mask

    @property
    def tokens(self) -> int:
        """Number of tokens that the policy sampled (mask 1)."""
        return int(self.mask.values.sum())

    def with_columns(self, **columns: Any) -> Self:
        """The same run with these columns added or replaced.

        >>> Run.from_lists(rollout_logp=[[-1.0]]).with_columns(reward=[0.5])["reward"].tolist()
        [0.5]
        """
        return replace(self, columns={**self.columns, **columns})

    def without(self, *names: str) -> Self:
        """The same run without these columns; a name that it does not have is no error."""
        return replace(self, columns={name: c for name, c in self.columns.items() if name not in names})

    def select(self, which: Any) -> Self:
        """Some of the responses: those at these indices (in that order), or where a boolean [responses] is true.

        `info["coverage"]` of an aligned run counts all of its responses, so it is dropped.

        Raises:
            ShapeError: a boolean of another length, or an index that the run does not have.

        >>> Run.from_lists(reward=[0.0, 1.0, 0.5]).select([2, 0])["reward"].tolist()
        [0.5, 0.0]
        """
        wanted = np.asarray(which)
        indices = wanted.astype(np.int64) if wanted.size == 0 and wanted.dtype.kind != "b" else wanted
        try:
            chosen = np.atleast_1d(np.arange(len(self))[indices])
        except IndexError as error:
            raise ShapeError(f"The run has {len(self)} responses, and the selection does not fit: {error}.") from error
        if chosen.ndim != 1:
            raise ShapeError(
                f"Choose responses by a list of indices or booleans, not by an array {list(wanted.shape)}."
            )
        columns = {name: _take(column, chosen) for name, column in self.columns.items()}
        info = {key: value for key, value in self.info.items() if key != "coverage"}
        return replace(self, columns=columns, info=info)

    def aligned(self) -> Self:
        """The run cut to the tokens that both sides have, where the trainer scored other ids.

        Each pair of `response_ids` and `trainer_response_ids` is matched by its longest common blocks; every per-token
        column is cut to the pairs and `trainer_response_ids` is dropped, so all lengths are equal. The response of an
        aligned run has gaps: measure it, but score the run it came from.

        Returns:
            The cut run; `info["coverage"]` counts valid tokens: `aligned` pairs, `rollout_tokens` and `trainer_tokens`
            before the cut. A run without `trainer_response_ids` is returned as it is.

        >>> run = Run.from_lists(response_ids=[[5, 6, 7]], rollout_logp=[[-1.0, -2.0, -3.0]],
        ...                      trainer_response_ids=[[5, 7]], trainer_logp=[[-1.0, -3.5]]).aligned()
        >>> run["rollout_logp"].values.tolist(), run["trainer_logp"].values.tolist(), run.info["coverage"]
        ([-1.0, -3.0], [-1.0, -3.5], {'aligned': 2, 'rollout_tokens': 3, 'trainer_tokens': 2})
        """
        if "trainer_response_ids" not in self:
            return self
        mine, theirs, pairs = align_all(self["response_ids"], self["trainer_response_ids"])
        valid, total = self.mask.values, int(self["trainer_response_ids"].offsets[-1])
        both = int(valid[mine].sum())
        coverage = {"aligned": both, "rollout_tokens": self.tokens, "trainer_tokens": total - (len(mine) - both)}
        places, offsets = {"token": mine, "trainer token": theirs}, offsets_of(pairs)
        cut = {
            name: Ragged(column.values[places[kind]], offsets)
            if (kind := lineup.kind_of(name, column)) in places
            else column
            for name, column in self.columns.items()
            if name != "trainer_response_ids"
        }
        return replace(self, columns=cut, info={**self.info, "coverage": coverage})


def _take(column: Packed, chosen: np.ndarray) -> Packed:
    """The entries of a column at these indices."""
    return column.take(chosen) if isinstance(column, Ragged) else column[chosen]
