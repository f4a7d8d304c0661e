"""Refusals, notes, safety of what is written, defaults and remarks of what is read."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from steelyard.deploy import ImportOptions, emit, read
from steelyard.deploy.parts import comment, slugs
from steelyard.errors import UserError
from steelyard.scenario import load_posttrain, load_scenario, scenario_from_dict
from support.paths import ROOT

_WORKLOAD = {"arrivals": {"kind": "poisson", "rate": 1}, "requests": 10, "prompt": 10, "output": 10}
_TARGETS = ("vllm", "sglang", "dynamo", "kserve")
_HOSTILE = "x'; touch pwned; echo '$(touch pwned)`touch pwned`\n touch pwned #"


def _scenario(**parts: Any) -> Any:
    data = {"model": "qwen3-32b", "fleet": {"gpu": "h200", "tp": 2}, "workload": _WORKLOAD, **parts}
    return scenario_from_dict(data)


@pytest.mark.parametrize("target", _TARGETS)
def test_attention_and_ffn_apart_are_refused(target: str) -> None:
    with pytest.raises(UserError, match="attention/FFN disaggregation cannot be deployed"):
        emit(load_scenario(ROOT / "examples/afd.yaml"), target)


@pytest.mark.parametrize(("example", "target"), [("quickstart", "verl"), ("posttrain/search-48", "vllm")])
def test_targets_are_for_one_kind_of_scenario(example: str, target: str) -> None:
    path = ROOT / f"examples/{example}.yaml"
    loaded = load_posttrain(path) if "posttrain" in example else load_scenario(path)
    with pytest.raises(UserError, match="scenario choose one of"):
        emit(loaded, target)


def test_rollout_engines_of_several_degrees_are_refused() -> None:
    with pytest.raises(UserError, match=r"verl 0\.9\.1 has one degree for all"):
        emit(load_posttrain(ROOT / "examples/posttrain/search-48.yaml"), "verl")


@pytest.mark.parametrize("target", _TARGETS)
def test_no_model_name_reaches_a_shell(target: str) -> None:
    with pytest.raises(UserError, match="cannot be deployed under this name"):
        emit(_scenario(model=_HOSTILE), target)


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_scripts_run_nothing_that_names_bring_along(target: str, tmp_path: Path) -> None:
    """The scripts are run with programs that only write their arguments down."""
    pool = {"name": _HOSTILE, "gpu": "h200", "model": {"config": "qwen3-8b", "name": _HOSTILE}}
    made = emit(_scenario(name="a b; touch pwned", fleet={"pools": [{"gpu": "h200", "name": "one"}, pool]}), target)
    fake = tmp_path / "bin"
    fake.mkdir()
    for program in ("vllm", "vllm-router", "python3"):
        (fake / program).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {tmp_path}/said\n')
        (fake / program).chmod(0o755)
    for name, text in made.files.items():
        (tmp_path / name).write_text(text)
        if name != "launch.sh":
            subprocess.run(["sh", name], cwd=tmp_path, check=True, env={"PATH": f"{fake}:/usr/bin:/bin"}, timeout=30)
    assert not (tmp_path / "pwned").exists()
    assert _HOSTILE in (tmp_path / "said").read_text()


@pytest.mark.parametrize("target", ["dynamo", "kserve"])
def test_manifests_are_plain_yaml(target: str) -> None:
    made = emit(_scenario(model={"config": "qwen3-8b", "name": "no: {x} # 'y"}, name="a\nb: c"), target)
    for text in made.files.values():
        manifest = yaml.safe_load(text)
        assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
        assert manifest["metadata"]["name"] == "a-b-c"
        assert "nvidia.com/gpu.product: NVIDIA-H200" in text


def test_kserve_arguments_are_quoted_for_the_shell_that_reads_them() -> None:
    made = emit(_scenario(engine={"cudagraph": "piecewise"}), "kserve")
    manifest = yaml.safe_load(next(iter(made.files.values())))
    value = manifest["spec"]["template"]["containers"][0]["env"][0]["value"]
    assert '{"cudagraph_mode":"PIECEWISE"}' in shlex.split(value)


def test_gpus_of_different_types_are_selected() -> None:
    made = emit(load_scenario(ROOT / "examples/pdd-heterogeneous.yaml"), "dynamo")
    manifest = yaml.safe_load(made.files["dynamo.yaml"])
    workers = manifest["spec"]["components"][1:]
    assert len({str(each["podTemplate"]["spec"]["nodeSelector"]) for each in workers}) > 1


@pytest.mark.parametrize(("model", "flag"), [("granite-4.0-h-tiny", "--no-enable"), ("qwen3-8b", "--enable")])
def test_recurrent_state_is_not_cached_as_it_was_simulated(model: str, flag: str) -> None:
    made = emit(_scenario(model=model), "vllm")
    assert any(f"{flag}-prefix-caching" in text for text in made.files.values())


def test_notes_are_on_top_of_every_file() -> None:
    made = emit(load_scenario(ROOT / "examples/speculative.yaml"), "vllm")
    assert made.notes
    for text in made.files.values():
        top = " ".join(line.lstrip("# ") for line in text.split("\n\n")[0].splitlines())
        assert all(str(note).replace("  ", " ") in top for note in made.notes)


@pytest.mark.parametrize(
    ("gpu", "flags", "tokens", "seqs"),
    [
        ("h200", "", 8192, 1024),
        ("b200", "", 16384, 1024),
        ("a100-80", "", 2048, 256),
        ("l40s", "", 2048, 256),
        ("h200", "--max-num-batched-tokens 512", 512, 512),
        ("h200", "--no-enable-chunked-prefill", 40960, 1024),
        ("h200", "-dp 8 -ep --all2all-backend deepep_low_latency", 256, 256),
        ("h200", "--max-num-seqs 2 --max-model-len 1000", 2000, 2),
    ],
)
def test_batch_limits_follow_vllms_rule(gpu: str, flags: str, tokens: int, seqs: int) -> None:
    found = read("vllm-serve", f"vllm serve Qwen/Qwen3-32B {flags}", ImportOptions(gpu))
    engine = found.data["engine"]
    assert (engine["max_num_batched_tokens"], engine["max_num_seqs"]) == (tokens, seqs)
    assert len(found.remarks.defaulted) == 2 - flags.count("--max-num-")


def test_flags_are_ignored_or_warned_of_by_what_they_do() -> None:
    command = "CUDA_VISIBLE_DEVICES=0 nohup vllm serve --enforce_eager Qwen/Qwen3-8B --port=80 --cpu-offload-gb 4 &"
    found = read("vllm-serve", command, ImportOptions("h200"))
    assert found.data["model"] == "qwen3-8b"
    assert found.data["engine"]["enforce_eager"] is True
    assert found.remarks.ignored == ["--port 80"]
    assert [line.partition(":")[0] for line in found.remarks.warnings] == ["--cpu-offload-gb 4"]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("vllm-serve", "ls -l", "has no `vllm serve MODEL ...` command"),
        ("vllm-serve", "vllm serve 'Qwen/Qwen3-8B", "quotation mark"),
        ("vllm-serve", "vllm serve Qwen/Qwen3-8B --max-num-seqs many", "'many' is not a whole number"),
        ("vllm-serve", "vllm serve Qwen/Qwen3-8B --compilation-config {", "--compilation-config"),
        ("vllm-serve", "vllm serve a b", "2 models in one command"),
        ("vllm-serve", "vllm serve Qwen/Qwen3-8B -tp 0", "fleet"),
        ("sglang", "python -m sglang.launch_server --tp 3 --attn-dp-size 2 --model-path a/b", "does not divide"),
        ("kserve", "kind: LLMInferenceService", "spec: must be a mapping"),
        ("dynamo", "a: [", "dynamo"),
        ("helm", "", "not a kind of deployment"),
    ],
)
def test_what_cannot_be_read_is_one_message(kind: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("[", r"\[").replace("(", r"\(")):
        read(kind, text, ImportOptions("h200"))


def test_a_gpu_must_be_known() -> None:
    with pytest.raises(UserError, match="give --gpu"):
        read("vllm-serve", "vllm serve Qwen/Qwen3-8B")


def test_comments_cannot_be_left() -> None:
    assert all(line.startswith("#") for line in comment("a\nrm -rf x\r\x85\u2028y", "b").splitlines())
    assert slugs(["A b", "a-b", "9"]) == ["a-b", "a-b-2", "x-9"]
