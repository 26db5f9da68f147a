/* A mixture of experts through epigrad's C interface: routing, forward, and the gradient of the
 * scales, which it checks by finite differences. It exits with 1 if that is off. `make examples`
 * builds and runs it; docs/c-api.md explains the calls. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "epigrad.h"

enum { TOKENS = 3, EACH = 2, EXPERTS = 4, FEATURES = 3, HIDDEN = 5, SLOTS = TOKENS * EACH };

/* The experts of each token. An index outside of 0 to EXPERTS - 1 selects nothing. */
static int64_t index_data[SLOTS] = {0, 3, 3, 1, -1, 0};
static double input_data[TOKENS * FEATURES], scale_data[SLOTS], out_data[TOKENS * FEATURES], pre_data[SLOTS * 2 * HIDDEN];
static double weight_in_data[EXPERTS * 2 * HIDDEN * FEATURES], weight_out_data[EXPERTS * FEATURES * HIDDEN];
static double grad_output_data[TOKENS * FEATURES], grad_scale_data[SLOTS];

static int64_t rows[] = {TOKENS, FEATURES}, slots[] = {TOKENS, EACH}, kept[] = {SLOTS, 2 * HIDDEN};
static int64_t in_shape[] = {EXPERTS, 2 * HIDDEN, FEATURES}, out_shape[] = {EXPERTS, FEATURES, HIDDEN};

/* A contiguous tensor on memory of ours, of float64 or int64. */
static DLTensor tensor(void *data, uint8_t code, int32_t ndim, int64_t *shape) {
  return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = {code, 64, 1}, .shape = shape};
}

static void require(int32_t status) {
  if (status == EPG_OK) return;
  fprintf(stderr, "%s: %s\n", epg_status_class(status), epg_last_error());
  exit(1);
}

/* Gives a call the workspace that it needs for the outputs that it names. */
static void prepare(epg_call *call) {
  uint8_t wanted[EPG_MAX_OUTPUTS] = {0};
  int64_t shapes[EPG_MAX_OUTPUTS * EPG_MAX_RANK];
  int32_t ranks[EPG_MAX_OUTPUTS];
  for (int i = 0; i < call->num_outputs; i++) wanted[i] = call->outputs[i] != NULL;
  require(epg_infer(call, wanted, shapes, ranks, &call->workspace_nbytes));
  if (call->workspace_nbytes == 0) return;
  call->workspace = aligned_alloc(256, (call->workspace_nbytes + 255) / 256 * 256);
  if (call->workspace == NULL) exit(1);
}

/* sum(grad_output * out). */
static double loss(const epg_call *forward) {
  double sum = 0;
  require(epg_run(forward));
  for (int i = 0; i < TOKENS * FEATURES; i++) sum += grad_output_data[i] * out_data[i];
  return sum;
}

static void fill(double *data, int count, double frequency) {
  for (int i = 0; i < count; i++) data[i] = sin(frequency * (i + 1));
}

int main(void) {
  if (epg_abi_version() != EPG_ABI_VERSION) {
    fprintf(stderr, "compiled for ABI %d, and the library has %d\n", EPG_ABI_VERSION, epg_abi_version());
    return 1;
  }
  fill(input_data, TOKENS * FEATURES, 1.3);
  fill(scale_data, SLOTS, 0.8);
  fill(weight_in_data, EXPERTS * 2 * HIDDEN * FEATURES, 0.7);
  fill(weight_out_data, EXPERTS * FEATURES * HIDDEN, 1.1);
  fill(grad_output_data, TOKENS * FEATURES, 0.9);
  const DLTensor input = tensor(input_data, kDLFloat, 2, rows), index = tensor(index_data, kDLInt, 2, slots);
  const DLTensor scale = tensor(scale_data, kDLFloat, 2, slots), grad_output = tensor(grad_output_data, kDLFloat, 2, rows);
  const DLTensor weight_in = tensor(weight_in_data, kDLFloat, 3, in_shape), weight_out = tensor(weight_out_data, kDLFloat, 3, out_shape);
  DLTensor out = tensor(out_data, kDLFloat, 2, rows), pre = tensor(pre_data, kDLFloat, 2, kept);
  DLTensor grad_scale = tensor(grad_scale_data, kDLFloat, 2, slots);

  /* Biases are NULL. Each expert's second half of weight_in is that of its gates. */
  const DLTensor *forward_inputs[] = {&input, &index, &scale, &weight_in, NULL, &weight_out, NULL};
  DLTensor *forward_outputs[] = {&out, &pre};
  epg_call forward = {.struct_size = sizeof forward, .op = "experts", .kind = "swiglu", .num_inputs = 7, .num_outputs = 2};
  forward.inputs = forward_inputs;
  forward.outputs = forward_outputs;
  prepare(&forward);
  require(epg_run(&forward));

  const DLTensor *backward_inputs[] = {&grad_output, &input, &index, &scale, &weight_in, NULL, &weight_out, NULL, &pre};
  DLTensor *backward_outputs[] = {NULL, &grad_scale, NULL, NULL, NULL, NULL};
  epg_call backward = {.struct_size = sizeof backward, .op = "experts_backward", .kind = "swiglu", .num_inputs = 9, .num_outputs = 6};
  backward.inputs = backward_inputs;
  backward.outputs = backward_outputs;
  prepare(&backward);
  require(epg_run(&backward));

  const double step = 1e-5;
  double largest = 0;
  for (int i = 0; i < SLOTS; i++) {
    const double at = scale_data[i];
    scale_data[i] = at + step;
    const double above = loss(&forward);
    scale_data[i] = at - step;
    const double below = loss(&forward);
    scale_data[i] = at;
    largest = fmax(largest, fabs((above - below) / (2 * step) - grad_scale_data[i]));
    printf("token %d, expert %2d: gradient of the scale %8.5f\n", i / EACH, (int)index_data[i], grad_scale_data[i]);
  }
  printf("epigrad %s: within %.1e of finite differences\n", epg_version(), largest);
  free(forward.workspace);
  free(backward.workspace);
  return largest < 1e-8 && grad_scale_data[4] == 0 && grad_scale_data[0] != 0 ? 0 : 1;
}
