"""verl's load balancer: the calls of its clients, managers and trainers; and verl itself, where it is installed."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steelyard.errors import UserError
from steelyard.live.adapters.verl import SteelyardLoadBalancer

HANDLES = {"10.0.0.1:80": "actor a", "10.0.0.2:80": "actor b"}


def agent_turn(balancer: SteelyardLoadBalancer, trajectory: str, prompt: list[int]) -> str:
    """What verl's client does before a turn: it sends the fields that were asked for."""
    fields = {name: {"prompt_ids": prompt}[name] for name in balancer.require_acquire_fields()}
    server, handle = balancer.acquire_server(request_id=trajectory, **fields)
    assert handle == HANDLES[server]
    return server


def test_turns_of_a_trajectory_stay_and_groups_share_a_server() -> None:
    balancer = SteelyardLoadBalancer(servers=HANDLES, max_cache_size=100)
    assert balancer.require_acquire_fields() == ["prompt_ids"]
    assert balancer.require_release_fields() == ["request_id"]
    first = [agent_turn(balancer, f"one-{sample}", [1, 2, 3]) for sample in range(3)]
    other = [agent_turn(balancer, f"two-{sample}", [4, 5, 6]) for sample in range(3)]
    assert len(set(first)) == len(set(other)) == 1 and first[0] != other[0]
    assert balancer.get_status() == {
        "servers": {first[0]: 3, other[0]: 3},
        "total_inflight": 6,
        "active_servers": 2,
        "registered_handles": list(HANDLES),
    }
    balancer.release_server(server_id=first[0], request_id="one-0")
    balancer.release_server(server_id=first[0], request_id="one-0")
    balancer.release_server(server_id="gone", request_id="one-1")
    assert balancer.get_inflight_count(first[0]) == 2 and balancer.get_inflight_count("gone") == 0
    assert agent_turn(balancer, "one-0", [1, 2, 3, 9, 9]) == first[0]
    assert balancer.get_total_inflight() == 6


def test_hybrid_servers_come_and_go() -> None:
    balancer = SteelyardLoadBalancer({}, {"router": "least-outstanding"})
    assert balancer.require_acquire_fields() == []
    with pytest.raises(RuntimeError, match="No available servers in load balancer"):
        balancer.acquire_server("a")
    balancer.add_servers(HANDLES)
    balancer.add_servers(HANDLES)
    counted = Counter(agent_turn(balancer, str(place), []) for place in range(6))
    assert set(counted.values()) == {3}
    balancer.remove_servers(["10.0.0.2:80", "unknown"])
    assert balancer.get_all_servers() == ["10.0.0.1:80"]
    assert balancer.get_total_inflight() == 3  # what a server had counts no more, so that a drain ends
    balancer.release_server("10.0.0.2:80", "1")
    balancer.add_servers({"10.0.0.2:80": "actor b"})
    assert [agent_turn(balancer, f"new-{place}", []) for place in range(3)] == ["10.0.0.2:80"] * 3


def test_a_rebalance_places_all_anew() -> None:
    balancer = SteelyardLoadBalancer({"10.0.0.1:80": "actor a"}, {"router": "sticky"})
    for place in range(4):
        agent_turn(balancer, str(place), [])
    balancer.add_servers(HANDLES)
    assert agent_turn(balancer, "0", []) == "10.0.0.1:80"
    assert balancer.clear_sticky_cache() == {
        "cleared_entries": 4,
        "server_loads": {"10.0.0.1:80": 5, "10.0.0.2:80": 0},
    }
    assert agent_turn(balancer, "0", []) == "10.0.0.2:80"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"router": "lest-outstanding"}, "did you mean 'least-outstanding'"),
        ({"routr": "sticky"}, "did you mean 'router'"),
        ({"seed": "x"}, "seed: must be a whole number"),
        ({"sessions": True}, "sessions: must be a whole number"),
    ],
)
def test_mistakes_in_the_file_are_told(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        SteelyardLoadBalancer({}, settings)


# -- with verl itself -------------------------------------------------------------------------------------------------


def test_it_has_the_methods_of_verls_protocol() -> None:
    router = pytest.importorskip("verl.workers.rollout.router")
    methods = [
        (name, each)
        for name, each in inspect.getmembers(router.RequestLoadBalancer, inspect.isfunction)
        if not name.startswith("_")
    ]
    assert len(methods) == 10
    for name, theirs in methods:
        ours = inspect.signature(getattr(SteelyardLoadBalancer, name))
        wanted = [each for each in inspect.signature(theirs).parameters.values() if each.kind != each.VAR_KEYWORD]
        assert [each.name for each in wanted] == [each for each in ours.parameters if each in {w.name for w in wanted}]
        ours.bind(*[None] * len(wanted))
    keywords = inspect.signature(router.GlobalRequestLoadBalancer).parameters
    inspect.signature(SteelyardLoadBalancer).bind(**{name: 1 for name in keywords if name != "full_determinism"})
    public = {name for name in vars(router.GlobalRequestLoadBalancer) if not name.startswith("_")}
    assert public <= set(dir(SteelyardLoadBalancer))


def engine_server() -> type:
    """Stands for verl's server of an engine. Ray takes a class along if it is local."""

    class Server:
        def __init__(self, number: int) -> None:
            self._number = number

        async def generate(self, request_id: str, prompt_ids: list[int], **more: Any) -> Any:
            await asyncio.sleep(0.01)
            return SimpleNamespace(token_ids=[7], extra_fields={"server": self._number, "global_steps": 1})

    return Server


def test_verls_client_generates_through_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way in Ray: verl's factory, an actor made of the class, and verl's client with servers of our own."""
    router = pytest.importorskip("verl.workers.rollout.router")
    llm_server = pytest.importorskip("verl.workers.rollout.llm_server")
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token to the home folder
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    try:
        servers = {
            f"server-{place}": ray.remote(engine_server()).options(num_cpus=0).remote(place) for place in range(2)
        }
        file = tmp_path / "router.yaml"
        file.write_text("router_class: steelyard.live.adapters.verl.SteelyardLoadBalancer\nrouter: prefix-aware\n")
        by_file = router.get_router_handle(servers, router_config_path=str(file))
        by_class = router.get_router_handle(servers, load_balancer_cls=SteelyardLoadBalancer)
        for handle in (by_file, by_class):
            asyncio.run(_rollout(llm_server, handle))
            assert ray.get(handle.get_total_inflight.remote()) == 0
            assert ray.get(handle.clear_sticky_cache.remote())["cleared_entries"] == 8
        empty = router.get_router_handle({}, load_balancer_cls=SteelyardLoadBalancer)
        with pytest.raises(RuntimeError, match="No available servers in load balancer"):
            ray.get(empty.acquire_server.remote(request_id="a", prompt_ids=[1]))
    finally:
        ray.shutdown()


async def _rollout(llm_server: Any, handle: Any) -> None:
    """Two groups of four samples, three turns each."""
    rollout = SimpleNamespace(name="vllm", full_determinism=False)
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    client = llm_server.LLMServerClient(config, load_balancer_handle=handle)

    async def sample(group: int, place: int) -> list[int]:
        prompt, found = [group] * 20, []
        for _ in range(3):
            output = await client.generate(f"{group}-{place}", prompt_ids=prompt, sampling_params={})
            found.append(output.extra_fields["server"])
            prompt = [*prompt, *output.token_ids]
        return found

    visited = await asyncio.gather(*(sample(group, place) for group in range(2) for place in range(4)))
    assert all(len(set(servers)) == 1 for servers in visited)
    assert {servers[0] for servers in visited} == {0, 1}
