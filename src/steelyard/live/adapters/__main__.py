"""``python -m steelyard.live.adapters STACK ENGINE...``"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from steelyard.errors import UserError
from steelyard.live.access import Access
from steelyard.live.adapters.shared import ADAPTER_ROUTERS
from steelyard.live.adapters.stacks import STACKS, serve_stack, stack_app
from steelyard.live.adapters.workers import WorkerFleet
from steelyard.live.rules import GatewayRules


def main() -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m steelyard.live.adapters",
        description="One address in front of engines, with all paths that a post-training stack asks for.",
    )
    parser.add_argument("stack", choices=sorted(STACKS))
    parser.add_argument("engines", nargs="*", help="Addresses of engines. slime registers its own.")
    parser.add_argument("--host", default="127.0.0.1", help="Address to listen at.")
    parser.add_argument("--port", type=int, default=8080, help="Port; 0 chooses a free one.")
    parser.add_argument("--router", default="prefix-aware", choices=ADAPTER_ROUTERS)
    parser.add_argument("--tokens", type=Path, help="File with a scope and a token on each line.")
    parser.add_argument("--trusted-network", action="store_true", help="Listen to other machines without tokens.")
    given = parser.parse_args()
    try:
        rules = GatewayRules(Access() if given.tokens is None else Access.read(given.tokens))
        fleet = WorkerFleet(given.engines, given.router)
        guarded = given.trusted_network or given.tokens is not None
        serving = serve_stack(
            stack_app(given.stack, fleet, rules),
            fleet,
            given.host,
            given.port,
            lambda port: print(f"{given.stack}: http://{given.host}:{port}, {given.router}", flush=True),
            guarded=guarded,
        )
        asyncio.run(serving)
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
