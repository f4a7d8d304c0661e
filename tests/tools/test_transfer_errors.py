"""Transferred times against tables of the GPU itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from steelyard import UserError
from steelyard.cost.silicon import Database
from steelyard.hardware import find_gpu
from steelyard.validate import transfer
from support.known import known
from support.silicon_tables import write
from tools.transfer_errors import table

SIDES = (1024, 4096)


def rows(gpu: str) -> list[dict[str, Any]]:
    """Kernels that start in 4 µs and then move their bytes at the GPU's peak bandwidth."""
    bandwidth = find_gpu(gpu).memory_bandwidth
    return [
        {
            "gemm_dtype": "bfloat16",
            "m": m,
            "n": n,
            "k": k,
            "latency": 4e-3 + 2e3 * (n * k + m * (n + k)) / bandwidth,
        }
        for m in (1, 16)
        for n in SIDES
        for k in SIDES
    ]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for gpu in ("h100", "h200"):
        write(tmp_path, f"{gpu}/gemm/vllm/0.24.0/gemm_perf", rows(gpu))
    monkeypatch.setattr(transfer, "find_database", lambda gpu: Database(tmp_path / gpu, "vllm"))


def test_what_memory_bounds_is_transferred_exactly(tables: None) -> None:
    carried, own, tables_carried = known(transfer.transfer_errors("h100"))
    assert tables_carried["matrices, bfloat16"] == pytest.approx([0.0] * 8, abs=1e-9)
    assert len(carried["matrices, bfloat16"]) == len(own["matrices, bfloat16"]) == 8
    assert max(map(abs, own["matrices, bfloat16"])) > 0.01  # no real kernel moves its bytes at the peak


def test_the_table_has_a_row_for_each_kind(tables: None) -> None:
    lines = table("h100").splitlines()
    assert lines[0].startswith("| operators | points | our profile of the h200, transferred, to tables of the h100 |")
    assert (
        len(lines) == 3
        and lines[2].startswith("| matrices, bfloat16 | 8 | ")
        and lines[2].endswith("| 0.0%, 0.0%, +0.0% |")
    )


def test_without_tables_or_sibling_it_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "find_database", lambda _: None)
    with pytest.raises(UserError, match=r"steelyard\[silicon\]"):
        table("h100")
    with pytest.raises(UserError, match="b200 has no sibling with a profile"):
        table("b200")
