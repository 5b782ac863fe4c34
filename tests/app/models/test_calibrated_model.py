"""A net that does not keep its contract with the wide part is refused: it would be wrong without a word."""

import pytest
import torch

from springtide.app.models.calibrated_model import CalibratedModel
from springtide.app.models.layers import DenseFeatureNormalizer, perceptron
from tests.support.model_specs import spec_of_sizes

SPEC = spec_of_sizes(2, dim=4)


class Net(CalibratedModel):
    def __init__(self, spec) -> None:
        super().__init__(spec)
        self.deep = perceptron([spec.num_fields * spec.dim, 3, spec.num_labels], last_is_linear=True)

    def deep_scores(self, fields_NED, dense_NX):
        return self.deep(fields_NED.flatten(1))

    def last_parameters(self):
        return self.deep[-1].parameters()


class WithFirstOrder(Net):
    def deep_scores(self, fields_NED, dense_NX):
        return self.first_order(fields_NED) + super().deep_scores(fields_NED, dense_NX)


class WithBias(Net):
    def last_parameters(self):
        return iter([self.deep[-1].weight])


@pytest.mark.parametrize("net", [WithFirstOrder, WithBias])
def test_deep_scores_that_do_not_begin_at_zero_beside_a_wide_part_are_refused(net):
    with pytest.raises(ValueError, match=f"the deep_scores of {net.__name__} do not begin at 0"):
        net(SPEC).use_wide_part()


def test_a_net_is_its_deep_scores_and_first_order_weights_or_deep_scores_alone():
    net, fields, dense = Net(SPEC), torch.randn(3, 2, 4), torch.zeros(3, 0)
    assert torch.equal(net.scores(fields, dense), net.first_order(fields) + net.deep_scores(fields, dense))
    net.use_wide_part()
    nothing = torch.zeros(3, 0, 4), torch.zeros(3, 0, 1, 4), torch.zeros(3, 0, dtype=torch.int64)
    assert not net(fields, *nothing, dense).any()
    assert "calibration" not in dict(net.named_children())


@pytest.mark.parametrize("missing", ["deep_scores", "last_parameters"])
def test_an_incomplete_net_fails_where_it_is_defined(missing):
    whole = {name: getattr(Net, name) for name in ("__init__", "deep_scores", "last_parameters")}
    with pytest.raises(TypeError, match=f"the net Incomplete must define {missing}"):
        type("Incomplete", (CalibratedModel,), {name: own for name, own in whole.items() if name != missing})


def test_a_feature_without_a_value_so_far_is_zero() -> None:
    normalizer = DenseFeatureNormalizer(2)
    x = torch.tensor([[1e6, float("nan")], [3.0, float("nan")]])
    assert normalizer(x).tolist() == [[0, 0, 0, 1], [0, 0, 0, 1]]
    normalizer.observe(x)
    assert normalizer(x)[:, 0].tolist() != [0, 0]
    assert normalizer(torch.ones(1, 2))[0, 1] == 0  # only missing values were counted of it
