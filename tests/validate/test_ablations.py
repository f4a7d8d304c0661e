"""Each mechanism that is left out changes predictions of recorded engines in its own direction."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from steelyard.cli import main
from steelyard.scenario import scenario_from_dict
from steelyard.sim import set_up
from steelyard.validate.ablations import (
    EVERYTHING,
    AblatedRun,
    ablated_runs,
    without_asynchronous_scheduling,
    without_context,
    without_padding,
)
from steelyard.validate.compare import validate
from support.captures import LONE, capture, chat
from support.paths import ROOT

_RECORDED = ROOT / "tests/data/h200-recorded"


def _runs(name: str) -> dict[str, AblatedRun]:
    return {run.name.partition("/")[2]: run for run in ablated_runs(_RECORDED / name)}


def _error(run: AblatedRun, kind: str, metric: str) -> float:
    error = run.errors[kind][metric]
    assert error is not None
    return error


@pytest.fixture(scope="module")
def short() -> dict[str, AblatedRun]:
    return _runs("llama-3.1-8b-short")


def test_with_everything_it_is_the_usual_prediction(short: dict[str, AblatedRun]) -> None:
    for each in validate(_RECORDED / "llama-3.1-8b-short", given_cache=True).workloads:
        assert short[each.name].errors[EVERYTHING]["e2e"] == each.latency["e2e"]["mean"].error


def test_without_padding_steps_are_too_short(short: dict[str, AblatedRun]) -> None:
    for name in ("poisson", "burst"):
        whole, without = (_error(short[name], kind, "tpot") for kind in (EVERYTHING, "padding"))
        assert without < whole - 0.003
        assert abs(without) > abs(whole)


def test_without_asynchronous_scheduling_tokens_wait_for_the_host(short: dict[str, AblatedRun]) -> None:
    for run in short.values():
        whole, without = (_error(run, kind, "tpot") for kind in (EVERYTHING, "asynchronous scheduling"))
        assert without > whole + 0.2
        assert abs(without) > 3 * abs(whole)


def test_without_graphs_every_kernel_is_launched(short: dict[str, AblatedRun]) -> None:
    """Launches of decodes then take longer than the GPU does."""
    whole, without = (_error(short["lone"], kind, "tpot") for kind in (EVERYTHING, "CUDA graphs"))
    assert without > whole + 0.2
    assert 0 < short["burst"].padding < 0.5


def test_without_context_prompts_are_too_short() -> None:
    """Prompts of this capture queue, and are split at the ends of steps."""
    runs = _runs("qwen3-8b")
    whole, without = (_error(runs["poisson"], kind, "ttft") for kind in (EVERYTHING, "context of chunks"))
    assert without < whole - 0.003
    assert abs(without) > abs(whole)
    for metric in ("ttft", "tpot", "e2e"):  # single prompts have no context
        assert runs["lone"].errors[EVERYTHING][metric] == runs["lone"].errors["context of chunks"][metric]


def test_only_the_mechanism_itself_is_changed() -> None:
    """Steps that do not use a mechanism take as long without it."""
    setup = set_up(
        scenario_from_dict(
            {
                "model": "llama-3.1-8b",
                "fleet": {"gpu": "h200"},
                "workload": {"arrivals": {"kind": "poisson", "rate": 1}, "requests": 1, "prompt": 9, "output": 9},
            }
        )
    )
    engine = setup.pools[0].prepared
    whole, unpadded, alone = (each.step_cost for each in (engine, without_padding(engine), without_context(engine)))
    fitting, odd = [(256, 0)], [(201, 0)]
    assert unpadded.mixed(0, 0, 0, fitting) == whole.mixed(0, 0, 0, fitting)
    assert unpadded.mixed(0, 0, 0, odd).gpu < whole.mixed(0, 0, 0, odd).gpu
    assert unpadded.mixed(0, 0, 0, odd).launch == whole.mixed(0, 0, 0, odd).launch  # still a graph
    assert unpadded.mixed(0, 0, 0, [(4000, 0)]) == whole.mixed(0, 0, 0, [(4000, 0)])  # beyond the largest graph
    assert alone.mixed(0, 0, 0, [(2000, 0)]) == whole.mixed(0, 0, 0, [(2000, 0)])
    assert alone.mixed(0, 0, 0, [(2000, 30_000)]) == whole.mixed(0, 0, 0, [(2000, 0)])
    assert alone.decode_line(8, 8000, 1000) == whole.decode_line(8, 8000, 1000)
    assert not without_asynchronous_scheduling(engine).limits.async_scheduling
    assert engine.limits.async_scheduling


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    capture(tmp_path / "captures" / "own", {"chat": chat(60, 3, 0.06), "lone": LONE})
    out = tmp_path / "page.md"
    asked = ["steelyard", "fidelity", str(tmp_path / "captures"), "--ablate", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", asked)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    page = out.read_text()
    assert page.startswith(f"# Ablations\n\nMade by `steelyard fidelity {tmp_path}/captures --ablate --out {out}`")
    assert page.count("| own/chat |") == page.count("| own/lone |") == 3
    assert "| padding | " in page
    capsys.readouterr()
