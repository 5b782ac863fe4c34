"""Two towers (Covington et al. 2016, Yi et al. 2019): a vector of the user's fields and a vector of the item's fields.

Both have length 1. Their dot product, divided by a temperature, is the score; the nearest items of a user are found by
their vectors alone.
"""

# N samples, E fields of a tower, D dimension of rows, O of the towers' vectors, L labels, B samples of a block,
# R rows of scores, M hash functions, H buckets
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from springtide.app.models.calibrated_model import Calibration, join_fields
from springtide.app.models.interface import DenseModel, ModelSpec
from springtide.app.models.layers import DenseFeatureNormalizer, check_layer_sizes, perceptron

# odd multipliers of multiplicative hashing (Knuth): golden ratio, and the constants of SplitMix64
MULTIPLIERS = (-7046029254386353131, -4658895280553007687, -7723592293110705685)


class Frequencies(NamedTuple):
    """The arrays after a batch."""

    last_MH: Tensor
    gap_MH: Tensor
    num_samples_1: Tensor


class ItemFrequency(nn.Module):
    """`rate` is the weight of the newest gap in the average; of several hash functions the rarest estimate counts."""

    last_MH: Tensor  # int64, the number of samples when an item of the bucket came last; 0: never
    gap_MH: Tensor
    num_samples_1: Tensor

    def __init__(self, *, num_buckets: int, num_hashes: int = 2, rate: float = 0.05) -> None:
        super().__init__()
        if num_buckets < 2 or num_buckets & (num_buckets - 1):
            raise ValueError(f"buckets must be a power of two, not {num_buckets}")
        self.rate = rate
        self.register_buffer("last_MH", torch.zeros(num_hashes, num_buckets, dtype=torch.int64))
        self.register_buffer("gap_MH", torch.full((num_hashes, num_buckets), float(num_buckets)))
        self.register_buffer("num_samples_1", torch.zeros(1, dtype=torch.int64))

    def buckets(self, ids_N: Tensor) -> Tensor:
        """Return the bucket of each id by each hash function, int64 (M, N)."""
        num_hashes, num_buckets = self.last_MH.shape
        # the shift is arithmetic: the mask takes the same bits of negative products
        shift = 64 - num_buckets.bit_length()
        return torch.stack([(ids_N * MULTIPLIERS[m]) >> shift & (num_buckets - 1) for m in range(num_hashes)])

    @torch.no_grad()
    def after(self, ids_N: Tensor) -> Frequencies:
        """Return the arrays after a batch, whose order does not count. Nothing is written."""
        buckets_MN = self.buckets(ids_N)
        num_samples_1 = self.num_samples_1 + ids_N.shape[0]
        counts_MH = torch.zeros_like(self.last_MH).scatter_add_(1, buckets_MN, torch.ones_like(buckets_MN))
        seen_MH = counts_MH > 0
        gaps_MH = (num_samples_1 - self.last_MH).float() / counts_MH.clamp(min=1)
        # a bucket's first gap is the best guess there is; c gaps of equal length are c steps of the average
        kept_MH = torch.where(self.last_MH == 0, 0.0, (1 - self.rate) ** counts_MH.float())
        average_MH = kept_MH * self.gap_MH + (1 - kept_MH) * gaps_MH
        return Frequencies(
            torch.where(seen_MH, num_samples_1, self.last_MH),
            torch.where(seen_MH, average_MH, self.gap_MH),
            num_samples_1,
        )

    def log_probabilities(self, ids_N: Tensor, frequencies: Frequencies) -> Tensor:
        """Return the logarithm of the share of samples that have each item, float32 (N)."""
        gaps_MN = frequencies.gap_MH.gather(1, self.buckets(ids_N))
        return -gaps_MN.max(dim=0).values.clamp(min=1).log()

    @torch.no_grad()
    def observe(self, frequencies: Frequencies) -> None:
        """Write the arrays after a batch."""
        for name, array in frequencies._asdict().items():
            getattr(self, name).copy_(array)


def in_batch_softmax(
    users_ND: Tensor,
    items_ND: Tensor,
    ids_N: Tensor,
    log_probabilities_N: Tensor,
    weights_N: Tensor,
    *,
    temperature: float,
    block: int,
) -> Tensor:
    """Return the sum of cross-entropies times weights, float32.

    A sample of weight 0 learns nothing as a user, and its item is a negative for the others. Items come into a batch as
    often as they come in the stream: subtracting the logarithm of that probability makes the popular ones no more
    negative than the others. Another sample's equal item is no negative. `block`: so many samples see each other's
    items, which bounds memory and time.
    """
    columns = (users_ND, items_ND, ids_N, log_probabilities_N, weights_N)
    blocks = [slice(start, start + block) for start in range(0, len(ids_N), block)]
    return torch.stack(
        [_block_loss(*(column[rows] for column in columns), temperature=temperature) for rows in blocks]
    ).sum()


def _block_loss(
    users_BD: Tensor,
    items_BD: Tensor,
    ids_B: Tensor,
    log_probabilities_B: Tensor,
    weights_B: Tensor,
    *,
    temperature: float,
) -> Tensor:
    own_B = torch.arange(len(ids_B), device=ids_B.device)
    if not users_BD.is_cuda:  # where that costs no wait for a device: only the rows that learn
        learning = weights_B.nonzero()[:, 0]
        users_BD, weights_B, own_R = users_BD[learning], weights_B[learning], own_B[learning]
    else:
        own_R = own_B
    scores_RB = users_BD.float() @ items_BD.float().T / temperature - log_probabilities_B
    is_same_RB = (ids_B[own_R, None] == ids_B) & (own_R[:, None] != own_B)
    log_shares_RB = scores_RB.masked_fill(is_same_RB, -torch.inf).log_softmax(dim=1)
    return -(weights_B * log_shares_RB.gather(1, own_R[:, None])[:, 0]).sum()


class Tower(nn.Module):
    """From the inputs of some fields to unit vectors. A sequence counts as the mean of its rows."""

    def __init__(self, spec: ModelSpec, names: Sequence[str], hidden: Sequence[int], num_out: int) -> None:
        super().__init__()
        self.num_out = num_out
        kinds = (spec.categorical, spec.multi_value, spec.sequence)
        self.places = tuple([place for place, field in enumerate(kind) if field.name in names] for kind in kinds)
        self.dense_places = [place for place, name in enumerate(spec.dense) if name in names]
        self.normalizer = DenseFeatureNormalizer(len(self.dense_places))
        num_in = spec.dim * sum(map(len, self.places)) + self.normalizer.num_outputs
        self.layers = perceptron([num_in, *hidden, num_out], last_is_linear=True)

    def select(
        self, categorical_NCD: Tensor, pooled_NPD: Tensor, sequence_NSTD: Tensor, length_NS: Tensor, dense_NF: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the inputs of this tower's fields out of those of all fields."""
        categorical, pooled, sequence = self.places
        return (
            _take(categorical_NCD, categorical),
            _take(pooled_NPD, pooled),
            _take(sequence_NSTD, sequence),
            _take(length_NS, sequence),
            _take(dense_NF, self.dense_places),
        )

    def forward(
        self, categorical_NCD: Tensor, pooled_NPD: Tensor, sequence_NSTD: Tensor, length_NS: Tensor, dense_NF: Tensor
    ) -> Tensor:
        """Return vectors of length 1, float32 (N, O), from the inputs of this tower's fields alone."""
        fields_NED = join_fields(categorical_NCD, pooled_NPD, sequence_NSTD, length_NS)
        vectors_NO = self.layers(torch.cat([fields_NED.flatten(1), self.normalizer(dense_NF)], dim=1))
        return nn.functional.normalize(vectors_NO.float(), dim=1)


class TwoTower(DenseModel):
    """`item`: the fields of the item's tower; the first categorical one is the item's id. `user`: all others, if unset.

    `hidden` are the layers of each tower, `dim` the length of its vectors. `label`: samples where it is above 0 are the
    items that a user wants, by default the first label. `negatives`: so many samples see each other's items.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        item: Sequence[str],
        user: Sequence[str] | None = None,
        hidden: Sequence[int] = (64,),
        dim: int = 32,
        temperature: float = 0.1,
        label: str | None = None,
        negatives: int = 1024,
        buckets: int = 1 << 14,
    ) -> None:
        super().__init__(spec)
        self.item_fields, self.user_fields = tower_fields(spec, item, user)
        self.item_id = item_id_field(spec, self.item_fields)
        self.item_column = spec.categorical_index(self.item_id)
        self.label_column = 0 if label is None else spec.label_index(label)
        if type(dim) is not int or not 1 <= dim <= 4096:
            raise ValueError(f"dim must be the length of the towers' vectors, not {dim!r}")
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, not {temperature!r}")
        if type(negatives) is not int or negatives < 2:
            raise ValueError(f"negatives must be 2 or more samples, not {negatives!r}")
        self.temperature, self.negatives = float(temperature), negatives
        sizes = check_layer_sizes("hidden", hidden)
        self.user = Tower(spec, self.user_fields, sizes, dim)
        self.item = Tower(spec, self.item_fields, sizes, dim)
        self.frequency = ItemFrequency(num_buckets=buckets)
        self.calibration = Calibration(spec.num_labels)
        self.mean_score_L: Tensor
        self.register_buffer("mean_score_L", torch.zeros(spec.num_labels))

    def vectors(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors of users and items, float32 (N, O) each, from the inputs of `forward`."""
        return self.user(*self.user.select(*inputs)), self.item(*self.item.select(*inputs))

    def logits(self, users_NO: Tensor, items_NO: Tensor) -> Tensor:
        """Return the calibrated scores of each user's own item, (N, L)."""
        scores_N = (users_NO * items_NO).sum(dim=1) / self.temperature
        logits_NL: Tensor = self.calibration(scores_N[:, None] - self.mean_score_L)
        return logits_NL

    def forward(
        self, categorical_NCD: Tensor, pooled_NPD: Tensor, sequence_NSTD: Tensor, length_NS: Tensor, dense_NF: Tensor
    ) -> Tensor:
        return self.logits(*self.vectors(categorical_NCD, pooled_NPD, sequence_NSTD, length_NS, dense_NF))

    def in_batch_loss(
        self,
        users_NO: Tensor,
        items_NO: Tensor,
        ids_N: Tensor,
        frequencies: Frequencies,
        labels_NL: Tensor,
        weights_N: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the sum over positive samples of the sampled softmax's loss, and the sum of their weights.

        A label of a rating scale counts as its weight: only 0 is no positive sample.
        """
        positive_N = torch.nan_to_num(labels_NL[:, self.label_column]).clamp(min=0) * weights_N
        log_probabilities_N = self.frequency.log_probabilities(ids_N, frequencies)
        loss = in_batch_softmax(
            users_NO,
            items_NO,
            ids_N,
            log_probabilities_N,
            positive_N,
            temperature=self.temperature,
            block=self.negatives,
        )
        return loss, positive_N.sum()

    def observe_inputs(self, dense_NF: Tensor) -> None:
        for tower in (self.user, self.item):
            tower.normalizer.observe(_take(dense_NF, tower.dense_places))

    @torch.no_grad()
    def observe_labels(self, logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor) -> None:
        calibration = self.calibration
        centered_NL = (logits_NL - torch.logit(calibration.rate_L)) / calibration.trust_L - calibration.bias_L
        calibration.observe(logits_NL, labels_NL, weights_N)
        # scores of a softmax have no zero of their own: the calibration counts from their mean
        share_L = (weights_N.sum() / calibration.count_L).clamp(max=1.0)
        mean_L = (centered_NL * weights_N[:, None]).sum(0) / weights_N.sum().clamp(min=1e-12)
        self.mean_score_L.add_(share_L * mean_L)


def tower_fields(
    spec: ModelSpec, item: Sequence[str], user: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of the item's and of the user's tower; ValueError if they cannot be those."""
    known = [*(field.name for field in (*spec.categorical, *spec.multi_value, *spec.sequence)), *spec.dense]
    for option, names in (("item", item), ("user", user or ())):
        if isinstance(names, str) or not isinstance(names, (list, tuple)):
            raise ValueError(f'{option} must be a list of features such as ["{known[0]}"], not {names!r}')
        for name in names:
            if name not in known:
                raise ValueError(f"{option} names {name!r}, which is no feature: there are {', '.join(known)}")
    both = sorted(set(item) & set(user or ()))
    if both:
        raise ValueError(f"{', '.join(both)} cannot be of the user and of the item: name each field in one of them")
    users = [name for name in known if name not in item] if user is None else user
    if not users:
        raise ValueError("no field is left for the user: item names all features")
    item_id_field(spec, item)
    return tuple(item), tuple(users)


def item_id_field(spec: ModelSpec, item: Sequence[str]) -> str:
    """Return the field that is the item's id: the first categorical one; ValueError if there is none."""
    categorical = [field.name for field in spec.categorical]
    for name in item:
        if name in categorical:
            return name
    raise ValueError(
        f"item needs a categorical feature, whose ids are the items: there are {', '.join(categorical) or 'none'}"
    )


def _take(columns: Tensor, places: Sequence[int]) -> Tensor:
    """Return some columns of axis 1, in plain slices, which every exporter knows."""
    if not places:
        return columns[:, :0]
    return torch.cat([columns[:, place : place + 1] for place in places], dim=1)
