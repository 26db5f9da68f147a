/* Errors of activations and their slopes in units in the last place, against the definitions in
   double, or with -DQUAD in quadruple precision.

   double has 29 bits more than float32, and quadruple precision 60 more than double. The formulas
   are those of tests/support/definitions.py: terms that cancel are not summed.
   tests/accuracy/test_exact.py compares the two. Nothing here is shared with the kernels.
   Parameters are the defaults. */

#include <math.h>
#include <string.h>

#ifdef QUAD
#include <quadmath.h>
typedef __float128 real;
#define OF(function) function##q
#define NUMBER(digits) digits##Q
#else
typedef double real;
#define OF(function) function
#define NUMBER(digits) digits
#endif

#define PI NUMBER(3.14159265358979323846264338327950288)
#define SELU_LAMBDA NUMBER(1.0507009873554804934193349852946)
#define SELU_ALPHA NUMBER(1.6732632423543772848170429916717)

/* The scale is what the slope's last place is one of: the slope, or the largest of its terms. */
typedef struct {
  real value, slope, scale;
} Point;

static Point plain(real value, real slope) { return (Point){value, slope, OF(fabs)(slope)}; }

static Point of_terms(real value, real first, real second) {
  real slope = first + second;
  return (Point){value, slope, OF(fmax)(OF(fabs)(slope), OF(fmax)(OF(fabs)(first), OF(fabs)(second)))};
}

/* s(x) = 1 / (1 + e^-x) and s(-x) */
typedef struct {
  real of_x, of_minus_x;
} Logistic;

static Logistic logistic(real x) {
  real power = OF(exp)(-OF(fabs)(x)), large = 1 / (1 + power), small = power / (1 + power);
  return x >= 0 ? (Logistic){large, small} : (Logistic){small, large};
}

static Point relu(real x) { return plain(x > 0 ? x : 0, x > 0); }
static Point relu2(real x) { return plain(x > 0 ? x * x : 0, x > 0 ? 2 * x : 0); }
static Point relu6(real x) { return plain(x <= 0 ? 0 : x >= 6 ? 6 : x, x > 0 && x < 6); }
static Point hardtanh(real x) { return plain(x <= -1 ? -1 : x >= 1 ? 1 : x, x > -1 && x < 1); }
static Point leaky_relu(real x) { return plain(x > 0 ? x : 0.01 * x, x > 0 ? 1 : 0.01); }

static Point sigmoid(real x) {
  Logistic s = logistic(x);
  return plain(s.of_x, s.of_x * s.of_minus_x);
}

static Point gelu(real x) {
  real cdf = OF(erfc)(-x / OF(sqrt)(NUMBER(2.0))) / 2;
  return of_terms(x * cdf, cdf, x * OF(exp)(-x * x / 2) / OF(sqrt)(2 * PI));
}

static Point gelu_tanh(real x) {
  real factor = 2 * OF(sqrt)(2 / PI), u = factor * (x + NUMBER(0.044715) * x * x * x), du = factor * (1 + 3 * NUMBER(0.044715) * x * x);
  Logistic s = logistic(u);
  return of_terms(x * s.of_x, s.of_x, x * s.of_x * s.of_minus_x * du);
}

static Point swish(real x, real beta) {
  Logistic s = logistic(beta * x);
  return of_terms(x * s.of_x, s.of_x, beta * x * s.of_x * s.of_minus_x);
}
static Point silu(real x) { return swish(x, 1); }
static Point quick_gelu(real x) { return swish(x, 1.702); }

static Point softcap_of(real x, real cap) {
  real cosine = OF(cosh)(x / cap);
  return plain(cap * OF(tanh)(x / cap), 1 / cosine / cosine);
}
static Point hyperbolic(real x) { return softcap_of(x, 1); }
static Point softcap(real x) { return softcap_of(x, 30); }

static Point elu_of(real x, real scale, real factor) { return x > 0 ? plain(scale * x, scale) : plain(factor * OF(expm1)(x), factor * OF(exp)(x)); }
static Point elu(real x) { return elu_of(x, 1, 1); }
static Point selu(real x) { return elu_of(x, SELU_LAMBDA, SELU_LAMBDA * SELU_ALPHA); }

static Point softplus(real x) {
  real power = OF(exp)(-OF(fabs)(x)), rest = OF(log1p)(power);
  return x > 20 ? plain(x, 1) : x > 0 ? plain(x + rest, 1 / (1 + power)) : plain(rest, power / (1 + power));
}

/* tanh(log(1 + e^x)) is w / (w + 2) of w = e^x (e^x + 2), for x > 0 both over e^2x. 1 less its
   square is 4 (w + 1) / (w + 2)^2. */
static Point mish(real x) {
  real power = OF(exp)(-OF(fabs)(x)), s = (x > 0 ? 1 : power) / (1 + power);
  real w = x > 0 ? 1 + 2 * power : power * (power + 2), one = x > 0 ? power * power : 1, sum = w + 2 * one;
  return of_terms(x * (w / sum), w / sum, x * s * 4 * one * (w + one) / sum / sum);
}

static Point hardswish(real x) { return x <= -3 ? plain(0, 0) : x >= 3 ? plain(x, 1) : plain(x * (x + 3) / 6, (2 * x + 3) / 6); }
static Point hardsigmoid(real x) { return x <= -3 ? plain(0, 0) : x >= 3 ? plain(1, 0) : plain((x + 3) / 6, 1 / NUMBER(6.0)); }

static const struct {
  const char *name;
  Point (*at)(real);
} ACTIVATIONS[] = {
    {"relu", relu},
    {"gelu", gelu},
    {"gelu_tanh", gelu_tanh},
    {"silu", silu},
    {"sigmoid", sigmoid},
    {"tanh", hyperbolic},
    {"relu2", relu2},
    {"swish", silu},
    {"elu", elu},
    {"celu", elu},
    {"selu", selu},
    {"leaky_relu", leaky_relu},
    {"mish", mish},
    {"softplus", softplus},
    {"softcap", softcap},
    {"hardswish", hardswish},
    {"hardsigmoid", hardsigmoid},
    {"quick_gelu", quick_gelu},
    {"relu6", relu6},
    {"hardtanh", hardtanh},
};

/* The largest power of two up to a positive number, or 0. */
static real power_below(real x) {
#ifdef QUAD
  if (x == 0) return 0;
  int exponent;
  frexpq(x, &exponent);
  return ldexpq(1, exponent - 1);
#else
  unsigned long long bits;
  memcpy(&bits, &x, sizeof bits);
  bits &= 0x7ffull << 52;
  memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

/* A dtype: the distance of 1 from the next number, the smallest normal number, and the largest. */
typedef struct {
  double epsilon, smallest, largest;
} Dtype;

/* Infinity is right where the exact number rounds to it. Any other that is not finite is infinitely
   far off. */
static double error_of(double got, real exact, real scale, const Dtype *dtype) {
  if (isfinite(got)) return (double)(OF(fabs)(got - exact) / (OF(fmax)(power_below(scale), dtype->smallest) * dtype->epsilon));
  if (isnan(got)) return INFINITY;
  real beyond = dtype->largest + power_below(dtype->largest) * dtype->epsilon / 2;
  return (got > 0 ? exact >= beyond : exact <= -beyond) ? 0 : INFINITY;
}

/* Errors of n values and slopes that an activation has at x. Returns 0, or 1 if there is no such
   activation. */
int errors(const char *name, const Dtype *dtype, long n, const double *x, const double *value, const double *slope, double *of_value, double *of_slope) {
  for (unsigned long row = 0; row < sizeof ACTIVATIONS / sizeof *ACTIVATIONS; row++) {
    if (strcmp(ACTIVATIONS[row].name, name)) continue;
    for (long i = 0; i < n; i++) {
      Point exact = ACTIVATIONS[row].at(x[i]);
      of_value[i] = error_of(value[i], exact.value, OF(fabs)(exact.value), dtype);
      of_slope[i] = error_of(slope[i], exact.slope, exact.scale, dtype);
    }
    return 0;
  }
  return 1;
}
