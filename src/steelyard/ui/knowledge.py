"""What the editor completes from: the schemas of scenarios, and the names of the catalogs."""

from __future__ import annotations

from functools import cache
from typing import Any

from steelyard.hardware import gpu_names
from steelyard.model import model_names
from steelyard.scenario.load import json_schema, schema_of
from steelyard.scenario.posttrain_loading import posttrain_schema
from steelyard.scenario.search import SearchScenario
from steelyard.ui.checking import KINDS, ScenarioKind


@cache
def editor_knowledge() -> dict[str, Any]:
    """Schemas by kind of scenario, and what can be named under `gpu` and `model`."""
    schemas: dict[ScenarioKind, Any] = {
        "serving": json_schema(),
        "search": schema_of(SearchScenario, "Steelyard search"),
        "posttrain": posttrain_schema(),
        "learning": schema_of(KINDS["learning"], "Steelyard live scenario"),
    }
    return {"schemas": schemas, "gpus": list(gpu_names()), "models": model_names()}
