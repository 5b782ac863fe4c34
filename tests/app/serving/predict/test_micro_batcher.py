import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.predict.micro_batcher import MicroBatcher
from springtide.app.serving.predict.request import Instances
from springtide_client.schema import Schema
from tests.support.waiting import wait_until_async

SCHEMA = Schema(labels=("click",), categorical=("item_id",), multi_value=("genres",), dense=("age",))


class View:
    """Scores an instance with its age; even ids have rows."""

    schema = SCHEMA

    def __init__(self):
        self.calls = []
        self.go = threading.Event()
        self.go.set()
        self.began = threading.Event()

    def predict_with_status(self, features):
        self.began.set()
        assert self.go.wait(300)
        self.calls.append(len(features))
        ids_K = np.concatenate([features.categorical_NC.reshape(-1), features.lists[0].ids_M])
        return features.dense_NF.copy(), (ids_K % 2).astype(np.uint8)


def instances(*ages, **context):
    return Instances([{"age": age} for age in ages], context, 0)


def scoring(work, **settings):
    """Run work(scorer, score); score(view, instances) is begun before it returns."""

    async def scenario():
        scorer = MicroBatcher(**{"max_rows": 100, "wait_seconds": 0.0} | settings)

        async def begin(view, asked):
            task = asyncio.ensure_future(scorer.predict(view, asked))
            await asyncio.sleep(0)
            return task

        try:
            await work(scorer, begin)
        finally:
            scorer.close()

    asyncio.run(scenario())


def test_waiting_requests_are_scored_in_one_batch():
    async def work(scorer, begin):
        view = View()
        view.go.clear()
        first = await begin(view, instances(1))
        await wait_until_async(view.began.is_set)
        waiting = [await begin(view, instances(*ages, item_id=7, genres=[2, 3])) for ages in ((2, 3), (4,), (5, 6))]
        bad = await begin(view, Instances([{"age": 7}, {"age": "old"}], {}, 0))
        view.go.set()
        assert (await first).probabilities_NL.tolist() == [[1]]
        found = [await task for task in waiting]
        assert [scores.probabilities_NL[:, 0].tolist() for scores in found] == [[2, 3], [4], [5, 6]]
        # of each instance: item 7 and genre 3 have no row, genre 2 has one
        assert [scores.rows_by_status.tolist() for scores in found] == [[2, 4, 0, 0], [1, 2, 0, 0], [2, 4, 0, 0]]
        with pytest.raises(ApiError) as caught:
            await bad
        assert caught.value.details == {"index": 1, "field": "age"}
        assert view.calls == [1, 5]

    scoring(work)


def test_a_batch_has_one_view_and_a_bounded_number_of_rows():
    async def work(scorer, begin):
        old, new = View(), View()
        old.go.clear()
        tasks = [await begin(old, instances(0))]
        await wait_until_async(old.began.is_set)
        tasks += [await begin(old, instances(1, 2)), await begin(old, instances(3, 4))]
        tasks += [
            await begin(new, instances(5)),
            await begin(new, instances(*range(6))),
            await begin(new, instances(9)),
        ]
        old.go.set()
        assert [len((await task).probabilities_NL) for task in tasks] == [1, 2, 2, 1, 6, 1]
        assert old.calls == [1, 2, 2]
        assert new.calls == [1, 6, 1]

    scoring(work, max_rows=3)


def test_a_request_that_is_to_be_scored_alone_waits_for_none_and_joins_none():
    async def work(scorer, begin):
        view = View()
        view.go.clear()
        alone = asyncio.ensure_future(scorer.predict(view, instances(1), alone=True))
        await wait_until_async(view.began.is_set)  # without waiting for others
        view.go.set()
        await alone
        view.go.clear()
        view.began.clear()
        tasks = [asyncio.ensure_future(scorer.predict(view, instances(1), alone=True))]
        await wait_until_async(view.began.is_set)
        tasks += [await begin(view, instances(2, 3)), await begin(view, instances(4))]
        tasks += [asyncio.ensure_future(scorer.predict(view, instances(5), alone=True))]
        await asyncio.sleep(0)
        tasks += [await begin(view, instances(*range(90))), await begin(view, instances(*range(10)))]
        view.go.set()
        assert [len((await task).probabilities_NL) for task in tasks] == [1, 2, 1, 1, 90, 10]
        assert view.calls == [1, 1, 3, 1, 100]

    scoring(work, wait_seconds=600, max_rows=100)


def test_a_batch_waits_until_it_is_full():
    async def work(scorer, begin):
        view = View()
        tasks = [await begin(view, instances(1, 2)), await begin(view, instances(3)), await begin(view, instances(4))]
        assert [len((await task).probabilities_NL) for task in tasks] == [2, 1, 1]
        assert view.calls == [4]

    scoring(work, wait_seconds=600, max_rows=4)


def test_requests_are_busy_beyond_max_waiting_and_after_close():
    async def work(scorer, begin):
        view = View()
        view.go.clear()
        first = await begin(view, instances(1))
        await wait_until_async(view.began.is_set)
        second, third = await begin(view, instances(2)), await begin(view, instances(3))
        with pytest.raises(ApiError, match="waiting"):
            await third
        scorer.close()
        with pytest.raises(ApiError, match="waiting"):
            await second
        view.go.set()
        assert (await first).probabilities_NL.tolist() == [[1]]

    scoring(work, max_waiting=1)


def test_an_exception_reaches_every_request_of_its_batch_only():
    async def work(scorer, begin):
        broken = SimpleNamespace(schema=SCHEMA, predict_with_status=lambda features: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await (await begin(broken, instances(1)))
        assert (await (await begin(View(), instances(1)))).probabilities_NL.tolist() == [[1]]

    scoring(work)
