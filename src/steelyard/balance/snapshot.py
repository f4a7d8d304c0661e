"""The state of a core as bytes. A snapshot and the log since then are equivalent to the whole log."""

from __future__ import annotations

import io
import pickle
from typing import Any

from steelyard.balance import rollouts
from steelyard.balance.core import Core
from steelyard.errors import UserError

SCHEMA = 1
"""Of snapshots. A snapshot of another one is refused: replay the log from its beginning instead."""

_MARK = b"steelyard core %d\n" % SCHEMA
_OURS = ("steelyard.balance.", "steelyard.records.")
_OTHERS = {
    "builtins": {"dict", "frozenset", "getattr", "list", "range", "set", "tuple"},
    "collections": {"Counter", "OrderedDict", "defaultdict", "deque"},
    "functools": {"partial"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
}
"""Classes of other packages that a state contains."""


def snapshot(core: Core) -> bytes:
    """The state of a core. The core that `restore` makes of it decides as this one would."""
    if not (rollouts.__file__ or "").endswith(".py"):
        raise UserError("modules compiled by `make fast` cannot be saved; restore the core by replaying its log")
    return _MARK + pickle.dumps(core, protocol=5)


def restore(data: bytes) -> Core:
    """The core of a snapshot. Only classes of the core are unpickled."""
    if not data.startswith(_MARK):
        raise UserError(f"not a snapshot of the decision core of schema {SCHEMA}; replay its log from the beginning")
    core = _Reader(io.BytesIO(data[len(_MARK) :])).load()
    assert isinstance(core, Core), "the mark is only ever put before a core"
    return core


class _Reader(pickle.Unpickler):
    """Unpickles only the classes that a state contains."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(_OURS) or name in _OTHERS.get(module, ()):
            return super().find_class(module, name)
        raise UserError(f"a snapshot of the decision core has no {module}.{name}; is it one of ours?")
