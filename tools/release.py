"""Builds the sdist and the wheel, checks them, and says what to publish: python -m tools.release [FOLDER]

The wheel is built from the sdist, as an index's users would. It is installed into an environment of its own, beside the
dependencies that are here, and simulates an example outside the source tree. Nothing is published.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = 15_000_000  # of a wheel
NEEDED = (  # data that the package cannot do without
    *("cost/bundles/h200.npz", "cost/bundles/h200.jsonl.gz", "hardware/gpus.yaml", "scenario/rollouts.yaml"),
    *("model/catalog/llama-3.1-8b.json", "py.typed"),
)
EXAMPLE = "examples/quickstart.yaml"
_BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"


class Refused(Exception):
    """Something is wrong with what was built."""


def build(out: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    out.mkdir(parents=True, exist_ok=True)
    sdist = _built("sdist", ROOT, out)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as packed:
            packed.extractall(folder, filter="data")
        (source,) = Path(folder).iterdir()
        return sdist, _built("wheel", source, out)


def _built(kind: str, source: Path, out: Path) -> Path:
    words = [sys.executable, "-c", _BUILD, kind, str(out.resolve())]
    ran = subprocess.run(words, cwd=source, capture_output=True, text=True)
    if ran.returncode:
        raise Refused(f"{kind}: {ran.stderr[-2000:]}")
    return out / ran.stdout.split()[-1]


def check(wheel: Path) -> None:
    """Refuse a wheel that is too large, lacks data, or has what does not belong there."""
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        raise Refused(f"{wheel.name}: {size:,} bytes; at most {MOST_BYTES:,}")
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = [name for name in NEEDED if f"steelyard/{name}" not in names]
    if missing:
        raise Refused(f"{wheel.name}: lacks {', '.join(missing)}")
    strange = sorted(name for name in names if not name.startswith(("steelyard/", "steelyard-")))
    if strange:
        raise Refused(f"{wheel.name}: has {', '.join(strange[:5])}")


def tried(wheel: Path, python: str = sys.executable) -> str:
    """What the installed wheel prints: its version, after it has simulated an example outside the source tree."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run([python, "-m", "venv", "--without-pip", "env"], folder)
        own = folder / "env/bin/python"
        pip = [sys.executable, "-m", "pip", "--python", str(own), "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--no-deps", "--no-index", str(wheel.resolve())], folder)
        (site,) = folder.glob("env/lib/python*/site-packages")
        here = [path for path in sys.path if path.endswith("site-packages")]
        (site / "dependencies.pth").write_text("\n".join(here) + "\n", encoding="utf-8")
        (folder / "scenario.yaml").write_bytes((ROOT / EXAMPLE).read_bytes())
        program = str(folder / "env/bin/steelyard")
        _run([program, "simulate", "scenario.yaml", "--set", "workload.requests=20", "--out", "run"], folder)
        if not (folder / "run/report.html").is_file():
            raise Refused("the installed program wrote no report")
        return _run([program, "--version"], folder).strip()


def _run(words: list[str], folder: Path) -> str:
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    ran = subprocess.run(words, cwd=folder, env={**env, "STEELYARD_CACHE": "cache"}, capture_output=True, text=True)
    if ran.returncode:
        raise Refused(f"{' '.join(words)}: {ran.stdout}{ran.stderr}")
    return ran.stdout


def main() -> int:
    """Build, check, and say what to do."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    try:
        built = build(out)
        check(built[1])
        version = tried(built[1]).split()[-1]
    except Refused as refused:
        print(f"error: {refused}", file=sys.stderr)
        return 1
    for path in built:
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path}  {path.stat().st_size:,} bytes")
    print(f"steelyard {version}: installed from the wheel, and an example simulated")
    if "dev" in version or "+" in version:
        print(
            "This is no release: write its section in CHANGELOG.md, tag the commit (git tag -a vX.Y.Z), and run again."
        )
    else:
        print(f"To publish:\n  git push origin v{version}\n  python -m twine upload {' '.join(map(str, built))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
