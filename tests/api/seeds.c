/* Random problems through the C interface: `seeds FIRST COUNT` draws a problem from each seed,
 * compares the results with a reference in float64, and prints a line with a hash of their bits.
 * go/epigrad/seeds_test.go and tests/api/test_seeds.py draw the same problems, and print the same.
 *
 * A seed is splitmix64's state. What is drawn, in this order: the operation, the kind, the dtype,
 * the sizes m, n and k, then each input's layout and elements, then each output's layout. Elements
 * are drawn in row-major order, and lie in memory that is NaN elsewhere. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "epigrad.h"

#define LENGTH(list) (sizeof(list) / sizeof *(list))
enum { MOST = 8 };
static const double PI = 3.14159265358979323846;

/* The operations: shapes by their letters, inputs first, and the kinds that they take. A gate is
 * the activation at its place. linear_backward gets its preactivation last. */
static const char *const activations[] = {"none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu2", NULL};
static const char *const gates[] = {"bilinear", "reglu", "geglu", "geglu_tanh", "swiglu", "glu", NULL};
static const struct {
  const char *op, *const *kinds, *inputs[MOST], *outputs[MOST];
} operations[] = {
    {"matmul_bias_activation", activations, {"mk", "kn", "n"}, {"mn"}},
    {"gated_product", gates, {"mk", "mk"}, {"mk"}},
    {"lerp", NULL, {"mk", "mk", "mk"}, {"mk"}},
    {"linear", activations, {"mk", "nk", "n"}, {"mn"}},
    {"linear_backward", activations, {"mn", "mk", "nk", "n", "mn"}, {"mk", "nk", "n"}},
    {"gated_linear", gates, {"mk", "nk", "nk", "n", "n"}, {"mn"}},
};

static uint64_t state;

static uint64_t next(void) {
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

static int64_t below(uint64_t n) { return (int64_t)(next() % n); }

/* A matrix, or a vector, which has one column. */
typedef struct {
  int64_t shape[2], strides[2], elements; /* in memory */
  char *data;
  DLTensor tensor;
} array;

static int is_double;

static void store(array *a, int64_t at, double value) {
  if (is_double)
    ((double *)a->data)[at] = value;
  else
    ((float *)a->data)[at] = (float)value;
}

static double load(const array *a, int64_t at) { return is_double ? ((const double *)a->data)[at] : (double)((const float *)a->data)[at]; }

static double at(const array *a, int64_t i, int64_t j) { return load(a, i * a->strides[0] + j * a->strides[1]); }

static void draw(array *a, const char *letters, const int64_t *sizes, int filled) {
  const int rank = (int)strlen(letters);
  for (int d = 0; d < 2; d++) a->shape[d] = d < rank ? sizes[letters[d] == 'm' ? 0 : letters[d] == 'n' ? 1 : 2] : 1;
  const int64_t layout = below(3), rows = a->shape[0], columns = a->shape[1];
  a->strides[0] = layout == 1 ? 1 : columns + (layout == 2 ? 3 : 0);
  a->strides[1] = layout == 1 ? rows : 1;
  a->elements = 1 + (rows - 1) * a->strides[0] + (columns - 1) * a->strides[1];
  if (!(a->data = malloc((size_t)a->elements * sizeof(double)))) exit(3);
  for (int64_t i = 0; i < a->elements; i++) store(a, i, NAN);
  for (int64_t i = 0; filled && i < rows; i++)
    for (int64_t j = 0; j < columns; j++) store(a, i * a->strides[0] + j * a->strides[1], (double)(next() >> 40) / (1 << 22) - 2);
  a->tensor = (DLTensor){.data = a->data, .device = {kDLCPU, 0}, .ndim = rank, .dtype = {kDLFloat, is_double ? 64 : 32, 1}};
  a->tensor.shape = a->shape;
  a->tensor.strides = a->strides;
}

/* --- the reference --------------------------------------------------------------------------- */

/* What a result is to be, and how far it may be off. */
typedef struct {
  double want, off;
} number;

static double epsilon(void) { return is_double ? 0x1p-52 : 0x1p-23; }

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static double value_of(int64_t kind, double x) {
  const double formulas[] = {x,          fmax(x, 0), x * erfc(-x / sqrt(2)) / 2, x * sigmoid(2 * sqrt(2 / PI) * (x + 0.044715 * x * x * x)), x * sigmoid(x),
                             sigmoid(x), tanh(x),    fmax(x, 0) * fmax(x, 0)};
  return formulas[kind];
}

static double slope_of(int64_t kind, double x) {
  const double inner = 2 * sqrt(2 / PI), s = sigmoid(x), tail = sigmoid(inner * (x + 0.044715 * x * x * x));
  const double formulas[] = {1,
                             x > 0,
                             erfc(-x / sqrt(2)) / 2 + x * exp(-x * x / 2) / sqrt(2 * PI),
                             tail + x * tail * (1 - tail) * inner * (1 + 3 * 0.044715 * x * x),
                             s + x * s * (1 - s),
                             s * (1 - s),
                             1 - tanh(x) * tanh(x),
                             2 * fmax(x, 0)};
  return formulas[kind];
}

static number apply(int64_t kind, number x) {
  const double want = value_of(kind, x.want), steepest = kind == 7 ? 2 * (fabs(x.want) + x.off) : 1.2;
  return (number){want, steepest * (x.off + 4 * epsilon() * fabs(x.want)) + 16 * epsilon() * fabs(want)};
}

static number times(number a, number b) {
  const double want = a.want * b.want;
  return (number){want, fabs(a.want) * b.off + fabs(b.want) * a.off + 2 * epsilon() * fabs(want)};
}

/* A row of the input times one of the weight, and the bias. */
static number product(const array *input, int64_t i, const array *weight, const array *bias, int64_t j) {
  double sum = at(bias, j, 0), size = fabs(sum);
  for (int64_t l = 0; l < input->shape[1]; l++) sum += at(input, i, l) * at(weight, j, l), size += fabs(at(input, i, l) * at(weight, j, l));
  return (number){sum, (double)(input->shape[1] + 2) * epsilon() * size};
}

/* The gradient of a layer's input, weight or bias: a sum over the other index of the gradient of
 * the preactivation. */
static number gradient(const array *in, int64_t kind, int output, int64_t i, int64_t j) {
  number sum = {0, 0};
  double size = 0;
  const int64_t terms = in[0].shape[output == 0];
  for (int64_t l = 0; l < terms; l++) {
    const int64_t row = output ? l : i, column = output ? i : l;
    const double pre = at(&in[4], row, column), slope = slope_of(kind, pre);
    const number by = {output == 0 ? at(&in[2], l, j) : output == 1 ? at(&in[1], l, j) : 1, 0};
    const number term = times(times((number){at(&in[0], row, column), 0}, (number){slope, epsilon() * (16 * fabs(slope) + 4 * (1 + fabs(pre)))}), by);
    sum.want += term.want, sum.off += term.off, size += fabs(term.want);
  }
  return (number){sum.want, sum.off + (double)(terms + 2) * epsilon() * size};
}

static number reference(int op, int64_t kind, const array *in, int output, int64_t i, int64_t j) {
  const int elementwise = op == 1 || op == 2;
  const number first = {elementwise ? at(&in[0], i, j) : 0, 0};
  switch (op) {
    case 0: {
      array weight = in[1]; /* transposed, as a layer has it */
      weight.strides[0] = in[1].strides[1], weight.strides[1] = in[1].strides[0];
      return apply(kind, product(&in[0], i, &weight, &in[2], j));
    }
    case 1:
      return times(first, apply(kind, (number){at(&in[1], i, j), 0}));
    case 2: {
      const double end = at(&in[1], i, j), weight = at(&in[2], i, j);
      return (number){first.want + weight * (end - first.want), 8 * epsilon() * (1 + fabs(weight)) * (fabs(end) + fabs(first.want))};
    }
    case 3:
      return apply(kind, product(&in[0], i, &in[1], &in[2], j));
    case 4:
      return gradient(in, kind, output, i, j);
    default:
      return times(product(&in[0], i, &in[1], &in[3], j), apply(kind, product(&in[0], i, &in[2], &in[4], j)));
  }
}

/* --- the call -------------------------------------------------------------------------------- */

static void require(int32_t status, uint64_t seed, const char *op) {
  if (status == EPG_OK) return;
  fprintf(stderr, "seed %llu: %s: %s: %s\n", (unsigned long long)seed, op, epg_status_class(status), epg_last_error());
  exit(1);
}

static void run(epg_call *call, uint64_t seed) {
  const uint8_t wanted[EPG_MAX_OUTPUTS] = {1, call->num_outputs > 1, call->num_outputs > 2};
  static int64_t shapes[EPG_MAX_OUTPUTS * EPG_MAX_RANK];
  int32_t ranks[EPG_MAX_OUTPUTS];
  require(epg_infer(call, wanted, shapes, ranks, &call->workspace_nbytes), seed, call->op);
  if (call->workspace_nbytes && !(call->workspace = aligned_alloc(256, (call->workspace_nbytes + 255) / 256 * 256))) exit(3);
  require(epg_run(call), seed, call->op);
  free(call->workspace);
}

/* Adds an output's bits to a hash, FNV-1a; fails where an element is wrong, or one that is none is
 * not NaN any more. */
static uint64_t check(array *out, int op, int64_t kind, const array *in, int output, uint64_t hash, uint64_t seed) {
  const int64_t size = is_double ? 8 : 4;
  for (int64_t i = 0; i < out->shape[0]; i++)
    for (int64_t j = 0; j < out->shape[1]; j++) {
      const int64_t place = i * out->strides[0] + j * out->strides[1];
      const number n = reference(op, kind, in, output, i, j);
      if (!(fabs(load(out, place) - n.want) <= n.off)) {
        fprintf(stderr, "seed %llu: output %d [%lld, %lld]: got %.17g, want %.17g to %.1e\n", (unsigned long long)seed, output, (long long)i, (long long)j,
                load(out, place), n.want, n.off);
        exit(1);
      }
      for (int64_t b = 0; b < size; b++) hash = (hash ^ (unsigned char)out->data[place * size + b]) * 1099511628211u;
      store(out, place, NAN);
    }
  for (int64_t i = 0; i < out->elements; i++)
    if (!isnan(load(out, i))) fprintf(stderr, "seed %llu: memory beside output %d was written\n", (unsigned long long)seed, output), exit(1);
  return hash;
}

static void solve(uint64_t seed) {
  state = seed;
  const int op = (int)below(LENGTH(operations));
  const char *const *kinds = operations[op].kinds;
  uint64_t count = 0;
  while (kinds && kinds[count]) count++;
  const int64_t kind = kinds ? below(count) : 0;
  is_double = (int)below(2);
  const int64_t sizes[] = {1 + below(40), 1 + below(40), 1 + below(40)};
  array all[2 * MOST] = {0}, *in = all, *out = all + MOST;
  const DLTensor *inputs[MOST];
  DLTensor *outputs[MOST];
  epg_call call = {.struct_size = sizeof call, .op = operations[op].op, .kind = kinds ? kinds[kind] : NULL, .inputs = inputs, .outputs = outputs};
  for (int i = 0; operations[op].inputs[i]; i++) draw(&in[i], operations[op].inputs[i], sizes, 1), inputs[call.num_inputs++] = &in[i].tensor;
  for (int i = 0; operations[op].outputs[i]; i++) draw(&out[i], operations[op].outputs[i], sizes, 0), outputs[call.num_outputs++] = &out[i].tensor;
  run(&call, seed);
  uint64_t hash = 14695981039346656037u;
  for (int i = 0; i < call.num_outputs; i++) hash = check(&out[i], op, kind, in, i, hash, seed);
  printf("%llu %s %s %s %016llx\n", (unsigned long long)seed, call.op, kinds ? call.kind : "-", is_double ? "float64" : "float32", (unsigned long long)hash);
  for (size_t i = 0; i < LENGTH(all); i++) free(all[i].data);
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  const uint64_t first = strtoull(arguments[1], NULL, 10), problems = strtoull(arguments[2], NULL, 10);
  for (uint64_t i = 0; i < problems; i++) solve(first + i);
  return 0;
}
