"""The command line: parse, call, print."""

from __future__ import annotations

import io
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from steelyard.balance.estimate import ESTIMATORS
from steelyard.balance.log import Journal
from steelyard.errors import UserError
from steelyard.hardware import find_gpu, gpu_names
from steelyard.model import model_names
from steelyard.posttrain.compare import compare as compare_runs
from steelyard.posttrain.compare_choices import DIMENSIONS, chosen, contenders
from steelyard.posttrain.part import recommended, scaled, shares
from steelyard.posttrain.run import posttrain
from steelyard.report import choose_output_dir, print_summary, summary_json, write_result
from steelyard.report.calibration import print_calibration
from steelyard.report.compare import comparison_page, print_comparison
from steelyard.report.compare_figure import comparison_svg
from steelyard.report.estimators import print_estimators
from steelyard.report.fidelity import fidelity_page
from steelyard.report.folder import check_writable, write_whole
from steelyard.report.posttrain import advice_data, print_advice, print_posttrain, timeline_svg
from steelyard.report.silicon import print_silicon
from steelyard.report.validation import print_validation, write_validation_page
from steelyard.scenario import CostSpec, json_schema, load_posttrain, load_scenario
from steelyard.sim import simulate, with_intervals
from steelyard.validate.compare import validate
from steelyard.validate.crossed import cross_calibrate, read_sources
from steelyard.validate.estimators import DEFAULT, evaluate_file
from steelyard.validate.llmservingsim import is_bench_folder, validate_bench
from steelyard.validate.parity import Verdict, compare, read_golden
from steelyard.validate.rival import find_rival
from steelyard.validate.silicon import validate_silicon
from steelyard.validate.survey import survey

app = typer.Typer(
    name="steelyard",
    help="Weigh an LLM serving fleet before it is built.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_out = Console()
_err = Console(stderr=True)

_SMALL = 5000  # requests of a run that is repeated for its intervals without being asked
_QUIET_SECONDS = 2.0  # anything longer shows a progress bar


_Out = Annotated[Path | None, typer.Option(help="Result folder; runs/NAME-N if not given.")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing result folder.")]
_Set = Annotated[list[str] | None, typer.Option("--set", help="Override a key, such as engine.max_num_seqs=64.")]
_Posttrain = Annotated[Path, typer.Argument(help="Post-training scenario, YAML or JSON (docs/posttrain.md).")]


class LateProgress:
    """A progress bar on standard error that appears only if the work takes long enough to wonder about."""

    def __init__(self, what: str, console: Console = _err) -> None:
        self._what = what
        self._console = console
        self._began = time.monotonic()
        self._bar: Progress | None = None
        self._task: Any = None

    def __call__(self, done: int, total: int | None = None) -> None:
        if self._bar is None:
            if not self._console.is_terminal or time.monotonic() - self._began < _QUIET_SECONDS:
                return
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=total)
        self._bar.update(self._task, completed=done)

    def __enter__(self) -> LateProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


@app.command("simulate")
def simulate_command(
    scenario: Annotated[Path, typer.Argument(help="Scenario file, YAML or JSON.")],
    out: _Out = None,
    overwrite: _Overwrite = False,
    set_: _Set = None,
    json_: Annotated[bool, typer.Option("--json", help="Print summary.json to standard output.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Also write a trace for Perfetto.")] = False,
    intervals: Annotated[
        bool | None,
        typer.Option(
            "--intervals/--no-intervals",
            help="Run again with costs and seed moved, to say how sure each figure is "
            f"[default: up to {_SMALL} requests].",
        ),
    ] = None,
) -> None:
    """Simulate a scenario and write its result folder."""
    loaded = load_scenario(scenario, set_ or [])
    folder = choose_output_dir(out, loaded.name, overwrite)
    with LateProgress("simulating") as progress:
        result = simulate(loaded, progress=progress)
    if intervals or (intervals is None and result.summary["requests"] <= _SMALL):
        with LateProgress("and again, moved") as progress:
            result = with_intervals(result, progress)
    write_result(result, folder, trace=trace)
    if json_:
        sys.stdout.buffer.write(summary_json(result).encode())
    else:
        print_summary(result, _out)
        _out.print(
            f"\nresult folder: {folder}\nreport:        {folder / 'report.html'}", soft_wrap=True, highlight=False
        )


@app.command()
def parity(
    golden: Annotated[Path, typer.Argument(help="Golden file: one scenario of vLLM's decisions a line.")],
    plain: Annotated[
        bool, typer.Option("--plain", help="Replay with the plain reference path instead of the fast one.")
    ] = False,
) -> None:
    """Replay decisions of vLLM's own scheduler and compare every step."""
    verdicts: list[Verdict] = []
    scenarios = list(read_golden(golden))
    if not scenarios:
        raise UserError(f"{golden}: no scenario in it; a golden file has one JSON object per line")
    with LateProgress("replaying") as progress:
        for each in scenarios:
            verdicts.append(compare(each, plain=plain))
            progress(len(verdicts), len(scenarios))
    for verdict in verdicts:
        if verdict.difference is not None:
            typer.echo(f"{verdict.name}: {verdict.difference}")
    same = sum(verdict.difference is None for verdict in verdicts)
    typer.echo(f"{same}/{len(verdicts)} scenarios identical")
    raise typer.Exit(0 if same == len(verdicts) else 1)


@app.command("validate")
def validate_command(
    capture: Annotated[
        Path | None, typer.Argument(help="Capture folder: meta.json, config.json and NAME.* workloads.")
    ] = None,
    silicon: Annotated[
        bool, typer.Option("--silicon", help="Instead: the end-to-end points that come with steelyard[silicon].")
    ] = False,
    gpu: Annotated[str | None, typer.Option(help="GPU to simulate; the capture's own if not given.")] = None,
    given_cache: Annotated[
        bool,
        typer.Option(
            "--given-cache",
            help="Take from the capture, instead of simulating it, what prompts found in the prefix cache and what "
            "earlier runs had compiled.",
        ),
    ] = False,
    profile: Annotated[
        Path | None, typer.Option(help="A profile of your own, such as the perf folder of LLMServingSim.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="What was asked, for a bench folder of LLMServingSim.")] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Host times that `steelyard calibrate` wrote; those of a usual host if not given."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print all figures as JSON to standard output.")] = False,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML page with both curves of everything.")] = None,
) -> None:
    """Replay what a real engine was asked, and compare with what it did."""
    if silicon:
        _validate_silicon(gpu, json_)
        return
    if capture is None:
        raise UserError("nothing to validate: give a capture folder, or --silicon")
    if is_bench_folder(capture):
        if trace is None:
            raise UserError(f"{capture}: a bench folder does not say what was asked; give --trace WORKLOAD.jsonl")
        validation = validate_bench(capture, profile, trace, gpu=gpu, calibration=calibration)
    else:
        files = {"profile": profile, "calibration": calibration}
        cost = CostSpec.model_validate({key: str(path) for key, path in files.items() if path is not None})
        with LateProgress("replaying") as progress:
            validation = validate(capture, gpu=gpu, given_cache=given_cache, cost=cost, progress=progress)
    if report is not None:
        write_validation_page(validation, report)
    if json_:
        typer.echo(json.dumps(validation.as_dict(), indent=2, allow_nan=False))
    else:
        print_validation(validation, _out)


def _validate_silicon(gpu: str | None, as_json: bool) -> None:
    with LateProgress("replaying") as progress:
        found = validate_silicon(
            gpus=[] if gpu is None else [find_gpu(gpu).name], rival=find_rival(), progress=progress
        )
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2, allow_nan=False))
    else:
        print_silicon(found, _out)


@app.command("calibrate")
def calibrate_command(
    captures: Annotated[list[Path], typer.Argument(help="Capture folders of your own engine (docs/calibration.md).")],
    out: Annotated[Path, typer.Option(help="File to write; a scenario names it as cost.calibration.")],
    gpu: Annotated[str | None, typer.Option(help="GPU they ran on; the captures' own if not given.")] = None,
) -> None:
    """Find the host's times from captures, and how well they predict a capture they were not found from."""
    with LateProgress("calibrating") as progress:
        crossed = cross_calibrate(read_sources(captures, gpu), progress)
    write_whole(out, json.dumps(crossed.as_dict(), indent=2, allow_nan=False) + "\n")
    print_calibration(crossed, _out)
    _out.print(f"\nwritten to {out}", soft_wrap=True, highlight=False)


@app.command()
def fidelity(
    folders: Annotated[list[Path], typer.Argument(help="Folders to look through for captures and benches.")],
    out: Annotated[Path, typer.Option(help="Markdown file to write.")],
) -> None:
    """Validate against everything at hand and write the fidelity page."""
    found = survey(folders, _err.print)
    command = f"steelyard fidelity {' '.join(map(str, folders))} --out {out}"
    write_whole(out, fidelity_page(found, command))
    _out.print(f"written to {out}", soft_wrap=True, highlight=False)


@app.command("posttrain")
def posttrain_command(
    scenario: _Posttrain,
    out: _Out = None,
    overwrite: _Overwrite = False,
    set_: _Set = None,
    json_: Annotated[bool, typer.Option("--json", help="Print summary.json to standard output.")] = False,
    log: Annotated[
        bool, typer.Option("--log", help="Also write events.jsonl: what the decision core was told, and its commands.")
    ] = False,
) -> None:
    """Simulate RL post-training: rollouts with tools, training and weight sync, step after step."""
    loaded = load_posttrain(scenario, set_ or [])
    folder = choose_output_dir(out, loaded.name, overwrite)
    with LateProgress("training steps") as progress, ExitStack() as files:
        journal = None
        if log:
            folder.mkdir(parents=True, exist_ok=True)
            journal = Journal(files.enter_context((folder / "events.jsonl").open("w", encoding="utf-8")))
        result = posttrain(loaded, progress, journal)
    text = json.dumps(result.summary, indent=2, allow_nan=False) + "\n"
    write_whole(folder / "timeline.svg", timeline_svg(result.loop))
    write_whole(folder / "summary.json", text)
    if json_:
        typer.echo(text, nl=False)
        return
    print_posttrain(result.summary, _out)
    _out.print(f"written to {folder}", soft_wrap=True, highlight=False)


@app.command("plan")
def plan_command(
    scenario: _Posttrain,
    set_: _Set = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Recommend how to split a scenario's GPUs between rollout and training, and how to lay both out: by simulation,
    or at once by a model (--set planner=search)."""
    loaded = load_posttrain(scenario, set_ or [])
    with LateProgress("simulating plans") as progress:
        advice = recommended(loaded, watch=progress)
    if json_:
        typer.echo(json.dumps(advice_data(advice), indent=2))
    else:
        print_advice(advice, _out)


def _names(dimension: str) -> Any:
    return typer.Option(help=f"Of {', '.join(map(str, DIMENSIONS[dimension]))}; with commas [default: all].")


@app.command("compare")
def compare_command(
    scenarios: Annotated[list[Path], typer.Argument(help="Post-training scenarios (docs/posttrain.md).")],
    out: Annotated[Path, typer.Option(help="Folder that keeps results; what it has is not run again.")] = Path(
        "runs/comparison"
    ),
    set_: _Set = None,
    modes: Annotated[str | None, _names("mode")] = None,
    routers: Annotated[str | None, _names("router")] = None,
    estimators: Annotated[str | None, _names("estimator")] = None,
    planners: Annotated[str | None, _names("planner")] = None,
    tails: Annotated[str | None, _names("tail")] = None,
    pools: Annotated[str | None, _names("pool")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Every mode with every router, planner and tail: thousands of runs.")
    ] = False,
    rivals: Annotated[bool, typer.Option(help="Whether what others do is run, too.")] = True,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps; the scenario's own if not given.")] = None,
    scale: Annotated[
        str,
        typer.Option(help="Part of the prompts, engines and training replicas to run with: for all, or 0.5,0.25,..."),
    ] = "1",
    seeds: Annotated[
        int,
        typer.Option(min=1, help="Seeds, from the scenario's on, that whoever comes close to the best is run with."),
    ] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time, each in a process of its own.")] = 1,
    page: Annotated[
        Path | None, typer.Option(help="Also write a Markdown page, with images and its figures as JSON beside it.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print all figures as JSON to standard output.")] = False,
) -> None:
    """Compare ways to run post-training: ours, bounds, what others do, and ours with one thing changed."""
    given = zip(
        ("mode", "router", "estimator", "planner", "tail", "pool"),
        (modes, routers, estimators, planners, tails, pools),
        strict=True,
    )
    limits = {dimension: chosen(dimension, text) for dimension, text in given if text is not None}
    changes = [*(set_ or []), *([] if steps is None else [f"steps={steps}"])]
    parts = shares(scale, len(scenarios))
    loaded = [scaled(load_posttrain(path, changes), part) for path, part in zip(scenarios, parts, strict=True)]
    check_writable(out)
    with LateProgress("comparing") as progress:
        found = compare_runs(loaded, contenders(limits, full, rivals), out, workers, progress, seeds)
    figures = json.dumps([each.as_dict() for each in found], indent=1, allow_nan=False)
    if page is not None:
        folder = page.parent / "images" / "comparison"
        for each in found:
            write_whole(folder / f"{each.scenario.name}.svg", comparison_svg(each))
        said = [
            *(f"--set {each}" for each in changes),
            *(f"--{name}s {','.join(names)}" for name, names in limits.items()),
        ]
        said += (
            ["--full"] * full
            + [f"--seeds {seeds}"] * (seeds > 1)
            + ["--no-rivals"] * (not rivals)
            + ([] if scale == "1" else [f"--scale {scale}"])
        )
        command = " ".join(["steelyard compare", *map(str, scenarios), *said, f"--page {page}"])
        write_whole(page, comparison_page(found, command, "images/comparison"))
        write_whole(page.with_suffix(".json"), figures + "\n")
    if json_:
        typer.echo(figures)
        return
    for each in found:
        print_comparison(each, _out)


@app.command("estimator-eval")
def estimator_eval(
    file: Annotated[Path, typer.Argument(help="Trajectory file (docs/trajectories.md), gzipped or not.")],
    estimator: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(ESTIMATORS)} [default: all; as JSON, {DEFAULT}].")
    ] = None,
    folds: Annotated[int, typer.Option(help="Parts that the tasks are dealt into; each is held out once.")] = 5,
    json_: Annotated[bool, typer.Option("--json", help="Print one estimator's figures as JSON.")] = False,
) -> None:
    """Judge estimators of what a trajectory has left, on tasks they have not seen."""
    name = estimator or DEFAULT
    found = evaluate_file(file, [name] if estimator or json_ else list(ESTIMATORS), folds)
    if json_:
        typer.echo(json.dumps(found.as_dict(name), indent=2, allow_nan=False))
    else:
        print_estimators(found, _out)


@app.command()
def profile(
    out: Annotated[Path, typer.Argument(help="File of measured points; one that exists is added to.")],
    minutes: Annotated[float, typer.Option(min=0.1, help="Stop after so long; run again to go on.")] = 10.0,
) -> None:
    """Measure this machine's GPU, operator by operator (needs torch; vLLM's kernels where installed)."""
    try:
        from steelyard.profile.grid import points
        from steelyard.profile.run import about, measure
    except ImportError as error:
        raise UserError(
            f"profiling needs a machine with a GPU and torch ({error}); pip install 'steelyard[profile]'"
        ) from None
    todo = list(points())
    typer.echo(json.dumps(about()))
    with LateProgress("measuring") as progress:
        added = measure(todo, out, minutes * 60, lambda done: progress(done, len(todo)))
    typer.echo(f"{added} points added to {out}, of {len(todo)} in the grid")


@app.command()
def schema() -> None:
    """Print the JSON Schema of a scenario file."""
    typer.echo(json.dumps(json_schema(), indent=2))


@app.command()
def models() -> None:
    """List the models known by name; any other is given by the path of its config.json."""
    table = Table("model", "what it is", box=None, pad_edge=False)
    for name, description in model_names().items():
        table.add_row(name, description)
    _out.print(table)


@app.command()
def gpus() -> None:
    """List the GPUs known by name."""
    table = Table(box=None, pad_edge=False)
    for heading in ("gpu", "memory", "bandwidth", "bf16 dense", "fp8 dense", "link", "$/hour"):
        table.add_column(heading, justify="left" if heading == "gpu" else "right")
    for name in gpu_names():
        gpu = find_gpu(name)
        fp8 = gpu.flops.get("fp8")
        table.add_row(
            name,
            f"{gpu.memory_gb} GB",
            f"{gpu.memory_bandwidth / 1e12:.2f} TB/s",
            f"{gpu.flops['bf16'] / 1e12:.0f} TFLOP/s",
            f"{fp8 / 1e12:.0f} TFLOP/s" if fp8 else "–",
            f"{gpu.peer_bandwidth / 1e9:.0f} GB/s",
            f"{gpu.price_per_hour:.2f}",
        )
    _out.print(table)


def main() -> None:
    """Entry point: a user's mistake is one message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a letter is no reason to fail
    try:
        app()
    except UserError as error:
        _err.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
