import io
import math

import numpy as np
import pytest
import torch

from springtide.app.models.config import ModelConfig
from springtide.app.models.export.torch_export import export_model
from springtide.app.models.registry import build_model
from springtide.app.models.retrieval.two_tower import ItemFrequency, TwoTower, in_batch_softmax
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
    assert ModelConfig(name="two_tower", wide="auto").decided().has_wide_part is False
    assert ModelConfig(name="dlrm", wide="auto").decided().has_wide_part is True
    with pytest.raises(ValueError, match=r'wide = true does not fit name = "two_tower"'):
        ModelConfig(name="two_tower", wide=True)


def plain_loss(users, items, ids, log_probabilities, weights, temperature):
    """Sample by sample, in float64 and plain Python."""
    total = torch.zeros((), dtype=torch.float64)
    for i, user in enumerate(users):
        others = [j for j in range(len(ids)) if j == i or ids[j] != ids[i]]
        scores = torch.stack([(user @ items[j]) / temperature - log_probabilities[j] for j in others])
        total = total - weights[i] * (scores[others.index(i)] - torch.logsumexp(scores, 0))
    return total


def draw(num=7, dim=3):
    generator = torch.Generator().manual_seed(0)
    users, items = (torch.randn(num, dim, generator=generator, dtype=torch.float64) for _ in range(2))
    ids = torch.tensor([4, 9, 4, 1, 2, 9, 4])[:num]
    log_probabilities = torch.log(torch.rand(num, generator=generator, dtype=torch.float64))
    weights = torch.tensor([1.0, 0.0, 2.0, 1.0, 0.5, 1.0, 0.0], dtype=torch.float64)[:num]
    return users.requires_grad_(), items.requires_grad_(), ids, log_probabilities, weights


def test_loss_and_gradients_equal_a_plain_reference():
    users, items, ids, log_probabilities, weights = draw()
    loss = in_batch_softmax(users, items, ids, log_probabilities, weights, temperature=0.2, block=100)
    mine = torch.autograd.grad(loss, (users, items))
    plain = plain_loss(users, items, ids.tolist(), log_probabilities, weights, 0.2)
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    for gradient, reference in zip(mine, torch.autograd.grad(plain, (users, items)), strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-5)


def test_samples_of_another_block_are_no_negatives():
    users, items, ids, log_probabilities, weights = draw()
    loss = in_batch_softmax(users, items, ids, log_probabilities, weights, temperature=0.2, block=4)
    parts = [slice(0, 4), slice(4, 7)]
    expected = sum(
        plain_loss(users[p], items[p], ids[p].tolist(), log_probabilities[p], weights[p], 0.2).item() for p in parts
    )
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_a_batch_without_a_positive_sample_has_no_loss_and_no_gradient():
    users, items, ids, log_probabilities, weights = draw()
    loss = in_batch_softmax(users, items, ids, log_probabilities, 0 * weights, temperature=0.2, block=4)
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, (users, items)))


def test_the_correction_makes_a_popular_item_no_worse_than_a_rare_one():
    """Equal vectors, one item three times as frequent: corrected, the four items of the batch count as two equal ones.

    Of user 0 with the rare item: exp(s) / q weighs 1 / 0.25 against 3 times 1 / 0.75, thus a half.
    """
    ones, ids = torch.ones(4, 1), torch.tensor([7, 8, 8, 8])
    log_probabilities = torch.log(torch.tensor([0.25, 0.75, 0.75, 0.75]))
    weights = torch.tensor([1.0, 0, 0, 0])
    loss = in_batch_softmax(ones, ones, ids, log_probabilities, weights, temperature=1.0, block=4)
    assert loss.item() == pytest.approx(math.log(2), rel=1e-5)


def observe(frequency, ids):
    frequency.observe(frequency.after(torch.as_tensor(ids)))


def shares(frequency, ids):
    ids = torch.as_tensor(ids)
    return frequency.log_probabilities(ids, frequency.after(ids[:0])).exp().numpy()


def test_estimates_find_the_shares_of_items_whatever_the_size_of_batches():
    draw = np.random.default_rng(0)
    wanted = np.array([0.5, 0.3, 0.15, 0.05])
    items = np.array([3, -8, 2**62, 17])
    stream = items[draw.choice(4, 20_000, p=wanted)]
    for size in (64, 1_000):
        frequency = ItemFrequency(num_buckets=1 << 10)
        for start in range(0, len(stream), size):
            observe(frequency, stream[start : start + size])
        np.testing.assert_allclose(shares(frequency, items), wanted, rtol=0.5)
        assert int(frequency.num_samples_1[0]) == len(stream)


def test_an_items_estimate_follows_its_drift():
    frequency = ItemFrequency(num_buckets=1 << 10)
    for _ in range(100):
        observe(frequency, [5, *range(100, 199)])  # one in a hundred
    before = shares(frequency, [5])[0]
    for _ in range(100):
        observe(frequency, [5] * 50 + list(range(100, 150)))
    assert before == pytest.approx(0.01, rel=0.2)
    assert shares(frequency, [5])[0] == pytest.approx(0.5, rel=0.2)


def test_one_step_equals_the_formula_of_the_paper():
    """Item 5 came at sample 10, its average gap is 10; it comes again 6 samples later, at rate 0.05."""
    frequency = ItemFrequency(num_buckets=16, num_hashes=1)
    observe(frequency, [5, *[6] * 9])
    assert shares(frequency, [5])[0] == pytest.approx(1 / 10)
    observe(frequency, [5, *[6] * 5])
    assert shares(frequency, [5])[0] == pytest.approx(1 / (0.95 * 10 + 0.05 * 6))


def test_two_items_in_one_bucket_are_told_apart_by_another_hash():
    frequency = ItemFrequency(num_buckets=16)
    buckets_MN = frequency.buckets(torch.arange(400))
    same = [n for n in range(1, 400) if buckets_MN[0, n] == buckets_MN[0, 0] and buckets_MN[1, n] != buckets_MN[1, 0]]
    for _ in range(100):
        observe(frequency, [0, *[same[0]] * 9])
    assert shares(frequency, [0])[0] == pytest.approx(0.1, rel=0.2)


def test_a_number_of_buckets_that_no_hash_gives_is_an_error():
    with pytest.raises(ValueError, match="power of two, not 1000"):
        ItemFrequency(num_buckets=1000)
