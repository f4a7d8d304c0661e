"""Moves what SQLite has written ahead into its file, beside the writer and not in its transactions.

A checkpoint waits for the disk for as long as it takes, which is up to a tenth of a second. SQLite would do it within
whichever transaction comes next, while all clients wait.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import suppress
from pathlib import Path

LATEST = 16_000  # pages written ahead until SQLite does it itself after all
_PERIOD_SECONDS = 5.0  # chosen: some ten thousand events


async def checkpoint_forever(path: Path) -> None:
    """Do it from time to time until cancelled."""
    while True:
        await asyncio.sleep(_PERIOD_SECONDS)
        await asyncio.to_thread(_checkpoint, path)


def _checkpoint(path: Path) -> None:
    with suppress(sqlite3.Error):  # it is tried again, and the writer notices what is wrong with the file
        db = sqlite3.connect(path, isolation_level=None)
        try:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        finally:
            db.close()
