"""The fidelity page: every figure of a survey, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from steelyard.cost import PROVENANCES
from steelyard.report.markdown import code, plain
from steelyard.report.silicon import NAMES
from steelyard.report.validation import signed_percent
from steelyard.sim.intervals import STATED
from steelyard.validate.compare import LATENCIES, STATISTICS, Pair, Validation, WorkloadComparison
from steelyard.validate.coverage import Coverage
from steelyard.validate.silicon import METRICS, SIDES, Errors, SiliconValidation
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
    if survey.repeats:
        yield from _repeats(survey)
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
    yield from _sure(survey)
    if survey.operators:
        yield from _operators(survey)
    if survey.silicon is not None:
        yield from _silicon(survey.silicon)


def _sure(survey: Survey) -> Iterator[str]:
    """Figures of runs, and operators by the class of their times, that lie in what is stated for them."""
    inside, of = survey.coverage
    if not of:
        return
    yield "## How sure it is"
    yield ""
    yield (
        f"{inside} of {of} figures of the runs above ({inside / of:.0%}) lie in the interval stated for them, "
        f"which is meant to hold {STATED:.0%} of them. By where most of a run's step time comes from; and single "
        f"operators on points that no source was given, which lie within {STATED:.0%} of their stated error or not:"
    )
    yield ""
    runs = {each.kind: each for each in survey.runs_by_class}
    operators = {each.kind: each for each in survey.operators_by_class}
    cells = (
        [kind, _covered(runs.get(kind)), _covered(operators.get(kind))]
        for kind in PROVENANCES
        if kind in runs or kind in operators
    )
    yield from table(["times are", "figures of runs", "operators"], cells)


def _covered(found: Coverage | None) -> str:
    return "–" if found is None else f"{found.inside} of {found.of}, {found.share:.0%}"


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown. All columns but the first are figures."""
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

    yield from table(head, ([name, *cells(each)] for name, each in runs))


def _notes(captures: Sequence[Validation]) -> Iterator[str]:
    """What explains some of the errors: stalls, settings that are not simulated."""
    for validation in captures:
        always = set.intersection(*(set(each.notes) for each in validation.workloads))
        yield from (f"- {plain(validation.folder.name)}: {plain(note)}" for note in sorted(always))
        for each in validation.workloads:
            where = plain(f"{validation.folder.name}/{each.name}")
            yield from (f"- {where}: {plain(note)}" for note in each.notes if note not in always)
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
    yield from table(["run", "KV blocks", "preemptions", "prefix hit tokens"], rows)


def _repeats(survey: Survey) -> Iterator[str]:
    """How far captures of one engine are apart, with the error of the prediction of the first."""
    yield "## The noise floor"
    yield ""
    yield (
        "The same requests, served twice by one kind of engine (`steelyard validate CAPTURE_DIR --against "
        "OTHER_CAPTURE`): how far the two are apart, and behind it the error of the prediction above."
    )
    yield ""
    shown = [(metric, statistic) for metric in LATENCIES for statistic in ("mean", "p99")]
    predicted = {
        (validation.folder, each.name): each for validation in survey.captures for each in validation.workloads
    }
    rows = []
    for repeats in survey.repeats:
        for run in repeats.runs:
            ours = predicted[repeats.folders[0], run.name]
            pairs = (
                (run.figures[f"{metric}.{statistic}"], ours.latency[metric][statistic]) for metric, statistic in shown
            )
            cells = [f"{_apart(each.relative)} ({signed_percent(pair.error)})" for each, pair in pairs]
            names = (f"{folder.name}/{name}" for folder, name in zip(repeats.folders, run.names, strict=True))
            rows.append([*map(plain, names), *cells, plain(repeats.hosts)])
    heads = [f"{_SHORT[metric]} {statistic}" for metric, statistic in shown]
    yield from table(["run", "again", *heads, "hosts"], iter(rows))


def _apart(relative: float | None) -> str:
    return "–" if relative is None else f"{abs(relative) * 100:.1f} %"


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
    yield from table(["", "Steelyard", "LLMServingSim"], rows)


def _operators(survey: Survey) -> Iterator[str]:
    yield "## Operators, on points held out of the profile"
    yield ""
    rows = (
        [gpu, each.family, each.kind, str(each.points)] + [f"{x * 100:.1f} %" for x in (each.median, each.p95)]
        for gpu, errors in survey.operators.items()
        for each in errors
    )
    yield from table(["GPU", "family", "points", "how many", "p50", "p95"], rows)


def _silicon(found: SiliconValidation) -> Iterator[str]:
    yield "## AIConfigurator's end-to-end points on Hopper (`steelyard validate --silicon`)"
    yield ""
    yield (
        f"Median / mean absolute error. {found.rival}. With fitted hosts: the pace of the host and the time from a "
        "client into the server are chosen, for InferenceX's points and for NVIDIA's own, by what fits the points of "
        "other models best; no point of a model has a say in its own predictions (`validate/silicon_hosts.py`). Points "
        "with prefill and decode apart are without."
    )
    yield ""
    rows = [(" ".join(str(part) for part in key), replays) for key, replays in found.by_gpu().items()]
    rows.append(("all", list(found.replays)))
    rows.append(("answered by both", found.answered_by_both))
    rows.append(("of all, prefill and decode apart", [each for each in found.replays if not each.point.aggregated]))

    def cells(errors: Errors | None) -> list[str]:
        if errors is None:
            return ["–" for _ in METRICS]
        return [f"{errors.median[metric] * 100:.1f} / {errors.mean[metric] * 100:.1f} %" for metric in METRICS]

    head = ["", "points", *(f"{side} {_SHORT[metric]}" for side in NAMES.values() for metric in METRICS)]
    yield from table(
        head,
        (
            [name, str(len(some)), *(cell for who in SIDES for cell in cells(Errors.of(some, who)))]
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
    yield from table(
        ["", "groups", "mean", "worst", "under the group's median TPOT"],
        (
            [
                side,
                str(regret.groups),
                f"{regret.free_mean * 100:.1f} %",
                f"{regret.free_worst * 100:.1f} %",
                f"{regret.limited_mean * 100:.1f} %, limit kept in {regret.kept * 100:.0f} %",
            ]
            for who, side in NAMES.items()
            if (regret := regrets[who]) is not None
        ),
    )
    yield "Left out: " + "; ".join(f"{count} {reason}" for reason, count in found.skipped.items()) + "."
    yield ""
