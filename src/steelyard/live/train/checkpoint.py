"""Checkpoints and published weights: folders that are there whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from steelyard.errors import UserError
from steelyard.files.finding import is_file, is_folder
from steelyard.files.folder import result_folder
from steelyard.files.jsontext import json_object
from steelyard.files.reading import opened
from steelyard.files.writing import written
from steelyard.live.train.settings import TrainerSettings
from steelyard.live.train.weights import BESIDE, CONFIG, MODEL, copy_beside, read_tensors, write_model

_PROGRESS, _OPTIMIZER = "progress.json", "optimizer.pt"
_CHECKPOINT = (*BESIDE, CONFIG, MODEL, _OPTIMIZER, _PROGRESS)  # with the last one it is complete
_PUBLISHED = (*BESIDE, MODEL, CONFIG)


@dataclass(frozen=True)
class Progress:
    """How far training is: the step that comes next, the version of the weights, and updates of the optimiser."""

    step: int = 0
    version: int = 0
    updates: int = 0


def write_checkpoint(
    settings: TrainerSettings, config: dict[str, Any], state: dict[str, Tensor], progress: Progress
) -> Path:
    """Write what is needed to go on exactly from here; older checkpoints are removed, but for the last few."""
    home = settings.folder / "checkpoints"
    out = home / f"step-{progress.step:08d}"
    weights = {name.removeprefix("model."): each for name, each in state.items() if name.startswith("model.")}
    rest = {name: each for name, each in state.items() if not name.startswith("model.")}
    with result_folder(out, names=_CHECKPOINT) as stage:
        write_model(stage, config, weights)
        copy_beside(settings.model, stage)
        with written(stage / _OPTIMIZER) as file:
            torch.save({"optimizer": rest, "random": _random(settings)}, file)
        with written(stage / _PROGRESS) as file:
            file.write(json.dumps(asdict(progress)).encode())
    _remove(_complete(home, "step", _PROGRESS)[: -settings.kept])
    return out


def read_checkpoint(folder: Path, settings: TrainerSettings) -> tuple[dict[str, Tensor], Progress]:
    """State and progress. The random number generators go on where they were."""
    told = json_object(folder / _PROGRESS, "a checkpoint")
    try:
        progress = Progress(int(told["step"]), int(told["version"]), int(told["updates"]))
    except (KeyError, TypeError, ValueError) as problem:
        raise UserError(f"{folder / _PROGRESS}: not a checkpoint's: {problem}") from None
    state = {f"model.{name}": tensor for name, tensor in read_tensors(folder / MODEL).items()}
    try:
        with opened(folder / _OPTIMIZER, "a checkpoint") as file:
            rest = torch.load(file, map_location="cpu", weights_only=True)
        _set_random(rest["random"], settings)
        return {**state, **rest["optimizer"]}, progress
    except (RuntimeError, UnpicklingError, KeyError, TypeError, ValueError) as problem:
        raise UserError(f"{folder / _OPTIMIZER}: damaged: {problem}") from None


def latest(settings: TrainerSettings) -> Path:
    """The newest complete checkpoint."""
    found = _complete(settings.folder / "checkpoints", "step", _PROGRESS)
    if not found:
        raise UserError(f"{settings.folder / 'checkpoints'}: has no complete checkpoint; begin a run instead")
    return found[-1]


def begun(settings: TrainerSettings) -> bool:
    """Whether a run has left checkpoints in its folder."""
    return bool(_complete(settings.folder / "checkpoints", "step", _PROGRESS))


def publish(settings: TrainerSettings, config: dict[str, Any], weights: dict[str, Tensor], version: int) -> Path:
    """Write weights for engines, in place of those that the run published before it was resumed from a checkpoint.

    Older versions are removed, but for the last few, and so are newer ones, which will not come about as they were.
    """
    home = settings.folder / "published"
    out = home / f"version-{version:08d}"
    with result_folder(out, names=_PUBLISHED) as stage:
        write_model(stage, config, weights, torch.bfloat16 if settings.published == "bfloat16" else torch.float32)
        copy_beside(settings.model, stage)
    found = _complete(home, "version", CONFIG)
    last = found.index(out) + 1
    _remove([*found[: max(0, last - settings.kept)], *found[last:]])
    return out


def _random(settings: TrainerSettings) -> list[Tensor]:
    """States of random number generators."""
    cuda = [torch.cuda.get_rng_state()] if settings.device.startswith("cuda") else []
    return [torch.get_rng_state(), *cuda]


def _set_random(states: Sequence[Tensor], settings: TrainerSettings) -> None:
    torch.set_rng_state(states[0])
    if settings.device.startswith("cuda") and len(states) > 1:
        torch.cuda.set_rng_state(states[1])


def _complete(home: Path, kind: str, last: str) -> list[Path]:
    """Folders that have their last file, oldest first."""
    return sorted(each for each in home.glob(f"{kind}-*") if is_file(each / last)) if is_folder(home) else []


def _remove(folders: Sequence[Path]) -> None:
    for each in folders:
        shutil.rmtree(each, ignore_errors=True)  # an engine may still read it
