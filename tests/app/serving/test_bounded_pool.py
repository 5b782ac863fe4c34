import asyncio
import threading

import pytest

from springtide.app.serving.bounded_pool import BoundedPool
from springtide.app.serving.http.errors import ApiError


def test_a_call_beyond_max_waiting_is_busy():
    async def scenario():
        work = BoundedPool("test", num_threads=1, max_waiting=1)
        go = threading.Event()
        first, second = (asyncio.ensure_future(work.run(lambda: go.wait(300))) for _ in range(2))
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught:
            await work.run(lambda: 5)
        assert caught.value.code == "busy"
        go.set()
        assert await first
        assert await second
        assert await work.run(lambda: 5) == 5
        work.close()

    asyncio.run(scenario())


def test_an_exception_of_a_call_reaches_the_caller():
    async def scenario():
        work = BoundedPool("test", num_threads=1, max_waiting=1)
        with pytest.raises(ZeroDivisionError):
            await work.run(lambda: 1 // 0)
        work.close()

    asyncio.run(scenario())
