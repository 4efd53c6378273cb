from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

from dynamo.model.encoding_pool import CLIENT, EncodingPool

PATIENCE = 10.0


def ask(pool: EncodingPool, client: str, work: Callable[[], Any]) -> asyncio.Task[Any]:
    context = contextvars.copy_context()
    context.run(CLIENT.set, client)
    return asyncio.create_task(pool.run(work), context=context)


async def test_clients_take_turns_however_much_one_of_them_asks() -> None:
    pool, free, order = EncodingPool(threads=1), Event(), list[str]()
    busy = ask(pool, "many", lambda: free.wait(PATIENCE))
    many = [ask(pool, "many", lambda: order.append("many")) for _ in range(5)]
    await asyncio.sleep(0)
    few = ask(pool, "few", lambda: order.append("few"))
    await asyncio.sleep(0)
    free.set()
    await asyncio.gather(busy, *many, few)
    assert order.index("few") <= 1


async def test_one_client_leaves_a_thread_to_others() -> None:
    pool, free = EncodingPool(threads=2), Event()
    many = [ask(pool, "many", lambda: free.wait(PATIENCE)) for _ in range(4)]
    await asyncio.sleep(0)
    assert await ask(pool, "few", lambda: "done") == "done"
    assert not any(task.done() for task in many)
    free.set()
    await asyncio.gather(*many)


async def test_work_for_a_caller_that_has_left_is_not_begun() -> None:
    pool, free, begun = EncodingPool(threads=1), Event(), list[int]()
    busy = ask(pool, "a", lambda: free.wait(PATIENCE))
    left = ask(pool, "b", lambda: begun.append(1))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait({left})
    free.set()
    await busy
    await ask(pool, "b", lambda: None)
    assert begun == []


async def test_an_error_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        await EncodingPool().run(lambda: 1 // 0)
