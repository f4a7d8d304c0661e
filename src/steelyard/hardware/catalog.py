"""Looking a GPU up by name."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from steelyard.errors import UserError, did_you_mean
from steelyard.files.yamltext import read_yaml
from steelyard.hardware.gpu import Gpu

_DATA = Path(__file__).parent / "gpus.yaml"


def find_gpu(name: str) -> Gpu:
    """The GPU called `name`; case, spaces, dashes and the vendor's name do not matter."""
    gpu = _by_spelling().get(_plain(name))
    if gpu is None:
        raise UserError(f"{name!r} is not a GPU of the catalog; {did_you_mean(name, _catalog())}")
    return gpu


def is_known(name: str) -> bool:
    """Whether the catalog has a GPU of that name."""
    return _plain(name) in _by_spelling()


def gpu_names() -> dict[str, str]:
    """Every catalog name with a one-line description."""
    return {name: describe(gpu) for name, gpu in _catalog().items()}


def describe(gpu: Gpu) -> str:
    """Memory, bandwidth and 16-bit peak in one line."""
    return (
        f"{gpu.full_name}: {gpu.memory_gb} GB at {gpu.memory_bandwidth / 1e12:.2f} TB/s, "
        f"{gpu.flops['bf16'] / 1e12:.0f} TFLOP/s bf16, ${gpu.price_per_hour:.2f}/h"
    )


@cache
def _entries() -> dict[str, tuple[Gpu, tuple[str, ...]]]:
    """Each catalog entry as a GPU and its other spellings."""
    entries = {}
    for name, fields in read_yaml(_DATA).items():
        aliases = tuple(str(alias) for alias in fields.pop("aliases"))
        entries[name] = (Gpu(name=name, **fields), aliases)
    return entries


def _catalog() -> dict[str, Gpu]:
    return {name: gpu for name, (gpu, _) in _entries().items()}


@cache
def _by_spelling() -> dict[str, Gpu]:
    spellings = {}
    for name, (gpu, aliases) in _entries().items():
        for spelling in (name, gpu.full_name, *aliases):
            spellings[_plain(spelling)] = gpu
    return spellings


def _plain(name: str) -> str:
    """A name reduced to lower-case letters and digits, without the vendor."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia|amd)", "", letters)
