"""Settings of [serve] that depend on each other."""

import pytest

from springtide.app.serving.config import ExploreConfig, ServeConfig
from springtide_client.explore import Policy
from springtide_client.rows.hash_range import HashRange
from springtide_client.schema import Schema

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
        (
            {"explore": {"policy": "thompson"}},
            'explore policy must be one of "epsilon", "greedy", "softmax", not "thompson"',
        ),
        ({"explore": {"temperature": 0}}, "explore temperature must be a finite number of at least 1e-06, not 0"),
        ({"explore": {"temperature": -1}}, "explore temperature must be .* at least 1e-06, not -1"),
        ({"explore": {"epsilon": 2}}, "explore epsilon must be a number from 0 to 1, not 2"),
        ({"explore": {"places": 0}}, "explore places must be a whole number from 1 to 100, not 0"),
        ({"explore": {"policies": ["best"]}}, "explore policies must be a list .*greedy"),
        ({"explore": {"tempreture": 1}}, "explore has an unknown key 'tempreture': did you mean temperature?"),
    ],
)
def test_what_does_not_fit_together_is_refused(given, message) -> None:
    with pytest.raises(ValueError, match=message):
        ServeConfig(**given)


def test_exploration_is_off_by_default_and_makes_policies_of_its_settings() -> None:
    assert ServeConfig().exploration.named("greedy") == Policy()
    assert ServeConfig().exploration.policy == "greedy"
    explore = ServeConfig(explore={"policy": "softmax", "temperature": 0.5, "places": 2}).exploration
    assert explore.named(explore.policy) == Policy(name="softmax", temperature=0.5, places=2)


def test_candidates_are_ranked_by_a_label_that_is_a_probability() -> None:
    schema = Schema(labels=("dwell", "click", "order"), categorical=("item_id",), links={"dwell": "log1p"})
    assert ExploreConfig(label="order").place_of_label(schema) == 2
    with pytest.raises(ValueError, match=r"'dwell' is learned as a value: .* set it to one of click, order"):
        ExploreConfig().place_of_label(schema)
    with pytest.raises(ValueError, match=r"'buy' is no label of this model: .* set it to one of click, order"):
        ExploreConfig(label="buy").place_of_label(schema)
    values = Schema(labels=("dwell",), categorical=("item_id",), links={"dwell": "identity"})
    with pytest.raises(ValueError, match="this model has no other, use /v1/predict"):
        ExploreConfig().place_of_label(values)
