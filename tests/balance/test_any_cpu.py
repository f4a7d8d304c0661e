"""Decisions are the same whatever BLAS kernel, number of threads or vector instructions a CPU has."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard.balance.estimate import surface

features = pytest.importorskip("numpy._core._multiarray_umath")
HAS: dict[str, bool] = features.__cpu_features__
DISPATCHED: list[str] = features.__cpu_dispatch__
SCRIPT = Path(__file__).with_name("decisions.py")

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names x86 CPUs")

CPUS = {
    "two threads": {"OPENBLAS_NUM_THREADS": "2"},
    "Prescott": {"OPENBLAS_CORETYPE": "Prescott"},
    "Nehalem": {"OPENBLAS_CORETYPE": "Nehalem"},
    "Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "no AVX-512": {"NPY_DISABLE_CPU_FEATURES": " ".join(each for each in DISPATCHED if "512" in each or "V4" in each)},
    "no AVX2": {"NPY_DISABLE_CPU_FEATURES": " ".join(DISPATCHED)},
    "a math library without FMA": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX2_Usable,-FMA_Usable"},
}


@cache
def decided(*settings: tuple[str, str]) -> dict[str, Any]:
    """Digests of all decisions, made by a process of its own."""
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **dict(settings)}
    ended = subprocess.run([sys.executable, SCRIPT], env=env, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("cpu", CPUS)
def test_decisions_are_the_same(cpu: str) -> None:
    if cpu == "Haswell" and not HAS["AVX2"]:
        pytest.skip("this CPU cannot run kernels for Haswell")
    assert decided(*CPUS[cpu].items())["decisions"] == decided()["decisions"]


def test_plain_products_differ() -> None:
    """So the CPUs above are really different to numpy, where this one can do more than the oldest of them."""
    if not HAS["FMA3"]:
        pytest.skip("this CPU has nothing to do without")
    assert decided(*CPUS["Prescott"].items())["plain product"] != decided()["plain product"]
    assert decided(*CPUS["no AVX2"].items())["plain product"] != decided()["plain product"]


def test_waves_are_far_from_where_rounding_would_turn() -> None:
    """A cosine that is off by an ulp is rounded to the same number."""
    exact = 1024 * np.exp(2j * np.pi * np.arange(4096) / 4096).view(np.float64)
    assert np.abs(exact - np.rint(exact)).max() < 0.5 - 1e-9
    assert np.array_equal(surface._AT_ANGLE.view(np.float64), np.rint(exact) / 1024)
