"""What a command writes must not be what it reads: a slip in a name would cost the user a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.errors import UserError, shown
from steelyard.files.finding import is_file, is_folder
from steelyard.files.folder import RESULT_FILES

if TYPE_CHECKING:
    from steelyard.scenario.base import Written

_PAGES = (".html", ".md")  # which no command reads: in an input folder they are of an earlier run


def keep_inputs(option: str, outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Raise UserError if an output of a command is one of its inputs, or a file in an input folder.

    ``option`` is how the user has named the outputs.
    """
    read = list(inputs)
    for output in outputs:
        if any(_is_of(output, each) for each in read):
            raise UserError(f"{option}: {shown(output)} is an input of this command; choose another name")


def keep_scenario(out: Path | None, file: Path, scenario: Written) -> None:
    """Raise UserError if a result in this folder would replace the scenario or a file that it names.

    Without a folder, a new one is made.
    """
    if out is not None:
        keep_inputs(f"--out {out}", map(out.joinpath, RESULT_FILES), scenario_inputs(file, scenario))


def scenario_inputs(file: Path, scenario: Written) -> list[Path]:
    """A scenario's file, and the files that it names under any key."""
    written = scenario.model_dump(mode="json", exclude={"name"})
    # Paths of models may start from the working directory, too.
    return [file, *_named(written, scenario.base_dir), *_named(written, Path())]


def _named(written: Any, base: Path) -> Iterator[Path]:
    if isinstance(written, str):
        if is_file(base / written):
            yield base / written
    elif isinstance(written, dict | list):
        for each in written.values() if isinstance(written, dict) else written:
            yield from _named(each, base)


def _is_of(output: Path, given: Path) -> bool:
    """Whether an output is a given file, by whatever name, or a file that a given folder has."""
    try:
        real = Path(os.path.realpath(output))
        if is_folder(given):
            within = real.is_relative_to(os.path.realpath(given))
            return within and is_file(output) and output.suffix not in _PAGES
        return real == Path(os.path.realpath(given)) or os.path.samefile(output, given)
    except (OSError, ValueError):  # one of them is not there
        return False
