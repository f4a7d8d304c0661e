"""The fidelity page: every figure of a survey, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from steelyard.report.markdown import code, plain
from steelyard.report.validation import signed_percent
from steelyard.sim.intervals import STATED
from steelyard.validate.compare import LATENCIES, STATISTICS, Pair, Validation, WorkloadComparison
from steelyard.validate.silicon import METRICS, Errors, SiliconValidation, Who
from steelyard.validate.survey import Survey

_SHORT = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
_THEIRS = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2e"}
_STATISTIC = {"Mean": "mean", "Median": "p50"}
_ROW = re.compile(r"(TTFT|TPOT|Latency) (\w+)\s.*?([+-][\d.]+)%")
_DEFAULTS = (
    "`steelyard validate CAPTURE_DIR`, with `--given-cache` where several runs share an engine and find there what",
    "others left: blocks in its cache, compiled kernels. Host times are the defaults, means over four engines",
    "(calibration.md). Two of these ran the captures of Llama-3.1-8B and Qwen3-30B-A3B, which are therefore not",
    "wholly out of sample.",
)


def fidelity_page(survey: Survey, command: str) -> str:
    """The whole page."""
    return "\n".join(_lines(survey, command)).rstrip() + "\n"


def _lines(survey: Survey, command: str) -> Iterator[str]:
    yield "# Fidelity"
    yield ""
    yield f"Made by {code(command)} (steelyard {version('steelyard')}). Errors are simulated over measured, less one."
    yield ""
    if survey.captures:
        yield "## A real vLLM, with defaults"
        yield ""
        yield from _DEFAULTS
        yield ""
        yield from _errors(
            (plain(f"{validation.folder.name}/{each.name}"), each)
            for validation in survey.captures
            for each in validation.workloads
        )
        yield from _notes(survey.captures)
        yield from _blocks(survey.captures)
    if survey.crossed:
        yield "## The same, calibrated on the other runs of that model"
        yield ""
        yield "`steelyard calibrate` on all runs but one, tried on that one, given what earlier ones had left."
        yield ""
        yield from _errors(
            (plain("/".join(Path(name).parts[-2:])), found)
            for name, found in survey.crossed.items()
            if not isinstance(found, str)
        )
        for name, found in survey.crossed.items():
            if isinstance(found, str):
                yield f"- {plain('/'.join(Path(name).parts[-2:]))}: {plain(found)}"
        yield ""
    for bench, theirs in survey.benches:
        yield from _bench(bench, theirs)
    inside, of = survey.coverage
    if of:
        yield "## How sure it is"
        yield ""
        yield (
            f"{inside} of {of} figures of the runs above ({inside / of:.0%}) lie in the interval stated for them, "
            f"which is meant to hold {STATED:.0%} of them."
        )
        yield ""
    if survey.operators:
        yield from _operators(survey)
    if survey.silicon is not None:
        yield from _silicon(survey.silicon)


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join(' --- ' if i == 0 else ' ---: ' for i in range(len(head)))}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _errors(runs: Iterator[tuple[str, WorkloadComparison]]) -> Iterator[str]:
    shown = [(metric, statistic) for metric in LATENCIES for statistic in ("mean", "p50", "p99")]
    head = ["run", *(f"{_SHORT[metric]} {statistic}" for metric, statistic in shown), "tokens/s"]

    def cells(each: WorkloadComparison) -> Iterator[str]:
        for metric, statistic in shown:
            yield signed_percent(each.latency[metric][statistic].error)
        yield signed_percent(each.figures["throughput"].error)

    yield from _table(head, ([name, *cells(each)] for name, each in runs))


def _notes(captures: Sequence[Validation]) -> Iterator[str]:
    """What explains some of the errors: stalls, settings that are not simulated."""
    for validation in captures:
        for each in validation.workloads:
            where = plain(f"{validation.folder.name}/{each.name}")
            yield from (f"- {where}: {plain(note)}" for note in each.notes)
    yield ""


def _blocks(captures: Sequence[Validation]) -> Iterator[str]:
    yield "KV blocks, preemptions and prefix hits:"
    yield ""

    def both(pair: Pair) -> str:
        return f"{_whole(pair.measured)} / {_whole(pair.simulated)}"

    rows = (
        [plain(f"{validation.folder.name}/{each.name}"), signed_percent(each.figures["kv_blocks"].error)]
        + [both(each.figures[name]) for name in ("preemptions", "prefix_hit_tokens")]
        for validation in captures
        for each in validation.workloads
    )
    yield from _table(["run", "KV blocks", "preemptions", "prefix hit tokens"], rows)


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _bench(bench: Validation, theirs: str) -> Iterator[str]:
    """Compared with that simulator's own summary, if there is one."""
    (each,) = bench.workloads
    own = {
        (_THEIRS[metric], _STATISTIC.get(statistic, statistic.lower())): f"{float(error):+.1f} %"
        for metric, statistic, error in _ROW.findall(theirs)
    }
    yield f"## LLMServingSim's bench of {plain(bench.folder.name)} on {plain(bench.folder.parent.name)}"
    yield ""
    yield "From its own operator profile; beside it what that simulator itself reports."
    yield ""
    rows = (
        [
            f"{_SHORT[metric]} {statistic}",
            signed_percent(each.latency[metric][statistic].error),
            own.get((metric, statistic), "–"),
        ]
        for metric in LATENCIES
        for statistic in STATISTICS
    )
    yield from _table(["", "Steelyard", "LLMServingSim"], rows)


def _operators(survey: Survey) -> Iterator[str]:
    yield "## Operators, on points held out of the profile"
    yield ""
    rows = (
        [gpu, each.family, each.kind, str(each.points)] + [f"{x * 100:.1f} %" for x in (each.median, each.p95)]
        for gpu, errors in survey.operators.items()
        for each in errors
    )
    yield from _table(["GPU", "family", "points", "how many", "p50", "p95"], rows)


def _silicon(found: SiliconValidation) -> Iterator[str]:
    yield "## AIConfigurator's end-to-end points on Hopper (`steelyard validate --silicon`)"
    yield ""
    yield f"Median / mean absolute error. {found.rival}."
    yield ""
    rows = [(" ".join(str(part) for part in key), replays) for key, replays in found.by_gpu().items()]
    rows.append(("all", list(found.replays)))
    rows.append(("answered by both", found.answered_by_both))

    def cells(errors: Errors | None) -> list[str]:
        if errors is None:
            return ["–" for _ in METRICS]
        return [f"{errors.median[metric] * 100:.1f} / {errors.mean[metric] * 100:.1f} %" for metric in METRICS]

    sides: Mapping[Who, str] = {"ours": "Steelyard", "theirs": "AIConfigurator"}
    head = ["", "points", *(f"{side} {_SHORT[metric]}" for side in sides.values() for metric in METRICS)]
    yield from _table(
        head,
        (
            [name, str(len(some)), *(cell for who in sides for cell in cells(Errors.of(some, who)))]
            for name, some in rows
        ),
    )
    yield (
        "Regret: measured throughput per GPU given away by choosing the configuration that the predictions say is "
        "best, among the measured ones of a model, GPU and pair of lengths. Under the group's median TPOT, a choice "
        "that misses it when measured counts as all given away."
    )
    yield ""
    regrets = found.regrets()
    yield from _table(
        ["", "groups", "mean", "worst", "under the group's median TPOT"],
        (
            [
                side,
                str(regret.groups),
                f"{regret.free_mean * 100:.1f} %",
                f"{regret.free_worst * 100:.1f} %",
                f"{regret.limited_mean * 100:.1f} %, limit kept in {regret.kept * 100:.0f} %",
            ]
            for who, side in sides.items()
            if (regret := regrets[who]) is not None
        ),
    )
    yield "Left out: " + "; ".join(f"{count} {reason}" for reason, count in found.skipped.items()) + "."
    yield ""
