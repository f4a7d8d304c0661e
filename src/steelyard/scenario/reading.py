"""Reads a scenario file as plain data. Error messages have the line."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from steelyard.errors import UserError


class _Loader(yaml.SafeLoader):
    """YAML that refuses duplicate keys and reads ``1e6`` as a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge" or not isinstance(key_node, yaml.ScalarNode):
                continue
            line = key_node.start_mark.line + 1
            first = lines.setdefault(key_node.value, line)
            if first != line:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key_node.value!r} is given twice, first on line {first}",
                    problem_mark=key_node.start_mark,
                )
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_text(path: Path) -> str:
    """The file's text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give a scenario file (YAML or JSON)") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; give a scenario file (YAML or JSON) in it") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def parse(text: str, path: Path) -> dict[str, Any]:
    """The text's mapping."""
    data = _parse_json(text, path) if path.suffix.lower() == ".json" else _parse_yaml(text, path)
    if data is None:
        raise UserError(f"{path}: is empty; a scenario needs at least model, fleet and workload")
    if not isinstance(data, dict):
        raise UserError(f"{path}: holds {_kind(data)}; a scenario is a mapping with model, fleet and workload")
    return data


def parse_value(text: str) -> Any:
    """A value as it would read in a scenario file."""
    return yaml.load(text, Loader=_Loader)


def line_of(text: str, path: tuple[str | int, ...]) -> int | None:
    """The line of a key path, or of the longest part of it that exists."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError:
        return None
    line = None
    for part in path:
        if isinstance(node, yaml.MappingNode):
            pairs = [pair for pair in node.value if pair[0].value == str(part)]
            if not pairs:
                break
            line, node = pairs[0][0].start_mark.line + 1, pairs[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line


def _parse_yaml(text: str, path: Path) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        twice = isinstance(error, yaml.constructor.ConstructorError)
        raise UserError(f"{where}: {'' if twice else 'not valid YAML: '}{error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: a date that does not exist
        raise UserError(f"{path}: not valid YAML: {error}") from None


def _parse_json(text: str, path: Path) -> Any:
    if not text.strip():
        return None
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None


def _unique(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UserError(f"{path}: key {twice!r} is given twice")
    return mapping


def _kind(data: Any) -> str:
    return "a list" if isinstance(data, list) else f"only {data!r}"
