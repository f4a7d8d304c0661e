"""The kind of request that a study's template asks for."""

from __future__ import annotations

from steelyard.scenario.distributions import FixedTokens
from steelyard.search.estimates import MeanRequest
from steelyard.sim.setup import FleetSetup


def asked_of(setup: FleetSetup) -> MeanRequest:
    """The one kind of request of a template."""
    (spec,) = setup.scenario.workload.mix
    assert isinstance(spec.prompt, FixedTokens) and isinstance(spec.output, FixedTokens)
    return MeanRequest(spec.prompt.tokens, spec.output.tokens)
