"""The report of an internal error."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Sequence

from steelyard import __version__
from steelyard.quoting import printable


def write_report(error: BaseException, arguments: Sequence[str]) -> str:
    """Write a report to a new file of the temporary folder that only the user can read; its path."""
    handle, path = tempfile.mkstemp(prefix="steelyard-crash-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"steelyard {__version__}, Python {platform.python_version()}, {platform.platform()}\n")
        file.write(f"arguments: {printable(repr([*sys.argv[:1], *arguments]))}\n\n")
        file.writelines(traceback.format_exception(error))
    return path
