"""Recorded requests: one reader per format, all giving the same columns.

A request has at least one prompt token and one output token: a 0 in a file counts as 1, and a note of the workload says
how often. Missing times are NaN.
"""

from __future__ import annotations

from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.jsontext import parse_json
from steelyard.files.reading import text_lines
from steelyard.workload.columns import Workload
from steelyard.workload.traces.azure import read_azure
from steelyard.workload.traces.bench import read_bench
from steelyard.workload.traces.capture import read_capture
from steelyard.workload.traces.gateway import read_gateway
from steelyard.workload.traces.mooncake import read_mooncake

READERS = {
    "azure": read_azure,
    "mooncake": read_mooncake,
    "vllm-bench": read_bench,
    "capture": read_capture,
    "gateway": read_gateway,
}
"""By format. `TraceFormat` of the scenario has the same names, and ``auto``."""


def read_trace(path: Path, form: str = "auto", limit: int | None = None) -> Workload:
    """The requests of a trace (the first ``limit`` of them), in the file's order."""
    return READERS[_detected(path) if form == "auto" else form](path, limit)


def _detected(path: Path) -> str:
    """The format, by the first line that is not blank."""
    first = next((line for _, line in text_lines(path)), "")
    if not first.startswith(("{", "[")):
        return "azure"
    try:
        row = parse_json(first, "")
    except UserError:  # the reader says where
        return "vllm-bench" if ".jsonl" in path.suffixes else "capture"
    if not isinstance(row, dict) or "requests" in row:
        return "capture"
    if "session" in row and "prompt_tokens" in row:
        return "gateway"
    return "mooncake" if "hash_ids" in row else "vllm-bench"
