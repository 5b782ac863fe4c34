"""Settings of [serve] that depend on each other."""

import pytest

from springtide.app.serving.config import ServeConfig
from springtide_client.rows.hash_range import HashRange

PARTS = ["http://a:8000", "https://b:8443/model/"]


def test_range_and_parts_decide_what_a_server_holds_and_routes() -> None:
    assert ServeConfig().hash_range.is_all
    assert ServeConfig(range="2/4").hash_range == HashRange(2, 4)
    assert ServeConfig(parts=PARTS).hash_range.is_empty
    assert [
        ServeConfig(**given).is_router
        for given in ({}, {"range": "1/2"}, {"range": "1/2", "parts": PARTS}, {"parts": PARTS})
    ] == [False, False, False, True]
    assert ServeConfig(range="2/2", parts=PARTS, router=True).is_router


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"range": "5/4"}, "range '5/4' is not a range: the second of four is \"2/4\""),
        ({"parts": ["a:8000"]}, "parts 'a:8000' is not the URL of a server"),
        ({"range": "1/3", "parts": PARTS}, 'parts has 2 addresses, range = "1/3" needs 3'),
        ({"router": True}, "router needs the addresses of all parts"),
    ],
)
def test_what_does_not_fit_together_is_refused(given, message) -> None:
    with pytest.raises(ValueError, match=message):
        ServeConfig(**given)
