/* A linear layer with GELU through epigrad's C interface: forward, backward, a plan, and what an
 * error looks like. It checks a gradient by finite differences and exits with 1 if that is off.
 * `make examples` builds and runs it; docs/c-api.md explains the calls. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "epigrad.h"

enum { ROWS = 4, IN = 3, OUT = 5 };

static double input_data[ROWS * IN], weight_data[OUT * IN], bias_data[OUT], out_data[ROWS * OUT], pre_data[ROWS * OUT];
static double grad_output_data[ROWS * OUT], grad_weight_data[OUT * IN], grad_bias_data[OUT];

static int64_t input_shape[] = {ROWS, IN}, weight_shape[] = {OUT, IN}, bias_shape[] = {OUT}, out_shape[] = {ROWS, OUT};

/* A contiguous float64 tensor on memory of ours. */
static DLTensor tensor(double *data, int32_t ndim, int64_t *shape) {
  return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = {kDLFloat, 64, 1}, .shape = shape};
}

/* out = gelu(input weight^T + bias); pre is what backward reuses. */
static int32_t forward(const DLTensor *input, const DLTensor *weight, const DLTensor *bias, DLTensor *out, DLTensor *pre) {
  const DLTensor *inputs[] = {input, weight, bias};
  DLTensor *outputs[] = {out, pre};
  epg_call call = {.struct_size = sizeof call, .op = "linear", .kind = "gelu", .num_inputs = 3, .num_outputs = 2};
  call.inputs = inputs;
  call.outputs = outputs;
  return epg_run(&call); /* EPG_OK, or a status with its message in epg_last_error() */
}

static void require(int32_t status, const char *what) {
  if (status == EPG_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, epg_status_class(status), epg_last_error());
  exit(1);
}

/* sum(grad_output * out) as a function of the weight. */
static double loss(const DLTensor *input, const DLTensor *weight, const DLTensor *bias, DLTensor *out, DLTensor *pre) {
  double sum = 0;
  require(forward(input, weight, bias, out, pre), "forward");
  for (int i = 0; i < ROWS * OUT; i++) sum += grad_output_data[i] * out_data[i];
  return sum;
}

/* The largest difference between grad_weight and central differences. */
static double largest_error(const DLTensor *input, const DLTensor *weight, const DLTensor *bias, DLTensor *out, DLTensor *pre) {
  const double step = 1e-5;
  double largest = 0;
  for (int i = 0; i < OUT * IN; i++) {
    const double at = weight_data[i];
    weight_data[i] = at + step;
    const double above = loss(input, weight, bias, out, pre);
    weight_data[i] = at - step;
    const double below = loss(input, weight, bias, out, pre);
    weight_data[i] = at;
    largest = fmax(largest, fabs((above - below) / (2 * step) - grad_weight_data[i]));
  }
  return largest;
}

static void fill(double *data, int count, double frequency) {
  for (int i = 0; i < count; i++) data[i] = sin(frequency * (i + 1));
}

int main(void) {
  if (epg_abi_version() != EPG_ABI_VERSION) {
    fprintf(stderr, "this program was compiled for ABI %d, and the library has %d\n", EPG_ABI_VERSION, epg_abi_version());
    return 1;
  }
  fill(input_data, ROWS * IN, 1.3);
  fill(weight_data, OUT * IN, 0.7);
  fill(bias_data, OUT, 2.1);
  fill(grad_output_data, ROWS * OUT, 0.9);
  DLTensor input = tensor(input_data, 2, input_shape), weight = tensor(weight_data, 2, weight_shape), bias = tensor(bias_data, 1, bias_shape);
  DLTensor out = tensor(out_data, 2, out_shape), pre = tensor(pre_data, 2, out_shape), grad_output = tensor(grad_output_data, 2, out_shape);
  DLTensor grad_weight = tensor(grad_weight_data, 2, weight_shape), grad_bias = tensor(grad_bias_data, 1, bias_shape);
  require(forward(&input, &weight, &bias, &out, &pre), "forward");

  /* Backward: inputs in the order of epigrad.h; the gradient to the input is NULL, so it is not
   * computed. */
  const DLTensor *inputs[] = {&grad_output, &input, &weight, &bias, &pre};
  DLTensor *outputs[] = {NULL, &grad_weight, &grad_bias};
  epg_call call = {.struct_size = sizeof call, .op = "linear_backward", .kind = "gelu", .num_inputs = 5, .num_outputs = 3};
  call.inputs = inputs;
  call.outputs = outputs;
  const uint8_t wanted[EPG_MAX_OUTPUTS] = {0, 1, 1};
  int64_t shapes[EPG_MAX_OUTPUTS * EPG_MAX_RANK];
  int32_t ranks[EPG_MAX_OUTPUTS];
  require(epg_infer(&call, wanted, shapes, ranks, &call.workspace_nbytes), "infer");
  void *workspace = call.workspace_nbytes > 0 ? aligned_alloc(256, (call.workspace_nbytes + 255) / 256 * 256) : NULL;
  if (call.workspace_nbytes > 0 && workspace == NULL) return 1;
  call.workspace = workspace;
  require(epg_run(&call), "backward");
  const double error = largest_error(&input, &weight, &bias, &out, &pre);
  printf("epigrad %s: grad_weight is within %.1e of finite differences\n", epg_version(), error);

  /* A plan validates the problem once and says what will run. It asks for the workspace of all
   * gradients. */
  epg_plan plan;
  epg_plan_facts facts = {.struct_size = sizeof facts};
  require(epg_plan_create(&call, NULL, &plan), "plan");
  require(epg_plan_query(plan, &facts), "query");
  printf("plan: %s runs %s in %s\n", facts.op, facts.kernel, facts.math_precision);
  free(workspace);
  require(epg_plan_workspace(plan, &call.workspace_nbytes), "plan workspace");
  workspace = call.workspace_nbytes > 0 ? aligned_alloc(256, (call.workspace_nbytes + 255) / 256 * 256) : NULL;
  if (call.workspace_nbytes > 0 && workspace == NULL) return 1;
  call.workspace = workspace;
  const double first = grad_weight_data[0];
  grad_weight_data[0] = NAN;
  require(epg_plan_run(plan, &call), "plan run");
  const int same = grad_weight_data[0] == first;
  printf("plan: the same gradient %s\n", same ? "again" : "is expected, and it is not");
  require(epg_plan_destroy(plan), "destroy");

  /* An error is a status; nothing has been written. */
  call.kind = "gelo";
  const int32_t status = epg_run(&call);
  printf("error %d: %s: %s\n", status, epg_status_class(status), epg_last_error());
  free(workspace);
  return error < 1e-8 && same && status == EPG_INVALID_PROBLEM ? 0 : 1;
}
