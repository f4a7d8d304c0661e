"""AIConfigurator's own predictions, to compare its errors with ours.

Its Python interface changes with every minor release, so only the release this was written for is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from steelyard.cost.silicon import SYSTEMS, find_database, package_folder
from steelyard.validate.silicon_points import Point

RELEASE = "0.12.0"
_KNOWN_AS = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
}


@dataclass(frozen=True)
class Rival:
    """AIConfigurator, or why it is not used."""

    ask: Callable[..., Any] | None
    note: str

    def predict(self, point: Point) -> tuple[float, float] | None:
        """Mean TTFT and TPOT in seconds, or None if it has no prediction.

        It is asked with the sample's data types, and if it refuses those, with its own choice.
        """
        name = _KNOWN_AS.get(point.model, point.model)
        package, database = package_folder(), find_database(point.gpu, point.engine)
        if self.ask is None or package is None or database is None or not point.aggregated:
            return None
        if not (package / "model_configs" / f"{name.replace('/', '--')}_config.json").is_file():
            return None  # it would download the model
        layout = point.layout
        asked: dict[str, Any] = {
            "model_path": name,
            "system_name": SYSTEMS[point.gpu],
            "backend_name": point.engine,
            "backend_version": database.origins("gemm", "gemm_perf")[0].version,
            "isl": point.isl,
            "osl": point.osl,
            "batch_size": point.concurrency,
            "tp_size": layout.tp,
            "moe_tp_size": layout.expert_tp or 1,
            "moe_ep_size": layout.expert_ep or 1,
        }
        named = {"gemm_quant_mode": point.gemm_dtype or None, "moe_quant_mode": point.expert_dtype or None}
        return self._answer(asked | named) or self._answer(asked)

    def _answer(self, asked: dict[str, Any]) -> tuple[float, float] | None:
        assert self.ask is not None
        try:
            found = self.ask(**asked)
        except (ValueError, RuntimeError, KeyError):  # its refusals: no data, or no room on the GPU
            return None
        return found.ttft * 1e-3, found.tpot * 1e-3


def find_rival() -> Rival:
    """AIConfigurator, if the supported release is installed."""
    try:
        installed = version("aiconfigurator")
    except PackageNotFoundError:
        return Rival(None, f"AIConfigurator's own prediction is left out: aiconfigurator {RELEASE} is not installed")
    if installed != RELEASE:
        return Rival(None, f"AIConfigurator's own prediction is left out: {installed} is installed, {RELEASE} is known")
    logging.getLogger("aiconfigurator").setLevel(logging.CRITICAL)
    logging.getLogger("aiconfigurator_core").setLevel(logging.CRITICAL)
    return Rival(import_module("aiconfigurator.cli.api").cli_estimate, f"AIConfigurator {RELEASE}")
