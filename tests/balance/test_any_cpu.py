"""Decisions are the same whatever BLAS kernel, number of threads or vector instructions a CPU has."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from steelyard.balance.estimate import surface

features = pytest.importorskip("numpy._core._multiarray_umath")
HAS: dict[str, bool] = features.__cpu_features__
DISPATCHED: list[str] = features.__cpu_dispatch__
SCRIPT = Path(__file__).with_name("decisions.py")

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names x86 CPUs")

_WITHOUT_512 = " ".join(each for each in DISPATCHED if "512" in each or "V4" in each)
CPUS = {  # settings that do not touch each other share a process
    "the oldest, two threads": {
        "OPENBLAS_CORETYPE": "Prescott",
        "OPENBLAS_NUM_THREADS": "2",
        "NPY_DISABLE_CPU_FEATURES": " ".join(DISPATCHED),
    },
    "Nehalem, a math library without FMA": {
        "OPENBLAS_CORETYPE": "Nehalem",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX2_Usable,-FMA_Usable",
    },
    "Haswell": {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": _WITHOUT_512},
}


@cache
def decided(*settings: tuple[str, str]) -> dict[str, str]:
    """Digests of all decisions, made by a process of its own."""
    found: dict[str, str] = json.loads(printed(settings))
    return found


def product(*settings: tuple[str, str]) -> str:
    """A digest of plain products and powers, likewise."""
    return printed(settings, "product")


def printed(settings: Sequence[tuple[str, str]], *arguments: str) -> str:
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **dict(settings)}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("cpu", CPUS)
def test_decisions_are_the_same(cpu: str) -> None:
    if cpu == "Haswell" and not HAS["AVX2"]:
        pytest.skip("this CPU cannot run kernels for Haswell")
    assert decided(*CPUS[cpu].items()) == decided()


def test_plain_products_differ() -> None:
    """So the CPUs above are really different to numpy, where this one can do more than the oldest of them."""
    if not HAS["FMA3"]:
        pytest.skip("this CPU has nothing to do without")
    for settings in ({"OPENBLAS_CORETYPE": "Prescott"}, {"NPY_DISABLE_CPU_FEATURES": " ".join(DISPATCHED)}):
        assert product(*settings.items()) != product()


def test_waves_are_far_from_where_rounding_would_turn() -> None:
    """A cosine that is off by an ulp is rounded to the same number."""
    exact = 1024 * np.exp(2j * np.pi * np.arange(4096) / 4096).view(np.float64)
    assert np.abs(exact - np.rint(exact)).max() < 0.5 - 1e-9
    assert np.array_equal(surface._AT_ANGLE.view(np.float64), np.rint(exact) / 1024)
