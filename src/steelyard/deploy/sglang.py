"""Target sglang: ``sglang.launch_server`` for engines, ``sglang_router`` in front of them."""

from __future__ import annotations

from steelyard.deploy.fleets import EngineGroup
from steelyard.deploy.parts import Deployment
from steelyard.deploy.routers import SGLANG_ROUTER
from steelyard.deploy.scripts import Engines, scripts
from steelyard.deploy.sglang_flags import sglang_told
from steelyard.scenario import Scenario

VERSION = "SGLang 0.5.23 and sglang-router 0.3.2"


def sglang(scenario: Scenario) -> Deployment:
    """Scripts for SGLang's server."""
    return scripts(scenario, _ENGINES)


def _raw(group: EngineGroup) -> list[str]:
    port = ["--host 0.0.0.0", '--port "${PORT:-8000}"']
    if group.nodes == 1:
        return port
    master = '"${MASTER_ADDR:?the address of the first node}:20000"'
    return [*port, f"--nnodes {group.nodes}", '--node-rank "${NODE_RANK:-0}"', f"--dist-init-addr {master}"]


_ENGINES = Engines(
    target="sglang",
    title=VERSION,
    first_token="prefill",
    told=sglang_told,
    program=lambda group: ["python3", "-m", "sglang.launch_server", "--model-path", group.deployed],
    raw=_raw,
    before=lambda group: "",
    router=["python3", "-m", "sglang_router.launch_router"],
    policies=SGLANG_ROUTER,
    disaggregated="--pd-disaggregation",
    aware_of_ranks=lambda ranks: ("--dp-aware",),
)
