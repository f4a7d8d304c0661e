"""Finds the tables of the installed package, and reads parts of them.

AIConfigurator's last release is 0.12.0; AISimulate succeeds it. Its first release still has AIConfigurator's package
inside, later ones their own: same folders, same columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, reduce
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from operator import and_
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.files.finding import is_folder
from steelyard.files.tables import column_names, read_columns

# Packages that may hold the tables, the later first, and the distributions that may have brought them.
PACKAGES = {"aisimulate_core": ("aisimulate",), "aiconfigurator_core": ("aiconfigurator-core", "aisimulate")}
SYSTEMS = {
    "a100-80": "a100_sxm",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "gb200": "gb200",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
_SYSTEMS = Path("systems", "data")
Column = NDArray[Any]
Value = str | int


@dataclass(frozen=True)
class Origin:
    """One table: the engine whose kernels it timed, and its path."""

    engine: str
    version: str
    path: Path

    def __str__(self) -> str:
        return f"{self.engine} {self.version}"

    def read(self, *columns: str, **where: Value) -> dict[str, Column]:
        """Columns of the rows in which every given column has the given value."""
        import pyarrow.compute as pc

        wanted = [pc.field(key) == pc.scalar(value) for key, value in where.items()]
        return read_columns(self.path, columns, reduce(and_, wanted) if wanted else None)

    def has(self, column: str) -> bool:
        """Whether the table has a column."""
        return column in column_names(self.path)


@dataclass(frozen=True)
class Database:
    """The tables of one GPU."""

    folder: Path
    engine: str  # its tables are preferred
    release: str = ""  # the distribution that they came with

    def origins(self, family: str, table: str) -> tuple[Origin, ...]:
        """Every version of a table: the preferred engine's first, the newest of each first."""
        return _origins(self.folder / family, table, self.engine)


@cache
def _origins(family: Path, table: str, preferred: str) -> tuple[Origin, ...]:
    found = [
        Origin(path.parent.parent.name, path.parent.name, path) for path in sorted(family.glob(f"*/*/{table}.parquet"))
    ]
    found.sort(key=lambda each: _release(each.version), reverse=True)
    return tuple(sorted(found, key=lambda each: (each.engine != preferred, each.engine)))


def _release(version: str) -> tuple[int, ...]:
    """Numbers of a version in order, so that 1.3.0rc20 is after 1.3.0rc3."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def package_folder() -> Path | None:
    """Where the package with the tables is installed, if it is, without importing it."""
    for name in PACKAGES:
        spec = find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            if is_folder(Path(folder) / _SYSTEMS):
                return Path(folder)
    return None


@cache
def installed_release(package: str) -> str:
    """The distributions that may have brought a package, with their versions: two of them have the same one."""
    found = []
    for name in PACKAGES[package]:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return " or ".join(found)


def find_database(gpu: str, engine: str = "vllm") -> Database | None:
    """The tables of a GPU of our catalog, if the package is installed and has some."""
    package = package_folder()
    if package is None or gpu not in SYSTEMS:
        return None
    folder = package / _SYSTEMS / SYSTEMS[gpu]
    return Database(folder, engine, installed_release(package.name)) if is_folder(folder) else None


def seconds(latency: Column) -> NDArray[np.float64]:
    """The tables' milliseconds as seconds."""
    return latency.astype(np.float64) * 1e-3
