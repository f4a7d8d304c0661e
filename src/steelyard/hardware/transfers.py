"""How long a KV-cache transfer takes to start, beside its bytes."""

from __future__ import annotations

# A connector moves a request's blocks from one engine to another, or back from host memory: descriptors are posted and
# the end is polled for. vLLM's NIXL connector reports 0.67 ms for posting 72 descriptors (vllm-project/vllm issue
# 41230) and 0.90 ms for 30,080 over InfiniBand (an llm-d benchmark on H200s). Rounded up for the poll.
CONNECTOR_START_SECONDS = 1e-3

# A hand-over from prefill to decode with the descriptors prepared beforehand: one RDMA post and one notification.
# Chosen, not measured, and on the fast side: with vLLM's connector it is CONNECTOR_START_SECONDS. That would make the
# TTFT p95 of examples/pdd.yaml 0.7 % longer and its TPOT p95 0.1 % shorter.
HANDOVER_START_SECONDS = 50e-6
