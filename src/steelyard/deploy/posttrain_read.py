"""Commands of trainers read back into a post-training scenario's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from steelyard.deploy.imported import Imported, ImportOptions, Remarks, gpu_of
from steelyard.deploy.slime_read import PROGRAMS as SLIME
from steelyard.deploy.slime_read import read_slime
from steelyard.deploy.trainer_command import TrainerCommand
from steelyard.deploy.variables import commands_of
from steelyard.deploy.verl_read import PROGRAMS as VERL
from steelyard.deploy.verl_read import read_verl
from steelyard.deploy.words import ShellLine, after
from steelyard.errors import UserError
from steelyard.scenario.posttrain_loading import posttrain_from_dict

Programs = Mapping[tuple[str, ...], str]  # what starts a trainer, and the mode it runs in
Reader = Callable[[list[str], ShellLine, TrainerCommand], dict[str, Any]]
TRAINERS: dict[str, tuple[Programs, Reader, str]] = {
    "verl": (VERL, read_verl, "has no `python3 -m verl.trainer.main_ppo ...` command"),
    "slime": (SLIME, read_slime, "has no `python3 train.py ...` or `python3 train_async.py ...` command"),
}


def read_trainer(kind: str, texts: Mapping[str, str], asked: ImportOptions) -> Imported:
    """The post-training scenario of the one trainer that some scripts start."""
    programs, reader, wanted = TRAINERS[kind]
    told = Remarks()
    found = []
    for where, text in texts.items():
        for line in commands_of(text, where, told):
            for program, mode in programs.items():
                words = after(line.words, program)
                if words is not None:
                    found.append((where, line, mode, words))
    every = ", ".join(texts)
    if not found:
        raise UserError(f"{every}: {wanted}")
    if len(found) > 1:
        raise UserError(f"{every}: {len(found)} commands that start a trainer; give one")
    where, line, mode, words = found[0]
    trainer = TrainerCommand(where, gpu_of(line.facts.get("gpu"), asked, where), asked, told, mode)
    data = reader(words, line, trainer)
    posttrain_from_dict(data, source=where)
    return Imported(data, told, "The trajectories are")
