"""JSON that is the same bytes for the same run: key order as given, floats by repr, no NaN."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_CONTROLS = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def plain(value: Any) -> Any:
    """The value in JSON's own terms: NumPy scalars and arrays unpacked, NaN and infinities as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value


def readable(value: Any) -> str:
    """Indented JSON with a final newline, for files people open."""
    return _printable(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def compact(value: Any) -> str:
    """JSON without spaces, for data that only programs read."""
    return _printable(json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False))


def _printable(text: str) -> str:
    """JSON with escapes for controls that it would allow in strings, and for halves of characters."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def inside_html(value: Any) -> str:
    """Compact JSON that cannot close the script element it sits in, whatever names it carries."""
    text = compact(value)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def short(values: np.ndarray, digits: int = 5) -> list[float | None]:
    """Floats to so many significant digits: what a figure can show and no more."""
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in values.tolist()]
