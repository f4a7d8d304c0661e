"""Every key of a kind of scenario file, from its JSON Schema: type, default, unit and limits, part by part."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

Part = Mapping[str, Any]

_LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minItems": "at least {} entries",
    "maxItems": "at most {} entries",
}
_WORDS = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}


class Key(NamedTuple):
    """One key of a part of a scenario."""

    name: str
    type: str
    default: str
    unit: str
    limits: str
    meaning: str


class Section(NamedTuple):
    """A part of a scenario: its class, what it is, and its keys."""

    title: str
    summary: str
    keys: list[Key]


def sections(schema: Part, elsewhere: Collection[str] = (), page: str = "") -> list[Section]:
    """The whole file first, then every part in the order in which keys name them.

    Parts that are ``elsewhere`` are links to that ``page``.
    """
    reader = _Reader(schema["$defs"], elsewhere, page)
    found = [reader.section(schema, schema["title"])]
    for name in reader.named:  # grows while parts are read
        part = reader.definitions[name]
        if "properties" in part and name not in elsewhere:
            found.append(reader.section(part, name))
    return found


def heading(name: str) -> str:
    """``FixedTokens`` as a heading: Fixed tokens."""
    words = re.findall(r"[A-Z][a-z0-9]*", name.removesuffix("Spec")) or [name]
    return " ".join([words[0], *(word.lower() for word in words[1:])])


def anchor(name: str) -> str:
    """Its place on the page."""
    return heading(name).lower().replace(" ", "-")


class _Reader:
    def __init__(self, definitions: Part, elsewhere: Collection[str], page: str) -> None:
        self.definitions = definitions
        self._elsewhere = elsewhere
        self._page = page
        self.named: list[str] = []

    def section(self, part: Part, name: str) -> Section:
        required = part.get("required", ())
        keys = [self._key(key, each, key in required) for key, each in part["properties"].items()]
        keys += [self._key(_example_of(key), each, False) for key, each in part.get("patternProperties", {}).items()]
        return Section(name, " ".join(part.get("description", "").split()), keys)

    def _key(self, name: str, part: Part, required: bool) -> Key:
        default = "required" if required else self._default(part)
        limits = list(dict.fromkeys(self._limits(part)))
        if len({text.split()[0] for text in limits}) < len(limits):
            limits = []  # of several numbers that the key takes: those are told apart in its meaning
        return Key(
            name, self._type(part), default, self._unit(part) or "", ", ".join(limits), part.get("description", "")
        )

    def _type(self, part: Part) -> str:
        if "$ref" in part:
            return self._link(part["$ref"].rpartition("/")[2])
        variants = [each for each in (*part.get("anyOf", ()), *part.get("oneOf", ())) if each.get("type") != "null"]
        if variants:
            return self._any_of(variants)
        if "const" in part or "enum" in part:
            return ", ".join(f"`{each}`" for each in part.get("enum", [part.get("const")]))
        if part.get("type") == "array":
            places = part.get("prefixItems")
            if places:
                return "[" + ", ".join(map(self._type, places)) + "]"
            return f"list of {self._type(part.get('items', {}))}"
        if part.get("type") == "object":
            values = part.get("additionalProperties")
            return f"mapping to {self._type(values)}" if isinstance(values, Mapping) else "mapping"
        return _WORDS.get(part.get("type", ""), "anything")

    def _any_of(self, variants: list[Part]) -> str:
        """Types joined by "or"; parts that differ by their kind are listed by it."""
        shown: dict[str, None] = {}
        kinds = []
        for each in variants:
            name = each.get("$ref", "").rpartition("/")[2]
            kind = self.definitions[name].get("properties", {}).get("kind", {}) if name else {}
            if "const" in kind:
                self._link(name)
                kinds.append(f"[{kind['const']}]({self._place(name)})")
            else:
                shown[self._type(each)] = None
        if kinds:
            shown[f"kind {', '.join(kinds)}"] = None
        return " or ".join(shown)

    def _link(self, name: str) -> str:
        if name not in self.named:
            self.named.append(name)
        part = self.definitions[name]
        return f"[{heading(name)}]({self._place(name)})" if "properties" in part else self._type(part)

    def _place(self, name: str) -> str:
        return (self._page if name in self._elsewhere else "") + "#" + anchor(name)

    def _default(self, part: Part) -> str:
        value = part.get("default")
        if value is None:
            return ""
        return "its defaults" if isinstance(value, Mapping) and "kind" not in value else f"`{json.dumps(value)}`"

    def _unit(self, part: Part) -> str | None:
        if "unit" in part:
            return str(part["unit"])
        return next((unit for inner in _inner(part) if (unit := self._unit(inner)) is not None), None)

    def _limits(self, part: Part) -> Iterator[str]:
        for key, text in _LIMITS.items():
            if key in part and "prefixItems" not in part:
                yield text.format(_number(part[key]))
        for inner in _inner(part):
            yield from self._limits(inner)


def _inner(part: Part) -> Iterator[Part]:
    """Variants and entries of a part, without the parts of the scenario that it names."""
    yield from (*part.get("anyOf", ()), *part.get("oneOf", ()), *part.get("prefixItems", ()))
    yield from (part[key] for key in ("items", "additionalProperties") if isinstance(part.get(key), Mapping))


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1_000 <= value < 1e13 else f"{value:.10g}"


def _example_of(pattern: str) -> str:
    """A key that stands for all that a pattern allows."""
    return "METRIC_pNN, METRIC_mean" if "_(" in pattern else pattern
