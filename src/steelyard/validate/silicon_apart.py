"""Points of AIConfigurator's sample with prefill and decode apart: which can be repeated, and with which engines.

The sample gives the layout of an engine, but for most runs not how many engines there were. InferenceX publishes that
for its own (`.github/configs/nvidia-master.yaml` of its repository, as of February 2026), by lengths and users. It
measured them with and without drafts; the sample does not say which is which. Where a run is there twice, the one with
the longer time per token had none.

SGLang's scheduler takes no part in disaggregation here, so vLLM's stands in: prefill engines run prompts in order of
arrival and decode engines all that they hold, with either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steelyard.validate.silicon_points import Point

_ENGINES = ("vllm", "sglang")
_GPUS_OF_A_MACHINE = 8
_R1 = "deepseek-ai/DeepSeek-R1"
# By model, GPU and lengths: the most users, GPUs that experts are spread over, prefill and decode engines.
_DEPLOYMENTS: dict[tuple[str, str, int, int], tuple[tuple[int, int, int, int], ...]] = {
    (_R1, "h200", 1024, 1024): ((256, 1, 1, 9), (2048, 1, 1, 6), (2048, 8, 1, 6)),
}


@dataclass(frozen=True)
class PointLayout:
    """The degrees of parallelism of a point; 0 where the sample has none."""

    tp: int
    pp: int
    dp: int
    expert_tp: int
    expert_ep: int

    @property
    def gpus(self) -> int:
        """GPUs of an engine."""
        return self.tp * max(1, self.dp)


@dataclass(frozen=True)
class PointSide:
    """The prefill or the decode engines of a run; 0 workers where neither the sample nor InferenceX says."""

    workers: int
    batch: int  # of an engine, or of each of its data-parallel ranks; 0: not said
    layout: PointLayout


def engines_of(model: str, gpu: str, lengths: tuple[int, int], users: int, expert_ep: int) -> tuple[int, int]:
    """Prefill and decode engines of InferenceX's deployment; zeros if there is none or several."""
    for most, spread, prefill, decode in _DEPLOYMENTS.get((model, gpu, *lengths), ()):
        if users <= most and max(1, expert_ep) == spread:
            return prefill, decode
    return 0, 0


def why_not_apart(point: Point, prefill: PointSide, decode: PointSide) -> str | None:
    """Why a run with prefill and decode apart cannot be repeated, as far as its columns tell."""
    if point.engine not in _ENGINES:
        return "prefill and decode apart: TensorRT-LLM is not simulated"
    if any(side.layout.tp > _GPUS_OF_A_MACHINE for side in (prefill, decode)):
        return "prefill and decode apart: tensor parallel over two machines"
    if not prefill.workers or not decode.workers:
        return "prefill and decode apart: the number of engines is not said"
    if not point.concurrency:
        return "prefill and decode apart: the number of users is not said"
    return None


def drafted(points: Sequence[Point]) -> set[str]:
    """Names of the runs apart that had drafts, or may have had: all but the slower of two measurements of one run.

    Where the sample itself gives the number of engines, it has runs without drafts only.
    """
    found: set[str] = set()
    alike: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points:
        if point.prefill is not None and not point.engines_said:
            alike[point.run].append(point)
    for same in alike.values():
        times = {round(each.tpot, 5) for each in same}
        found |= {each.name for each in same if len(times) != 2 or round(each.tpot, 5) != max(times)}
    return found


def fleet_apart(point: Point, prefill: PointSide, decode: PointSide, routed: bool) -> dict[str, Any]:
    """The pools of a run. Dynamo sends SGLang's first token along with the cache."""
    pools = [
        {
            "role": role,
            "gpu": point.gpu,
            "replicas": side.workers,
            "tp": side.layout.tp if side.layout.expert_ep <= 1 else 1,
            "dp": max(1, side.layout.dp) if side.layout.expert_ep <= 1 else side.layout.gpus,
            "expert_parallel": routed and side.layout.expert_ep > 1,
        }
        for role, side in (("prefill", prefill), ("decode", decode))
    ]
    first = "prefill" if point.engine == "sglang" else "decode"
    return {"pools": pools, "router": "least-outstanding", "transfer": {"first_token": first}}
