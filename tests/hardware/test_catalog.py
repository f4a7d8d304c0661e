"""The GPU catalog: complete, dense, and found under the names people use."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from steelyard import hardware
from steelyard.errors import UserError
from steelyard.hardware import DTYPES, check_fits_node, find_gpu, gpu_names

WANTED = {
    "a100-40",
    "a100-80",
    "a800",
    "h100",
    "h800",
    "h200",
    "h20",
    "gh200",
    "b200",
    "gb200",
    "l40s",
    "rtx-4090",
    "rtx-pro-6000",
    "mi300x",
    "mi355x",
    "ascend-910b3",
}


def test_the_catalog_has_every_wanted_gpu() -> None:
    assert set(gpu_names()) == WANTED


@pytest.mark.parametrize("name", sorted(WANTED))
def test_figures_are_of_the_right_size_and_kind(name: str) -> None:
    gpu = find_gpu(name)
    assert set(gpu.flops) <= set(DTYPES)
    assert gpu.flops["bf16"] == gpu.flops["fp16"]
    assert 1e14 < gpu.flops["bf16"] < 1e16
    assert gpu.flops["int8"] >= 1.9 * gpu.flops["bf16"]
    if "fp8" in gpu.flops:
        assert gpu.flops["fp8"] == pytest.approx(2 * gpu.flops["bf16"], rel=0.02)
    if "fp4" in gpu.flops:
        assert gpu.flops["fp4"] == pytest.approx(2 * gpu.flops["fp8"], rel=0.01)
    # Reported memory is between marketing gigabytes less a tenth and the same number of gibibytes.
    assert 0.9 * gpu.memory_gb * 2**30 < gpu.memory_bytes <= gpu.memory_gb * 2**30
    assert 5e11 < gpu.memory_bandwidth < 1e13
    assert 20 <= gpu.sms < 400
    assert 30e6 < gpu.l2_bytes < 300e6
    assert gpu.nvlink_bandwidth == 0 or gpu.nvlink_bandwidth > gpu.pcie_bandwidth
    assert gpu.pcie_bandwidth >= 30e9
    assert 0 < gpu.nic_bandwidth <= 100e9
    assert gpu.gpus_per_node >= 8 or (gpu.gpus_per_node == 1 and gpu.nvlink_bandwidth == 0)
    assert 0.1 < gpu.price_per_hour < 20
    assert 300 <= gpu.tdp_watts <= 1400


@pytest.mark.parametrize(
    ("name", "bf16", "bandwidth"),
    [
        ("a100-80", 312e12, 2.039e12),
        ("h100", 989.4e12, 3.35e12),
        ("h200", 989.4e12, 4.8e12),
        ("h20", 148e12, 4.0e12),
        ("b200", 2250e12, 8.0e12),
        ("l40s", 362.05e12, 864e9),
        ("mi300x", 1307.4e12, 5.3e12),
    ],
)
def test_peaks_are_dense_not_sparse(name: str, bf16: float, bandwidth: float) -> None:
    gpu = find_gpu(name)
    assert gpu.peak("bf16") == bf16
    assert gpu.memory_bandwidth == bandwidth


def test_every_figure_says_where_it_comes_from() -> None:
    lines = (Path(hardware.__file__).parent / "gpus.yaml").read_text().splitlines()
    unsourced = ("full_name", "vendor", "aliases", "price_per_hour")  # the header dates the prices
    for before, line in pairwise(lines):
        key = line.strip().split(":")[0]
        if line.startswith("  ") and not key.startswith(("#", *unsourced)):
            assert "#" in line or before.strip().startswith("#"), line


def test_export_versions_differ_from_their_parents_in_nvlink_only() -> None:
    for parent, child in (("a100-80", "a800"), ("h100", "h800")):
        full, cut = find_gpu(parent), find_gpu(child)
        assert cut.nvlink_bandwidth == 200e9 < full.nvlink_bandwidth
        assert (cut.flops, cut.memory_bandwidth) == (full.flops, full.memory_bandwidth)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("H200", "h200"),
        ("h200", "h200"),
        ("NVIDIA H200", "h200"),
        ("H100-SXM", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("A100", "a100-80"),
        ("A100-SXM4-40GB", "a100-40"),
        ("RTXPRO6000", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("RTX 4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_names_are_found_as_people_write_them(spelling: str, name: str) -> None:
    assert find_gpu(spelling).name == name


def test_an_unknown_gpu_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'h201' is not a GPU of the catalog; did you mean .*'h200'"):
        find_gpu("h201")


def test_a_gpu_without_a_dtype_computes_in_bf16() -> None:
    a100 = find_gpu("a100-80")
    assert a100.peak("fp8") == a100.peak("bf16")
    assert find_gpu("h100").peak("fp8") > find_gpu("h100").peak("bf16")
    with pytest.raises(ValueError, match="fp7"):
        a100.peak("fp7")


def test_peers_talk_over_pcie_where_there_is_no_nvlink() -> None:
    assert find_gpu("l40s").peer_bandwidth == 32e9
    assert find_gpu("h100").peer_bandwidth == 450e9


def test_tensor_parallelism_stays_in_a_node() -> None:
    check_fits_node(find_gpu("h100"), 8)
    check_fits_node(find_gpu("gb200"), 16)
    with pytest.raises(UserError, match=r"16 GPUs .* at most 8"):
        check_fits_node(find_gpu("h100"), 16)
