"""`python -m bench.compiled`: what `make fast` has compiled against the sources it was compiled from.

Each case is run by both, file for file the same bytes must come out, and the table has the CPU seconds of each.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
CASES = {
    "quickstart": ("simulate", "quickstart.yaml"),
    "pdd": ("simulate", "pdd.yaml"),
    "moe-ep": ("simulate", "moe-ep.yaml"),
    "pipeline": ("simulate", "pipeline.yaml"),
    "speculative": ("simulate", "speculative.yaml"),
    "search-48": ("posttrain", "posttrain/search-48.yaml", "--set", "steps=10"),
    "search-48, logged": ("posttrain", "posttrain/search-48.yaml", "--set", "steps=1", "--log"),
}
_WHERE = "import steelyard.engine.engine as engine; print(engine.__file__)"
_RUN = "from steelyard.cli import main; main()"


def _python(*arguments: str, sources: bool) -> subprocess.CompletedProcess[str]:
    """Run Python with the package as it is installed, or with its sources."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ""}
    if sources:
        env["PYTHONPATH"] = str(ROOT / "src")
    return subprocess.run([sys.executable, "-P", *arguments], env=env, capture_output=True, text=True, check=False)


def _measure(case: tuple[str, ...], out: Path, sources: bool) -> float:
    """CPU seconds of one case, all of it."""
    command, scenario, *more = case
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = str(ROOT / "examples" / scenario)
    done = _python("-c", _RUN, command, path, "--out", str(out), *more, sources=sources)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(case)}: {done.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _differ(one: Path, other: Path) -> list[str]:
    """Names of files that are not the same in both."""
    ours, theirs = (
        {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (one, other)
    )
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def main() -> int:
    """Run all cases both ways."""
    console = Console()
    installed = _python("-c", _WHERE, sources=False).stdout.strip()
    if not installed.endswith(".so"):
        console.print("what is installed is not compiled: run `make fast` first")
        return 2
    table = Table("case", "sources, CPU-s", "compiled", "share", "files")
    wrong = False
    with TemporaryDirectory() as folder, console.status("") as status:
        for name, case in CASES.items():
            status.update(f"running {name}")
            plain, fast = Path(folder, name, "sources"), Path(folder, name, "compiled")
            slow, quick = _measure(case, plain, True), _measure(case, fast, False)
            differ = _differ(plain, fast)
            wrong = wrong or bool(differ)
            said = f"differ: {', '.join(differ)}" if differ else "the same"
            table.add_row(name, f"{slow:.1f}", f"{quick:.1f}", f"{quick / slow:.2f}", said)
    console.print(table)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
