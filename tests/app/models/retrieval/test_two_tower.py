import io

import numpy as np
import pytest
import torch

from springtide.app.models.config import ModelConfig
from springtide.app.models.export.torch_export import export_model
from springtide.app.models.registry import build_model
from springtide.app.models.retrieval.two_tower import TwoTower
from springtide_client.model.exported_model import ExportedModel as ServedModel
from springtide_client.model.inputs import ModelInputs
from tests.app.models.test_models import inputs_of
from tests.support.model_specs import spec_of_sizes

SPEC = spec_of_sizes(3, 1, 1, 2)
ITEM = ["c1", "m0", "d1"]
OPTIONS = {"item": ITEM, "hidden": [8], "dim": 5, "buckets": 64}


def make_model(**options) -> TwoTower:
    model = build_model(ModelConfig(name="two_tower", options=OPTIONS | options), SPEC, seed=1)
    assert isinstance(model, TwoTower)
    return model


def plain_vectors(tower: torch.nn.Module, parts: list[torch.Tensor]) -> torch.Tensor:
    x = torch.cat(parts, dim=1).double()
    first, _, last = tower.layers
    x = torch.relu(x @ first.weight.double().T + first.bias.double()) @ last.weight.double().T + last.bias.double()
    return x / x.square().sum(1, keepdim=True).sqrt()


def test_vectors_and_gradients_equal_a_plain_reference():
    model, inputs = make_model(), inputs_of(SPEC, 9, 4)
    model.observe_inputs(inputs.dense)
    rows = [inputs.categorical, inputs.pooled, inputs.sequence]
    for part in rows:
        part.requires_grad_()
    users, items = model.vectors(*inputs)
    mean = inputs.sequence[:, 0].sum(1) / inputs.sequence_length.clamp(min=1)
    numbers = {
        place: tower.normalizer(inputs.dense[:, [place]]) for place, tower in enumerate((model.user, model.item))
    }
    categorical = inputs.categorical
    plain_users = plain_vectors(model.user, [categorical[:, 0], categorical[:, 2], mean, numbers[0]])
    plain_items = plain_vectors(model.item, [categorical[:, 1], inputs.pooled[:, 0], numbers[1]])
    torch.testing.assert_close(users.double(), plain_users, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(items.double(), plain_items, rtol=1e-5, atol=1e-6)
    logits = model(*inputs)
    plain = (plain_users * plain_items).sum(1, keepdim=True) / 0.1 + torch.logit(torch.tensor(0.25)).double()
    torch.testing.assert_close(logits.double(), plain, rtol=1e-5, atol=1e-5)
    mine = torch.autograd.grad(logits.square().sum(), rows)
    for gradient, reference in zip(mine, torch.autograd.grad(plain.square().sum(), rows), strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-5)


def test_an_exported_program_with_later_parameters_equals_the_later_model():
    model = make_model().eval()
    archive = export_model(model, SPEC)
    for samples, longest in [(1, 1), (7, 5), (0, 1)]:
        inputs = inputs_of(SPEC, samples, longest)
        assert torch.equal(torch.export.load(io.BytesIO(archive)).module()(*inputs), model(*inputs))
    served, inputs = ServedModel(archive), inputs_of(SPEC, 5, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    model.observe_labels(model(*inputs).detach(), torch.ones(5, 1), torch.ones(5))
    dense = {key: value.numpy() for key, value in model.state_dict().items()}
    predictions = served.predict(served.parameters(dense), ModelInputs(*(part.numpy() for part in inputs)))
    np.testing.assert_array_equal(predictions, torch.sigmoid(model(*inputs)).detach().numpy())


def test_logits_are_counted_from_the_mean_score():
    """Scores of a softmax have no zero: without that, most samples would be predicted far above the base rate."""
    model = make_model()
    for number in range(200):
        inputs = inputs_of(SPEC, 64, 2, seed=number)
        labels = (torch.arange(64) % 4 == 0).float()[:, None]
        model.observe_labels(model(*inputs).detach(), labels, torch.ones(64))
    scores = torch.sigmoid(model(*inputs_of(SPEC, 500, 2, seed=999)))
    assert scores.mean().item() == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"item": []}, "item needs a categorical feature, whose ids are the items: there are c0, c1, c2"),
        ({"item": "c1"}, r'item must be a list of features such as \["c0"\]'),
        ({"item": ["m0"]}, "item needs a categorical feature"),
        ({"item": ["c1", "price"]}, "item names 'price', which is no feature: there are c0, c1, c2, m0, s0, d0, d1"),
        ({"user": ["c0", "c1"]}, "c1 cannot be of the user and of the item"),
        ({"item": ["c0", "c1", "c2", "m0", "s0", "d0", "d1"]}, "no field is left for the user"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"label": "buy"}, "no label 'buy': it has y0"),
        ({"negatives": 1}, "negatives must be 2 or more"),
        ({"buckets": 1000}, "power of two"),
    ],
)
def test_wrong_options_are_clear_errors(options, message):
    with pytest.raises(ValueError, match=message):
        make_model(**options)


def test_it_has_no_wide_part():
    assert ModelConfig(name="two_tower", wide="auto").for_device("cpu").has_wide_part is False
    with pytest.raises(ValueError, match=r'wide = true does not fit name = "two_tower"'):
        ModelConfig(name="two_tower", wide=True)
