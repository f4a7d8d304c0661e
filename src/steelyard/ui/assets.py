"""The built front end, read once from the package."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from steelyard.files.reading import read_bytes

_STATIC = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
INDEX = "index.html"


@dataclass(frozen=True)
class Asset:
    """A file and its type."""

    content: bytes
    type: str


@cache
def assets() -> dict[str, Asset]:
    """All files but the page itself, by name."""
    names = sorted(each.name for each in _STATIC.iterdir() if each.suffix in _TYPES)
    return {name: Asset(read_bytes(_STATIC / name), f"{_TYPES[Path(name).suffix]}; charset=utf-8") for name in names}


@cache
def _index() -> str:
    return read_bytes(_STATIC / INDEX).decode()


def page() -> tuple[str, str]:
    """The page, and its Content-Security-Policy. The editor adds its styles with a nonce; scripts are files of ours."""
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return _index().replace("{{nonce}}", nonce), policy
