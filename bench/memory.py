"""`python -m bench.memory [serving | post-training [STEPS]]`: memory of large runs through the command line.

Serving is a million requests on 1,024 replicas, with all result files. Post-training is
`examples/posttrain/math-1024.yaml` (1,024 GPUs, 32,768 trajectories a step), for 20 steps unless told otherwise. Both
run in processes of their own.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from steelyard.posttrain.run import posttrain
from steelyard.scenario import load_posttrain

_EXAMPLE = Path(__file__).parents[1] / "examples" / "posttrain" / "math-1024.yaml"
_STATUS = Path("/proc/self/status")
_SCENARIO = """
model: llama-3.1-8b
fleet: {gpu: h100, replicas: 1024, router: round-robin}
workload:
  arrivals: {kind: poisson, rate: 6144}
  requests: 1000000
  prompt: 768
  output: 192
cost: {source: analytic}
seed: 1
"""


def main(arguments: list[str]) -> None:
    """Print what was measured."""
    match arguments:
        case ["--one", steps]:
            one(int(steps))
        case []:
            serving()
            post_training("20")
        case ["serving"]:
            serving()
        case ["post-training", *steps]:
            post_training(*(steps or ["20"]))
        case _:
            print(__doc__)


def serving() -> None:
    """The peak of ``steelyard simulate``, and the size of its report."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "million.yaml").write_text(_SCENARIO, encoding="utf-8")
        command = [sys.executable, "-m", "steelyard", "simulate", "million.yaml", "--out", "run", "--json"]
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
        report = (Path(folder) / "run" / "report.html").stat().st_size
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"simulate, 1,000,000 requests on 1,024 replicas: {peak / 2**20:.2f} GiB at most; report of {report:,} bytes")


def post_training(steps: str) -> None:
    """The memory of a run after each of its steps."""
    subprocess.run([sys.executable, "-m", "bench.memory", "--one", steps], check=True)


def one(steps: int) -> None:
    """In this process."""
    scenario = load_posttrain(_EXAMPLE, [f"steps={steps}"])
    posttrain(
        scenario, lambda done, _: print(f"post-training, 1,024 GPUs, step {done}: {_resident():,} MiB", flush=True)
    )


def _resident() -> int:
    """MiB of this process that are in memory now."""
    found = re.search(r"VmRSS:\s+(\d+) kB", _STATUS.read_text())
    assert found is not None
    return int(found[1]) // 2**10


if __name__ == "__main__":
    main(sys.argv[1:])
