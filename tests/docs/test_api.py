"""docs/api.md lists the stable names: those that packages export, and no others."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import steelyard
from steelyard.posttrain.plots import PosttrainPlots
from steelyard.search.plots import SearchPlots
from steelyard.sim.plots import ResultPlots
from support.paths import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
PACKAGES = ("steelyard", "steelyard.posttrain", "steelyard.plot")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_exports_what_the_page_lists(package: str) -> None:
    listed = re.findall(r"^\| `(\w+)` \| \w", SECTIONS[package], re.MULTILINE)
    module = import_module(package)
    assert sorted(listed) == sorted(module.__all__)
    assert all(getattr(module, name).__doc__ for name in listed if name != "__version__"), "each says what it is"


@pytest.mark.parametrize(
    ("result", "plots"), [("Result", ResultPlots), ("PosttrainResult", PosttrainPlots), ("SearchResult", SearchPlots)]
)
def test_the_page_lists_every_chart(result: str, plots: type) -> None:
    (row,) = re.findall(rf"^\| `{result}` \|.*$", SECTIONS["Results"], re.MULTILINE)
    public = {name for name, value in vars(plots).items() if not name.startswith("_") and callable(value)}
    helpers = {"pools"}  # of the report
    assert set(re.findall(r"`plot\.(\w+)`", row)) == public - helpers


def test_the_package_says_that_it_has_types() -> None:
    assert (Path(steelyard.__file__).parent / "py.typed").is_file()
