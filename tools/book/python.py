"""The Python interface: public names of packages, with signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from typing import Any

from pydantic import BaseModel

PACKAGES = ("steelyard", "steelyard.posttrain", "steelyard.deploy")
"""Whose ``__all__`` is public. Everything else may change without notice."""


def api_sections() -> str:
    """A section for each package."""
    return "\n".join("\n".join(_package(name)) for name in PACKAGES).rstrip() + "\n"


def _package(name: str) -> Iterator[str]:
    module = import_module(name)
    yield f"## {name}\n"
    for public in sorted(module.__all__):
        if not public.startswith("__"):
            yield from _named(public, getattr(module, public))


def _named(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield f"### {name}\n"
        yield _text(value) + "\n"
        if not issubclass(value, BaseModel | BaseException):
            yield from _members(value)
    elif callable(value):
        yield f"### {name}\n"
        yield f"    {name}{_signature(value)}\n"
        yield _text(value) + "\n"


def _members(kind: type) -> Iterator[str]:
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    rows = [f"| `{each.name}` | `{each.type}` |" for each in fields if not each.name.startswith("_")]
    for name, member in inspect.getmembers_static(kind):
        function = _function(member)
        if name.startswith("_") or function is None:
            continue
        is_method = callable(member) or isinstance(member, classmethod | staticmethod)
        shown = name + (_signature(function, not isinstance(member, staticmethod)) if is_method else "")
        rows.append(f"| `{shown}` | {_first_paragraph(function)} |")
    if rows:
        yield "\n".join(["| member | type, or meaning |", "| --- | --- |", *rows]) + "\n"


def _function(member: Any) -> Any:
    """The function behind a method or a property; None of other members."""
    if isinstance(member, classmethod | staticmethod):
        return member.__func__
    if isinstance(member, property):
        return member.fget
    if isinstance(member, cached_property):
        return member.func
    return member if inspect.isfunction(member) else None


def _first_paragraph(function: Any) -> str:
    return " ".join(_text(function).partition("\n\n")[0].split()).replace("|", "\\|")


def _signature(function: Any, bound: bool = False) -> str:
    parameters = list(inspect.signature(function).parameters.values())[int(bound) :]
    shown = [str(each.replace(annotation=_Shown(each.annotation), default=_shown_default(each))) for each in parameters]
    star = next((i for i, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None)
    if star is not None and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
        shown.insert(star, "*")
    return f"({', '.join(shown)})"


def _shown_default(parameter: inspect.Parameter) -> Any:
    """A default, without the address of a function."""
    return ... if callable(parameter.default) and parameter.default is not parameter.empty else parameter.default


class _Shown:
    """An annotation as it is written in the source."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation

    def __repr__(self) -> str:
        return str(self.annotation)


def _text(value: Any) -> str:
    return inspect.getdoc(value) or ""
