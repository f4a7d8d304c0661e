"""A run on a Ray cluster of three nodes, two of which are lost: `python -m tools.lost_nodes`

The nodes are on this machine, at loopback addresses of their own, and share a folder as machines would. Parts of a lost
node come back on others, at other addresses. At the end the log is decided again, and every step must be whole.
"""

from __future__ import annotations

import sqlite3
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ray.cluster_utils import Cluster
from rich.console import Console
from rich.table import Table

from steelyard.balance.log import read_header, replay
from steelyard.live.access import make_tokens
from steelyard.live.addresses import TOKENS
from steelyard.live.emulated.run import EmulatedRun
from steelyard.live.figures import live_figures
from steelyard.live.ray_cluster import run_on_ray
from steelyard.live.store import log_rows
from steelyard.scenario import posttrain_from_dict

_SPEED = 5.0
_LOST_AFTER = (60, 150)  # events
SCENARIO: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 2, "group": 4},
    "mode": "asynchronous",
    "rollout": [{"tp": 1, "replicas": 2}],
    "training": {"dp": 1},
    "steps": 12,
    "seed": 3,
}


class Loss(NamedTuple):
    """A node that was lost: when, with which parts, and when all of them had other addresses."""

    host: str
    parts: list[str]
    at: float
    elsewhere: float


def main() -> None:
    """Run it and print what happened."""
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "node_ip_address": "127.0.0.2"})
    nodes = [cluster.add_node(num_cpus=1, node_ip_address=f"127.0.0.{number}") for number in (3, 4)]
    cluster.wait_for_nodes()
    losses: list[Loss] = []
    with tempfile.TemporaryDirectory() as folder:
        run = EmulatedRun.at_free_ports(posttrain_from_dict(SCENARIO), Path(folder), _SPEED)
        run.write()
        make_tokens(run.folder / TOKENS)
        losing = threading.Thread(target=_lose, args=(run, cluster, nodes, losses))
        losing.start()
        run_on_ray(run, cluster.address)
        losing.join()
        cluster.shutdown()
        found, times = checked(run), event_times(run, _SPEED)
    table = Table("lost node", "its addresses", "all elsewhere after, s", "longest pause of events, s", box=None)
    for each in losses:
        near = [at for at in times if each.at - 1 < at < each.at + 30]
        pause = max(after - before for before, after in pairwise(near))
        table.add_row(each.host, ", ".join(each.parts), f"{each.elsewhere - each.at:.1f}", f"{pause:.1f}")
    console = Console()
    console.print(table)
    console.print(found)


def _lose(run: EmulatedRun, cluster: Any, nodes: list[Any], losses: list[Loss]) -> None:
    for node, count in zip(nodes, _LOST_AFTER, strict=True):
        while len(event_times(run, _SPEED)) < count:
            time.sleep(0.1)
        host, at = node.node_ip_address, time.time()
        parts = _addresses_at(run, host)
        cluster.remove_node(node, allow_graceful=False)
        while _addresses_at(run, host):
            time.sleep(0.1)
        losses.append(Loss(host, parts, at, time.time()))


def _addresses_at(run: EmulatedRun, host: str) -> list[str]:
    """Names of the addresses at a host."""
    engines = {str(port): f"engine-{number}" for number, port in enumerate(run.engines)}
    found = sorted((run.folder / "addresses").iterdir())
    return [engines.get(path.name, path.name) for path in found if path.read_text().startswith(f"{host}:")]


def event_times(run: EmulatedRun, speed: float) -> list[float]:
    """When each event was decided, by the machine's clock."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{run.store.as_uri()}?mode=ro", uri=True)) as db:
        (started,) = db.execute("SELECT value FROM facts WHERE name = 'started'").fetchone() or (0,)
        rows = db.execute("SELECT json_extract(line, '$.at') FROM events ORDER BY place")
        return [float(started) + at / speed for (at,) in rows]
    return []


def checked(run: EmulatedRun) -> str:
    """That nothing was lost or done twice, in words."""
    rows = log_rows(run.store)
    where, header = next(rows)
    assert all(each.logged == each.decided for each in replay(rows, read_header(header, where).settings.core()))
    orders = [row for _, row in log_rows(run.store) if row.get("kind") == "TrainOn"]
    trained = Counter(name for row in orders for name in row["trajectories"])
    steps = live_figures(run.store).steps
    assert len(steps) == run.scenario.steps and set(trained.values()) == {1}
    return f"{len(steps)} steps, {len(trained)} samples, none lost or trained on twice; the log replays"


if __name__ == "__main__":
    main()
