// What an optimizer does to one number of a row: kernels/ops.py's formulas, each operation in float32, in the CPU
// backend's order. Compiled without fused multiply-adds.
#pragma once
#include "portable.cuh"

#define NUM_CORRECTIONS 4096

// A step's settings: kernels/cpu/rows/optimizers.py says what each is.
struct Constants {
  float lr, eps, keep, clip_norm, beta1, rest1, beta2, rest2, l1, l2, beta, per_lr;
  double exact_beta1, exact_beta2;
};

#define STEP_PARAMETERS                                                                                        \
  float lr, float eps, float keep, float clip_norm, float beta1, float rest1, float beta2, float rest2, float l1, \
      float l2, float beta, float per_lr, double exact_beta1, double exact_beta2
#define STEP_OF_PARAMETERS \
  {lr, eps, keep, clip_norm, beta1, rest1, beta2, rest2, l1, l2, beta, per_lr, exact_beta1, exact_beta2}

// 1 / (1 - beta ** t): looked up for the first steps, the power taken here for later ones.
INLINE float correction_of(const float* corrections, i32 which, float t, double beta) {
  if (t >= 1 && t <= NUM_CORRECTIONS) return corrections[2 * (i64)t - 2 + which];
  return (float)(1.0 / (1.0 - pow(beta, (double)t)));
}

// The size with the number's sign; 0 where that is 0.
INLINE float with_sign(float size, float number) { return number == 0.0f ? 0.0f : copysignf(size, number); }

// What a row's step is made with: `begin` sets it once a row, `move` takes it for each number.
struct RowStep {
  float rate, correction2;
  bool is_new;  // no step was made yet; only of optimizers that see it
};

// Base of the optimizers: `begin` may change the row's scalar state; `move` changes a number's states, which are those of
// the vectors of state that it has, and returns the number.
struct RowOptimizer {
  static INLINE void begin(RowStep& step, float& scalar, float mean_square, const Constants& c, const float*) {}
};

struct Sgd : RowOptimizer {
  static INLINE float move(float row, float g, float&, float&, const RowStep& step, const Constants& c) {
    return row - g * step.rate;
  }
};

struct RowwiseAdagrad : RowOptimizer {
  static INLINE void begin(RowStep& step, float& scalar, float mean_square, const Constants& c, const float*) {
    scalar = scalar + mean_square;
    step.rate = c.lr / (sqrtf(scalar) + c.eps);
  }
  static INLINE float move(float row, float g, float&, float&, const RowStep& step, const Constants& c) {
    return row - g * step.rate;
  }
};

struct Adagrad : RowOptimizer {
  static INLINE float move(float row, float g, float& s, float&, const RowStep&, const Constants& c) {
    s = s + g * g;
    return row - g * c.lr / (sqrtf(s) + c.eps);
  }
};

struct Adam : RowOptimizer {
  static INLINE void begin(RowStep& step, float& scalar, float, const Constants& c, const float* corrections) {
    scalar = scalar + 1.0f;
    step.rate = c.lr * correction_of(corrections, 0, scalar, c.exact_beta1);
    step.correction2 = correction_of(corrections, 1, scalar, c.exact_beta2);
  }
  static INLINE float move(float row, float g, float& m, float& v, const RowStep& step, const Constants& c) {
    m = m * c.beta1 + g * c.rest1;
    v = v * c.beta2 + g * g * c.rest2;
    return row - m * step.rate / (sqrtf(v * step.correction2) + c.eps);
  }
};

struct Ftrl : RowOptimizer {
  static INLINE float move(float row, float g, float& z, float& n, const RowStep& step, const Constants& c) {
    if (step.is_new) z = 0.0f - row * (c.beta * c.per_lr + c.l2) - with_sign(c.l1, row);
    float more = n + g * g;
    z = z + g - (sqrtf(more) - sqrtf(n)) * c.per_lr * row;
    n = more;
    return fabsf(z) <= c.l1 ? 0.0f : (with_sign(c.l1, z) - z) / ((sqrtf(more) + c.beta) * c.per_lr + c.l2);
  }
};
