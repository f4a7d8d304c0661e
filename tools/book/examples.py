"""An example of every key, by part of a scenario."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from steelyard.files.yamltext import read_yaml

_FILE = Path(__file__).with_name("examples.yaml")


@cache
def _all() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = read_yaml(_FILE)
    return found


def examples(part: str) -> dict[str, str]:
    """The examples of a part, as they would be written behind the key."""
    return _all().get(part, {})
