"""Every flag and key that is emitted is one that the target's own parser accepts (`tools/record_flags.py`)."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from steelyard.deploy import emit
from steelyard.deploy.words import after, lines_of
from steelyard.scenario import Scenario, load_posttrain
from support.deployed import scenarios
from support.paths import ROOT

ACCEPTED: dict[str, Any] = json.loads((ROOT / "tests/data/deploy-flags.json").read_text(encoding="utf-8"))
_DYNAMO_OWN = {"--disaggregation-mode"}


def _flags(words: list[str]) -> set[str]:
    return {word for word in words if word.startswith("--")}


def _check(words: list[str], target: str) -> None:
    unknown = _flags(words) - set(ACCEPTED[target]["names"])
    assert not unknown, f"{target} {ACCEPTED[target]['version']} has no {sorted(unknown)}"


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios())
def test_flags_of_vllm_and_its_router(scenario: Scenario) -> None:
    seen = set()
    for name, text in emit(scenario, "vllm").files.items():
        for line in lines_of(text, name):
            for program, target in ((("vllm", "serve"), "vllm"), (("vllm-router",), "vllm-router")):
                words = after(line.words, program)
                if words is not None:
                    seen.add(target)
                    _check(words, target)
    assert seen == {"vllm", "vllm-router"}


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios("sglang"))
def test_flags_of_sglang_and_its_router(scenario: Scenario) -> None:
    seen = set()
    for name, text in emit(scenario, "sglang").files.items():
        for line in lines_of(text, name):
            for module, target in (
                ("sglang.launch_server", "sglang"),
                ("sglang_router.launch_router", "sglang-router"),
            ):
                words = after(line.words, ("-m", module))
                if words is not None:
                    seen.add(target)
                    _check(words, target)
    assert seen == {"sglang", "sglang-router"}


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios())
def test_flags_of_dynamo_workers(scenario: Scenario) -> None:
    manifest = yaml.safe_load(emit(scenario, "dynamo").files["dynamo.yaml"])
    workers = [each for each in manifest["spec"]["components"] if each["type"] != "frontend"]
    assert len(workers) == len(scenario.fleet.pools)
    for worker in workers:
        words = worker["podTemplate"]["spec"]["containers"][0]["args"]
        _check([word for word in words if word not in _DYNAMO_OWN], "vllm")


@pytest.mark.parametrize("mode", ["split", "one-step-off", "asynchronous"])
def test_keys_of_verl(mode: str) -> None:
    changes = [f"mode={mode}", "rollout=[{tp: 2, replicas: 16}]", "training.reference=resident"]
    made = emit(load_posttrain(ROOT / "examples/posttrain/search-48.yaml", changes), "verl")
    words = next(line.words for line in lines_of(made.files["train.sh"], "train.sh"))
    keys = [word.partition("=")[0] for word in words if "=" in word]
    assert len(keys) > 30
    unknown = {key for key in keys if not key.startswith("+")} - set(ACCEPTED["verl"]["names"])
    assert not unknown
    engine = {re.sub(r".*\.vllm\.", "--", key).replace("_", "-") for key in keys if key.startswith("+")}
    assert {name.partition(".")[0] for name in engine} <= set(ACCEPTED["vllm"]["names"])


@pytest.mark.parametrize("mode", ["split", "one-step-off"])
def test_flags_of_slime(mode: str) -> None:
    changes = [f"mode={mode}", "rollout=[{tp: 2, replicas: 16}]", "tail=partial"]
    changes += ["staleness=1"] if mode == "split" else ["staleness=2"]
    made = emit(load_posttrain(ROOT / "examples/posttrain/search-48.yaml", changes), "slime")
    words = _flags(next(line.words for line in lines_of(made.files["train.sh"], "train.sh")))
    engine = {name.replace("--sglang-", "--") for name in words if name.startswith("--sglang-")}
    assert engine <= set(ACCEPTED["sglang"]["names"])
    assert {name for name in words if not name.startswith("--sglang-")} <= set(ACCEPTED["slime"]["names"])
    assert shlex.join(["--rollout-num-gpus", "32"]) in made.files["train.sh"]
