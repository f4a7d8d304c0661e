"""Reading config.json files: what is found, what is refused, and what the message says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steelyard.errors import UserError
from steelyard.model import ModelSpec, check_tp, load_model, parameters, serve_as

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "float16",
}


def read(folder: Path, **changes: Any) -> ModelSpec:
    """A small Llama with some keys changed; None removes one."""
    data = {key: value for key, value in {**LLAMA, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(data))
    return load_model(str(folder))


@pytest.mark.parametrize(
    "name",
    ["llama-3.1-8b", "LLAMA-3.1-8B", "meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B-Instruct"],
)
def test_catalog_names_and_hub_ids_work_in_any_case(name: str) -> None:
    assert load_model(name).name == "llama-3.1-8b"


def test_a_mistyped_name_is_answered_with_the_nearest_and_the_way_out() -> None:
    with pytest.raises(UserError) as caught:
        load_model("llama-3.1-8")
    assert "'llama-3.1-8b'" in str(caught.value)
    assert "config.json" in str(caught.value)


def test_a_path_that_is_not_there_is_not_taken_for_a_name() -> None:
    with pytest.raises(UserError, match=r"'\./no/config\.json': no such file or folder"):
        load_model("./no/config.json")


def test_a_path_may_be_relative_to_the_scenario_or_to_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    whole = read(folder)
    assert whole.name == "mine"
    assert load_model("mine", base_dir=tmp_path) == whole
    assert load_model("mine/config.json", base_dir=tmp_path) == whole
    monkeypatch.chdir(tmp_path)
    assert load_model("mine", base_dir=folder) == whole


def test_left_out_keys_take_the_published_defaults(tmp_path: Path) -> None:
    model = read(tmp_path)
    (attention, _), *_ = model.attentions
    assert (attention.kv_heads, attention.head_dim) == (4, 64)
    assert not model.tied_embeddings
    assert model.dtype == "float16"


def test_null_is_the_same_as_left_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "head_dim": None, "num_key_value_heads": None}))
    assert load_model(str(tmp_path)) == read(tmp_path)


def test_biases_are_counted_where_declared(tmp_path: Path) -> None:
    plain = parameters(read(tmp_path)).total
    biased = parameters(read(tmp_path, attention_bias=True, mlp_bias=True)).total
    assert biased - plain == 2 * (3 * 256 + 256 + 2 * 512 + 256)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM' is not supported; supported: .*Llama"),
        ({"architectures": None, "model_type": "mamba"}, "'mamba' is not supported"),
        ({"architectures": None, "model_type": None}, "missing key 'model_type'"),
        ({"hidden_size": None}, "missing key 'hidden_size'"),
        ({"vocab_size": None}, "missing key 'vocab_size'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: found 0"),
        ({"intermediate_size": "big"}, "intermediate_size: found 'big'"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: found 'no', expected true or false"),
        ({"torch_dtype": "int3"}, "torch_dtype: found 'int3'"),
        (
            {"quantization_config": {"quant_method": "magic"}},
            "quantization_config.quant_method: found 'magic'",
        ),
        ({"text_config": {"model_type": "llama"}}, "missing key 'text_config.hidden_size'"),
    ],
)
def test_a_bad_config_names_file_key_and_value(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, **changes)
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [('{\n "a": 1,\n}', ":3: not valid JSON"), ("[1]", "must be a JSON object"), ("", ":1: not valid JSON")],
)
def test_a_file_that_is_not_a_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_model(str(path))


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config\.json"):
        load_model(str(tmp_path))


def test_the_published_multimodal_gemma_file_leaves_defaults_to_the_family(tmp_path: Path) -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    (tmp_path / "config.json").write_text(json.dumps({**config, "text_config": text, "torch_dtype": "bfloat16"}))
    assert replace(load_model(str(tmp_path)), name="gemma-3-4b") == load_model("gemma-3-4b")


def test_layer_types_must_cover_every_layer(tmp_path: Path) -> None:
    mistral = {"architectures": ["MistralForCausalLM"], "sliding_window": 64}
    hybrid = read(tmp_path, **mistral, layer_types=["full_attention", "sliding_attention"])
    assert [attention.window for attention, _ in hybrid.attentions] == [None, 64]
    with pytest.raises(UserError, match=r"layer_types: .*expected 2 entries"):
        read(tmp_path, **mistral, layer_types=["full_attention"])


def test_qwen_slides_only_above_the_window_layers(tmp_path: Path) -> None:
    qwen = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "max_window_layers": 1}
    assert [attention.window for attention, _ in read(tmp_path, **qwen).attentions] == [None]
    sliding = read(tmp_path, **qwen, use_sliding_window=True)
    assert [(attention.window, layers) for attention, layers in sliding.attentions] == [(None, 1), (64, 1)]


def test_sparse_layers_follow_step_and_exceptions(tmp_path: Path) -> None:
    moe = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_hidden_layers": 8,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    }
    assert [layer.count for layer in read(tmp_path, **moe).layers] == [5, 3]


def test_minimax_m2_is_as_large_as_its_card_says(tmp_path: Path) -> None:
    """230B with 10B active; its blocks of quantised weights are what vLLM refuses eight GPUs for."""
    model = read(
        tmp_path,
        architectures=["MiniMaxM2ForCausalLM"],
        model_type="minimax_m2",
        hidden_size=3072,
        intermediate_size=1536,
        num_hidden_layers=62,
        num_attention_heads=48,
        num_key_value_heads=8,
        head_dim=128,
        num_local_experts=256,
        num_experts_per_tok=8,
        use_routing_bias=True,
        vocab_size=200064,
        max_position_embeddings=196608,
        tie_word_embeddings=False,
        torch_dtype="bfloat16",
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
    )
    count = parameters(model)
    assert count.total / 1e9 == pytest.approx(228.7, abs=0.05)
    assert count.active_without_embedding / 1e9 == pytest.approx(10, abs=0.5)
    assert model.attentions[0][0].qk_norm and len(model.layers) == 1
    check_tp(model, 4)
    with pytest.raises(UserError, match="cuts its 128-wide quantisation blocks"):
        check_tp(model, 8)


def test_yarn_stretches_the_context(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert read(tmp_path, rope_scaling=yarn).max_position == 8192
    assert read(tmp_path, rope_scaling={"rope_type": "llama3", "factor": 8.0}).max_position == 2048


@pytest.mark.parametrize(
    ("written", "method", "per_weight", "compute"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", 1.0, "fp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4", 0.5 + 2.5 / 128, None),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", 1.0, None),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 0.5625, "fp4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
                        "input_activations": {"num_bits": 8, "type": "int"},
                    }
                },
                "ignore": ["lm_head"],
            },
            "int8",
            1.0,
            "int8",
        ),
    ],
)
def test_checkpoint_quantisation_is_read(
    tmp_path: Path, written: dict[str, Any], method: str, per_weight: float, compute: str | None
) -> None:
    found = read(tmp_path, quantization_config=written).quantization
    assert found is not None
    assert (found.method, found.weight_bytes, found.compute) == (method, per_weight, compute)
    assert found.parts == ("attention", "ffn", "experts")


def test_gpt_oss_keeps_attention_in_16_bits() -> None:
    stored = load_model("gpt-oss-20b").quantization
    assert stored is not None
    assert "attention" not in stored.parts


def test_serving_in_another_precision() -> None:
    llama, deepseek = load_model("llama-3.1-8b"), load_model("deepseek-v3")
    assert serve_as(llama) == llama
    assert serve_as(llama, "float16").compute == "fp16"
    assert serve_as(llama, "fp8") == serve_as(llama, quantization="fp8") != llama
    assert serve_as(deepseek, quantization="fp8") == deepseek
    assert serve_as(deepseek, quantization="none").quantization is None
    with pytest.raises(UserError, match="already quantised to fp8"):
        serve_as(deepseek, quantization="int4")
    with pytest.raises(UserError, match="did you mean 'fp8'"):
        serve_as(llama, quantization="fp88")
    with pytest.raises(UserError, match="dtype: found 'bfloat61'"):
        serve_as(llama, "bfloat61")
