"""Every key of a config.json with values that no model has: refused with file and key, or served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from steelyard import simulate
from steelyard.errors import UserError
from steelyard.model import load_model
from steelyard.model.loading import catalog_names
from steelyard.model.spec import MoeFfn
from steelyard.scenario import scenario_from_dict

CATALOG = Path(load_model.__code__.co_filename).parent / "catalog"
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "sym": False, "modules_to_not_convert": []}
TENSORS = {
    "quant_method": "compressed-tensors",
    "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"}}},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {"head_dim": 128, "rope_scaling": YARN, "quantization_config": AWQ},
    "mixtral-8x7b": {"sliding_window": 4096, "quantization_config": TENSORS},
    "qwen3-30b-a3b": {
        "mlp_only_layers": [1],
        "use_sliding_window": True,
        "max_window_layers": 2,
        "sliding_window": 512,
    },
    "deepseek-v2-lite": {"num_nextn_predict_layers": 1},
    "gpt-oss-20b": {},
    "step3": {},
    "deepseek-v3.2": {},
    "qwen3-next-80b-a3b": {"mamba_ssm_dtype": "float32"},
    "nemotron-3-nano-30b-a3b": {"moe_latent_size": 1024},
    "granite-4.0-h-tiny": {"mamba_ssm_cache_dtype": "float32"},
    "llama-4-scout": {"no_rope_layer_interval": 4},
    "ernie-4.5-21b-a3b": {},
    "glm-4.5-air": {},
    "olmo-3-7b": {},
}
HOSTILE: tuple[Any, ...] = (0, -1, 3, 4097, 10**7, 10**39, 1.5, -inf, nan, 1e308, True, "9" * 300, [], {}, [1e308])


def paths(data: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in data.items():
        if not key.startswith("_"):
            yield (*before, key)
            if isinstance(value, dict):
                yield from paths(value, (*before, key))


def changed(data: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    copy = place = deepcopy(data)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copy


def serve(config: Path, tp: int) -> None:
    workload = {"arrivals": {"kind": "burst"}, "requests": 2, "prompt": 50, "output": 3}
    written = {"model": str(config), "fleet": {"gpu": "b200", "tp": tp}, "workload": workload}
    simulate(scenario_from_dict(written | {"cost": {"source": "analytic"}}))


@pytest.mark.parametrize("name", FAMILIES)
def test_any_value_of_any_key_is_refused_or_served(name: str, tmp_path: Path) -> None:
    data = json.loads((CATALOG / f"{name}.json").read_text()) | FAMILIES[name]
    config = tmp_path / "config.json"
    refused = 0
    for path in paths(data):
        for value in HOSTILE:
            config.write_text(json.dumps(changed(data, path, value)))
            try:
                model = load_model(str(config))
            except UserError as error:
                refused += 1
                assert str(config) in str(error) and len(str(error)) < 600 + len(str(config)), error
                continue
            for attention, _ in model.attentions:
                assert attention.heads % attention.kv_heads == 0 < attention.head_dim
            for recurrent, _ in model.recurrents:
                assert recurrent.heads % recurrent.groups == 0 < recurrent.head_dim
            for layer in model.layers:
                assert not isinstance(layer.ffn, MoeFfn) or layer.ffn.top_k <= layer.ffn.experts
            assert model.num_layers <= 10_000 and 0 < model.max_position <= 10**9
            try:
                serve(config, 8 if name == "step3" else 1)
            except UserError:
                refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "llama-3.1-8b",
            {"num_key_value_heads": 64},
            r"num_key_value_heads: found 64, expected a divisor of .* \(32\)",
        ),
        ("llama-3.1-8b", {"num_key_value_heads": 5}, r"num_key_value_heads: found 5, expected a divisor of .* \(32\)"),
        ("llama-3.1-8b", {"hidden_size": 8}, r"hidden_size: found 8, expected a multiple of num_attention_heads"),
        ("llama-3.1-8b", {"hidden_size": 4097}, r"hidden_size: found 4097, expected a multiple of .* \(32\)"),
        ("llama-3.1-8b", {"num_hidden_layers": 10_000_000}, r"num_hidden_layers: .* a whole number from 1 to 10,000"),
        ("llama-3.1-8b", {"rope_scaling": YARN | {"factor": inf}}, r"rope_scaling.factor: found inf"),
        ("llama-3.1-8b", {"rope_scaling": YARN | {"factor": nan}}, r"rope_scaling.factor: found nan"),
        ("llama-3.1-8b", {"rope_scaling": YARN | {"factor": 0}}, r"rope_scaling.factor: found 0, .* from 1 to"),
        ("llama-3.1-8b", {"rope_scaling": {"type": "linear", "factor": -2}}, r"rope_scaling.factor: found -2"),
        ("llama-3.1-8b", {"rms_norm_eps": nan}, "rms_norm_eps: found nan, expected a finite number"),
        ("llama-3.1-8b", {"architectures": "LlamaForCausalLM"}, "architectures: .* a list of names"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, r"num_experts_per_tok: found 9, .* number of experts \(8\)"),
        ("mixtral-8x7b", {"num_experts_per_tok": 100}, r"num_experts_per_tok: found 100, .* number of experts \(8\)"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [inf]}, "mlp_only_layers: .* layer numbers from 0"),
        ("step3", {"moe_top_k": 49}, r"moe_top_k: found 49, .* number of experts \(48\)"),
        ("step3", {"num_attention_groups": 3}, r"num_attention_groups: found 3, .* a divisor"),
    ],
)
def test_wrong_models_are_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = json.loads((CATALOG / f"{name}.json").read_text())
    data = data.get("text_config", data)
    if "hidden_size" in changes:
        data.pop("head_dim", None)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(data | changes))
    with pytest.raises(UserError, match=message):
        load_model(str(config))


@pytest.mark.parametrize("name", catalog_names())
def test_every_shipped_model_loads(name: str) -> None:
    assert load_model(name).name == name
