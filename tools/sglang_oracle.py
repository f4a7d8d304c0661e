"""Decisions of SGLang's own scheduler, written down as goldens for tests/engine/test_sglang.py.

The installed package's code decides: its event loops, `get_next_batch_to_run`, schedule policy, prefill adder, batches,
result processing, radix tree and token pool, on the CPU. Only the model is faked (tokens follow from the request's
content, a step takes ``base + per_token * tokens + per_kv_token * cached`` seconds of virtual time), and so is what
talks to the outside (metrics, sockets). How to install it without CUDA is told in docs/schedulers.md; then

    python tools/sglang_oracle.py tests/data/sglang-parity/decisions.jsonl.gz

Packages that only kernels need are replaced by stand-ins, so that the scheduler can be imported where there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib.abc
import importlib.machinery
import json
import logging
import random
import sys
import types
import warnings
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ABSENT = ("torchvision", "torchaudio", "sgl_kernel", "flashinfer", "deep_gemm", "cuda", "cutlass", "torch_memory_saver")
MOST_ROUNDS = 20_000
FEATURES_OFF = (
    "enable_priority_scheduling",
    "schedule_low_priority_values_first",
    "enable_hierarchical_cache",
    "enable_unified_cache_external_linker",
    "enable_hicache_storage",
    "enable_lmcache",
    "enable_lora",
    "enable_hisparse",
    "enable_unified_memory",
    "enable_overlap_mlx",
    "require_mlp_sync",
    "is_hybrid_swa",
    "enable_fpm",
    "_sched_idled",
)
PARTS_ABSENT = (
    "dllm_config",
    "lora_drainer",
    "hisparse_coordinator",
    "decode_offload_manager",
    "min_free_slots_delayer",
    "truncation_align_size",
    "dynamic_chunk_sizer",
    "draft_worker",
    "scheduler_stage_metrics",
)
REPORTING = (
    "metrics_reporter",
    "metrics_collector",
    "output_streamer",
    "logprob_result_processor",
    "load_publisher",
    "load_inquirer",
    "grammar_manager",
)
# fmt: off
SEEDS = (  # of the first three hundred: every setting, and some that fail for each rule left out
    2, 4, 10, 15, 16, 20, 24, 26, 27, 35, 40, 44, 45, 46, 48, 62, 70, 73, 77, 86,
    95, 97, 99, 102, 105, 107, 111, 114, 115, 117, 122, 129, 131, 137, 143, 156, 157, 158, 181, 182,
    184, 185, 186, 195, 196, 204, 224, 225, 230, 233, 234, 238, 240, 247, 255, 270, 279, 281, 283, 287,
)
# fmt: on
TOKENS_PER_STREAM = 1 << 20  # token ids: which stream, and where in it


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stand


class Stand(metaclass=_Anything):
    """Whatever a kernel package would have had."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


class Quiet:
    """Takes every report and keeps none."""

    def __getattr__(self, name: str) -> Any:
        return Quiet()

    def __call__(self, *_: Any, **__: Any) -> None: ...

    def __add__(self, more: int) -> int:
        return more


class _StandModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stand


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _StandModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def stand_in() -> None:
    """Make the scheduler importable: absent packages become stand-ins, after transformers has seen they are absent."""
    import transformers.utils.import_utils as probes

    for name in dir(probes):
        if name.startswith("is_") and name.endswith("_available"):
            with contextlib.suppress(TypeError):  # wants an argument: then nothing is remembered
                getattr(probes, name)()
    sys.meta_path.append(_Finder())


# -- what is asked ----------------------------------------------------------------------------------------------------


def draw(seed: int) -> dict[str, Any]:
    """A small random scenario: a token pool that is a little too small, bursts, shared openings, conversations."""
    rng = random.Random(seed)
    policy = rng.choice(["lpm", "lpm", "fcfs"])
    hopeful = rng.random() < 0.4  # expects short answers, gets long ones, and has to retract
    ignore_eos = not hopeful and rng.random() < 0.5
    config: dict[str, Any] = {
        "schedule_policy": policy,
        "max_running_requests": rng.choice([8, 16] if hopeful else [2, 4, 8, 16]),
        "chunked_prefill_size": rng.choice([None, 16, 32, 64, 128]),
        "max_prefill_tokens": rng.choice([48, 128, 512, 16384]),
        "enable_mixed_chunk": rng.random() < 0.25,
        "overlap": rng.random() < 0.6,
        "disable_radix_cache": rng.random() < 0.15,
        "ignore_eos": ignore_eos,
        "max_new_tokens": None if ignore_eos else rng.choice([None, None, 40, 120]),
        "schedule_conservativeness": rng.choice([0.3, 0.1] if hopeful else [1.0, 1.0, 0.3]),
        "latency": {"base": 0.004, "per_token": 2e-5, "per_kv_token": 3e-8},
    }
    requests = _requests(rng, hopeful)
    most = max(r["prompt_len"] + _allowed(config, r) for r in requests)
    config["max_total_tokens"] = int(most * rng.choice([1.0, 1.3, 2.0] if hopeful else [1.0, 1.2, 1.6, 2.5, 6.0])) + 3
    return {"name": f"{seed:03d}", "config": config, "requests": requests}


def _allowed(config: dict[str, Any], request: dict[str, Any]) -> int:
    return int(max(config["max_new_tokens"] or 0, request["output_len"]))


def _requests(rng: random.Random, hopeful: bool) -> list[dict[str, Any]]:
    longest = rng.choice([6, 20] if hopeful else [20, 60, 150])
    outputs = rng.choice([60, 90] if hopeful else [12, 40, 40])
    spread = rng.choice([0.0, 0.02] if hopeful else [0.0, 0.02, 0.1, 0.4])
    crowd = rng.random() < 0.06  # more than SGLang sorts by prefix
    if crowd:
        longest, outputs, spread = 12, 4, 0.0
    requests: list[dict[str, Any]] = []
    at = 0.0
    for i in range(rng.randint(160, 200) if crowd else rng.randint(4, 28)):
        at += 0.0 if rng.random() < 0.3 else rng.random() * spread
        if not crowd and rng.random() < 0.04:
            at += 3.0  # long enough to fall idle
        content: list[tuple[str, int]] = []
        kind = rng.random() * (1.6 if hopeful else 1.0)
        earlier = [r for r in requests if "stream" in r]
        if kind < 0.3 and earlier and not hopeful:
            parent = rng.choice(earlier)
            lead = [tuple(part) for part in parent["prefix"] if part[0] != parent["stream"]]
            whole = parent["prompt_len"] + parent["output_len"] - rng.choice([0, 0, 0, 1, 5])
            own = whole - sum(n for _, n in lead)
            content = [*lead, (parent["stream"], own)] if own > 0 else lead
        elif kind < 0.7:
            content = [("s0", rng.choice([8] if hopeful else [8, 31, 32, 33, 70]))] if rng.random() < 0.6 else []
            if rng.random() < 0.6:
                stream = f"t{rng.randint(0, 2)}"
                content.append((stream, rng.randint(1, 9) if hopeful else rng.choice([3, 20, 31, 32, 33, 50])))
        shared = sum(n for _, n in content)
        prompt = shared + (0 if content and rng.random() < 0.2 else rng.randint(1, longest))
        request = {
            "id": f"r{i}",
            "arrival_time": round(at, 6),
            "prompt_len": prompt,
            "output_len": rng.randint(1, outputs),
            "prefix": [list(part) for part in content],
        }
        if rng.random() < 0.5 and shared < prompt:
            request["stream"] = f"c{i}"
        requests.append(request)
    return requests


class Contents:
    """Token ids by content: equal ids at equal places of equal streams, as the golden's segments say."""

    def __init__(self) -> None:
        self.streams: dict[str, int] = {}

    def ids(self, request: dict[str, Any], count: int) -> array[int]:
        segments = [tuple(part) for part in request["prefix"]]
        own = request.get("stream", "own/" + request["id"])
        ids = array("q")
        for stream, length in segments:
            ids.extend(self._some(stream, 0, length))
        begun = segments[-1][1] if segments and segments[-1][0] == own else 0
        if count > len(ids):
            ids.extend(self._some(own, begun, begun + count - len(ids)))
        return ids[:count]

    def _some(self, stream: str, start: int, end: int) -> range:
        base = (self.streams.setdefault(stream, len(self.streams)) + 1) * TOKENS_PER_STREAM
        return range(base + start, base + end)


# -- the real scheduler, driven ---------------------------------------------------------------------------------------


class Oracle:
    """SGLang's scheduler object with its real methods, built without a model, and a clock that steps move."""

    def __init__(self, golden: dict[str, Any], tree_core: str | None = None) -> None:
        self.golden, self.config = golden, golden["config"]
        self.clock = self.gpu_free = 0.0
        self.steps: list[list[Any]] = []
        self.retracted: list[str] = []
        self.contents = Contents()
        self.pending = sorted(golden["requests"], key=lambda r: r["arrival_time"])
        self.by_rid = {r["id"]: r for r in golden["requests"]}
        self.reqs: dict[str, Any] = {}
        self.first_token: dict[str, float] = {}
        self.finish: dict[str, float] = {}
        self.aborted: list[str] = []
        self.rounds = 0
        self.scheduler = self._scheduler(tree_core)

    def _scheduler(self, tree_core: str | None) -> Any:
        from sglang.srt.managers.scheduler import Scheduler

        s = object.__new__(Scheduler)
        self._give_memory(s, tree_core)
        self._set(s)
        self._leave_out(s)
        s.init_running_status()
        s.init_chunked_prefill()
        s.init_schedule_policy()
        s.init_batch_result_processor()
        self._replace(s)
        return s

    def _give_memory(self, s: Any, tree_core: str | None) -> None:
        """The real pools and the real tree, of page size one."""
        import torch
        from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
        from sglang.srt.mem_cache.unified_cache.components import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        config = self.config
        most = config["max_total_tokens"]
        s.req_to_token_pool = ReqToTokenPool(config["max_running_requests"], most + 8, "cpu", False)
        s.token_to_kv_pool_allocator = TokenToKVPoolAllocator(most, torch.float16, "cpu", Quiet(), False)
        s.tree_cache = UnifiedRadixCache(
            CacheInitParams(
                disable=config["disable_radix_cache"],
                req_to_token_pool=s.req_to_token_pool,
                token_to_kv_pool_allocator=s.token_to_kv_pool_allocator,
                page_size=1,
                tree_components=(ComponentType.FULL,),
                tree_core_backend=tree_core,
            )
        )
        s.max_req_len = s.max_total_num_tokens = most
        s.page_size = 1

    def _set(self, s: Any) -> None:
        from sglang.srt.disaggregation.utils import DisaggregationMode
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        config = self.config
        s.enable_overlap = config["overlap"]
        s.max_running_requests = config["max_running_requests"]
        s.max_prefill_tokens = config["max_prefill_tokens"]
        s.schedule_policy = config["schedule_policy"]
        s.disaggregation_mode = DisaggregationMode.NULL
        s.spec_algorithm = SpeculativeAlgorithm.NONE
        s.device = "cpu"
        s.is_generation = True
        s.processed_tokens_counter = 0
        s.priority_scheduling_preemption_threshold = 0
        s.model_config = SimpleNamespace(
            vocab_size=1 << 40, is_encoder_decoder=False, is_multimodal=False, self_opened_think_start_ids=None
        )

    def _leave_out(self, s: Any) -> None:
        """All that these scenarios have no use for, and all that reports."""
        for name in FEATURES_OFF:
            setattr(s, name, False)
        for name in PARTS_ABSENT:
            setattr(s, name, None)
        for name in REPORTING:
            setattr(s, name, Quiet())
        s.init_beam_coordinator = lambda: None
        s.beam_coordinator = SimpleNamespace(
            pending_member_rows=lambda batch: 0, commit_decode=lambda batch: (), retire_group=lambda req: None
        )
        s.tp_worker = SimpleNamespace(model_runner=SimpleNamespace(attn_backend=None, prefill_aware_swa=False))
        s.model_worker = SimpleNamespace()
        s.dp_attn_adapter = SimpleNamespace(
            maybe_prepare_mlp_sync_batch=lambda batch, need_sync=False: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
        )
        s.ngram_embedding_manager = SimpleNamespace(prepare_for_forward=lambda batch, chunked_req: batch)

    def _replace(self, s: Any) -> None:
        """The ends of the scheduler that touch the world: arrivals, the forward pass, results, reports."""
        real_results, real_enqueue = s.process_batch_result, s._add_request_to_queue

        def results(batch: Any, result: Any) -> None:
            self.clock = max(self.clock, result.end)
            before = {req.rid: len(req.output_ids) for req in batch.reqs}
            real_results(batch, result)
            for req in batch.reqs:
                if len(req.output_ids) > before[req.rid]:
                    self.first_token.setdefault(req.rid, self.clock)
                if req.finished():
                    self.finish.setdefault(req.rid, self.clock)

        def enqueue(req: Any, is_retracted: bool = False) -> None:
            if is_retracted:
                self.retracted.append(req.rid)
            real_enqueue(req, is_retracted)

        s.process_batch_result = results
        s._add_request_to_queue = enqueue
        s.ingest_requests = self.arrive
        s.run_batch = self.run
        s.on_idle = self.idle
        s._set_or_validate_priority = lambda req: True
        s._abort_on_queued_limit = lambda req: False
        s._prefetch_kvcache = lambda req: None
        s._process_hicache_events = lambda: None
        s._record_step_counters = lambda batch, result: None
        s._maybe_clear_mm_inputs = lambda batch: None
        s.maybe_send_health_check_signal = lambda: None
        s.publish_load_snapshot = lambda force=False: None
        s._apply_war_barrier = lambda: None
        s.launch_batch_sample_if_needed = lambda result, batch: None
        s.send_abort_output = lambda abort, req: self.aborted.append(req.rid)

    # -- the world's side -------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        """Hand over everything that is due by now."""
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        self.rounds += 1
        if self.rounds > MOST_ROUNDS:
            raise RuntimeError("the scheduler goes round in circles")
        while self.pending and self.pending[0]["arrival_time"] <= self.clock:
            asked = self.pending.pop(0)
            sampling = SamplingParams(
                max_new_tokens=_allowed(self.config, asked), ignore_eos=self.config["ignore_eos"], temperature=0.0
            )
            sampling.normalize(None)
            ids = self.contents.ids(asked, asked["prompt_len"])
            last = self.contents.ids(asked, asked["prompt_len"] + asked["output_len"])[-1]
            req = Req(asked["id"], "", ids, sampling, eos_token_ids={last}, vocab_size=1 << 40)
            self.reqs[req.rid] = req
            self.scheduler._add_request_to_queue(req)

    def idle(self) -> None:
        """What the real scheduler does of importance here when there is nothing at all to do; and time passes."""
        s = self.scheduler
        waiting = s.waiting_queue or s.chunked_req is not None or s.running_batch.reqs
        if not waiting:
            s.new_token_ratio_tracker.reset()
        if self.pending:
            self.clock = max(self.clock, self.pending[0]["arrival_time"])
        elif waiting:
            raise RuntimeError("stuck: requests wait, and nothing runs or will come")
        else:
            s.gracefully_exit = True

    def run(self, batch: Any) -> Any:
        """The forward pass: note the step, let the time pass on the GPU, and say which tokens come out."""
        import torch

        s = self.scheduler
        decode = batch.forward_mode.is_decode()
        lengths = batch.seq_lens_cpu.tolist()
        extends = [1] * len(batch.reqs) if decode else list(batch.extend_lens)
        latency = self.config["latency"]
        seconds = latency["base"] + latency["per_token"] * sum(extends) + latency["per_kv_token"] * sum(lengths)
        end = self.gpu_free = max(self.gpu_free, self.clock) + seconds
        free = s.token_to_kv_pool_allocator.available_size() + s.tree_cache.evictable_size()
        tokens = {req.rid: n for req, n in zip(batch.reqs, extends, strict=True)}
        self.steps.append([round(self.clock, 9), round(end, 9), tokens, self.retracted, free])
        self.retracted = []
        asked = [self.by_rid[req.rid] for req in batch.reqs]
        sampled = [self.contents.ids(r, length + 1)[-1] for r, length in zip(asked, lengths, strict=True)]
        return SimpleNamespace(
            end=end,
            copy_done=None,
            auxiliary_host_output=None,
            routed_experts_output=None,
            indexer_topk_output=None,
            logits_output=None,
            next_token_ids=torch.tensor(sampled),
            extend_input_len_per_req=None,
            extend_logprob_start_len_per_req=None,
            can_run_cuda_graph=False,
            grammar_advanced=False,
            num_correct_drafts_per_req_cpu=None,
            grammar_retained_tokens=None,
            get_num_generated_tokens=lambda size: size,
        )

    def golden_with_answers(self) -> dict[str, Any]:
        """Run to the end and write down what was decided."""
        s = self.scheduler
        (s.event_loop_overlap if self.config["overlap"] else s.event_loop_normal)()
        return self.golden | {
            "steps": self.steps,
            "first_token": self.first_token,
            "finish": self.finish,
            "cached": {rid: req.cached_tokens for rid, req in self.reqs.items()},
            "aborted": self.aborted,
        }


def ask(golden: dict[str, Any], tree_core: str | None = None) -> dict[str, Any]:
    """One scenario's decisions."""
    from sglang.srt.runtime_context import get_context

    config = golden["config"]
    settings = get_context().override_server_args(
        device="cpu",
        attention_backend="torch_native",
        chunked_prefill_size=config["chunked_prefill_size"] or -1,
        enable_mixed_chunk=config["enable_mixed_chunk"],
        schedule_conservativeness=config["schedule_conservativeness"],
        schedule_policy=config["schedule_policy"],
        pp_max_micro_batch_size=config["max_running_requests"],
    )
    with settings:
        return Oracle(golden, tree_core).golden_with_answers()


def main() -> None:
    """Write the goldens of some seeds."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--seeds", type=int, nargs=2, help="from, to; the committed ones if not given")
    arguments.add_argument("--tree-core", choices=("python", "rust"))
    asked = arguments.parse_args()
    warnings.simplefilter("ignore")
    stand_in()
    import sglang
    from sglang.srt.managers import scheduler

    scheduler.get_resolved_model_impl = lambda config: None  # there is no model
    logging.disable(logging.WARNING)
    with asked.out.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        for seed in range(*asked.seeds) if asked.seeds else SEEDS:
            golden = ask(draw(seed), asked.tree_core) | {"sglang": sglang.__version__}
            file.write((json.dumps(golden) + "\n").encode())
            retracted = sum(len(step[3]) for step in golden["steps"])
            print(
                golden["name"],
                len(golden["requests"]),
                "requests",
                len(golden["steps"]),
                "steps",
                retracted,
                "retracted",
            )


if __name__ == "__main__":
    main()
