"""The cost sources of an engine, as the scenario's ``cost`` selects them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from steelyard.cost import CostSource, MeasuredSource, Roofline, shipped_bundle
from steelyard.cost.scaled import Scaled
from steelyard.cost.silicon import find_database, find_silicon
from steelyard.cost.transferred import SIBLINGS, Transferred
from steelyard.errors import UserError, blaming
from steelyard.files.finding import is_folder
from steelyard.files.paths import absolute
from steelyard.files.reading import read_bytes
from steelyard.hardware import Gpu, Topology, find_gpu
from steelyard.model import Layout, ModelSpec
from steelyard.scenario import CostSpec
from steelyard.sim.content import files_under

TIMED_KERNELS = ("marlin",)  # kernels of routed experts by their names in NVIDIA's tables


@dataclass(frozen=True)
class Sources:
    """The selection, the folder that relative paths start from, and factors on operator families."""

    wanted: CostSpec = field(default_factory=CostSpec)
    base_dir: Path = Path()
    factors: Mapping[str, float] = field(default_factory=dict)

    def open(
        self, gpu: Gpu, topology: Topology, model: ModelSpec, layout: Layout, moe_backend: str = "auto"
    ) -> tuple[CostSource, ...]:
        """All available sources, the best first: the user's profile, the experts of a named kernel, the GPU's shipped
        profile, NVIDIA's tables (or without them the profile of a sibling), the roofline."""
        own: list[CostSource] = []
        if self.profile is not None:
            from steelyard.cost.profiles import open_profile  # imported late: few users have such files

            with blaming("cost.profile"):
                own.append(open_profile(self.profile, gpu, model, layout))
        if moe_backend in TIMED_KERNELS:
            own.append(_timed_experts(self.wanted, gpu, topology, moe_backend))
        with blaming("cost.source"):
            found = (*own, *measured_sources(self.wanted, gpu, topology), Roofline(gpu, topology))
        return tuple(Scaled(source, self.factors) for source in found) if self.factors else found

    def general(self, sources: tuple[CostSource, ...]) -> tuple[CostSource, ...]:
        """Sources that cover any model. A user's profile may cover one model only."""
        return sources if self.profile is None else sources[1:]

    def are_measured(self, gpu: Gpu) -> bool:
        """Whether the package has a profile of a GPU."""
        return shipped(gpu.name) is not None

    @property
    def profile(self) -> Path | None:
        """The user's profile, a file or a folder."""
        return None if self.wanted.profile is None else self.base_dir / self.wanted.profile

    def contents(self, gpu: Gpu) -> tuple[object, ...]:
        """Inputs of step times other than the package itself, for the cache."""
        database = None if self.wanted.source == "analytic" else find_database(gpu.name)
        with blaming("cost.profile"):
            profile = None if self.profile is None else _profile_contents(self.profile)
        return (
            self.wanted.source,
            dict(self.factors),
            profile,
            None if database is None else (database.engine, _table_files(database.folder)),
        )


def _profile_contents(path: Path) -> tuple[object, ...]:
    """A file's bytes; for a folder, which may be large, its path and its files' names, sizes and times."""
    if is_folder(path):
        return str(absolute(path)), files_under(path)
    return (read_bytes(path),)


@cache
def _table_files(folder: Path) -> list[tuple[str, int, int]]:
    return files_under(folder)


def measured_sources(wanted: CostSpec, gpu: Gpu, topology: Topology) -> tuple[CostSource, ...]:
    """Measured sources that come with packages, as far as they are selected, the best first."""
    if wanted.source == "analytic":
        return ()
    tables, carried = find_silicon(gpu, topology), transferred(gpu.name)
    if wanted.source == "silicon" and tables is None:
        raise UserError(f"silicon has no tables of {gpu.name} here; install steelyard[silicon], or use auto")
    if wanted.source == "transferred" and carried is None:
        raise UserError(f"transferred is for {', '.join(SIBLINGS)}, which have a sibling with a profile; use auto")
    found: tuple[CostSource | None, ...] = (shipped(gpu.name), tables or carried)  # measured on the GPU, if possible
    if wanted.source == "transferred":
        found = (carried, tables)
    elif wanted.source == "silicon":
        found = (tables, shipped(gpu.name))
    return tuple(source for source in found if source is not None)


def _timed_experts(wanted: CostSpec, gpu: Gpu, topology: Topology, kernel: str) -> CostSource:
    """Routed experts by a kernel that only NVIDIA's tables have."""
    tables = None if wanted.source == "analytic" else find_silicon(gpu, topology)
    if tables is None:
        raise UserError(
            f"engine.moe_backend: {kernel} needs NVIDIA's tables of {gpu.name}; install steelyard[silicon] and leave "
            "out cost.source: analytic, or leave moe_backend out"
        )
    from steelyard.cost.silicon.kernels import KernelExperts  # most runs do not name a kernel

    return KernelExperts(replace(tables, experts_kernel=kernel))


@cache
def shipped(gpu: str) -> MeasuredSource | None:
    """The package's profile of a GPU, read once per process."""
    bundle = shipped_bundle(gpu)
    return None if bundle is None else MeasuredSource(find_gpu(gpu), bundle)


@cache
def transferred(gpu: str) -> Transferred | None:
    """The profile of a sibling, for a GPU that has one."""
    donor = SIBLINGS.get(gpu)
    measured = None if donor is None else shipped(donor)
    return None if donor is None or measured is None else Transferred(find_gpu(gpu), measured, find_gpu(donor))
