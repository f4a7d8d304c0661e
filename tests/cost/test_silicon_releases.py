"""NVIDIA's tables under the names of both packages: whichever is installed is read, and named with its release."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard.cost.silicon import find_silicon, package_folder
from steelyard.cost.silicon.database import PACKAGES, installed_release
from steelyard.hardware import topology_of
from steelyard.model import Gemm
from steelyard.validate.silicon_points import sample_file
from support.known import known
from support.silicon_tables import H200, write

MATRIX = Gemm("any", k=1024, n=2048, weight_bytes=2.0, compute="bf16")
ROWS = [
    {"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "latency": 0.004 + m * n * k * 1e-9}
    for m in (1, 16)
    for n in (1024, 2048)
    for k in (1024, 4096)
]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Installs a package with tables, under a distribution's name and version."""

    def make(package: str, distribution: str, version: str, *, tables: bool = True) -> None:
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").write_text("raise RuntimeError('only its files are read')\n")
        if tables:
            write(folder, "systems/data/h200_sxm/gemm/vllm/0.24.0/gemm_perf", ROWS)
        about = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        importlib.invalidate_caches()
        installed_release.cache_clear()

    monkeypatch.setattr("sys.path", [str(tmp_path), *_without_tables()])
    yield make
    installed_release.cache_clear()


def _without_tables() -> list[str]:
    """The import path, without folders that have the real tables."""
    import sys

    return [each for each in sys.path if not any((Path(each) / package).is_dir() for package in PACKAGES)]


@pytest.mark.parametrize(
    ("package", "distribution", "version"),
    [
        ("aiconfigurator_core", "aiconfigurator-core", "0.12.0"),
        ("aiconfigurator_core", "aisimulate", "0.12.0"),  # its first release keeps the older name inside
        ("aisimulate_core", "aisimulate", "0.13.0"),
    ],
)
def test_equal_rows_give_equal_times_and_the_release_is_named(
    install: Any, package: str, distribution: str, version: str
) -> None:
    install(package, distribution, version)
    source = known(find_silicon(H200, topology_of(H200)))
    assert source.name == f"silicon tables of h200 for vllm, {distribution} {version}"
    found = known(source.rows(MATRIX, np.array([16.0])))
    assert found.seconds == pytest.approx([4e-6 + 16 * 2048 * 1024 * 1e-12])


def test_the_later_package_is_read_if_both_are_there(install: Any) -> None:
    install("aiconfigurator_core", "aiconfigurator-core", "0.12.0")
    install("aisimulate_core", "aisimulate", "0.13.0")
    assert known(package_folder()).name == "aisimulate_core"
    assert known(find_silicon(H200, topology_of(H200))).name.endswith(", aisimulate 0.13.0")
    assert installed_release("aiconfigurator_core") == "aiconfigurator-core 0.12.0 or aisimulate 0.13.0"


def test_a_package_without_tables_does_not_hide_one_that_has_them(install: Any) -> None:
    install("aisimulate_core", "aisimulate", "0.12.1", tables=False)
    assert package_folder() is None
    install("aiconfigurator_core", "aisimulate", "0.12.1")
    assert known(package_folder()).name == "aiconfigurator_core"
    assert sample_file() is None  # the end-to-end points may be missing
