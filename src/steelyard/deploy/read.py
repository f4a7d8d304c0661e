"""Deployments read back into a scenario's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from steelyard.deploy.imported import WORKLOAD, Imported, ImportOptions, Remarks, gpu_of
from steelyard.deploy.manifests_read import Worker, dynamo_workers, kserve_workers
from steelyard.deploy.posttrain_read import TRAINERS, read_trainer
from steelyard.deploy.routers import SGLANG_ROUTER, VLLM_ROUTER, simulated
from steelyard.deploy.sglang_read import read_sglang
from steelyard.deploy.vllm_read import Read, read_vllm
from steelyard.deploy.words import ShellLine, after, lines_of
from steelyard.errors import UserError, did_you_mean, quoted
from steelyard.hardware import Gpu
from steelyard.scenario import scenario_from_dict

_VLLM = (("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server"), ("-m", "vllm.entrypoints.cli.main", "serve"))
_SGLANG = (("-m", "sglang.launch_server"), ("sglang", "serve"))
_VLLM_ROUTERS = (("vllm-router",), ("-m", "vllm_router.launch_router"))
_SGLANG_ROUTERS = (("-m", "sglang_router.launch_router"), ("sglang-router", "launch"), ("sglang-router",))


@dataclass
class _Found:
    """What has been read so far."""

    asked: ImportOptions
    remarks: Remarks = field(default_factory=Remarks)
    pools: list[tuple[dict[str, Any], Read]] = field(default_factory=list)
    routers: dict[str, str] = field(default_factory=dict)

    def gpu(self, told: object, where: str) -> Gpu:
        """The GPU type: as the deployment says, or the user."""
        return gpu_of(told, self.asked, where)

    def replicas(self, told: object, where: str) -> int:
        """The number of engines."""
        if isinstance(told, int) and not isinstance(told, bool):
            return told
        if told is not None:
            raise UserError(f"{where}: replicas: {quoted(told)} is not a whole number")
        if self.asked.replicas is None:
            self.remarks.assumed.append("fleet: one replica; say otherwise with --replicas")
        return self.asked.replicas or 1


def read(kind: str, sources: str | Mapping[str, str], asked: ImportOptions | None = None) -> Imported:
    """The scenario of a deployment: text of a command or file, or several files by name.

    Raises UserError for what cannot be read, and for settings that scenarios do not accept.
    """
    if kind not in KINDS:
        raise UserError(f"{kind!r} is not a kind of deployment; {did_you_mean(kind, KINDS)}")
    found = _Found(asked or ImportOptions())
    texts = {kind: sources} if isinstance(sources, str) else sources
    if kind in TRAINERS:
        return read_trainer(kind, texts, found.asked)
    for where, text in texts.items():
        _SERVING[kind](text, where, found)
    where = ", ".join(texts)
    if not found.pools:
        raise UserError(f"{where}: {_WANTED[kind]}")
    data = _scenario(found)
    scenario_from_dict(data, source=where)
    return Imported(data, found.remarks)


def _vllm(text: str, where: str, found: _Found) -> None:
    for line in lines_of(text, where):
        words = after(line.words, *_VLLM)
        if words is not None:
            gpu = found.gpu(line.facts.get("gpu"), where)
            _add(found, line, where, gpu, read_vllm(words, where, gpu, found.remarks))
        else:
            _router(after(line.words, *_VLLM_ROUTERS), VLLM_ROUTER, found)


def _sglang(text: str, where: str, found: _Found) -> None:
    for line in lines_of(text, where):
        words = after(line.words, *_SGLANG)
        if words is not None:
            gpu = found.gpu(line.facts.get("gpu"), where)
            _add(found, line, where, gpu, read_sglang(words, where, found.remarks))
        else:
            _router(after(line.words, *_SGLANG_ROUTERS), SGLANG_ROUTER, found)


def _dynamo(text: str, where: str, found: _Found) -> None:
    _manifests(dynamo_workers(text, where, found.routers, found.remarks), where, found)


def _kserve(text: str, where: str, found: _Found) -> None:
    _manifests(kserve_workers(text, where, found.routers, found.remarks), where, found)


def _manifests(workers: list[Worker], where: str, found: _Found) -> None:
    for worker in workers:
        gpu = found.gpu(worker.gpu, where)
        read = read_vllm(worker.words, f"{where}: {worker.name}", gpu, found.remarks)
        pool = {**read.pool, **({"role": worker.role} if worker.role else {})}
        name = {"name": worker.name, "gpu": gpu.name, "replicas": found.replicas(worker.replicas, where)}
        found.pools.append(({**name, **pool}, read))


def _add(found: _Found, line: ShellLine, where: str, gpu: Gpu, read: Read) -> None:
    told = {key: line.facts[key] for key in ("name", "role") if isinstance(line.facts.get(key), str)}
    replicas = found.replicas(line.facts.get("replicas"), where)
    found.pools.append(({**told, "gpu": gpu.name, "replicas": replicas, **read.pool}, read))


def _router(words: list[str] | None, policies: dict[str, str], found: _Found) -> None:
    """The policies of a router's command."""
    for word, value in pairwise(words or ()):
        key = {"--policy": "router", "--prefill-policy": "router", "--decode-policy": "decode_router"}.get(word)
        router = simulated(value, policies)
        if key is not None and router is not None:
            found.routers[key] = router
        elif key is not None:
            found.remarks.warnings.append(f"{word} {value}: no router of scenarios; round-robin is simulated")


_SERVING: dict[str, Callable[[str, str, _Found], None]] = {
    "vllm-serve": _vllm,
    "sglang": _sglang,
    "dynamo": _dynamo,
    "kserve": _kserve,
}
KINDS = (*_SERVING, *TRAINERS)
_WANTED = {
    "vllm-serve": "has no `vllm serve MODEL ...` command",
    "sglang": "has no `python -m sglang.launch_server --model-path MODEL ...` command",
    "dynamo": "has no DynamoGraphDeployment (nvidia.com/v1beta1) with vLLM workers",
    "kserve": "has no LLMInferenceService (serving.kserve.io) with a vLLM engine",
}


def _scenario(found: _Found) -> dict[str, Any]:
    """A scenario's data, in the short form if there is one pool."""
    first = found.pools[0][1]
    pools = []
    same = all(read.engine == first.engine for _, read in found.pools)
    for i, (pool, read) in enumerate(found.pools):
        pool = (
            {"name": f"pool-{i}", **pool} if len(found.pools) > 1 and not {"name", "role"} & set(pool) else dict(pool)
        )
        if read.model != first.model:
            pool["model"] = read.model
        if not same:
            pool["engine"] = read.engine
        pools.append(pool)
    routers = dict(found.routers)
    if any(pool.get("role", "serve") != "serve" for pool in pools):
        fleet = {"pools": pools, **routers}
    else:
        routers.pop("decode_router", None)
        alone = {key: value for key, value in pools[0].items() if key not in ("name", "role")}
        fleet = {"pools": pools, **routers} if len(pools) > 1 else {**alone, **routers}
    model = first.model["config"] if set(first.model) == {"config"} else first.model
    engine = {"engine": first.engine} if same else {}
    return {"name": found.asked.name, "model": model, "fleet": fleet, **engine, "workload": WORKLOAD}
