"""Makes a failing case small: drops options, keys and lines as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tools.fuzz.case import Case

_SECONDS = 60  # on one case at most, on the clock


def shrunk(case: Case, fails: Callable[[Case], bool], seconds: float = _SECONDS) -> Case:
    """The smallest case found that still fails. ``fails`` runs one."""
    until = time.monotonic() + seconds
    found, smaller = case, True
    while smaller:
        smaller = False
        for tried in _smaller(found):
            if time.monotonic() > until:
                return found
            if fails(tried):
                found, smaller = tried, True
                break
    return found


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with a part left out, large parts first."""
    for name in case.files:
        yield replace(case, files={other: content for other, content in case.files.items() if other != name})
    for count in (2, 1):
        for at in range(1, len(case.command) - count + 1):
            if case.command[at].startswith("-") or count == 1:
                yield replace(case, command=case.command[:at] + case.command[at + count :])
    for name, content in case.files.items():
        if content.kind != "file" or content.times > 1:
            continue
        rows = content.data.splitlines(keepends=True)
        size = max(1, len(rows) // 2)
        while size:
            for at in range(0, len(rows), size):
                kept = b"".join(rows[:at] + rows[at + size :])
                yield replace(case, files={**case.files, name: replace(content, data=kept)})
            size //= 2
