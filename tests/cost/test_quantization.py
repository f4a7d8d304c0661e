"""Small weights and caches: the bytes they free, to the last, and the seconds they save."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard.cost import Roofline, plan_memory
from steelyard.cost.roofline import KERNEL_SECONDS
from steelyard.hardware import Gpu, find_gpu
from steelyard.model import (
    Gemm,
    GroupedGemm,
    ModelSpec,
    kv_bytes_per_token,
    load_model,
    operators,
    serve_as,
    weight_bytes,
)
from steelyard.scenario import EngineSpec

LLAMA = load_model("llama-3.1-8b")
# Weights of Llama-3.1-8B that quantisation covers, layer for layer: qkv, o, gate and up, down.
SHAPES = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096))
ELEMENTS = 32 * sum(k * n for k, n in SHAPES)
OUTPUTS = 32 * sum(n for _, n in SHAPES)
ROWS = np.array([1.0, 16, 64, 256, 1024, 8192])

# Bytes for every 128 weights of an output, scales included, and for every output.
STORED = {
    "fp8": (128.0, 0),
    "fp8_block": (128 * (1 + 4 / 128**2), 0),  # one 32-bit scale to a square of 128 x 128
    "int8": (128.0, 4),  # one 32-bit scale to an output
    "int4": (64.0 + 2, 0),  # one 16-bit scale to 128
    "awq": (64.0 + 2 + 0.5, 0),  # and a 4-bit zero point
    "nvfp4": (64.0 + 8, 0),  # one 8-bit scale to 16
    "mxfp4": (64.0 + 4, 0),  # one to 32
}


@pytest.mark.parametrize("method", STORED)
def test_quantised_weights_free_exactly_the_bytes_they_should(method: str) -> None:
    group, output = STORED[method]
    freed = ELEMENTS * 2 - ELEMENTS // 128 * group - OUTPUTS * output
    assert weight_bytes(LLAMA) - weight_bytes(serve_as(LLAMA, quantization=method)) == freed


@pytest.mark.parametrize("method", STORED)
def test_what_weights_free_becomes_cache(method: str) -> None:
    gpu, engine = find_gpu("h100"), EngineSpec()
    small = serve_as(LLAMA, quantization=method)
    before, after = plan_memory(LLAMA, gpu, 1, engine), plan_memory(small, gpu, 1, engine)
    freed = weight_bytes(LLAMA) - weight_bytes(small)
    assert before.weights - after.weights == freed
    assert after.activations == before.activations and after.block_bytes == before.block_bytes
    left = before.usable - before.weights - before.activations - before.runtime
    assert after.blocks + 1 == (left + freed) // before.block_bytes


def test_tables_and_norms_stay_in_16_bits() -> None:
    """What is left of 8 billion: two tables of 128,256 rows, and 65 norms."""
    rest = weight_bytes(serve_as(LLAMA, quantization="fp8")) - ELEMENTS
    assert rest == 2 * (2 * 128256 * 4096 + 65 * 4096)


def test_outputs_of_sliced_experts_have_their_scales() -> None:
    model = load_model("qwen3-30b-a3b")
    small = {tp: serve_as(model, quantization="int8") for tp in (1, 4)}
    scales = {
        tp: weight_bytes(spec, tp=tp) - weight_bytes(serve_as(model, quantization="fp8"), tp=tp)
        for tp, spec in small.items()
    }
    gate_up, down, qkv, o = 128 * 2 * 768, 128 * 2048, (32 + 2 * 4) * 128, 2048
    assert scales[1] == 48 * 4 * (gate_up + down + qkv + o)
    assert scales[4] == 48 * 4 * (gate_up // 4 + down + qkv // 4 + o)  # the down projection's outputs are whole


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "gemma-3-27b"])
def test_an_fp8_cache_takes_half(name: str) -> None:
    model = load_model(name)
    assert 2 * kv_bytes_per_token(model, "fp8") == kv_bytes_per_token(model)
    if name == "llama-3.1-8b":
        plans = [plan_memory(model, find_gpu("h100"), 1, EngineSpec(kv_cache_dtype=dtype)) for dtype in ("auto", "fp8")]
        assert plans[1].block_bytes * 2 == plans[0].block_bytes
        assert plans[1].blocks + 1 == pytest.approx(2 * (plans[0].blocks + 1), abs=1)


# -- checkpoints --------------------------------------------------------------------------------------------------


def checkpoint(folder: Path, quantization: dict[str, Any]) -> ModelSpec:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
        "quantization_config": quantization,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return load_model(str(folder))


def packed(activations: bool = True, **weights: Any) -> dict[str, Any]:
    group = {"weights": weights, "input_activations": {"num_bits": weights["num_bits"]} if activations else None}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("written", "group", "output", "compute"),
    [
        (packed(num_bits=8, type="float", strategy="tensor"), 128.0, 0, "fp8"),
        (packed(num_bits=8, type="float", strategy="channel"), 128.0, 4, "fp8"),
        (
            packed(num_bits=8, type="float", strategy="block", block_structure=[128, 128]),
            128 * (1 + 4 / 128**2),
            0,
            "fp8",
        ),
        (packed(num_bits=8, type="int", strategy="channel"), 128.0, 4, "int8"),
        (packed(False, num_bits=4, type="int", strategy="group", group_size=128), 66.0, 0, None),
        (packed(False, num_bits=4, type="int", strategy="group", group_size=32, symmetric=False), 74.0, 0, None),
        (packed(num_bits=4, type="float", strategy="tensor_group", group_size=16), 72.0, 0, "fp4"),
        (packed(False, num_bits=4, type="float", strategy="group", group_size=32), 68.0, 0, None),
        ({"quant_method": "fbgemm_fp8"}, 128.0, 4, "fp8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, 66.0, 0, None),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False}, 66.5, 0, None),
    ],
)
def test_checkpoints_take_what_their_scales_say(
    tmp_path: Path, written: dict[str, Any], group: float, output: int, compute: str | None
) -> None:
    model = checkpoint(tmp_path, written)
    assert model.quantization is not None and model.quantization.compute == compute
    rest = weight_bytes(serve_as(model, quantization="none")) - 2 * ELEMENTS
    assert weight_bytes(model) == rest + ELEMENTS // 128 * group + OUTPUTS * output


# -- seconds ------------------------------------------------------------------------------------------------------


def gate_up(method: str | None) -> Gemm:
    model = LLAMA if method is None else serve_as(LLAMA, quantization=method)
    return next(
        each for each in operators(model, model.layers[0]) if isinstance(each, Gemm) and each.name == "gate_up_proj"
    )


def seconds(gpu: Gpu, method: str | None) -> Any:
    return Roofline(gpu).rows(gate_up(method), ROWS).seconds


@pytest.mark.parametrize(("method", "bits"), [("fp8", 8), ("int8", 8), ("int4", 4), ("nvfp4", 4), ("mxfp4", 4)])
def test_few_rows_gain_the_bytes_and_no_more(method: str, bits: int) -> None:
    gain = seconds(find_gpu("b200"), None)[0] / seconds(find_gpu("b200"), method)[0]
    assert 0.4 * 16 / bits < gain < 16 / bits


@pytest.mark.parametrize("method", ["int4", "awq", "mxfp4"])
def test_many_rows_gain_nothing_from_weights_that_are_unpacked(method: str) -> None:
    plain, small = seconds(find_gpu("h100"), None), seconds(find_gpu("h100"), method)
    assert plain[-1] < small[-1] < 1.15 * plain[-1]


def test_many_rows_gain_the_tensor_cores_rate_and_no_more() -> None:
    h100, b200 = find_gpu("h100"), find_gpu("b200")
    assert 1.4 < seconds(h100, None)[-1] / seconds(h100, "fp8")[-1] < 2.0
    assert seconds(b200, "fp8")[-1] > seconds(b200, "nvfp4")[-1]


def test_a_gpu_without_the_type_unpacks() -> None:
    """An A100 has no fp8, an H100 no fp4: nothing is quantised, and the arithmetic is 16-bit."""
    for gpu, method in (("a100", "fp8"), ("h100", "nvfp4")):
        plain, small = seconds(find_gpu(gpu), None), seconds(find_gpu(gpu), method)
        assert small[0] < plain[0] and small[-1] > plain[-1]


def test_rows_are_quantised_by_a_kernel_of_their_own() -> None:
    """Against a multiplication at the same rate from 8-bit rows: one more start, and 3 bytes a value of the input."""
    gpu, gemm = find_gpu("h100"), gate_up("fp8")
    multiplied = 2 * gemm.k * gemm.n * 8192 / (gpu.peak("fp8") * 0.75 * 0.85)
    rows = Roofline(gpu).rows(gemm, np.array([8192.0])).seconds[0]
    extra = rows - multiplied
    assert extra == pytest.approx(2 * KERNEL_SECONDS + 3 * 8192 * gemm.k / (gpu.memory_bandwidth * 0.75), rel=0.6)
    assert extra > KERNEL_SECONDS


def test_few_rows_are_bound_by_memory() -> None:
    """Whatever the GPU's arithmetic is: a tile has hardly more rows than there are."""
    for name, method, share in (("a100", "int4", 0.8), ("h20", None, 1.0)):
        gpu, gemm = find_gpu(name), gate_up(method)
        streamed = gemm.k * gemm.n * gemm.weight_bytes / (gpu.memory_bandwidth * 0.82 * share)
        one = Roofline(gpu).rows(gemm, np.array([1.0])).seconds[0]
        assert one == pytest.approx(streamed + KERNEL_SECONDS, rel=0.01)


def test_quantised_experts_are_read_small_and_quantised_rows_cost() -> None:
    model = load_model("qwen3-30b-a3b")
    found = {}
    for method in (None, "fp8", "int4"):
        served = model if method is None else serve_as(model, quantization=method)
        gemm = next(each for each in operators(served, served.layers[0]) if isinstance(each, GroupedGemm))
        found[method] = Roofline(find_gpu("h100")).rows(gemm, np.array([8.0])).seconds[0]
    assert found["int4"] < found["fp8"] < found[None] < 2 * found["fp8"]
