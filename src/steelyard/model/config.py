"""A Hugging Face config.json, read key by key with errors that name the file and the key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.errors import UserError

_INHERITED = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")


@dataclass(frozen=True)
class Config:
    """The keys of one config.json (or of its `text_config`), with checked access.

    A null counts as absent: that is how Hugging Face writes "use the default".
    """

    source: str
    data: dict[str, Any]
    prefix: str = ""

    def has(self, key: str) -> bool:
        return self.data.get(key) is not None

    def get(self, key: str) -> Any:
        """The raw value of a key that must be there."""
        if not self.has(key):
            raise UserError(f"{self.source}: missing key '{self.prefix}{key}'")
        return self.data[key]

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`; without a default the key is required."""
        if default is not None and not self.has(key):
            return default
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(key, value, f"a whole number of at least {least}")
        return value

    def number(self, key: str) -> float:
        value = self.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.wrong(key, value, "a number above zero")
        return value

    def flag(self, key: str, default: bool) -> bool:
        if not self.has(key):
            return default
        value = self.data[key]
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        if not self.has(key):
            return default
        value = self.data[key]
        if not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def section(self, key: str) -> Config | None:
        """A nested object, or None when it is absent."""
        if not self.has(key):
            return None
        value = self.data[key]
        if not isinstance(value, dict):
            raise self.wrong(key, value, "an object")
        return Config(self.source, value, f"{self.prefix}{key}.")

    def wrong(self, key: str, value: object, wanted: str) -> UserError:
        return UserError(f"{self.source}: {self.prefix}{key}: found {value!r}, expected {wanted}")

    @property
    def text_part(self) -> Config:
        """The language model of a multimodal config; the config itself otherwise.

        Dtype and quantisation are written once at the top, so the text part inherits them.
        """
        text = self.section("text_config")
        if text is None:
            return self
        inherited = {key: self.data[key] for key in _INHERITED if self.has(key) and not text.has(key)}
        return Config(text.source, {**text.data, **inherited}, text.prefix)


def read_json(path: Path) -> Config:
    """Parse a config file; anything that is not a JSON object is the user's mistake."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: line {error.lineno}: not valid JSON ({error.msg})") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as a config.json ({error})") from error
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a JSON object with a model's configuration")
    return Config(str(path), data)
