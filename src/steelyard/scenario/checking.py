"""Validation of plain data as a scenario. All mistakes are in one message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from steelyard.errors import UserError
from steelyard.scenario.problems import Path, dotted, findings, listed

_Kind = TypeVar("_Kind", bound=BaseModel)


def checked(kind: type[_Kind], data: Mapping[str, Any], place: Callable[[Path], str]) -> _Kind:
    """The scenario in plain data. ``place`` tells where a key was written, such as a file and line."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        lines = [
            f"{place(path)}: {dotted(path)}: {sentence}" if path else f"{place(path)}: {sentence}"
            for path, sentence in findings(error, data)
        ]
        raise UserError(*listed(lines)) from None
