"""Scored samples as arrays, and the terms of their sums in double precision."""

# N samples, L labels
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.app.scores.auc import Float64Array
from springtide_client.targets import output_of, value_of

Arrays = dict[str, npt.NDArray[Any]]
SAMPLES = ("logits", "labels", "weights")
# computed once from each sample of the window, in double precision: versions need their sums again and again
TERMS = ("scores", "losses", "probabilities")


class LabelSamples(NamedTuple):
    """Samples with a value for one label, in double precision; their scores are finite."""

    scores_N: Float64Array
    weights_N: Float64Array
    labels_N: Float64Array
    losses_N: Float64Array
    probabilities_N: Float64Array

    def take(self, rows: npt.NDArray[Any] | slice) -> "LabelSamples":
        """Return some of the samples, by a mask, numbers or a slice."""
        return LabelSamples(*(array_N[rows] for array_N in self))

    @property
    def positive_N(self) -> Float64Array:
        """The weight of each sample's positive part."""
        return self.weights_N * self.labels_N

    @property
    def negative_N(self) -> Float64Array:
        """The weight of each sample's negative part."""
        return self.weights_N * (1 - self.labels_N)

    def summed_terms(self) -> Iterator[Float64Array]:
        """Yield the terms of the sums of weight, loss, predicted and positive."""
        yield self.weights_N
        yield self.weights_N * self.losses_N
        yield self.weights_N * self.probabilities_N
        yield self.positive_N


def with_terms(samples: Arrays, links: Sequence[str] = ()) -> Arrays:
    """Return the samples with TERMS.

    `links`: `Schema.label_links`. Of a label that is a value "probabilities" are predicted values, and "losses" squared
    errors: of logarithms where its link is log1p.
    """
    # an overflowed net has no opinion: NaN is scored as a coin flip
    scores_NL = np.nan_to_num(samples["logits"].astype(np.float64), nan=0.0, posinf=700.0, neginf=-700.0)
    losses_NL = np.logaddexp(0.0, scores_NL) - samples["labels"].astype(np.float64) * scores_NL
    terms = (scores_NL, losses_NL, 1.0 / (1.0 + np.exp(-scores_NL)))
    for number, link in enumerate(links):
        if link != "logit":
            targets_N = output_of(link, samples["labels"][:, number].astype(np.float64))
            losses_NL[:, number] = np.square(scores_NL[:, number] - targets_N)
            terms[2][:, number] = value_of(link, scores_NL[:, number])
    return samples | dict(zip(TERMS, terms, strict=True))


def samples_of_label(samples: Mapping[str, npt.NDArray[Any]], number: int) -> LabelSamples:
    """Return the samples that are not masked for one label."""
    found, known_N = all_samples_of_label(samples, number)
    return found if known_N.all() else found.take(known_N)


def all_samples_of_label(
    samples: Mapping[str, npt.NDArray[Any]], number: int
) -> tuple[LabelSamples, npt.NDArray[np.bool_]]:
    """Return every sample for one label, and which of them are not masked."""
    labels_N = samples["labels"][:, number].astype(np.float64)
    scores_N, losses_N, probabilities_N = (samples[name][:, number] for name in TERMS)
    weights_N = samples["weights"].astype(np.float64)
    return LabelSamples(scores_N, weights_N, labels_N, losses_N, probabilities_N), ~np.isnan(labels_N)


def join(parts: Sequence[Arrays], names: Sequence[str]) -> Arrays:
    """Return the samples of all parts, in order."""
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def no_samples(num_labels: int) -> Arrays:
    """Return samples, with their terms, of which there are none."""
    none_NL = np.zeros((0, num_labels), np.float32)
    return with_terms({"logits": none_NL, "labels": none_NL, "weights": np.zeros(0, np.float32)})
