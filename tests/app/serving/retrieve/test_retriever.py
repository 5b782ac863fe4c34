"""The retriever step by step, over a log that is applied by hand; with and without an index."""

import itertools

import numpy as np
import pytest

from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.metrics.server_metrics import declare_metrics
from springtide.app.serving.model.recent_records import LiveIdDictionary, LiveItems
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.retrieve.retriever import Retriever, recall, sample_users
from springtide.app.serving.retrieve.vector_index import InvertedFile
from springtide_client.encode import encode_instances
from springtide_client.model.view import KNOWN
from tests.app.serving.retrieve.retrieval_log import RetrievalLog

USER = {"user_id": 3, "last_items": [1, 2, 3], "age": 40}
NOTHING = np.zeros(0, np.int64)


def inputs_of(served, user):
    """What the user's tower makes a vector of."""
    return served.towers.user_inputs(encode_instances(served.towers.template.user_part, [user]))


class Followed:
    """A log, its items as a server notes them, and a retriever whose clock stands still."""

    def __init__(self, log: RetrievalLog, **options) -> None:
        self.log, self.items, self.now = log, LiveItems(), 0.0
        self.metrics = declare_metrics(MetricsRegistry())
        self._read = log.views[min(log.views)].base.head
        self.retriever = Retriever(lambda: self.view, self.metrics, clock=lambda: self.now, **options)
        self.follow()

    def follow(self) -> None:
        for record in self.log.directory.records(self._read):
            self.items.add(record)
            self._read = record.head
        self.view = ServedView(self.log.views[self.log.number], LiveIdDictionary(), self.items)
        self.retriever.step()

    def found(self, k: int, user=USER, **more) -> list[int]:
        served = self.retriever.require()
        inputs = inputs_of(served, user)
        options = {"wanted": {}, "excluded": NOTHING} | more
        return served.retrieve(inputs, k, **options)[0].tolist()

    def best(self, k: int) -> list[int]:
        scores = self.log.scores(self.log.number, USER)
        return sorted(scores, key=lambda item: (-scores[item], item))[:k]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    with RetrievalLog(tmp_path_factory.mktemp("retriever")) as log:
        log.learn(0, num_items=1_500, samples=1_500)
        yield log


def test_items_of_later_versions_are_searched_beside_the_index(log):
    followed = Followed(log)
    assert followed.retriever.served.num_changed == 0
    log.learn(1, first_item=5_000, num_items=7)
    followed.now = -1.0  # not yet time for another index
    followed.retriever._built_seconds = 1e9
    followed.follow()
    served = followed.retriever.served
    assert served.num_changed == 7
    assert served.towers.view.version == log.number > served.base.version
    everything = followed.found(5_000)
    assert set(range(5_000, 5_007)) <= set(everything)
    assert len(set(everything)) == len(everything) == len(log.scores(log.number, USER))
    assert followed.found(20, exact=True)[:5] == followed.best(5)


def test_an_item_that_is_as_it_was_stays_with_the_index(log):
    """Ten samples of 1,500 items move few vectors; an item with another price, or a vector far away, is searched."""
    followed = Followed(log)
    followed.retriever._built_seconds = 1e9
    base = followed.retriever.served.base
    places = np.arange(0, 40)
    same, moved, other = base.subset(places), base.subset(places), base.subset(places)
    moved.vectors_IO[7] = -moved.vectors_IO[7]
    other.columns.words_W[other.columns.offsets_I1[9]] += 1
    assert base.describes(same).all()
    assert np.flatnonzero(~base.describes(moved)).tolist() == [7]
    assert np.flatnonzero(~base.describes(other)).tolist() == [9]
    served = followed.retriever.served.followed_by(followed.retriever.served.towers, moved)
    assert [items.ids_I.tolist() for items in served.changed] == [[base.ids_I[7]]]
    again = served.followed_by(served.towers, base.subset(np.array([7])))
    assert again.changed[0].vectors_IO.tolist() == [base.vectors_IO[7].tolist()]


def test_the_index_is_built_anew_once_it_is_time(log):
    followed = Followed(log)
    first = followed.retriever.served.base
    log.learn(2, num_items=1_500)
    followed.follow()
    assert followed.retriever.served.base.version == log.number > first.version
    assert followed.retriever.served.num_changed == 0


def test_an_index_finds_what_exact_search_finds(log):
    followed = Followed(log, indexed_items=100)
    served = followed.retriever.served
    assert isinstance(served.base.index, InvertedFile)
    users = [{"user_id": user, "age": 20 + user} for user in range(40)]
    inputs = [inputs_of(served, user) for user in users]
    assert recall(served, inputs) >= 0.95
    for user in inputs:
        followed.retriever.note(user)
    followed.now = 100.0
    followed.retriever._check_recall()
    assert "springtide_retrieve_recall" in followed.metrics.text(followed.metrics.values())
    some = tuple(range(0, 1_500, 3))
    assert set(followed.found(30, wanted={"item_id": some})) <= set(some)
    log.forget_item(followed.best(1)[0])
    followed.follow()
    assert followed.found(10)[:3] == followed.best(3)


def test_a_filter_that_many_items_pass_asks_the_index_for_more(log, monkeypatch):
    monkeypatch.setattr("springtide.app.serving.retrieve.served_items.EXACT_ITEMS", 10)
    followed = Followed(log, indexed_items=100)
    some = tuple(range(0, 1_500, 2))
    found = followed.found(10, wanted={"item_id": some})
    exact = followed.found(10, wanted={"item_id": some}, exact=True)
    assert len(set(found) & set(exact)) >= 9


def test_many_changed_items_have_the_cells_of_the_index(log, monkeypatch):
    """They are in sets, each far larger than the next newer one; an item in several is described by the newest."""
    monkeypatch.setattr("springtide.app.serving.retrieve.served_items.INDEXED_CHANGES", 50)
    followed = Followed(log, indexed_items=100)
    followed.retriever._built_seconds = 1e9
    followed.now = -1.0
    for number, first_item, num_items in ((3, 6_000, 300), (4, 6_290, 30), (5, 6_295, 10)):
        log.learn(number, first_item=first_item, num_items=num_items, samples=600)
        followed.follow()
    served = followed.retriever.served
    sizes = [len(items) for items in served.changed]
    assert len(sizes) > 1
    assert all(4 * small <= large for small, large in itertools.pairwise(sizes))
    new = {item for item in log.known[log.number].items if item >= 6_000}
    assert {item for items in served.changed for item in items.ids_I.tolist()} == new
    found = followed.found(5_000)
    assert new <= set(found)
    assert len(set(found)) == len(found) == len(log.scores(log.number, USER))
    largest = served.changed[-1]
    assert isinstance(largest.index, InvertedFile)
    query_O = served.towers.users(inputs_of(served, USER))[0]
    expected = np.argsort(-(largest.vectors_IO @ query_O))[:10]
    assert set(expected.tolist()) <= set(largest.index.scanning(len(largest)).nearest(query_O, 50).tolist())


def test_an_index_that_finds_too_little_reads_more(log, monkeypatch):
    followed = Followed(log, indexed_items=100)
    before = followed.retriever.served.base.index.num_to_scan
    monkeypatch.setattr("springtide.app.serving.retrieve.retriever.recall", lambda *_, **__: 0.5)
    followed.retriever.note(inputs_of(followed.retriever.served, USER))
    followed.now = 100.0
    followed.retriever._check_recall()
    assert followed.retriever.served.base.index.num_to_scan == min(2 * before, len(followed.retriever.served.base))


def test_an_index_is_tuned_to_users_of_known_ids_until_somebody_asks(log):
    served = Followed(log).retriever.served
    part = served.towers.template.user_part
    users = sample_users(served.towers.view, part, 32)
    assert len(users) == 32
    for name, ids_N in zip(part.categorical, users.categorical_NC.T, strict=True):
        status_K = served.towers.view.lookup(part.number(name), ids_N)[1]
        assert (status_K == KNOWN).all()
    assert np.isnan(users.dense_NF).all()
    assert served.towers.users(served.towers.user_inputs(users)).shape == (32, 8)
