"""Validates everything at hand: captures and benches in some folders, and the profiles that ship with the package."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from steelyard.cost.bundle import shipped_bundle
from steelyard.cost.heldout import HeldOutError, held_out_errors
from steelyard.errors import UserError
from steelyard.files.finding import files_below, is_file, is_folder
from steelyard.files.jsontext import json_object
from steelyard.files.reading import read_bytes, read_text
from steelyard.hardware import find_gpu, gpu_names
from steelyard.validate.capture import capture_files, read_capture_folder
from steelyard.validate.compare import Validation, WorkloadComparison, validate
from steelyard.validate.coverage import Coverage, of_operators, of_runs
from steelyard.validate.crossed import cross_calibrate, read_sources
from steelyard.validate.llmservingsim import bench_files, is_bench_folder, validate_bench
from steelyard.validate.repeats import Repeats, engines_differ, repeats_of
from steelyard.validate.rival import find_rival
from steelyard.validate.silicon import SiliconValidation, validate_silicon
from steelyard.validate.silicon_points import sample_file

_HOPPER = ("h100", "h200")
_PROFILES, _WORKLOADS = "perf", "workloads"  # folders of LLMServingSim
_SUMMARY = "their-summary.txt"  # of a bench: the errors of its own simulator

Say = Callable[[str], None]


@dataclass
class Survey:
    """What was found, and its errors."""

    captures: list[Validation] = field(default_factory=list)
    crossed: dict[str, WorkloadComparison | str] = field(default_factory=dict)  # by held-out run
    repeats: list[Repeats] = field(default_factory=list)  # captures of one engine and one workload
    benches: list[tuple[Validation, str]] = field(default_factory=list)  # with the errors of the bench's own simulator
    operators: dict[str, list[HeldOutError]] = field(default_factory=dict)  # by GPU
    silicon: SiliconValidation | None = None
    operators_by_class: list[Coverage] = field(default_factory=list)

    @property
    def runs_by_class(self) -> list[Coverage]:
        """Figures of captures and benches in their stated interval, by where most of a run's step time comes from."""
        runs = (*self.captures, *(bench for bench, _ in self.benches))
        return of_runs(each for run in runs for each in run.workloads)

    @property
    def coverage(self) -> tuple[int, int]:
        """How many figures lie in their stated interval, and how many have one, over all captures and benches."""
        pairs = [each.coverage for each in (*self.captures, *(bench for bench, _ in self.benches))]
        return sum(inside for inside, _ in pairs), sum(of for _, of in pairs)


@dataclass(frozen=True)
class Runs:
    """Folders of captures and of benches."""

    captures: Sequence[Path]
    benches: Sequence[Path]

    @property
    def files(self) -> list[Path]:
        """The files that are read, and folders of such files."""
        asked = [root / name for root in map(_root, self.benches) for name in (_PROFILES, _WORKLOADS)]
        own = [file for folder in self.captures for file in capture_files(folder)]
        return [*own, *(file for folder in self.benches for file in (*bench_files(folder), folder / _SUMMARY)), *asked]


def find_runs(roots: Sequence[Path]) -> Runs:
    """Find captures and benches in folders, of which each must have some."""
    captures: set[Path] = set()
    benches: set[Path] = set()
    for root in roots:
        if not is_folder(root):
            raise UserError(f"{root}: no such folder; give one with captures in it")
        own = {folder for folder in _found(root, "meta.json") if _is_capture(folder)}
        others = {folder.parent for folder in _found(root, "vllm/requests.jsonl") if is_bench_folder(folder.parent)}
        if not own and not others:
            raise UserError(
                f"{root}: no capture in it (a folder with meta.json, config.json and NAME.requests.jsonl) and no "
                "bench of LLMServingSim (vllm/requests.jsonl); give a folder that has some"
            )
        captures |= own
        benches |= others
    return Runs(sorted(captures), sorted(benches))


def survey(runs: Runs, say: Say) -> Survey:
    """Validate captures and benches, and the profiles that ship with the package."""
    found = Survey()
    for folder in runs.captures:
        say(f"{folder.name}: from the profile alone")
        found.captures.append(validate(folder, given_cache=shared_engine(folder)))
    found.repeats = _repeats(runs.captures)
    for same_model in _by_model(runs.captures):
        say(f"{', '.join(folder.name for folder in same_model)}: calibrated on each other")
        try:
            found.crossed |= cross_calibrate(read_sources(same_model, None)).held_out
        except UserError as error:
            found.crossed[str(same_model[0])] = str(error)
    for folder in runs.benches:
        _bench(folder, found, say)
    for gpu in gpu_names():
        bundle = shipped_bundle(gpu)
        if bundle is not None:
            say(f"operators of the {gpu} that its profile was not given")
            found.operators[gpu] = held_out_errors(bundle, find_gpu(gpu))
            found.operators_by_class = of_operators(bundle, find_gpu(gpu))
    if sample_file() is not None:
        say("the end-to-end points of AIConfigurator on Hopper")
        found.silicon = validate_silicon(gpus=_HOPPER, rival=find_rival())
    return found


def _repeats(folders: Sequence[Path]) -> list[Repeats]:
    """Pairs of captures of one engine that served the same requests."""
    captures = [read_capture_folder(folder) for folder in folders]
    alike = (pair for pair in combinations(captures, 2) if engines_differ(*pair) is None)
    return [found for pair in alike if (found := repeats_of(*pair)).runs]


def _found(root: Path, pattern: str) -> set[Path]:
    """The folders of all files that match."""
    return {path.parent for path in files_below(root, pattern, "the folder of captures")}


def _is_capture(folder: Path) -> bool:
    return is_file(folder / "config.json") and any(folder.glob("*.requests.jsonl*"))


def shared_engine(folder: Path) -> bool:
    """Whether several runs share an engine, and so its prefix cache."""
    return len(list(folder.glob("*.requests.jsonl*"))) > 1


def _by_model(folders: Sequence[Path]) -> list[list[Path]]:
    same: dict[str, list[Path]] = defaultdict(list)
    for folder in folders:
        same[hashlib.sha256(read_bytes(folder / "config.json")).hexdigest()].append(folder)
    return list(same.values())


def _root(bench: Path) -> Path:
    """The folder of LLMServingSim that has this bench/HW/MODEL."""
    return Path(os.path.normpath(bench / "../../.."))


def _bench(folder: Path, found: Survey, say: Say) -> None:
    root = _root(folder)
    say(f"{folder.name}: from the profile of LLMServingSim")
    summary = folder / _SUMMARY
    try:
        meta = json_object(folder / "vllm" / "meta.json")
        trace = root / _WORKLOADS / Path(str(meta.get("dataset_path"))).name
        bench = validate_bench(folder, root / _PROFILES, trace)
    except UserError as error:
        say(f"left out: {error}")
        return
    found.benches.append((bench, read_text(summary) if is_file(summary) else ""))
