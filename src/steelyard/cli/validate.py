"""``steelyard validate``"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import LateProgress, out
from steelyard.cli.options import Figures
from steelyard.cli.outputs import keep_inputs
from steelyard.errors import UserError
from steelyard.files.writing import check_file
from steelyard.hardware import find_gpu
from steelyard.report.repeats import print_repeats
from steelyard.report.silicon import print_silicon
from steelyard.report.validation import print_validation, write_validation_page
from steelyard.scenario import CostSpec
from steelyard.validate.capture import capture_files
from steelyard.validate.compare import validate
from steelyard.validate.llmservingsim import bench_files, is_bench_folder, validate_bench
from steelyard.validate.repeats import compare_repeats
from steelyard.validate.rival import find_rival
from steelyard.validate.silicon import validate_silicon


def command(
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
            help="Take prefix-cache hits and kernels compiled by earlier runs from the capture, instead of simulating "
            "them.",
        ),
    ] = False,
    profile: Annotated[
        Path | None, typer.Option(help="A profile of your own, such as the perf folder of LLMServingSim.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="The requests, for a bench folder of LLMServingSim.")] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Host times that `steelyard calibrate` wrote; those of a usual host if not given."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="A second capture of the same engine and requests: how far the two are apart is the noise."),
    ] = None,
    json_: Figures = False,
    report: Annotated[
        Path | None, typer.Option(help="Also write an HTML page with measured and simulated curves.")
    ] = None,
) -> None:
    """Replay the requests of a captured engine, and compare with its measurements."""
    files = {"--profile": profile, "--trace": trace, "--calibration": calibration, "--against": against}
    if silicon:
        others = {"capture": capture, "--given-cache": given_cache or None, **files, "--report": report}
        _refuse(others, "--silicon has measured points of its own")
        _validate_silicon(gpu, json_)
        return
    if capture is None:
        raise UserError("nothing to validate: give a capture folder, or --silicon")
    repeats = None
    is_bench = is_bench_folder(capture)
    if report is not None:
        check_file(report)
        own = bench_files(capture) if is_bench else capture_files(capture)
        own += capture_files(against) if against is not None else []
        keep_inputs(f"--report {report}", [report], [*own, *(path for path in files.values() if path is not None)])
    if is_bench:
        _refuse(
            {"--given-cache": given_cache or None}, f"{capture} is a bench folder, which does not say what was cached"
        )
        _refuse({"--against": against}, f"{capture} is a bench folder, which has no step times")
        if trace is None:
            raise UserError(f"{capture}: a bench folder does not say what was asked; give --trace WORKLOAD.jsonl")
        validation = validate_bench(capture, profile, trace, gpu=gpu, calibration=calibration)
    else:
        _refuse(
            {"--trace": trace}, f"it is for bench folders of LLMServingSim, and {capture} has no vllm/requests.jsonl"
        )
        repeats = None if against is None else compare_repeats(capture, against, gpu)
        given = {"profile": profile, "calibration": calibration}
        cost = CostSpec.model_validate({key: str(path) for key, path in given.items() if path is not None})
        with LateProgress("replaying") as progress:
            validation = validate(capture, gpu=gpu, given_cache=given_cache, cost=cost, progress=progress)
    if report is not None:
        write_validation_page(validation, report)
    if json_:
        noise = {} if repeats is None else {"against": repeats.as_dict()}
        typer.echo(json.dumps(validation.as_dict() | noise, indent=2, allow_nan=False))
    elif repeats is not None:
        print_repeats(repeats, {each.name: each for each in validation.workloads}, out)
    else:
        print_validation(validation, out)


def _refuse(given: Mapping[str, object], why: str) -> None:
    """Refuse options that would have no effect."""
    for name, value in given.items():
        if value is not None:
            shown = name if value is True else f"{name} {value}"
            raise UserError(f"{shown}: {why}; leave {name} out")


def _validate_silicon(gpu: str | None, as_json: bool) -> None:
    with LateProgress("replaying") as progress:
        found = validate_silicon(
            gpus=[] if gpu is None else [find_gpu(gpu).name], rival=find_rival(), progress=progress
        )
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2, allow_nan=False))
    else:
        print_silicon(found, out)
