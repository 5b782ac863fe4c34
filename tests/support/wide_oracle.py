"""The wide part, slowly, in plain Python: dicts of rows, one sample after the other, from the formulas.

A sample is a list of fields, each a list of (number, id), its signed logs (NaN: missing), and the net's logits. Its
last fields may be `num_bias` ones of how it was presented, which nothing else may see: they are behind the bins. Where
lists are weighted, `weights` has those of each (number, id); what is not in it weighs 1.
"""

import math
from itertools import combinations

import numpy as np

from springtide_client.keys import MISSING_ID

BUCKETS, FM_EPS = 12, 0.1
INFORMATION_CAP, BIAS_CAP, GROUP_CAP, MEMORY, LOSS_CAP = 1000.0, 1e4, 1e4, 1e6, 100.0
SQUARES_MEMORY = 1e4
SMALLEST_C, LARGEST_C = 0.1, 5.0


def f32(x: float) -> float:
    return float(np.float32(x))


def bucket(information: float) -> int:
    return 0 if 4 * information < 1 else min(BUCKETS - 1, 1 + math.floor(math.log2(4 * information)))


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


class Statistics:
    """A running mean and variance; `prior` is what the first variance, 1, is worth."""

    def __init__(self, prior: float) -> None:
        self.mean, self.variance, self.count, self.prior = 0.0, 1.0, 0.0, prior

    def add(self, x: float) -> None:
        self.count = min(self.count + 1, MEMORY)
        change = x - self.mean
        self.mean += change / self.count
        if self.prior or self.count > 1:
            self.variance += (change * (x - self.mean) - self.variance) / (self.count + self.prior)


class Row:
    def __init__(self, vector: np.ndarray, num_labels: int) -> None:
        self.v, self.squares, self.n, self.born = vector.astype(np.float32), 0.0, 0, 0
        self.w, self.h = [0.0] * num_labels, [0.0] * num_labels
        self.plain, self.plain_squares = [0.0] * num_labels, [0.0] * num_labels


class WideOracle:
    def __init__(
        self, numbers, num_dense, num_labels, dim, *, first_vector, cross_id, crosses=64, fm_lr=0.1, num_bias=0
    ) -> None:
        self.B = num_bias
        self.numbers, self.F, self.L, self.D = numbers, len(numbers), num_labels, num_dense
        self.first_vector, self.cross_id, self.K, self.fm_lr, self.dim = first_vector, cross_id, crosses, fm_lr, dim
        of_features, of_bias = range(self.F - self.B), range(self.F - self.B, self.F)
        self.pairs = [*combinations(of_features, 2), *combinations(of_bias, 2)] if crosses else []
        self.live = dict.fromkeys(range(len(self.pairs)), True)
        self.gains = [0.0] * len(self.pairs)
        self.rows: dict[tuple[int, int], Row] = {}
        self.cross_rows: dict[int, list[list[float]]] = {}
        self.stats = [Statistics(0) for _ in range(num_dense)]
        self.seen = [Statistics(10) for _ in numbers]
        self.samples = self.first_total = self.cross_total = self.since_choice = 0.0
        L, T, X = num_labels, self.F + len(self.pairs), 2 * num_dense
        self.clicks, self.count = [1.0] * L, [4.0] * L
        self.base = [math.log(1 / 3)] * L
        self.bias, self.bias_h = [0.0] * L, [100.0] * L
        self.c, self.C = [[1.0] * 6 for _ in range(L)], [[100 / 3] * 6 for _ in range(L)]
        self.a, self.A = np.ones((L, T, BUCKETS)), np.zeros((L, T, BUCKETS))
        self.wn, self.Hn, self.u, self.Hu = (np.zeros((L, n, 2)) for n in (num_dense, num_dense, self.F, self.F))
        self.pbias, self.pbias_h = [0.0] * L, [100.0] * L
        self.pc, self.pC = [[1.0] * 2 for _ in range(L)], [[100 / 3] * 2 for _ in range(L)]
        self.pwn, self.pHn = np.zeros((L, num_dense, 2)), np.zeros((L, num_dense, 2))
        self.difference, self.mixture, self.X = [0.0] * L, [0.5] * L, X
        self.weights: dict[tuple[int, int], float] | None = None  # of the next sample's keys

    def standard(self, logs):
        x = []
        for value, s in zip(logs, self.stats, strict=True):
            if math.isnan(value):
                x.append((0.0, 1.0))
            elif s.count == 0:
                x.append((0.0, 0.0))
            else:
                x.append((min(max((value - s.mean) / math.sqrt(s.variance + 1e-4), -5.0), 5.0), 0.0))
        return x

    def bin_keys(self, x):
        numbers = self.numbers[self.F - self.B - self.D : self.F - self.B]
        return [
            (number, MISSING_ID if missing else math.floor(2 * value))
            for number, (value, missing) in zip(numbers, x, strict=True)
        ]

    def slots_and_crosses(self, fields, crossed, x):
        bins, end = [[key] for key in self.bin_keys(x)], len(fields) - self.B
        fields = [*fields[:end], *bins, *fields[end:]]
        crossed = [*crossed[:end], *bins, *crossed[end:]]
        slots = [(f, key) for f, keys in enumerate(fields) for key in keys]
        crosses, potential, self.cross_x = [], 0, []
        for p, (i, j) in enumerate(self.pairs):
            potential += len(crossed[i]) * len(crossed[j])
            if not self.live[p]:
                continue
            for left in crossed[i]:
                for right in crossed[j]:
                    born = [self.rows[key].born if key in self.rows else 0 for key in (left, right)]
                    if all(born):
                        crosses.append((p, self.cross_id(*left, born[0], *right, born[1])))
                        self.cross_x.append(self.x_of(left) * self.x_of(right))
        return slots, crosses, potential

    def x_of(self, key):
        return 1.0 if self.weights is None else self.weights.get(key, 1.0)

    def row(self, key):
        return self.rows.get(key) or Row(self.first_vector(*key), self.L)

    def scored(self, slots, crosses, x, net):
        """Return of each label the parts z, those of the plain learner, the logits of both and the mixture."""
        mean_slots = max(1.0, self.first_total / self.samples) if self.samples else max(1, self.F)
        ratio = 6 / mean_slots
        scale = ratio * math.sqrt(ratio)
        sums, squares = [0.0] * self.dim, [0.0] * self.dim
        for f, key in slots:
            if f >= self.F - self.B:
                continue
            for d, v in enumerate(self.row(key).v.tolist()):
                v *= self.x_of(key)
                sums[d] += v
                squares[d] += v * v
        pairs = 0.0
        for s, q in zip(sums, squares, strict=True):
            pairs += s * s - q
        results = []
        for label in range(self.L):
            z = [0.0] * 6
            for f, key in slots:
                row = self.row(key)
                z[0] += self.a[label, f, bucket(row.h[label])].item() * row.w[label] * self.x_of(key)
                xn, never = self.seen_of(f, row.n, key)
                z[5] += self.u[label, f, 0].item() * xn + (self.u[label, f, 1].item() * never if never else 0.0)
            for (p, id_), cross_x in zip(crosses, self.cross_x, strict=True):
                w, h = self.cross_rows.get(id_, [[0.0, 0.0]] * self.L)[label]
                z[1] += self.a[label, self.F + p, bucket(h)].item() * w * cross_x
            plain = [0.0, 0.0]
            for d, values in enumerate(x):
                for side, value in enumerate(values):
                    z[2] += self.wn[label, d, side].item() * value
                    plain[1] += self.pwn[label, d, side].item() * value
            z[3], z[4] = 0.5 * pairs * scale, net[label]
            for _, key in slots:
                plain[0] += self.row(key).plain[label] * self.x_of(key)
            logit = self.base[label] + self.bias[label]
            for c, part in zip(self.c[label], z, strict=True):
                logit += c * part
            other = self.base[label] + self.pbias[label]
            for c, part in zip(self.pc[label], plain, strict=True):
                other += c * part
            share = self.mixture[label]
            results.append((z, plain, logit, other, share * logit + (1.0 - share) * other))
        return results, sums, scale, mean_slots

    def seen_of(self, f, count, key):
        s, bits, x = self.seen[f], min(count.bit_length(), 15), self.x_of(key)
        return min(max((bits - s.mean) / math.sqrt(s.variance + 0.01), -3.0), 3.0) * x, (bits == 0) * x

    def predict(self, fields, crossed, logs, net):
        x = self.standard(logs)
        slots, crosses, _ = self.slots_and_crosses(fields, crossed, x)
        return [result[-1] for result in self.scored(slots, crosses, x, net)[0]]

    def learn(self, fields, crossed, logs, net, labels, weight=1.0):
        """Score a sample, learn from it, and return its logits and dloss/dz5 of each label."""
        x = self.standard(logs)
        slots, crosses, potential = self.slots_and_crosses(fields, crossed, x)
        results, sums, scale, F = self.scored(slots, crosses, x, net)
        P = self.cross_total / self.samples if self.samples else len(self.pairs)
        live = sum(self.live.values())
        first, cross = max(0.5 * F, 3), max(1.5 * P, 3) * max(live / max(1, len(self.pairs)), 0.1)
        keys = list(dict.fromkeys(key for _, key in slots))
        for key in keys:
            self.rows.setdefault(key, self.row(key))
        ids = list(dict.fromkeys(id_ for _, id_ in crosses))
        for id_ in ids:
            self.cross_rows.setdefault(id_, [[0.0, 0.0] for _ in range(self.L)])
        # everything is read before anything is written: changes are collected, then made
        seen = [(f, *self.seen_of(f, self.rows[key].n, key)) for f, key in slots]
        x_slots, x_crosses = [self.x_of(key) for _, key in slots], self.cross_x
        largest = max([1.0, *(each**2 for each in (*x_slots, *x_crosses))])
        changes, errors, gradient = [], [], {key: np.zeros(self.dim) for key in keys}
        for label, (z, plain, logit, other, _) in enumerate(results):
            y = labels[label]
            if math.isnan(y):
                errors.append(0.0)
                continue
            p, q = sigmoid(logit), sigmoid(other)
            r, h = weight * (y - p), weight * max(p * (1 - p), 1e-4)
            rq, hq = weight * (y - q), weight * max(q * (1 - q), 1e-4)
            errors.append(-r)
            a, A, c, C = self.a[label], self.A[label], self.c[label], self.C[label]
            gated = [(f, key, bucket(self.rows[key].h[label])) for f, key in slots]
            crossed_ = [(self.F + p_, id_, bucket(self.cross_rows[id_][label][1])) for p_, id_ in crosses]
            t = g2 = 0.0
            for f, key, b in gated:
                row = self.rows[key]
                times = self.x_of(key) * sum(self.x_of(k) for _, k in slots if k == key)
                t += times * a[f, b] ** 2 / (first + row.h[label])
                g2 += (row.w[label] * self.x_of(key)) ** 2 / (2 + A[f, b])
            for (f, id_, b), cross_x in zip(crossed_, x_crosses, strict=True):
                w, info = self.cross_rows[id_][label]
                times = cross_x * sum(each for (_, i), each in zip(crosses, x_crosses, strict=True) if i == id_)
                t += times * a[f, b] ** 2 / (cross + info)
                g2 += (w * cross_x) ** 2 / (2 + A[f, b])
            for d, values in enumerate(x):
                for side, value in enumerate(values):
                    t += value**2 / (F + self.Hn[label, d, side])
            for f, xn, never in seen:
                t += xn**2 / (5 * F + self.Hu[label, f, 0]) + never**2 / (5 * F + self.Hu[label, f, 1])
            extra, steepest = max(0.25 * (weight - 1), 0), max(0.25 * (weight - 1 / largest), 0)
            most, most_q = max(h, steepest), max(hq, steepest)
            e, eg = r / (1 + most * t), r / (1 + most * g2)
            ec = r / (1 + most * sum(part**2 / info for part, info in zip(z, C, strict=True)))
            eq = rq / (1 + most_q * sum(v**2 / i for v, i in zip(plain, self.pC[label], strict=True)))
            moved_q = sum(
                value**2 / (F + self.pHn[label, d, side])
                for d, values in enumerate(x)
                for side, value in enumerate(values)
            )
            en, bias, plain_bias = (
                rq / (1 + extra * moved_q),
                r / (1 + extra / self.bias_h[label]),
                rq / (1 + extra / self.pbias_h[label]),
            )
            # rows
            for key in keys:
                row = self.rows[key]
                mine, own_x = [a[f, b] for f, k, b in gated if k == key], self.x_of(key)
                info = min(row.h[label] + sum(max(h * g * g, 1e-6) * own_x**2 for g in mine), INFORMATION_CAP)
                squares = row.plain_squares[label] + (rq * len(mine) * own_x) ** 2
                step = 0.3 / math.sqrt(F * largest) * rq * len(mine) * own_x / (math.sqrt(squares) + 0.1)
                value = row.w[label] + e * sum(mine) * own_x / (first + info)
                changes.append((row, label, f32(value), f32(info), f32(row.plain[label] + step), f32(squares)))
                for f, k in slots:
                    if k == key and f < self.F - self.B:
                        gradient[key] += e * scale * own_x * (np.array(sums) - own_x * row.v.astype(float))
            crossed_changes = []
            for id_ in ids:
                w, info = self.cross_rows[id_][label]
                mine = [(a[f, b], each) for (f, i, b), each in zip(crossed_, x_crosses, strict=True) if i == id_]
                info = min(info + sum(max(h * g * g, 1e-6) * each**2 for g, each in mine), INFORMATION_CAP)
                slope = sum(g * each for g, each in mine)
                crossed_changes.append((id_, [f32(w + e * slope / (cross + info)), f32(info)]))
            # what pairs are worth
            for p_ in {p_ for p_, _ in crosses}:
                part = sum(
                    a[f, b] * self.cross_rows[i][label][0] * each
                    for (f, i, b), each in zip(crossed_, x_crosses, strict=True)
                    if f == self.F + p_
                )
                self.gains[p_] += r * part + 0.5 * h * part**2
            # gates
            slopes: dict[tuple[int, int], list[float]] = {}
            for f, key, b in gated:
                slopes.setdefault((f, b), []).append(self.rows[key].w[label] * self.x_of(key))
            for (f, id_, b), each in zip(crossed_, x_crosses, strict=True):
                slopes.setdefault((f, b), []).append(self.cross_rows[id_][label][0] * each)
            for (f, b), weights in slopes.items():
                if added := h * sum(w * w for w in weights):
                    A[f, b] = min(A[f, b] + added, INFORMATION_CAP)
                    a[f, b] = min(max(a[f, b] + eg * sum(weights) / (2 + A[f, b]), 0.0), 5.0)
            for id_, pair in crossed_changes:
                self.cross_rows[id_][label] = pair
            # numbers, counts, groups, biases
            for d, values in enumerate(x):
                for side, value in enumerate(values):
                    self.Hn[label, d, side] = min(self.Hn[label, d, side] + h * value**2, BIAS_CAP)
                    self.wn[label, d, side] += e * value / (F + self.Hn[label, d, side])
                    self.pHn[label, d, side] = min(self.pHn[label, d, side] + hq * value**2, BIAS_CAP)
                    self.pwn[label, d, side] += en * value / (F + self.pHn[label, d, side])
            for f in dict.fromkeys(f for f, _, _ in seen):
                mine_seen = [(xn, never) for g, xn, never in seen if g == f]
                for side in (0, 1):
                    values_ = [float(pair[side]) for pair in mine_seen]
                    self.Hu[label, f, side] = min(self.Hu[label, f, side] + h * sum(v * v for v in values_), BIAS_CAP)
                    self.u[label, f, side] += e * sum(values_) / (5 * F + self.Hu[label, f, side])
            for g in range(6):
                C[g] = min(C[g] + h * z[g] ** 2, GROUP_CAP)
                c[g] = min(max(c[g] + ec * z[g] / C[g], SMALLEST_C), LARGEST_C)
            for g in range(2):
                self.pC[label][g] = min(self.pC[label][g] + hq * plain[g] ** 2, GROUP_CAP)
                moved = self.pc[label][g] + eq * plain[g] / self.pC[label][g]
                self.pc[label][g] = min(max(moved, SMALLEST_C), LARGEST_C)
            self.bias_h[label] = min(self.bias_h[label] + h, BIAS_CAP)
            self.bias[label] += bias / self.bias_h[label]
            self.pbias_h[label] = min(self.pbias_h[label] + hq, BIAS_CAP)
            self.pbias[label] += plain_bias / self.pbias_h[label]
            losses = [-math.log(max(s if y > 0.5 else 1 - s, 1e-9)) for s in (p, q)]
            difference = self.difference[label] + weight * (losses[1] - losses[0])
            self.difference[label] = min(max(difference, -LOSS_CAP), LOSS_CAP)
            self.mixture[label] = 1 / (1 + math.exp(-0.1 * self.difference[label]))
            self.clicks[label] += weight * y
            self.count[label] += weight
            if self.count[label] > MEMORY:
                self.clicks[label] *= MEMORY / self.count[label]
                self.count[label] = MEMORY
            self.clicks[label] = max(min(self.clicks[label], self.count[label] - 3), 1.0)
            self.base[label] = math.log(self.clicks[label] / (self.count[label] - self.clicks[label]))
        for row, label, *values in changes:
            row.w[label], row.h[label], row.plain[label], row.plain_squares[label] = values
        for key in keys:
            row, g = self.rows[key], gradient[key]
            if not g.any():
                continue
            times = 1 if self.weights is not None else sum(other_key == key for _, other_key in slots)
            row.squares = f32(row.squares * max(1 - times / SQUARES_MEMORY, 0) + float((g * g).mean()))
            row.v = (row.v + self.fm_lr / largest * g / (math.sqrt(row.squares) + FM_EPS)).astype(np.float32)
        for f, key in slots:
            self.seen[f].add(min(self.rows[key].n.bit_length(), 15))
        for _, key in slots:
            self.rows[key].n += 1
        for key in keys:
            self.rows[key].born = self.rows[key].born or 1 + int(self.samples) % ((1 << 24) - 1)
        for s, value in zip(self.stats, logs, strict=True):
            if not math.isnan(value):
                s.add(value)
        self.samples += 1
        self.first_total += len(slots)
        self.cross_total += potential
        self.since_choice += 1
        if self.since_choice >= 500:
            self.choose()
        return [result[-1] for result in results], errors

    def choose(self):
        self.since_choice = 0
        live = [p for p in self.live if self.live[p]]
        keep = max(self.K, len(live) // 2)
        for p in sorted(live, key=lambda p: (-self.gains[p], p))[keep:]:
            self.live[p] = False
