"""Metrics under vLLM's names, so that dashboards and autoscalers made for vLLM work."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_TOKENS = tuple(float(each * 10**power) for power in range(6) for each in (1, 2, 5))
_LABELS = ("model_name", "engine")


class Metrics:
    """What one engine has done, in engine seconds."""

    def __init__(self, model: str, number: int) -> None:
        self._registry = CollectorRegistry()
        self._own = {"model_name": model, "engine": str(number)}
        self.running = self._gauge("num_requests_running", "Requests in the batch.")
        self.waiting = self._gauge("num_requests_waiting", "Requests that wait for a place in it.")
        self.kv_use = self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of started requests.")
        self.generated_tokens = self._counter("generation_tokens", "Output tokens.")
        self.preemptions = self._counter("num_preemptions", "Preemptions of ended requests.")
        self.cache_queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self.cache_hits = self._counter("prefix_cache_hits", "Those of them that were found.")
        self.first_token = self._histogram("time_to_first_token_seconds", "Time to first token.", _SECONDS)
        self.token = self._histogram("inter_token_latency_seconds", "Time between tokens.", _SECONDS)
        self.whole = self._histogram("e2e_request_latency_seconds", "Time of a whole request.", _SECONDS)
        self.queue = self._histogram("request_queue_time_seconds", "Time until a request is scheduled.", _SECONDS)
        self.prompts = self._histogram("request_prompt_tokens", "Prompt lengths.", _TOKENS)
        self.outputs = self._histogram("request_generation_tokens", "Output lengths.", _TOKENS)
        self._ended = Counter(
            "vllm:request_success", "Ended requests.", (*_LABELS, "finished_reason"), registry=self._registry
        )

    def cache_config(self, block_size: int, blocks: int, prefix_caching: bool) -> None:
        """Tell the size of the KV cache, as vLLM does: a gauge that is 1, with its settings as labels."""
        labels = {
            "engine": self._own["engine"],
            "block_size": str(block_size),
            "num_gpu_blocks": str(blocks),
            "enable_prefix_caching": str(prefix_caching),
        }
        about = "Size and settings of the KV cache, as labels."
        Gauge("vllm:cache_config_info", about, tuple(labels), registry=self._registry).labels(**labels).set(1)

    def ended(self, reason: str) -> None:
        """Count a request that has ended."""
        self._ended.labels(**self._own, finished_reason=reason).inc()

    def text(self) -> bytes:
        """All of them as Prometheus reads them."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(f"vllm:{name}", about, _LABELS, registry=self._registry).labels(**self._own)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"vllm:{name}", about, _LABELS, registry=self._registry).labels(**self._own)

    def _histogram(self, name: str, about: str, edges: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", about, _LABELS, registry=self._registry, buckets=edges).labels(**self._own)
