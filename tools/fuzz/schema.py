"""Values that a JSON Schema describes: small ones where sizes are free, and at the limits now and then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from math import inf
from random import Random
from typing import Any, NamedTuple

from steelyard.hardware import gpu_names
from steelyard.model import model_names
from steelyard.scenario import json_schema
from steelyard.scenario.posttrain_loading import posttrain_schema

Schema = Mapping[str, Any]
Path = tuple[str, ...]

_DEEPEST = 7
_COUNTS = (1, 1, 2, 2, 3, 4, 8, 16, 40)
_WORK = {
    *("requests", "steps", "prompts", "group", "tasks", "duration", "replicas", "turns", "branches", "rounds", "units"),
    *("tp", "pp", "dp", "ep", "cp"),
}
_NUMBERS = (0.001, 0.1, 0.5, 1.0, 1.5, 2.0, 4.0, 20.0)


@cache
def serving() -> Schema:
    """The schema of serving scenarios."""
    return json_schema()


@cache
def posttraining() -> Schema:
    """The schema of post-training scenarios."""
    return posttrain_schema()


def resolved(root: Schema, schema: Schema) -> Schema:
    """The schema that a reference names."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema


def variants(root: Schema, schema: Schema) -> list[Schema]:
    """The alternatives of a schema, all resolved."""
    schema = resolved(root, schema)
    options = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return [each for option in options for each in variants(root, option)] if options else [schema]


def value_of(root: Schema, schema: Schema, r: Random, depth: int = 0, key: str = "") -> Any:
    """A value that the schema allows, or nearly: validators may know more than a schema can say."""
    options = variants(root, schema)
    if depth >= _DEEPEST:
        options = [each for each in options if each.get("type") not in ("object", "array")] or options
    chosen = r.choice(options)
    if "const" in chosen:
        return chosen["const"]
    if "enum" in chosen:
        return r.choice(chosen["enum"])
    kind = chosen.get("type")
    if kind == "object":
        return _mapping(root, chosen, r, depth)
    if kind == "array":
        return _list(root, chosen, r, depth, key)
    if kind == "string":
        return _text(r, key)
    if kind in ("integer", "number"):
        return _number(chosen, r, key)
    if kind == "boolean":
        return r.random() < 0.5
    return None


def _mapping(root: Schema, schema: Schema, r: Random, depth: int) -> dict[str, Any]:
    required = set(schema.get("required", ()))
    found = {}
    for name, inner in schema.get("properties", {}).items():
        if name in required or r.random() < 0.25:
            found[name] = value_of(root, inner, r, depth + 1, name)
    for inner in schema.get("patternProperties", {}).values():
        if r.random() < 0.3:
            found[f"{r.choice(('ttft', 'tpot', 'e2e'))}_p{r.randrange(1, 100)}"] = value_of(root, inner, r, depth + 1)
    return found


def _list(root: Schema, schema: Schema, r: Random, depth: int, key: str) -> list[Any]:
    fixed = schema.get("prefixItems")
    if fixed:
        return [value_of(root, inner, r, depth + 1, key) for inner in fixed]
    count = max(schema.get("minItems", 0), r.choice((0, 1, 1, 2, 3)))
    items = schema.get("items") or {"type": "integer"}
    return [value_of(root, items, r, depth + 1, key) for _ in range(count)]


def _text(r: Random, key: str) -> str:
    if key == "gpu":
        return r.choice(list(gpu_names()))
    if key in ("model", "draft_model", "name"):
        return r.choice(list(model_names()))
    return r.choice(("serve", "prefill", "decode", "a", "x", "400Gb", "search", "math"))


def _number(schema: Schema, r: Random, key: str) -> float:
    """Mostly small; sometimes at a limit, sometimes of any size that the limits leave.

    Amounts of work are small or beyond any limit: what is allowed may take long.
    """
    whole = schema["type"] == "integer"
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    chance = r.random()
    if key in _WORK:
        found = r.choice(_COUNTS) if chance < 0.85 else r.choice((least - 1, least, 10**9, 10**12, 10**18))
    elif chance < 0.15:
        found = r.choice([least, least + 1 if whole else least + 1e-9] + ([] if most is None else [most]))
    elif most is not None and most <= 1:
        found = r.uniform(least, most)
    elif chance < 0.45:
        found = min(least + 10 ** r.uniform(0 if whole else -15, 18), inf if most is None else most)
    else:
        found = r.choice(_COUNTS if whole else _NUMBERS)
    return int(found) if whole else float(found)


class Slot(NamedTuple):
    """A place of a scenario where a value stands or may stand."""

    container: Any
    key: Any
    path: Path
    schema: Schema


def slots(root: Schema, schema: Schema, data: Any, path: Path = ()) -> Iterator[Slot]:
    """Every place of some data, and every key that may be added."""
    for option in variants(root, schema):
        if isinstance(data, dict) and _fits(option, data):
            for name, inner in option["properties"].items():
                yield Slot(data, name, (*path, name), inner)
                if name in data:
                    yield from slots(root, inner, data[name], (*path, name))
        elif isinstance(data, list) and isinstance(option.get("items"), Mapping):
            for index, each in enumerate(data):
                yield Slot(data, index, (*path, str(index)), option["items"])
                yield from slots(root, option["items"], each, (*path, str(index)))


def _fits(option: Schema, data: Mapping[str, Any]) -> bool:
    """Whether a mapping is of this alternative: all its keys belong there, and its kind is this."""
    properties = option.get("properties", {})
    known = {*properties, "preset"}  # which schemas of expanded forms do not have
    if not properties or not (data.keys() <= known or "patternProperties" in option):
        return False
    return all(inner.get("const", data.get(name)) == data.get(name) for name, inner in properties.items())
