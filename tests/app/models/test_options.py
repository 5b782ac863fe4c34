import pytest

from springtide.app.models.config import ModelConfig
from springtide.app.models.registry import build_model
from tests.support.model_specs import spec_of_sizes


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("dcn", {"layers": 0}, "layers must be a whole number from 1 to 65536, not 0"),
        ("dcn", {"rank": -1}, "rank must be a whole number from 0 to 65536, not -1"),
        ("dcn", {"structure": "both"}, "structure must be one of parallel, stacked, not 'both'"),
        ("xdeepfm", {"maps": []}, "maps must have at least one layer"),
        ("pnn", {"product": "cross"}, "product must be one of inner, outer, not 'cross'"),
        ("autoint", {"heads": True}, "heads must be a whole number"),
        ("finalmlp", {"heads": 3}, "heads = 3 must divide the last layers of first = "),
        ("finalmlp", {"first": []}, "must divide"),
        ("finalmlp", {"first_gate": "c0"}, "first_gate must be a list of names"),
        ("finalmlp", {"first_gate": ["x"]}, "has no id feature 'x': it has c0, c1"),
        ("fwfm", {"hidden": [3]}, "hidden"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_allowed(name, options, says):
    with pytest.raises(ValueError, match=says):
        build_model(ModelConfig(name=name, options=options), spec_of_sizes(2), seed=0)
