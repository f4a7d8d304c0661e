"""The book builds without a warning, its generated pages are up to date, and it needs no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config
from pydantic import BaseModel, ValidationError

from steelyard.scenario import Scenario, json_schema
from steelyard.scenario.load import schema_of
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.scenario.posttrain_loading import posttrain_schema
from steelyard.scenario.rollouts import trajectories_spec
from steelyard.scenario.search import SearchScenario
from support.numeric_fields import BESIDE, NAMES, POSTTRAIN, SERVING, WHOLE
from support.paths import ROOT
from tools.book.examples import examples
from tools.book.schema import Section, sections

UNITLESS = {"seed"}
SCHEMAS = (json_schema(), posttrain_schema(), schema_of(SearchScenario, "Steelyard search scenario"))
PARTS: dict[str, Section] = {part.title: part for schema in SCHEMAS for part in sections(schema)}
SEARCH: dict[str, Any] = {
    **{key: SERVING[key] for key in ("model", "workload")},
    "slo": {"ttft_p95": 1.0},
    "search": {"gpus": 16, "serve": {"gpu": "h200"}},
}
FILES: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "Steelyard scenario": (Scenario, SERVING),
    "Steelyard post-training scenario": (PosttrainScenario, POSTTRAIN),
    "Steelyard search scenario": (SearchScenario, SEARCH),
}
MORE: dict[str, dict[str, Any]] = {
    "MixSpec": {"arrivals": {"kind": "poisson", "rate": 10}, "requests": 10},
    "SearchSpec": {"serve": {"gpu": "h200"}},
}
NEEDS: dict[tuple[str, str], dict[str, Any]] = {  # other keys without which a key means nothing
    **BESIDE,
    ("AcceptSpec", "probabilities"): {"cycle": None},
    ("EmpiricalTokens", "values"): {"file": None},
    ("EmpiricalTokens", "histogram"): {"file": None},
    ("FleetSpec", "afd"): {
        "pools": [{"role": "attention", "gpu": "h100", "replicas": 2}, {"role": "ffn", "gpu": "h100"}]
    },
    ("FleetSpec", "pools"): {},
    ("Lognormal", "p95"): {"median": 100},
    ("SearchSpec", "afd"): {"attention": {"gpu": "h200"}, "ffn": {"gpu": "h20"}},
    ("SearchSpec", "prefill_share"): {"prefill": {"gpu": "h200"}, "decode": {"gpu": "h200"}},
    ("SearchSpec", "architectures"): {"prefill": {"gpu": "h200"}, "decode": {"gpu": "h200"}},
    ("Steelyard post-training scenario", "mode"): {},
    ("Steelyard post-training scenario", "staleness"): {"mode": "asynchronous"},
    ("Steelyard post-training scenario", "pool"): {"planner": "given"},
    ("Steelyard post-training scenario", "tail"): {"mode": "split", "staleness": None},
    ("TrajectorySpec", "drift"): {"learning": {"samples": 100}},
    ("WorkloadSpec", "session"): {"prefix": None},
    ("WorkloadSpec", "trace"): {"prompt": None, "output": None},
    ("SpeculativeSpec", "method"): {"draft_model": "llama-3.2-1b"},
    ("SpeculativeSpec", "draft_model"): {"method": "draft"},
    ("Lognormal", "kind"): {"median": 100, "sigma": 0.5},
    ("EmpiricalTokens", "kind"): {"values": [1]},
    ("ChoicePriority", "weights"): {"values": [0, 1]},
    ("Wave", "amplitude"): {"mean": 20},
    ("TrajectorySpec", "prompts"): {"tasks": 100},
}


def test_it_builds_without_a_warning_and_reads_nothing_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True)
    build(config)
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*\ssrc="([^"]*)"', text)
        loaded += re.findall(r'<link[^>]*rel="(?:stylesheet|preconnect|icon)"[^>]*href="([^"]*)"', text)
        assert not [url for url in loaded if re.match(r"(https?:)?//", url)], page.name


def test_generated_pages_are_up_to_date() -> None:
    """In a process of its own, since tests watch simulations by functions of their own."""
    ran = subprocess.run(
        [sys.executable, "-m", "tools.book", "--check"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_generated_pages_are_the_same_everywhere() -> None:
    for page in (ROOT / "docs/reference").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert str(ROOT) not in text and " at 0x" not in text


@pytest.mark.parametrize("title", PARTS)
def test_every_key_is_described_with_unit_and_example(title: str) -> None:
    shown = examples(title)
    for key in PARTS[title].keys:
        assert len(key.meaning) >= 4, f"{title}.{key.name}: say what it means, in the schema"
        assert key.name in shown, f"{title}.{key.name}: give an example in tools/book/examples.yaml"
        number = key.type in ("number", "whole number")
        assert key.unit or not number or key.name in UNITLESS, f"{title}.{key.name}: say its unit, in the schema"


def test_no_example_is_left_over() -> None:
    given = yaml.safe_load((ROOT / "tools/book/examples.yaml").read_text(encoding="utf-8"))
    known = {title: {key.name for key in part.keys} for title, part in PARTS.items()}
    left = {title: set(keys) - known.get(title, set()) for title, keys in given.items() if title != "GroupsSpec"}
    assert not {title: keys for title, keys in left.items() if keys}


def _classes(kind: type[BaseModel]) -> Mapping[str, type[BaseModel]]:
    found = {each.__name__: each for each in kind.__subclasses__()}
    for each in kind.__subclasses__():
        found |= _classes(each)
    return found


CLASSES = {name: kind for name, kind in _classes(BaseModel).items() if kind.__module__.startswith("steelyard.scenario")}


@pytest.mark.parametrize("title", PARTS)
def test_every_example_is_valid(title: str) -> None:
    for key, text in examples(title).items():
        value = yaml.safe_load(text)
        if title == "SloSpec" and "," in key:
            key, value = next(iter(value.items()))
        _check(title, key, value)


def _check(title: str, key: str, value: Any) -> None:
    more = {**NEEDS.get((title, key), {}), key: value}
    if title == "PresetTrajectories":
        trajectories_spec({"preset": "search", **NEEDS.get(("TrajectorySpec", key), {}), key: value})
        return
    if title == "Steelyard post-training scenario" and key in ("rollout", "training", "mode"):
        return  # layouts are checked against others of the file
    kind, least = FILES.get(title) or (CLASSES[title], _least(CLASSES[title]))
    data = {name: each for name, each in {**least, **more}.items() if each is not None}
    try:
        kind.model_validate(data)
    except ValidationError as error:
        pytest.fail(f"{title}.{key}: {value!r} in {data}: {error}")


def _least(kind: type[BaseModel]) -> dict[str, Any]:
    """The required keys of a part, with their examples; what else it needs is in `WHOLE`."""
    shown = examples(kind.__name__)
    required = {name for name, field in kind.model_fields.items() if field.is_required()}
    least = {name: yaml.safe_load(shown[name]) for name in required}
    return {**least, **WHOLE.get(kind.__name__, {}), **MORE.get(kind.__name__, {})} | {
        name: NAMES[name] for name in required & {"gpu", "config"}
    }
