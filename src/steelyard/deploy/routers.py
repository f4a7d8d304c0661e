"""Routers of scenarios, and the nearest policies of the targets' own routers."""

from __future__ import annotations

from steelyard.deploy.parts import Note

VLLM_ROUTER = {
    "round-robin": "round_robin",
    "random": "random",
    "power-of-two": "power_of_two",
    "sticky": "consistent_hash",
    "prefix-aware": "cache_aware",
}
SGLANG_ROUTER = {
    "round-robin": "round_robin",
    "random": "random",
    "power-of-two": "power_of_two",
    "sticky": "manual",
    "prefix-aware": "cache_aware",
}
DYNAMO = {
    "round-robin": "round-robin",
    "random": "random",
    "power-of-two": "power-of-two",
    "least-outstanding": "least-loaded",
    "kv-aware": "kv",
}
_NEAREST = {  # of what a target may not have
    "least-outstanding": "power-of-two",
    "sticky-spill": "sticky",
    "sticky": "kv-aware",
    "prefix-aware": "kv-aware",
    "kv-aware": "prefix-aware",
    "slo-aware": "power-of-two",
}


def policy(router: str, key: str, known: dict[str, str], target: str) -> tuple[str, list[Note]]:
    """The target's policy, and a note if it is another than the one simulated."""
    nearest = router
    while nearest not in known:
        nearest = _NEAREST[nearest]
    if nearest == router:
        return known[router], []
    told = f"{router} was simulated, which {target} does not have; {known[nearest]} is the nearest"
    return known[nearest], [Note(key, told)]


def simulated(found: str, known: dict[str, str]) -> str | None:
    """The scenario's router for a target's policy."""
    return next((router for router, name in known.items() if name == found), None)
