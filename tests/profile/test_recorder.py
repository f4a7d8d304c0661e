"""The recorder in a stand-in for vLLM: what it writes must be a capture that validates and calibrates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from steelyard.profile.recorder import install
from steelyard.validate.capture import read_capture_folder
from steelyard.validate.settings import scenario_of
from steelyard.validate.steps import read_steps

STAND_IN = textwrap.dedent(
    """
    import asyncio, sys, types
    from types import SimpleNamespace as Some

    def module(name, **contents):
        made = types.ModuleType(name)
        made.__dict__.update(contents)
        sys.modules[name] = made

    class Scheduler:
        def __init__(self):
            self.requests, self.running, self.waiting = {}, [], []
            self.kv_cache_manager = Some(block_pool=Some(get_num_free_blocks=lambda: 99))
            self.plan = [{"a": 30}, {"a": 1, "b": 50}, {"a": 1, "b": 1}, {}]
        def schedule(self, throttle=False):
            tokens = self.plan.pop(0)
            for name, count in tokens.items():
                new = Some(num_computed_tokens=0, num_prompt_tokens=30 if name == "a" else 50)
                self.requests.setdefault(name, new).num_computed_tokens += count
            total = sum(tokens.values())
            return Some(num_scheduled_tokens=tokens, total_num_scheduled_tokens=total, preempted_req_ids=None)
        def update_from_output(self, output, result):
            return "outputs"

    class EngineCore:
        def __init__(self, vllm_config, log_stats=False):
            self.scheduler = Scheduler()
            nothing = lambda output, non_block=True: None
            self.model_executor = Some(execute_model=nothing, sample_tokens=nothing)

    class AsyncLLM:
        async def generate(self, prompt, sampling_params, request_id, priority=0):
            for k in range(3):
                await asyncio.sleep(0.001)
                tokens = [7] if sampling_params.output_kind.name == "DELTA" else [7] * (k + 1)
                outputs = [Some(token_ids=tokens)]
                yield Some(outputs=outputs, prompt_token_ids=prompt["prompt_token_ids"], num_cached_tokens=16)

    module("vllm", __version__="0.26.0")
    module("vllm.v1"); module("vllm.v1.engine")
    module("vllm.v1.engine.core", EngineCore=EngineCore)
    module("vllm.v1.engine.async_llm", AsyncLLM=AsyncLLM)
    module("torch", cuda=Some(is_available=lambda: True, get_device_name=lambda i: "NVIDIA H200"))
    model = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 32000,
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 8, "num_attention_heads": 16,
        "num_key_value_heads": 8, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
    }
    hf = Some(to_dict=lambda: model)
    config = Some(
        scheduler_config=Some(
            max_num_seqs=8, max_num_batched_tokens=512, async_scheduling=True, policy="fcfs",
            enable_chunked_prefill=True,
        ),
        cache_config=Some(
            num_gpu_blocks=100, block_size=16, gpu_memory_utilization=0.9, enable_prefix_caching=True,
            cache_dtype="auto", num_gpu_blocks_override=100,
        ),
        compilation_config=Some(
            cudagraph_mode=Some(name="FULL_AND_PIECEWISE"), cudagraph_capture_sizes=[1, 2, 4, 8]
        ),
        model_config=Some(model="m", hf_config=hf, max_model_len=4096, dtype="torch.bfloat16", quantization=None),
        parallel_config=Some(tensor_parallel_size=1, disable_custom_all_reduce=True),
        load_config=Some(load_format="dummy"),
    )
    from steelyard.profile.recorder import install
    install(); install()  # vLLM may load a plugin more than once in a process
    core = EngineCore(config, log_stats=False)
    flight = []
    while core.scheduler.plan:
        output = core.scheduler.schedule()
        core.model_executor.execute_model(output); core.model_executor.sample_tokens(None)
        core.scheduler.update_from_output(output, None)
    async def ask(name, kind):
        params = Some(output_kind=Some(name=kind))
        return [out async for out in AsyncLLM().generate({"prompt_token_ids": [1] * 30}, params, name, priority=1)]
    async def both():
        return await asyncio.gather(ask("a", "DELTA"), ask("b", "CUMULATIVE"))
    assert [len(seen) for seen in asyncio.run(both())] == [3, 3]
    """
)


def run_stand_in(folder: Path | None, strategy: str = "", load_format: str = "dummy") -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("STEELYARD")}
    variables["VLLM_MOE_ROUTING_SIMULATION_STRATEGY"] = strategy
    if folder is not None:
        variables["STEELYARD_RECORD"] = str(folder)
    code = STAND_IN.replace('load_format="dummy"', f'load_format="{load_format}"')
    subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)


def test_what_is_recorded_is_a_capture(tmp_path: Path) -> None:
    folder = tmp_path / "captured"
    run_stand_in(folder)
    capture = read_capture_folder(folder)
    (run,) = capture.runs
    assert capture.meta["num_gpu_blocks"] == 100 and capture.meta["gpu"] == "NVIDIA H200"
    assert run.answers.output.tolist() == [3, 3]
    assert run.answers.cached is not None and run.answers.cached.tolist() == [16, 16]
    steps = read_steps(run.stepped)
    assert [(step.decodes, step.keys, step.chunks) for step in steps] == [
        (0, 0, ((30, 0),)),
        (1, 30, ((50, 0),)),
        (2, 31 + 50, ()),
    ]
    rows = [json.loads(line) for line in (folder / "served.steps.jsonl").read_text().splitlines()]
    assert all(row["t_schedule"] <= row["t_launched"] <= row["t_result"] <= row["t_update"] for row in rows)
    scenario = scenario_of(capture, run, "h200")
    assert scenario.engine.max_num_seqs == 8 and scenario.engine.max_model_len == 4096
    assert scenario.engine.num_gpu_blocks == 100 and scenario.engine.disable_custom_all_reduce
    assert set(capture.meta["host"]) == {"name", "cpu"} and capture.meta["host"]["cpu"]


@pytest.mark.parametrize(
    ("strategy", "load_format", "routing"),
    [
        ("uniform_random", "dummy", "uniform_random"),
        ("", "dummy", "unknown"),
        ("", "LoadFormat.DUMMY", "unknown"),
        ("", "auto", "trained"),
    ],
)
def test_how_experts_are_chosen_is_recorded(tmp_path: Path, strategy: str, load_format: str, routing: str) -> None:
    """With random gates and greedy decoding, all tokens may choose the same experts."""
    run_stand_in(tmp_path / "captured", strategy, load_format)
    assert read_capture_folder(tmp_path / "captured").meta["expert_routing"] == routing


def test_nothing_is_recorded_unless_asked_for(tmp_path: Path) -> None:
    run_stand_in(None)
    assert not list(tmp_path.iterdir())


def test_vllm_finds_the_recorder() -> None:
    (found,) = [each for each in entry_points(group="vllm.general_plugins") if each.name == "steelyard_recorder"]
    assert found.load() is install
