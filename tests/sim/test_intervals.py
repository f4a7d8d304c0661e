"""How sure figures are: intervals follow what is uncertain, and the truth of a moved world lies in them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard import scenario_from_dict, simulate
from steelyard.cli import main
from steelyard.cost import FirstOf, HostTerms, Roofline
from steelyard.cost.scaled import FAMILIES, Scaled
from steelyard.hardware import find_gpu
from steelyard.model import AttentionOperator, Gemm, Recurrence, load_model, operators
from steelyard.sim import with_intervals
from steelyard.sim.intervals import figures, intervals
from support.known import known

ASKED = {"arrivals": {"kind": "poisson", "rate": 8}, "requests": 150, "prompt": 600, "output": 80}


def scenario(**changes: Any) -> Any:
    return scenario_from_dict({"model": "llama-3.1-8b", "fleet": {"gpu": "h200"}, "workload": ASKED, **changes})


def width(found: dict[str, tuple[float, float]], name: str) -> float:
    low, high = found[name]
    return high / low


def test_every_figure_lies_in_its_own_interval() -> None:
    result = simulate(scenario())
    found = intervals(result)
    for name, value in figures(result.summary).items():
        low, high = found[name]
        assert low <= value <= high, name
    assert width(found, "tpot.mean") > 1.02


def test_a_roofline_is_less_sure_than_a_profile() -> None:
    measured = intervals(simulate(scenario()))
    analytic = intervals(simulate(scenario(cost={"source": "analytic"})))
    assert width(analytic, "tpot.mean") > 1.5 * width(measured, "tpot.mean") - 0.5
    assert width(analytic, "tpot.mean") > width(measured, "tpot.mean")


def test_a_siblings_profile_is_less_sure_than_a_gpus_own_and_surer_than_a_roofline() -> None:
    own = intervals(simulate(scenario()))
    carried, analytic = (
        intervals(simulate(scenario(fleet={"gpu": "h100"}, cost={"source": source})))
        for source in ("transferred", "analytic")
    )
    assert width(own, "tpot.mean") < width(carried, "tpot.mean") < width(analytic, "tpot.mean")


def test_a_calibrated_host_is_surer(tmp_path: Path) -> None:
    file = tmp_path / "host.json"
    file.write_text(json.dumps({"terms": asdict(HostTerms())}))
    usual = intervals(simulate(scenario()))
    calibrated = intervals(simulate(scenario(cost={"calibration": str(file)})))
    assert width(calibrated, "ttft.mean") < width(usual, "ttft.mean")


def test_few_requests_are_less_sure_than_many() -> None:
    drawn = {**ASKED, "output": {"kind": "lognormal", "median": 60, "p95": 600}}
    few = intervals(simulate(scenario(workload={**drawn, "requests": 12})))
    many = intervals(simulate(scenario(workload={**drawn, "requests": 600})))
    assert width(few, "e2e.mean") > width(many, "e2e.mean")


@pytest.mark.parametrize("share", [0.8, 1.2])
def test_a_host_as_far_off_as_hosts_are_lies_inside(share: float) -> None:
    run = scenario()
    found = intervals(simulate(run))
    host = replace(HostTerms(), **{name: value * share for name, value in asdict(HostTerms()).items()})
    truth = figures(simulate(run, host=host).summary)
    for name in ("ttft.mean", "tpot.mean", "e2e.mean", "throughput.output_tokens_per_s"):
        low, high = found[name]
        assert low <= truth[name] <= high, name


def test_scaling_a_family_scales_that_family_only() -> None:
    model, gpu = load_model("qwen3-30b-a3b"), find_gpu("h100")
    rows = np.array([1.0, 64, 700])
    plain = Roofline(gpu)
    for operator in operators(model, model.layers[0], 1):
        if isinstance(operator, AttentionOperator | Recurrence):
            continue
        family = "gemm" if isinstance(operator, Gemm) else None
        for name in FAMILIES:
            found = (
                FirstOf((Scaled(plain, {name: 2.0}),)).rows(operator, rows).seconds / plain.rows(operator, rows).seconds
            )
            assert set(found.tolist()) <= {1.0, 2.0}
            if family is not None:
                assert (found == (2.0 if name == family else 1.0)).all()
    attention = next(op for op in operators(model, model.layers[0], 1) if isinstance(op, AttentionOperator))
    twice = FirstOf((Scaled(plain, {"attention": 2.0}),))
    assert twice.prefill_attention(attention, 2.0).seconds([(100, 0)]) == pytest.approx(
        2 * plain.prefill_attention(attention, 2.0).seconds([(100, 0)])
    )
    at = np.array([5000.0])
    assert twice.decode_attention(attention, 2.0).curve(8).at(at) == pytest.approx(
        2 * plain.decode_attention(attention, 2.0).curve(8).at(at)
    )


@pytest.mark.parametrize(("requests", "options", "there"), [(50, [], True), (50, ["--no-intervals"], False)])
def test_the_command_states_them_for_small_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    requests: int,
    options: list[str],
    there: bool,
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: llama-3.1-8b\nfleet: {gpu: h200}\n"
        f"workload: {{arrivals: {{kind: poisson, rate: 8}}, requests: {requests}, prompt: 200, output: 20}}\n"
    )
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["steelyard", "simulate", str(file), "--out", str(out), *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["intervals"] is not None) is there
    assert ("90% sure" in capsys.readouterr().out) is there
    assert ("90% sure" in (out / "report.html").read_text()) is there


def test_the_same_scenario_states_the_same() -> None:
    one, other = (with_intervals(simulate(scenario())).summary.intervals for _ in range(2))
    assert one == other and known(one).share == 0.9
