"""What reading a deployment gives: a scenario's data, and what had to be assumed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from steelyard.deploy.manifests import dumped
from steelyard.deploy.parts import comment
from steelyard.errors import UserError
from steelyard.hardware import Gpu, find_gpu

WORKLOAD: dict[str, Any] = {
    "arrivals": {"kind": "poisson", "rate": 4},
    "requests": 1000,
    "prompt": {"kind": "lognormal", "median": 900, "p95": 3000, "max": 16384},
    "output": {"kind": "lognormal", "median": 150, "p95": 600, "max": 2048},
}


@dataclass(frozen=True)
class ImportOptions:
    """What a deployment may not say, and the user does."""

    gpu: str | None = None
    replicas: int | None = None
    name: str = "imported"


@dataclass
class Remarks:
    """What a reader has to say beside what it read."""

    defaulted: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Imported:
    """A scenario's data. The workload in it is a stand-in."""

    data: dict[str, Any]
    remarks: Remarks
    stand_in: str = "The workload and its rate are"


def scenario_yaml(found: Imported) -> str:
    """The scenario file, with all remarks on top."""
    told = found.remarks
    lines = [
        "Read from a deployment by steelyard import.",
        f"{found.stand_in} a stand-in: replace them by yours.",
    ]
    for title, each in (
        ("Not in the deployment, so the engine's own defaults", told.defaulted),
        ("Assumed", told.assumed),
        ("Ignored, since it makes no difference here", told.ignored),
        ("WARNING: not simulated", told.warnings),
    ):
        unique = list(dict.fromkeys(each))
        if unique:
            lines += ["", f"{title}:", *(f"- {line}" for line in unique)]
    return comment(*lines) + dumped(found.data)


def gpu_of(told: object, asked: ImportOptions, where: str) -> Gpu:
    """The GPU type: as the deployment says, or the user."""
    if told is None and asked.gpu is None:
        raise UserError(f"{where}: does not say on which GPUs it runs; give --gpu, such as --gpu h200")
    return find_gpu(str(asked.gpu if told is None else told))
