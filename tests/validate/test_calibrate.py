"""Calibration: terms that went into a capture must come out of it, and only where it shows them."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from steelyard import UserError, scenario_from_dict, simulate
from steelyard.cli import main
from steelyard.cost import Bundle, HostTerms, MeasuredSource, read_terms
from steelyard.hardware import find_gpu
from steelyard.sim.cache import Cache
from steelyard.validate.calibrate import calibrate, evidence
from steelyard.validate.crossed import cross_calibrate, read_sources
from support.captures import LONE, MODEL, SLOW, capture, chat
from support.known import known
from support.paths import DATA

BURST = [{"id": i, "at": 3.0 * (i // 40), "prompt": 8 + 3 * (i % 17), "output": 30} for i in range(400)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = {"chat": chat(300, 1, 0.06), "more": chat(200, 2, 0.1), "burst": BURST, "lone": LONE}
    return capture(tmp_path_factory.mktemp("own") / "capture", work)


def test_terms_that_went_in_come_out(folder: Path) -> None:
    found = cross_calibrate(read_sources([folder], None)).calibration
    for name, value in asdict(SLOW).items():
        if name in ("experts", "sample", "submit", "wake", "compile"):
            assert name in found.kept
        else:
            assert asdict(found.terms)[name] == pytest.approx(value, rel=0.15), name


def test_a_run_left_out_is_predicted(folder: Path) -> None:
    crossed = cross_calibrate(read_sources([folder], None))
    found = crossed.held_out[f"{folder}/more"]
    assert not isinstance(found, str)
    for metric in ("ttft", "tpot", "e2e"):
        error = found.latency[metric]["mean"].error
        assert error is not None and abs(error) < 0.03, metric


def test_lone_prompts_do_not_tell_a_step_from_its_requests(tmp_path: Path) -> None:
    lone = capture(tmp_path / "lone", {"lone": LONE})
    with pytest.raises(UserError, match=r"cannot tell (step|request) from .*capture as well"):
        cross_calibrate(read_sources([lone], None))


EXPERTS = {"experts": 8, "top_k": 2, "hidden": 2048, "inter": 2048, "zipf": 0.0}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A mixture of experts, in place of whose profile there is one that names a kernel for every 512 tokens."""
    rows = [{**EXPERTS, "m": m, "us": 50.0 + m / 8, "kernel": f"{m // 512}"} for m in (1, *range(128, 2049, 128))]
    known = MeasuredSource(find_gpu("h200"), Bundle({"gpu": "h200"}, {"moe": rows}))
    monkeypatch.setattr("steelyard.sim.sources.shipped", lambda gpu: known)
    monkeypatch.setattr("steelyard.sim.prepared.KNOWN", Cache("engines"))
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "hidden_size": 2048, "intermediate_size": 2048}
    return {**MODEL, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **experts}


def test_the_time_to_compile_a_kernel_comes_out(tmp_path: Path, kernels: dict[str, Any]) -> None:
    """Three ranges beyond the captured sizes have three variants each, one of which does not come; the range that these
    are in has two more than were captured."""
    terms = replace(SLOW, compile=0.7)
    work = {"chat": chat(300, 1, 0.06), "lone": LONE}
    found = cross_calibrate(read_sources([capture(tmp_path / "moe", work, terms, kernels)], None)).calibration
    assert found.terms.compile == pytest.approx(0.7, rel=0.05)
    assert found.fits["compile"].observations == 10
    assert found.terms.experts == pytest.approx(SLOW.experts, rel=0.15)
    calm = cross_calibrate(read_sources([capture(tmp_path / "calm", work, replace(SLOW, compile=0.0), kernels)], None))
    assert "compile" in calm.calibration.kept  # nothing stalled where something could have


def test_a_stall_is_not_taken_for_a_launch(tmp_path: Path) -> None:
    """Half a second in one launch, as when a kernel is compiled, must not move the terms."""
    folder = capture(tmp_path / "calm", {"chat": chat(300, 1, 0.06), "lone": LONE})
    calm = cross_calibrate(read_sources([folder], None)).calibration.terms
    path = folder / "chat.steps.jsonl.gz"
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    at = next(k for k, row in enumerate(rows) if k > 50 and row["chunks"])
    for k, row in enumerate(rows):
        row["t_update"] += 0.5 if k >= at - 1 else 0.0
        row["t_schedule"] += 0.5 if k > at else 0.0
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    stalled = cross_calibrate(read_sources([folder], None)).calibration.terms
    assert stalled.eager == pytest.approx(calm.eager, rel=0.02)
    assert stalled.step == pytest.approx(calm.step, rel=0.05)


def test_the_command_writes_a_file_that_scenarios_can_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "host.json"
    monkeypatch.setattr(sys, "argv", ["steelyard", "calibrate", str(folder), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "eager" in printed and "run left out" in printed
    terms = read_terms(out)
    assert terms.eager == pytest.approx(SLOW.eager, rel=0.15)
    asked = {"arrivals": {"kind": "poisson", "rate": 8}, "requests": 100, "prompt": 700, "output": 60}
    run = {"model": "llama-3.1-8b", "fleet": {"gpu": "h200"}, "workload": asked}
    usual = simulate(scenario_from_dict(run))
    own = simulate(scenario_from_dict({**run, "cost": {"calibration": str(out)}}))
    assert known(own.summary.ttft.mean) > known(usual.summary.ttft.mean)
    again = simulate(scenario_from_dict(run), host=terms)
    assert own.summary.ttft == again.summary.ttft


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", ":1: not valid JSON"),
        ("{}", "has no `terms`"),
        ('{"terms": {"eagre": 1}}', "terms.eagre: no such term; there are step"),
        ('{"terms": {"eager": -1}}', r"terms.eager: must be seconds, 0 to 1 \(found -1\)"),
        ('{"terms": {"compile": 61}}', r"terms.compile: must be seconds, 0 to 60 \(found 61\)"),
        ('{"terms": {"eager": "fast"}}', r"terms.eager: must be seconds, 0 to 1 \(found 'fast'\)"),
    ],
)
def test_a_calibration_file_that_is_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_terms(path)
    run = {
        "model": "llama-3.1-8b",
        "fleet": {"gpu": "h200"},
        "workload": {"arrivals": {"kind": "poisson", "rate": 1}, "requests": 1, "prompt": 10, "output": 10},
        "cost": {"calibration": str(path)},
    }
    with pytest.raises(UserError, match=r"cost\.calibration"):
        simulate(scenario_from_dict(run))


def test_too_few_launches_are_refused(tmp_path: Path) -> None:
    lone = capture(tmp_path / "short", {"lone": LONE[:1]})
    with pytest.raises(UserError, match=r"hold \d steps whose launch the engine waited for"):
        cross_calibrate(read_sources([lone], None))


def test_a_kind_of_launch_that_is_seen_once_is_no_obstacle() -> None:
    """Two recorded runs have hardly a launch in pieces, and layers at their default would take more than all of it."""
    quick = replace(HostTerms(), step=2.05e-3, request=17e-6, prompt=0.15e-3, pieces=0.16e-3, eager=0.61e-3)
    recorded = DATA / "h200-recorded" / "llama-3.1-8b"
    sources = [source for source in read_sources([recorded], None) if source.run.name in ("batches", "burst")]
    terms = calibrate([evidence(source.capture, source.run, source.gpu, quick) for source in sources]).terms
    assert 0.5e-3 < terms.eager < 0.9e-3
    assert min(asdict(terms).values()) >= 0
