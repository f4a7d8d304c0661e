"""Builds the package. With STEELYARD_COMPILE=1 (`make fast`) the modules that simulations spend their time in are
compiled by mypyc: the same sources, the same bytes out, in less time."""

import os
import sys
from glob import glob

from setuptools import setup

HOT = (
    "engine/*",
    "engine/policies/*",
    "fleet/environment",
    "fleet/lockstep",  # has a kind of engine
    "cost/compiled",
    "balance/beginnings",
    "balance/core",
    "balance/inbox",
    "balance/placement",
    "balance/rounds/*",
    "balance/rollouts",
    "balance/line",
    "balance/events",
    "balance/commands",
    "balance/portable",
    "balance/route/*",
    "balance/route/rollout/*",
    "balance/route/serving/*",
    "balance/estimate/*",
    "posttrain/driver",
    "posttrain/rollout",
    "posttrain/replicas",
    "posttrain/turns",
    "posttrain/moves",
    "posttrain/attempt",
    "posttrain/engines",
    "posttrain/training/packing",
)
PLAIN = ("__init__.py", "queues.py")  # a queue takes methods over from deque in its body, which mypyc cannot compile


def hot_modules() -> list[str]:
    """Files to compile. What an interpreted class inherits from, or what is copied, must not be among them."""
    found = sorted(path for each in HOT for path in glob(f"src/steelyard/{each}.py"))
    return [path for path in found if not path.endswith(PLAIN)]


if os.environ.get("STEELYARD_COMPILE") == "1" and "bdist_wheel" in sys.argv:
    from mypyc.build import mypycify

    os.environ["CFLAGS"] = f"{os.environ.get('CFLAGS', '')} -ffp-contract=off"  # a * b + c is rounded twice everywhere
    setup(ext_modules=mypycify(hot_modules(), opt_level="3", debug_level="0"))
else:
    setup()
