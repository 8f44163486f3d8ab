"""Other versions of one transformers model: in other arithmetic, with other weights, or with other config fields."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from samepolicy.engines import hf_load
from samepolicy.engines.change import UNCHANGED, Change
from samepolicy.engines.hf_change import changed
from samepolicy.engines.hf_options import Options, read
from samepolicy.errors import EngineError


class Variants:
    """What makes a model's variants; what they begin with is kept, since they come in series."""

    def __init__(self, path: str, model: Any, options: Options) -> None:
        """Take a model as it was read from a path with some options."""
        self._path, self._model, self._options = path, model, options
        self._last: dict[str, tuple[Any, Any]] = {}

    def make(self, options: Options, change: Change) -> Any:
        """The model with the dtypes of other options, and changed.

        Raises:
            EngineError: config fields are to be changed while an adapter is not merged.
            InputError: the change does not fit the model.
        """
        if change.config and change.adapter and self._options.adapter:
            raise EngineError("Config fields can be changed only where the adapter is merged into the weights.")
        if change == UNCHANGED:
            return self._plain(options)
        if change.same_weights:
            key = options.dtype, options.weights_dtype
            plain = self._held("plain", key, lambda: self._plain(options))
            return changed(plain if change.config else copy.deepcopy(plain), change)
        return _cast(changed(self._exact(change), change, self._other(change.weights)), options)

    def check_weights(self, path: str) -> None:
        """Refuse a folder whose config or files are not of this model."""
        hf_load.check_files(path, self._model, trust_remote_code=self._options.trust_remote_code)

    def _plain(self, options: Options) -> Any:
        """The model in other arithmetic; read again where the weights in hand are rounded to something else."""
        if self._rounded not in ("float32", options.weights_dtype or options.dtype):
            return read(self._path, options)
        return _cast(copy.deepcopy(self._model), options)

    def _exact(self, change: Change) -> Any:
        """A model to change: a copy of this one, or of its files where these weights are rounded or adapted."""
        plain = change.adapter or self._options.adapter is None
        if self._rounded == "float32" and plain:
            return copy.deepcopy(self._model)
        kept = self._options.adapter if change.adapter else None
        options = replace(self._options, dtype="auto", weights_dtype=None, adapter=kept)
        return copy.deepcopy(self._held("exact", kept, lambda: read(self._path, options)))

    def _other(self, path: str | None) -> Any:
        """The model that weights are taken from; None where none are."""
        return None if path is None else self._held("other", path, lambda: self._read_other(path))

    def _read_other(self, path: str) -> Any:
        """The same, checked and read."""
        self.check_weights(path)
        trust = self._options.trust_remote_code
        return hf_load.read_model(path, dtype="auto", attention=None, trust_remote_code=trust)

    def _held(self, what: str, key: Any, make: Callable[[], Any]) -> Any:
        """What was made last of a kind; made now if it is another."""
        if what not in self._last or self._last[what][0] != key:
            self._last.pop(what, None)
            self._last[what] = key, make()
        return self._last[what][1]

    @property
    def _rounded(self) -> str:
        """The dtype that the weights in hand are rounded to."""
        return self._options.weights_dtype or hf_load.dtype_name(self._model)


def _cast(model: Any, options: Options) -> Any:
    """A model rounded to the weights' dtype and cast to its own, in place."""
    for step in (options.weights_dtype or options.dtype, options.dtype):
        hf_load.cast(model, step)
    return model
