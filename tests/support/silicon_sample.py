"""A sample of end-to-end points made by hand, in place of the one of the installed package."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from steelyard.validate import silicon_points
from steelyard.validate.silicon_points import Point, read_points

_DEGREES = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
COLUMNS = (
    *("id", "silicon_data_source", "backend", "backend_version", "model_path", "system", "precision", "mode"),
    *("isl", "osl", "gemm_quant_mode", "moe_quant_mode", "batch_size", "tp_size", "pp_size", "attention_dp_size"),
    *("moe_tp_size", "moe_ep_size", "silicon_ttft_ms", "silicon_tpot_ms"),
    *(f"{role}_{size}" for role in ("prefill", "decode") for size in ("batch_size", "num_workers", *_DEGREES)),
)
ROW = {
    "silicon_data_source": "source_file=2026-04-06.csv; silicon_concurrency=4",
    "backend": "vllm",
    "backend_version": "0.18.0",
    "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "system": "h200_sxm",
    "mode": "agg",
    "isl": "1000",
    "osl": "100",
    "batch_size": "4.0",
    "tp_size": "1.0",
    "pp_size": "1.0",
    "moe_tp_size": "1.0",
    "moe_ep_size": "1.0",
    "silicon_ttft_ms": "60",
    "silicon_tpot_ms": "9",
}


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a package with the given rows of a sample in it."""

    def make(*rows: dict[str, str]) -> list[Point]:
        (tmp_path / "systems").mkdir(exist_ok=True)
        with (tmp_path / "systems" / "silicon_sample.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows({"id": f"row{i}", **ROW, **row} for i, row in enumerate(rows))
        monkeypatch.setattr(silicon_points, "package_folder", lambda: tmp_path)
        return read_points()

    return make
