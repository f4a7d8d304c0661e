"""Tables of the silicon database made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steelyard.cost.silicon import Database, Silicon, package_folder
from steelyard.cost.source import Floats
from steelyard.hardware import find_gpu, topology_of
from steelyard.validate.rival import Rival

H200 = find_gpu("h200")
NOBODY = Rival(None, "nobody asked")
needs_package = pytest.mark.skipif(package_folder() is None, reason="aiconfigurator-core is not installed")


def write(folder: Path, where: str, rows: list[dict[str, Any]]) -> None:
    path = folder / f"{where}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def silicon(folder: Path) -> Silicon:
    return Silicon(H200, topology_of(H200), Database(folder, "vllm"))


def seconds(source: Silicon, operator: Any, rows: Floats) -> Floats:
    found = source.rows(operator, rows)
    assert found is not None
    return found.seconds
