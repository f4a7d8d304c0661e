"""Probes beside published weights. The controller reads them, and has no need of torch for that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steelyard.files.jsontext import json_object
from steelyard.files.writing import write_text
from steelyard.live.engines.probe import WeightProbe
from steelyard.records.jsontext import readable

PROBES = "probes.json"


def write_probes(path: Path, probes: Sequence[WeightProbe]) -> None:
    """Write the probes of weights into their folder."""
    rows = [
        {"tokens": list(each.tokens), "logprobs": list(each.logprobs), "before": list(each.before)} for each in probes
    ]
    write_text(path / PROBES, readable({"probes": rows}))


def read_probes(path: Path) -> list[WeightProbe]:
    """The probes that were published with weights."""
    rows = json_object(path / PROBES, "probes of published weights")["probes"]
    return [WeightProbe(tuple(row["tokens"]), tuple(row["logprobs"]), tuple(row["before"])) for row in rows]
