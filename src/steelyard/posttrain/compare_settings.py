"""The settings of a comparison: which scenarios, at which size, with which contenders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from steelyard.posttrain.compare_choices import Contender, chosen, contenders
from steelyard.posttrain.part import scaled, shares
from steelyard.scenario import load_posttrain
from steelyard.scenario.posttrain import PosttrainScenario


@dataclass(frozen=True)
class CompareSettings:
    """The settings of ``steelyard compare``, as a user gives them."""

    changes: Sequence[str] = ()  # overrides of keys, for all scenarios
    names: Mapping[str, str] = field(default_factory=dict)  # by dimension: the values to try, comma-separated
    full: bool = False
    rivals: bool = True
    scale: str = "1"
    seeds: int = 1

    def scenarios(self, files: Sequence[Path]) -> list[PosttrainScenario]:
        """The scenarios in these files, changed and scaled."""
        parts = shares(self.scale, len(files))
        return [scaled(load_posttrain(file, self.changes), part) for file, part in zip(files, parts, strict=True)]

    def contenders(self) -> list[Contender]:
        """All contenders."""
        limits = {dimension: chosen(dimension, names) for dimension, names in self.names.items()}
        return contenders(limits, self.full, self.rivals)

    def command(self, files: Sequence[Path], page: Path) -> str:
        """The command line that makes a page of the same."""
        options = [f"--set {change}" for change in self.changes]
        options += [f"--{dimension}s {names.replace(' ', '')}" for dimension, names in self.names.items()]
        options += ["--full"] * self.full
        options += [f"--seeds {self.seeds}"] * (self.seeds > 1)
        options += ["--no-rivals"] * (not self.rivals)
        options += [f"--scale {self.scale}"] * (self.scale != "1")
        return " ".join(["steelyard compare", *map(str, files), *options, f"--page {page}"])
