"""`python -m bench.startup`: CPU seconds of whole commands of the first ten minutes, each in a process of its own.

The best of several, since other programs on the machine only ever add. Modules are compiled to byte code by a first run
that does not count, as on any machine that has run the program before.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

_TIMES = 7
_SCENARIO = """
model: llama-3.1-8b
fleet: {{gpu: {gpu}}}
workload:
  arrivals: {{kind: poisson, rate: 6}}
  requests: 10
  prompt: {{kind: lognormal, median: 512, p95: 2048}}
  output: {{kind: fixed, tokens: 192}}
slo: {{ttft_p95: 1.0, tpot_p95: 0.05}}
"""


def main() -> None:
    """Print a line for each command."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        commands = {"--help": ["--help"]}
        for gpu in ("h100", "h200"):
            (here / f"{gpu}.yaml").write_text(_SCENARIO.format(gpu=gpu), encoding="utf-8")
            commands[f"simulate, 10 requests, {gpu}"] = ["simulate", f"{gpu}.yaml", "--out", gpu, "--overwrite"]
        for name, arguments in commands.items():
            _run(arguments, here)
            print(f"{name:30} {min(_run(arguments, here) for _ in range(_TIMES)):.2f} s")


def _run(arguments: list[str], folder: Path) -> float:
    """CPU seconds of the program and of the processes that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "byte-code")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "steelyard", *arguments]
    subprocess.run(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
