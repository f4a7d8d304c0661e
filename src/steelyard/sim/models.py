"""The models of a scenario: architecture and expert routing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from steelyard.errors import UserError, blaming
from steelyard.model import ModelSpec, MoeFfn, Routing, load_model, read_loads, serve_as
from steelyard.scenario import FileRouting, ModelRef, RoutingSpec, Scenario, ZipfRouting


@dataclass(frozen=True)
class ServedModel:
    """A model as engines serve it."""

    spec: ModelSpec
    routing: Routing


def find_served(wanted: ModelRef, base_dir: Path, place: str) -> ServedModel:
    """Read a model and, if given, the loads of its experts. ``place`` is its key, for error messages."""
    with blaming(place):
        model = serve_as(load_model(wanted.config, base_dir=base_dir), wanted.dtype, wanted.quantization)
    if wanted.routing is None:
        return ServedModel(model, Routing())
    return ServedModel(model, _routing(wanted.routing, model, base_dir, f"{place}.routing"))


def find_models(scenario: Scenario) -> dict[str, ServedModel]:
    """Every model that a pool serves, by the name that requests use; the scenario's own first."""
    found = {}
    own, source = scenario.model, scenario.source
    found[own.called] = find_served(own, scenario.base_dir, f"{source}: model")
    for pool in scenario.fleet.pools:
        if pool.model is not None and pool.model.called not in found:
            place = f"{source}: fleet.pools: {pool.name}.model"
            found[pool.model.called] = find_served(pool.model, scenario.base_dir, place)
    return found


def _routing(wanted: RoutingSpec, model: ModelSpec, base_dir: Path, place: str) -> Routing:
    """Expert routing. Refuses loads that do not fit the model's experts."""
    blocks = [layer.ffn for layer in model.layers if isinstance(layer.ffn, MoeFfn)]
    if not blocks:
        raise UserError(f"{place}: {model.name} has no routed experts; leave it out")
    if isinstance(wanted, ZipfRouting):
        return Routing(exponent=wanted.exponent)
    if not isinstance(wanted, FileRouting):
        return Routing()
    path = base_dir / wanted.path
    with blaming(f"{place}.path"):
        routing = Routing(loads=read_loads(path))
    with blaming(f"{place}.path: {path}"):
        for ffn in blocks:
            routing.chances(ffn.experts, ffn.top_k)
    return routing
