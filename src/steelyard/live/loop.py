"""The event loop of gateways and controllers: uvloop, which spends less on each message than Python's own.

Engines and trainers keep Python's. Their timers matter more, and those of uvloop are whole milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import uvloop


def run_on_uvloop(main: Coroutine[Any, Any, None]) -> None:
    """Run it to its end."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)
