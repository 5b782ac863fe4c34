"""Groups of scored samples that may still grow: a request's, or a user's of a day. Each is measured when it ends.

Open groups stand in lists by the time of their end, samples in a list of their group, both in arrays of fixed size.
What happens depends on the samples and their order alone, not on how they are split into calls.
"""

# N samples, L labels, M metrics, K values of k, G places for groups, S places for samples, W of the newest groups
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.ranking_metrics import AUC, write_metrics
from springtide.kernels.njit import njit

NONE = -1
DAY_MS = 86_400_000
MAX_SAMPLES = 1024  # of a group: its newest ones
NUM_SUMS = 6  # groups, w, w x, w^2, w^2 x, w^2 x^2: the mean of x by weight, and its standard error
# AUC by the group's samples (GAUC), AUC, then the other metrics
GROUP_AUC, NUM_WEIGHTED = 0, 1
# `numbers`
CLOCK, FREE_GROUP, FREE_SAMPLE, NUM_GROUPS, NUM_SAMPLES, NUM_EARLY, HALVINGS, NUM_CLOSED, ENDS = range(9)
# Two lists, each in the order of the ends of its groups: of those that end with their day, which is that of the event
# clock, and of those that end after their newest sample, which goes to the end of the list with each sample. From ENDS
# on: the first and the last group of either.
OF_DAY, OF_SAMPLE, NUM_LISTS = 0, 1, 2
MAX_HALVINGS = 40
Array = npt.NDArray[Any]


class OpenGroups(NamedTuple):
    """Arrays of fixed size. A place that is free is in a list of free ones, by `next_G` or `next_S`."""

    numbers: Array  # int64: clock, ends of lists, counts; see above
    keys_G: Array  # int64: a request, or a user and a day
    hashes_G: Array  # int64: of the user
    expires_ms_G: Array  # int64: it ends when the event clock is past this
    first_G: Array  # int32: its oldest sample
    last_G: Array
    num_G: Array  # int32
    list_G: Array  # int8
    previous_G: Array  # int32: the group before it in its list
    next_G: Array
    is_measured_G: Array  # bool: `values_GLM` are those of its samples
    values_GLM: Array  # float32
    num_known_GL: Array  # int32, likewise: samples that have the label
    index_T: Array  # int32: places by key, open addressing
    scores_SL: Array  # float32
    labels_SL: Array
    next_S: Array  # int32
    scratch_2X: Array  # float32: scores and labels of one group
    window_WLM: Array  # float32: metrics of the newest groups that ended
    window_WL2: Array  # float32: their weights, 0 for a group without samples of the label: samples, and 1
    sums_LM6: Array  # float64, of all that ended
    totals_L2: Array  # float64, of all that ended: groups and samples, by the share of users that is measured
    at_K: Array  # int64


def empty_groups(num_groups: int, num_samples: int, num_window: int, num_labels: int, at_K: Array) -> OpenGroups:
    """Return arrays for so many groups and samples, and the newest groups that ended."""
    num_metrics, most = NUM_WEIGHTED + 2 + 2 * len(at_K), min(MAX_SAMPLES, num_samples // 2)
    numbers = np.zeros(ENDS + 2 * NUM_LISTS, np.int64)
    numbers[ENDS:], numbers[CLOCK] = NONE, np.iinfo(np.int64).min
    index_size = 1 << (2 * num_groups - 1).bit_length()
    next_G, next_S = np.arange(1, num_groups + 1, dtype=np.int32), np.arange(1, num_samples + 1, dtype=np.int32)
    next_G[-1] = next_S[-1] = NONE
    return OpenGroups(
        numbers,
        np.zeros(num_groups, np.int64),
        np.zeros(num_groups, np.int64),
        np.zeros(num_groups, np.int64),
        np.full(num_groups, NONE, np.int32),
        np.full(num_groups, NONE, np.int32),
        np.zeros(num_groups, np.int32),
        np.zeros(num_groups, np.int8),
        np.full(num_groups, NONE, np.int32),
        next_G,
        np.zeros(num_groups, np.bool_),
        np.zeros((num_groups, num_labels, num_metrics), np.float32),
        np.zeros((num_groups, num_labels), np.int32),
        np.full(index_size, NONE, np.int32),
        np.zeros((num_samples, num_labels), np.float32),
        np.zeros((num_samples, num_labels), np.float32),
        next_S,
        np.zeros((2, most), np.float32),
        np.zeros((num_window, num_labels, num_metrics), np.float32),
        np.zeros((num_window, num_labels, 2), np.float32),
        np.zeros((num_labels, num_metrics, NUM_SUMS)),
        np.zeros((num_labels, 2)),
        at_K,
    )


@njit(nogil=True, cache=True)
def add_samples(
    groups: OpenGroups,
    hashes_N: Any,
    is_known_N: Any,
    event_ms_N: Any,
    scores_NL: Any,
    labels_NL: Any,
    wait_ms: int,
    is_daily: bool,
) -> None:
    """Add scored samples. Groups end, and are measured, as the event clock passes.

    `hashes_N`: of requests or users, int64. `is_known_N`: False moves the clock alone. `is_daily`: a group has the
    samples of one day, UTC, and where places are short half of the users are left out from then on; else it ends
    `wait_ms` after its newest sample, and those that would end next end early.
    """
    numbers = groups.numbers
    for n in range(len(hashes_N)):
        numbers[CLOCK] = max(numbers[CLOCK], event_ms_N[n])
        for ends in range(ENDS, ENDS + 2 * NUM_LISTS, 2):
            while numbers[ends] != NONE and groups.expires_ms_G[numbers[ends]] < numbers[CLOCK]:
                _close(groups, numbers[ends])
        if not is_known_N[n] or not _is_chosen(groups, hashes_N[n]):
            continue
        while numbers[FREE_SAMPLE] == NONE:
            _make_room(groups, is_daily)
        day = event_ms_N[n] // DAY_MS
        key = _key_of_day(hashes_N[n], day) if is_daily else hashes_N[n]
        place = _find(groups, key)
        while place == NONE and numbers[FREE_GROUP] == NONE:
            _make_room(groups, is_daily)
        if not _is_chosen(groups, hashes_N[n]):
            continue
        if place == NONE:
            place = _begin(groups, key, hashes_N[n])
        if is_daily and (day + 1) * DAY_MS > numbers[CLOCK]:
            _let_end(groups, place, OF_DAY, (day + 1) * DAY_MS + wait_ms)
        else:
            _let_end(groups, place, OF_SAMPLE, numbers[CLOCK] + wait_ms)
        _append(groups, place, scores_NL[n], labels_NL[n])


@njit(nogil=True, cache=True)
def restore_group(
    groups: OpenGroups, key: Any, hash: Any, list_number: Any, expires_ms: Any, scores_NL: Any, labels_NL: Any
) -> None:
    """Begin a group with its samples, as it was when the state was written."""
    place = _begin(groups, key, hash)
    _let_end(groups, place, list_number, expires_ms)
    for n in range(len(scores_NL)):
        _append(groups, place, scores_NL[n], labels_NL[n])


@njit(nogil=True, cache=True)
def open_samples(groups: OpenGroups) -> Any:
    """Return the open groups in the order of their lists, and the samples of each, oldest first, as places."""
    numbers = groups.numbers
    places_O, samples_N = np.empty(numbers[NUM_GROUPS], np.int64), np.empty(numbers[NUM_SAMPLES], np.int64)
    o, n = 0, 0
    for ends in range(ENDS, ENDS + 2 * NUM_LISTS, 2):
        place = numbers[ends]
        while place != NONE:
            places_O[o] = place
            sample = groups.first_G[place]
            while sample != NONE:
                samples_N[n] = sample
                sample = groups.next_S[sample]
                n += 1
            place = groups.next_G[place]
            o += 1
    return places_O, samples_N


@njit(nogil=True, cache=True)
def measure_open(groups: OpenGroups) -> Any:
    """Return sums and totals of the open groups as they are now, as `sums_LM6` and `totals_L2`."""
    sums_LM6, totals_L2 = np.zeros_like(groups.sums_LM6), np.zeros_like(groups.totals_L2)
    weight = _weight(groups)
    for ends in range(ENDS, ENDS + 2 * NUM_LISTS, 2):
        place = groups.numbers[ends]
        while place != NONE:
            if not groups.is_measured_G[place]:
                _measure(groups, place)
            for label in range(len(sums_LM6)):
                num, values_M = groups.num_known_GL[place, label], groups.values_GLM[place, label]
                _add_up(values_M, num, weight, sums_LM6[label], totals_L2[label])
            place = groups.next_G[place]
    return sums_LM6, totals_L2


@njit(nogil=True, cache=True)
def sum_window(groups: OpenGroups) -> Any:
    """Return sums and totals of the newest groups that ended."""
    sums_LM6, totals_L2 = np.zeros_like(groups.sums_LM6), np.zeros_like(groups.totals_L2)
    for w in range(min(groups.numbers[NUM_CLOSED], len(groups.window_WLM))):
        for label in range(len(sums_LM6)):
            num, weight = groups.window_WL2[w, label, 0], groups.window_WL2[w, label, 1]
            _add_up(groups.window_WLM[w, label], num, weight, sums_LM6[label], totals_L2[label])
    return sums_LM6, totals_L2


@njit(nogil=True, cache=True)
def _weight(groups: OpenGroups) -> Any:
    """How many users one that is measured stands for."""
    return 2.0 ** groups.numbers[HALVINGS]


@njit(nogil=True, cache=True)
def _is_chosen(groups: OpenGroups, hash: Any) -> Any:
    halvings = groups.numbers[HALVINGS]
    return halvings == 0 or np.uint64(hash) >> np.uint64(64 - halvings) == 0


@njit(nogil=True, cache=True)
def _key_of_day(hash: Any, day: Any) -> Any:
    mixed = np.uint64(hash) ^ (np.uint64(day) * np.uint64(0x9E3779B97F4A7C15))
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.int64(mixed ^ (mixed >> np.uint64(32)))


@njit(nogil=True, cache=True)
def _make_room(groups: OpenGroups, is_daily: Any) -> None:
    numbers = groups.numbers
    if not is_daily or numbers[HALVINGS] == MAX_HALVINGS:
        numbers[NUM_EARLY] += 1
        is_sample_list = numbers[ENDS + 2 * OF_SAMPLE] != NONE
        _close(groups, numbers[ENDS + 2 * OF_SAMPLE] if is_sample_list else numbers[ENDS])
        return
    numbers[HALVINGS] += 1
    for ends in range(ENDS, ENDS + 2 * NUM_LISTS, 2):
        place = numbers[ends]
        while place != NONE:
            following = groups.next_G[place]
            if not _is_chosen(groups, groups.hashes_G[place]):
                _remove(groups, place)
            place = following


@njit(nogil=True, cache=True)
def _begin(groups: OpenGroups, key: Any, hash: Any) -> Any:
    """Take a free place for a group, which is in no list yet."""
    numbers = groups.numbers
    place = numbers[FREE_GROUP]
    numbers[FREE_GROUP] = groups.next_G[place]
    groups.keys_G[place], groups.hashes_G[place] = key, hash
    groups.first_G[place] = groups.last_G[place] = NONE
    groups.num_G[place], groups.list_G[place] = 0, NONE
    numbers[NUM_GROUPS] += 1
    at = _home(groups, key)
    while groups.index_T[at] != NONE:
        at = (at + 1) & (len(groups.index_T) - 1)
    groups.index_T[at] = place
    return place


@njit(nogil=True, cache=True)
def _let_end(groups: OpenGroups, place: Any, list_number: Any, expires_ms: Any) -> None:
    """Let a group end after a time that is no earlier than that of any other group of this list: put it last there."""
    if groups.list_G[place] == OF_DAY and list_number == OF_DAY:
        return  # groups of one day end together
    if groups.list_G[place] != NONE:
        _unlink(groups, place)
    ends = ENDS + 2 * list_number
    last = groups.numbers[ends + 1]
    groups.list_G[place], groups.expires_ms_G[place] = list_number, expires_ms
    groups.previous_G[place], groups.next_G[place] = last, NONE
    if last == NONE:
        groups.numbers[ends] = place
    else:
        groups.next_G[last] = place
    groups.numbers[ends + 1] = place


@njit(nogil=True, cache=True)
def _unlink(groups: OpenGroups, place: Any) -> None:
    """Take a group out of its list."""
    ends, before, after = ENDS + 2 * groups.list_G[place], groups.previous_G[place], groups.next_G[place]
    if before == NONE:
        groups.numbers[ends] = after
    else:
        groups.next_G[before] = after
    if after == NONE:
        groups.numbers[ends + 1] = before
    else:
        groups.previous_G[after] = before


@njit(nogil=True, cache=True)
def _append(groups: OpenGroups, place: Any, scores_L: Any, labels_L: Any) -> None:
    """Add a sample to a group; its oldest one goes where it has the most it may have. A place is free."""
    numbers = groups.numbers
    sample = numbers[FREE_SAMPLE]
    numbers[FREE_SAMPLE] = groups.next_S[sample]
    groups.next_S[sample] = NONE
    for label in range(len(labels_L)):
        # an overflowed net has no opinion: NaN is scored as a coin flip
        score = scores_L[label]
        groups.scores_SL[sample, label] = 0.0 if math.isnan(score) else score
        groups.labels_SL[sample, label] = labels_L[label]
    if groups.num_G[place] == 0:
        groups.first_G[place] = sample
    else:
        groups.next_S[groups.last_G[place]] = sample
    groups.last_G[place] = sample
    groups.num_G[place] += 1
    numbers[NUM_SAMPLES] += 1
    if groups.num_G[place] > groups.scratch_2X.shape[1]:
        oldest = groups.first_G[place]
        groups.first_G[place] = groups.next_S[oldest]
        groups.next_S[oldest] = numbers[FREE_SAMPLE]
        numbers[FREE_SAMPLE] = oldest
        groups.num_G[place] -= 1
        numbers[NUM_SAMPLES] -= 1
    groups.is_measured_G[place] = False


@njit(nogil=True, cache=True)
def _close(groups: OpenGroups, place: Any) -> None:
    """Measure a group, count it, and free its places."""
    if not groups.is_measured_G[place]:
        _measure(groups, place)
    weight, window = _weight(groups), groups.numbers[NUM_CLOSED] % len(groups.window_WLM)
    for label in range(len(groups.sums_LM6)):
        num, values_M = groups.num_known_GL[place, label], groups.values_GLM[place, label]
        _add_up(values_M, num, weight, groups.sums_LM6[label], groups.totals_L2[label])
        groups.window_WLM[window, label] = values_M
        groups.window_WL2[window, label, 0], groups.window_WL2[window, label, 1] = num, weight if num > 0 else 0.0
    groups.numbers[NUM_CLOSED] += 1
    _remove(groups, place)


@njit(nogil=True, cache=True)
def _add_up(values_M: Any, num: Any, weight: Any, sums_M6: Any, totals_2: Any) -> None:
    """Add one group of so many samples, which stands for `weight` groups."""
    if num == 0:
        return
    totals_2[0] += weight
    totals_2[1] += weight * num
    for m in range(len(values_M)):
        x = np.float64(values_M[m])
        if math.isnan(x):
            continue
        w = weight * num if m == GROUP_AUC else weight
        sums_M6[m, 0] += 1.0
        sums_M6[m, 1] += w
        sums_M6[m, 2] += w * x
        sums_M6[m, 3] += w * w
        sums_M6[m, 4] += w * w * x
        sums_M6[m, 5] += w * w * x * x


@njit(nogil=True, cache=True)
def _measure(groups: OpenGroups, place: Any) -> None:
    for label in range(len(groups.sums_LM6)):
        num, sample = 0, groups.first_G[place]
        while sample != NONE:
            if not math.isnan(groups.labels_SL[sample, label]):
                groups.scratch_2X[0, num] = groups.scores_SL[sample, label]
                groups.scratch_2X[1, num] = groups.labels_SL[sample, label]
                num += 1
            sample = groups.next_S[sample]
        values_M = groups.values_GLM[place, label]
        write_metrics(groups.scratch_2X[0], groups.scratch_2X[1], num, groups.at_K, values_M[NUM_WEIGHTED:])
        values_M[GROUP_AUC], groups.num_known_GL[place, label] = values_M[NUM_WEIGHTED + AUC], num
    groups.is_measured_G[place] = True


@njit(nogil=True, cache=True)
def _remove(groups: OpenGroups, place: Any) -> None:
    """Take a group out of the list and the index, and free its places."""
    numbers, index_T = groups.numbers, groups.index_T
    _unlink(groups, place)
    if groups.num_G[place] > 0:
        groups.next_S[groups.last_G[place]] = numbers[FREE_SAMPLE]
        numbers[FREE_SAMPLE] = groups.first_G[place]
    numbers[NUM_SAMPLES] -= groups.num_G[place]
    numbers[NUM_GROUPS] -= 1
    mask, hole = len(index_T) - 1, _home(groups, groups.keys_G[place])
    while index_T[hole] != place:
        hole = (hole + 1) & mask
    at = (hole + 1) & mask
    while index_T[at] != NONE:  # what comes later moves up, unless that is before its home
        home = _home(groups, groups.keys_G[index_T[at]])
        if (at - home) & mask >= (at - hole) & mask:
            index_T[hole] = index_T[at]
            hole = at
        at = (at + 1) & mask
    index_T[hole] = NONE
    groups.num_G[place], groups.is_measured_G[place] = 0, False
    groups.next_G[place] = numbers[FREE_GROUP]
    numbers[FREE_GROUP] = place


@njit(nogil=True, cache=True)
def _home(groups: OpenGroups, key: Any) -> Any:
    mixed = (np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    return np.int64(mixed & np.uint64(len(groups.index_T) - 1))


@njit(nogil=True, cache=True)
def _find(groups: OpenGroups, key: Any) -> Any:
    at = _home(groups, key)
    while groups.index_T[at] != NONE:
        if groups.keys_G[groups.index_T[at]] == key:
            return np.int64(groups.index_T[at])
        at = (at + 1) & (len(groups.index_T) - 1)
    return np.int64(NONE)
