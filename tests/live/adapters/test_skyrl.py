"""SkyRL's own client, where it is installed, with a stack's address as its proxy."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from support.adapter_stack import PlainEngine, engines, stack, until
from support.emulated import served

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="SkyRL 0.3.0 cannot be imported by Python 3.11")
MODULE = "skyrl.backends.skyrl_train.inference_servers.remote_inference_client"
Test = Callable[[Any, list[PlainEngine]], Awaitable[None]]


def with_client(test: Test, direct: bool) -> None:
    """``direct``: the client knows engines' addresses, and reaches them by itself for what concerns all."""
    theirs = pytest.importorskip(MODULE)

    async def run() -> None:
        async with engines(2) as own, stack("skyrl", [each.url for each in own], "sticky") as (ours, fleet):
            proxy = str(ours.base_url).rstrip("/")
            urls = [each.url for each in own] if direct else [proxy]
            client = theirs.RemoteInferenceClient(proxy, urls, 1, model_name="model")
            try:
                await test(client, own)
            finally:
                await client.teardown()
            assert not any(fleet._elastic._counts.values())

    asyncio.run(run())


@pytest.mark.parametrize("direct", [True, False])
def test_trajectories(direct: bool) -> None:
    async def test(client: Any, own: list[PlainEngine]) -> None:
        sessions = [f"task-{place}_0" for place in range(4)]
        for _ in range(3):
            batch = {"prompt_token_ids": [[1, 2]] * 4, "sampling_params": {"logprobs": 0}, "session_ids": sessions}
            output = await client.generate(batch)
            assert output["response_ids"] == [[7]] * 4 and output["stop_reasons"] == ["stop"] * 4
            assert output["response_logprobs"] == [[-0.5]] * 4 and output["responses"] == ["seven"] * 4
        for session in sessions:
            await client.finish_session(session)
        turns = [each.asked("/inference/v1/generate") for each in own]
        assert sum(turns) == 12 and all(count % 3 == 0 for count in turns)  # three turns of whole trajectories
        body = {"messages": [{"role": "user", "content": "a"}], "session_id": "task-0_0"}
        assert (await client.chat_completion({"json": body}))["choices"]
        assert (await client.render_chat_completion({"json": body}))["token_ids"] == [1, 2, 3]
        assert (await client.completion({"json": {"prompt": "a"}}))["choices"]
        assert await client.tokenize(["a"]) == [[1, 2, 3]]
        sampled = await client.sample({"json": {"prompt": {"chunks": [{"tokens": [1, 2]}]}, "session_id": "s"}})
        assert sampled["sequences"] == [{"tokens": [7], "logprobs": [-0.5], "stop_reason": "stop"}]

    with_client(test, direct)


@pytest.mark.parametrize("direct", [True, False])
def test_weight_updates(direct: bool) -> None:
    strategy = pytest.importorskip("skyrl.backends.skyrl_train.weight_sync.broadcast_strategy")

    async def test(client: Any, own: list[PlainEngine]) -> None:
        assert (await client.get_world_size())[0] == 4
        info = strategy.BroadcastInitInfo(
            override_existing_receiver=False, master_addr="a", master_port=1, rank_offset=1, world_size=5
        )
        await client.init_weight_update_communicator(info)
        ranks = [orjson.loads(each.bodies[-1])["init_info"]["rank_offset"] for each in own]
        assert ranks == [1, 3]
        await client.pause_generation()
        await client.start_weight_update()
        await client.update_weights_nccl({"names": []})
        await client.finish_weight_update()
        await client.update_named_weights({"names": []})
        await client.resume_generation()
        await client.reset_prefix_cache()
        await client.sleep(level=1, tags=["weights"])
        await client.wake_up(tags=["weights"])
        await client.load_lora_adapter("a", "/a")
        await client.unload_lora_adapter("a")
        assert own[0].calls == own[1].calls
        assert ("POST", "/pause?mode=keep&clear_cache=false") in own[0].calls
        assert own[0].asked("/collective_rpc") == 3

    with_client(test, direct)


def test_emulated_engines_pause_and_go_on() -> None:
    theirs = pytest.importorskip(MODULE)

    async def run() -> None:
        async with (
            served(5.0, replicas=2) as (clients, replicas),
            stack("skyrl", [str(each.base_url).rstrip("/") for each in clients]) as (ours, _),
        ):
            proxy = str(ours.base_url).rstrip("/")
            client = theirs.RemoteInferenceClient(proxy, [proxy], 1, model_name="llama-3.1-8b")
            body = {"prompt": [1, 2, 3], "max_tokens": 400, "ignore_eos": True}
            turns = [asyncio.ensure_future(client.completion({"json": {**body, "session_id": each}})) for each in "ab"]
            await until(lambda: all(replica.engine.running for replica in replicas))
            await client.pause()
            assert all(replica.paused for replica in replicas)
            await client.update_named_weights({"weight_version": "2"})
            await client.resume()
            for each in await asyncio.gather(*turns):
                assert each["usage"]["completion_tokens"] == 400
            assert (await client.get_world_size())[0] == 2
            await client.teardown()

    asyncio.run(run())
