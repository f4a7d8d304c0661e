"""What the core wants done. A driver carries commands out in order and reports what came of them as events.

Those of every turn are not frozen, as events are not (`events.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Cache = Literal["keep", "offload", "drop"]


@dataclass(slots=True)
class Place:
    """Run a trajectory's next turn on a replica. Engines that rank requests serve lower ``priority`` first.

    ``source`` is where its tokens are cached, on the GPU or in its host's memory, and none where they are nowhere. If
    that is another replica, they move along (``keep``), which the driver reports as ``Moved``, or are computed again
    (``drop``). Places never ask to ``offload``.
    """

    trajectory: str
    replica: int
    priority: int = 0
    source: int | None = None
    cache: Cache = "keep"


@dataclass(slots=True)
class Park:
    """What becomes of a trajectory's cached tokens while its tool runs."""

    trajectory: str
    cache: Cache


RolloutCommand = Place | Park
