"""How a checkpoint's weights are quantised, and how to serve a model in another precision."""

from __future__ import annotations

import re
from dataclasses import replace

from steelyard.errors import UserError, did_you_mean
from steelyard.model.config import Config
from steelyard.model.spec import ModelSpec, Part, Quantization

_SCALE_BYTES = 2  # group scales of integer weights are 16-bit
_WIDE_SCALE_BYTES = 4  # scales of outputs and of blocks are 32-bit
ONLINE = {
    "fp8": Quantization("fp8", weight_bytes=1.0, compute="fp8"),
    "fp8_block": Quantization("fp8", weight_bytes=1 + _WIDE_SCALE_BYTES / 128**2, compute="fp8", block=128),
    "int8": Quantization("int8", weight_bytes=1.0, compute="int8", channel_bytes=_WIDE_SCALE_BYTES),
    "int4": Quantization("int4", weight_bytes=0.5 + _SCALE_BYTES / 128, compute=None),
    "awq": Quantization("int4", weight_bytes=0.5 + (_SCALE_BYTES + 0.5) / 128, compute=None),
    "nvfp4": Quantization("nvfp4", weight_bytes=0.5 + 1 / 16, compute="fp4"),
    "mxfp4": Quantization("mxfp4", weight_bytes=0.5 + 1 / 32, compute=None),
}
_TENSOR_CORE = ("fp8", "int8", "fp4")
_ONE_LAYER = re.compile(r"\.\d+\.")
_DTYPES = ("bfloat16", "float16")


def read_quantization(config: Config) -> Quantization | None:
    """The checkpoint's own `quantization_config`; an unknown method is an error, never ignored.

    Single layers that a checkpoint excludes are counted as quantised; whole excluded parts
    (gpt-oss keeps attention in 16 bits) are not.
    """
    section = config.section("quantization_config")
    if section is None:
        return None
    method = section.text("quant_method", "")
    readers = {
        "fp8": _fp8,
        "fbgemm_fp8": _fbgemm_fp8,
        "mxfp4": _mxfp4,
        "awq": _grouped_integers,
        "gptq": _grouped_integers,
        "compressed-tensors": _compressed_tensors,
        "modelopt": _modelopt,
    }
    if method not in readers:
        raise section.wrong("quant_method", method, "one of " + ", ".join(sorted(readers)))
    return replace(readers[method](section), parts=_parts(section))


def _parts(section: Config) -> tuple[Part, ...]:
    left_out: list[object] = []
    for key in ("modules_to_not_convert", "ignore"):
        value = section.get(key) if section.has(key) else []
        if not isinstance(value, list):
            raise section.wrong(key, value, "a list of module names")
        left_out += value
    whole = any("self_attn" in str(name) and not _ONE_LAYER.search(str(name)) for name in left_out)
    return ("ffn", "experts") if whole else ("attention", "ffn", "experts")


def _fp8(section: Config) -> Quantization:
    if not section.has("weight_block_size"):
        return ONLINE["fp8"]
    return _fp8_in_blocks(*_two_numbers(section, "weight_block_size"))


def _fp8_in_blocks(rows: int, columns: int) -> Quantization:
    return replace(ONLINE["fp8_block"], weight_bytes=1 + _WIDE_SCALE_BYTES / (rows * columns), block=rows)


def _fbgemm_fp8(section: Config) -> Quantization:
    """Meta's own: a scale for each output."""
    return replace(ONLINE["fp8"], channel_bytes=_WIDE_SCALE_BYTES)


def _mxfp4(section: Config) -> Quantization:
    """OCP microscaling: 4-bit values, one shared 8-bit exponent per 32 of them."""
    return ONLINE["mxfp4"]


def _grouped_integers(section: Config) -> Quantization:
    """AWQ and GPTQ: small integers with a 16-bit scale per group, and a small zero point unless they are symmetric.

    A group of -1 is a whole output.
    """
    bits, group = section.integer("bits"), _group_size(section)
    scale = _SCALE_BYTES + (0.0 if section.flag("sym", False) else bits / 8)
    if group > 0:
        return Quantization(f"int{bits}", weight_bytes=bits / 8 + scale / group, compute=None)
    return Quantization(f"int{bits}", weight_bytes=bits / 8, compute=None, channel_bytes=round(scale))


def _group_size(section: Config) -> int:
    """Weights that share a scale; -1: those of a whole output."""
    group = section.integer("group_size", least=-1)
    if group == 0:
        raise section.wrong("group_size", group, "-1, or at least 1")
    return group


def _compressed_tensors(section: Config) -> Quantization:
    groups = section.section("config_groups")
    first = None if groups is None else groups.section(next(iter(groups.data), ""))
    weights = None if first is None else first.section("weights")
    if first is None or weights is None:
        raise UserError(f"{section.source}: missing key '{section.prefix}config_groups.*.weights'")
    bits, kind = weights.integer("num_bits"), weights.text("type", "int")
    if kind not in ("int", "float"):
        raise weights.wrong("type", kind, "int or float")
    group = _group_size(weights) if weights.has("group_size") else 0
    strategy = weights.text("strategy", "group" if group > 0 else "tensor")
    name = f"{'fp' if kind == 'float' else 'int'}{bits}"
    compute = name if first.has("input_activations") and name in _TENSOR_CORE else None
    if name == "fp4":
        found = ONLINE["mxfp4" if group == 32 else "nvfp4"]
    elif name == "fp8" and strategy == "block":
        found = _fp8_in_blocks(*_two_numbers(weights, "block_structure"))
    elif strategy == "group":
        if group < 1:
            raise weights.wrong("group_size", group, "a group of at least 1 with strategy group")
        scale = _SCALE_BYTES + (0.0 if weights.flag("symmetric", True) else bits / 8)
        found = Quantization(name, weight_bytes=bits / 8 + scale / group, compute=None)
    else:
        wide = _WIDE_SCALE_BYTES if strategy == "channel" else 0
        found = Quantization(name, weight_bytes=bits / 8, compute=None, channel_bytes=wide)
    return replace(found, compute=compute)


def _two_numbers(section: Config, key: str) -> tuple[int, int]:
    block = section.get(key)
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(n, int) and n > 0 for n in block):
        raise section.wrong(key, block, "two whole numbers")
    return block[0], block[1]


def _modelopt(section: Config) -> Quantization:
    algorithm = section.text("quant_algo", "").lower()
    if algorithm not in ("fp8", "nvfp4"):
        raise section.wrong("quant_algo", algorithm, "FP8 or NVFP4")
    return ONLINE[algorithm]


def serve_as(model: ModelSpec, dtype: str = "auto", quantization: str | None = None) -> ModelSpec:
    """The model as an engine would serve it with these options.

    dtype: 'auto' (the checkpoint's), 'bfloat16', 'float16', or 'fp8' (short for quantization 'fp8').
    quantization: None (the checkpoint's), 'none' (a 16-bit copy), or a name in `ONLINE`.
    """
    if dtype == "fp8":
        dtype, quantization = "auto", quantization or "fp8"
    if dtype != "auto":
        if dtype not in _DTYPES:
            raise UserError(f"dtype: found {dtype!r}, {did_you_mean(dtype, ('auto', *_DTYPES, 'fp8'))}")
        model = replace(model, dtype=dtype)
    if quantization is None:
        return model
    if quantization == "none":
        return replace(model, quantization=None)
    if quantization not in ONLINE:
        choices = ("none", *ONLINE)
        raise UserError(f"quantization: found {quantization!r}, {did_you_mean(quantization, choices)}")
    stored = model.quantization
    if stored is None:
        return replace(model, quantization=ONLINE[quantization])
    if stored.method != ONLINE[quantization].method:
        raise UserError(
            f"quantization: {model.name} is already quantised to {stored.method}; "
            f"it cannot be served as {quantization} (leave it out, or 'none' for a 16-bit copy)"
        )
    return model
