import json

import pytest

from app.serving.orders import check_support, put_order, read_forget, read_limits, read_rollback
from app.serving.problems import ApiError


def test_an_order_appears_whole_and_in_order(tmp_path):
    ids = [put_order(tmp_path, "forget", {"keys": [{"feature": "user_id", "id": number}]}) for number in range(3)]
    names = sorted(path.name for path in (tmp_path / "commands").iterdir())
    assert sorted(names) == sorted(f"{order}.json" for order in ids)
    order = json.loads((tmp_path / "commands" / f"{ids[1]}.json").read_text())
    assert order["id"] == ids[1]
    assert order["kind"] == "forget"
    assert order["keys"] == [{"feature": "user_id", "id": 1}]


def test_an_order_that_the_trainer_does_not_execute_is_refused():
    for status in ({}, {"orders": []}, {"orders": "forget"}):
        with pytest.raises(ApiError) as caught:
            check_support("forget", status)
        assert (caught.value.status, caught.value.code) == (501, "not_supported_yet")
    check_support("forget", {"orders": ["forget"]})


@pytest.mark.parametrize(
    "body",
    [
        {"feature": "user_id", "id": 5},
        {"feature": "user_id", "ids": [5]},
        {"keys": [{"feature": "user_id", "id": 5}]},
    ],
)
def test_keys_to_forget_may_be_written_in_three_ways(body):
    assert read_forget(body, ("user_id",)) == {"keys": [{"feature": "user_id", "id": 5}]}


@pytest.mark.parametrize(
    "body",
    [
        5,
        [],
        {},
        {"keys": []},
        {"feature": "user_id"},
        {"feature": "x", "id": 1},
        {"feature": "user_id", "id": None},
        {"feature": "user_id", "id": []},
        {"feature": "user_id", "ids": 3},
        {"keys": [3]},
    ],
)
def test_keys_that_are_none_are_refused(body):
    with pytest.raises(ApiError):
        read_forget(body, ("user_id",))


def test_limits_and_rollbacks_are_checked():
    assert read_rollback({"version": 4}) == {"version": 4}
    assert read_limits({"lr": 0.1}) == {"limits": {"lr": 0.1}}
    for body in ({}, [], {"version": "4"}, {"version": True}, {"version": -1}):
        with pytest.raises(ApiError):
            read_rollback(body)
    for body in ({}, [], {"dim": 4}):
        with pytest.raises(ApiError):
            read_limits(body)
