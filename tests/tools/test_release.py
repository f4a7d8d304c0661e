"""What would be published can be installed, has all that it needs, and is small; it is said for which Pythons."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from support.paths import ROOT
from tools import release

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
STATED = [re.findall(r"3\.\d+$", each)[0] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return release.build(tmp_path_factory.mktemp("dist"))


def test_the_wheel_has_what_it_needs(built: tuple[Path, Path]) -> None:
    release.check(built[1])


def test_the_installed_wheel_simulates_an_example_outside_the_tree(built: tuple[Path, Path]) -> None:
    assert release.tried(built[1]).startswith("steelyard ")


def test_sdist_and_wheel_have_one_version(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    assert sdist.name == f"steelyard-{wheel.name.split('-')[1]}.tar.gz"


def test_the_sdist_can_be_tested(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {"tests/conftest.py", "constraints.txt", "Makefile", "mkdocs.yml", "LICENSE", "CHANGELOG.md"} <= inside


def test_a_wheel_without_its_data_is_refused(tmp_path: Path, built: tuple[Path, Path]) -> None:
    poor = tmp_path / built[1].name
    with zipfile.ZipFile(built[1]) as whole, zipfile.ZipFile(poor, "w") as less:
        for name in whole.namelist():
            if not name.endswith("gpus.yaml"):
                less.writestr(name, whole.read(name))
    with pytest.raises(release.Refused, match=r"lacks hardware/gpus\.yaml"):
        release.check(poor)


def test_a_wheel_with_other_packages_is_refused(tmp_path: Path, built: tuple[Path, Path]) -> None:
    rich = tmp_path / built[1].name
    shutil.copy(built[1], rich)
    with zipfile.ZipFile(rich, "a") as more:
        more.writestr("tests/conftest.py", "")
    with pytest.raises(release.Refused, match=r"has tests/conftest\.py"):
        release.check(rich)


def test_a_wheel_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch, built: tuple[Path, Path]) -> None:
    monkeypatch.setattr(release, "MOST_BYTES", 1000)
    with pytest.raises(release.Refused, match="at most 1,000"):
        release.check(built[1])


def test_sources_without_git_have_a_version(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "src/steelyard").mkdir(parents=True)
    code = "from setuptools import build_meta as b; print(b.prepare_metadata_for_build_wheel('.'))"
    env = {key: value for key, value in os.environ.items() if not key.startswith("SETUPTOOLS_SCM")}
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools_scm"]
    assert f"steelyard-{stated['fallback_version']}.dist-info" in ran.stdout


def test_pythons_are_stated() -> None:
    assert STATED == ["3.11", "3.12", "3.13"] and PROJECT["requires-python"] == ">=3.11"


@pytest.mark.parametrize("version", STATED)
def test_other_pythons_can_compile_all_sources(version: str) -> None:
    python = shutil.which(f"python{version}")
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip("all other tests run with it")
    if python is None or subprocess.run([python, "--version"], capture_output=True).returncode:
        pytest.skip(f"no python{version} here")
    code = (
        "import sys, pathlib, warnings; warnings.simplefilter('error')\n"
        "for path in pathlib.Path(sys.argv[1]).rglob('*.py'):\n"
        "    compile(path.read_bytes(), str(path), 'exec')\n"
    )
    ran = subprocess.run([python, "-c", code, str(ROOT / "src")], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
