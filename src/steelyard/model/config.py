"""A Hugging Face config.json, read key by key with errors that name the file and the key."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from steelyard.errors import UserError, quoted, shown
from steelyard.files.jsontext import json_object

MOST_CONTEXT = 1_000_000_000  # tokens, as in scenarios
# The most that a key may say, many times what published models have. Longer stacks would take minutes to count.
_MOST = {
    "num_hidden_layers": 10_000,
    "num_nextn_predict_layers": 100,
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 16_384),
    "n_shared_experts": 1_000,
    **dict.fromkeys(("bits", "num_bits"), 16),
    **dict.fromkeys(("max_position_embeddings", "max_position_embedding"), MOST_CONTEXT),
    **dict.fromkeys(("original_max_position_embeddings", "sliding_window", "attention_chunk_size"), MOST_CONTEXT),
    **dict.fromkeys(("moe_num_shared_experts", "linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel"), 1_000),
}
_MOST_OTHERWISE = 10_000_000  # widths, heads and vocabularies
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
        value, most = self.get(key), _MOST.get(key, _MOST_OTHERWISE)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, value, f"a whole number from {least} to {most:,}")
        return value

    def number(self, key: str, least: float, most: float) -> float:
        value = self.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, value, f"a number from {least:g} to {most:,g}")
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
        return UserError(f"{self.source}: {self.prefix}{key}: found {quoted(value)}, expected {wanted}")

    def check_numbers(self) -> None:
        """Refuse infinite numbers and NaN under any key, also under those that are not used."""
        for key, value in self.data.items():
            if isinstance(value, float) and not isfinite(value):
                raise self.wrong(key, value, "a finite number")
            if isinstance(value, dict):
                Config(self.source, value, f"{self.prefix}{key}.").check_numbers()

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
    return Config(shown(path), json_object(path, "the config.json of a model"))
