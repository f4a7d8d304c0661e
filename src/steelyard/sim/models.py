"""The models that a scenario names, read: what they are, and how their experts are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from steelyard.errors import UserError, blaming
from steelyard.model import ModelSpec, MoeFfn, Routing, load_model, read_loads, serve_as
from steelyard.scenario import FileRouting, ModelRef, RoutingSpec, Scenario, ZipfRouting


@dataclass(frozen=True)
class Served:
    """A model as engines serve it."""

    spec: ModelSpec
    routing: Routing


def find_served(wanted: ModelRef, base_dir: Path, place: str) -> Served:
    """Read a model, and the loads of its experts where a file has them; ``place`` is the key that names it."""
    with blaming(place):
        model = serve_as(load_model(wanted.config, base_dir=base_dir), wanted.dtype, wanted.quantization)
    if wanted.routing is None:
        return Served(model, Routing())
    return Served(model, _routing(wanted.routing, model, base_dir, f"{place}.routing"))


def find_models(scenario: Scenario) -> dict[str, Served]:
    """Every model that a pool serves, by what requests call it; the scenario's own first."""
    found = {}
    own, source = scenario.model, scenario.source
    found[own.called] = find_served(own, scenario.base_dir, f"{source}: model")
    for pool in scenario.fleet.pools:
        if pool.model is not None and pool.model.called not in found:
            place = f"{source}: fleet.pools: {pool.name}.model"
            found[pool.model.called] = find_served(pool.model, scenario.base_dir, place)
    return found


def _routing(wanted: RoutingSpec, model: ModelSpec, base_dir: Path, place: str) -> Routing:
    """How experts are chosen; refuses loads of another model's experts."""
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
