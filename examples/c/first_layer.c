/* A network with one hidden layer learns a wave, with epigrad's gradients and plain gradient
 * descent: docs/tutorials/c.md. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "epigrad.h"

enum { POINTS = 64, HIDDEN = 16, STEPS = 3000 };
static const double RATE = 0.1;

static double x[POINTS], y[POINTS], out[POINTS], pre[POINTS * HIDDEN], grad_out[POINTS];
static double weight1[HIDDEN], bias1[HIDDEN], weight2[HIDDEN], bias2[1];
static double grad_weight1[HIDDEN], grad_bias1[HIDDEN], grad_weight2[HIDDEN], grad_bias2[1];

/* A contiguous float64 tensor on memory of ours. */
static DLTensor tensor(double *data, int32_t ndim, int64_t *shape) {
  return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = {kDLFloat, 64, 1}, .shape = shape};
}

/* Ends the program with epigrad's message. A library would return the status. */
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

static void descend(double *parameter, const double *gradient, int count) {
  for (int i = 0; i < count; i++) parameter[i] -= RATE * gradient[i];
}

int main(void) {
  if (epg_abi_version() != EPG_ABI_VERSION) {
    fprintf(stderr, "compiled for ABI %d, and the library has %d\n", EPG_ABI_VERSION, epg_abi_version());
    return 1;
  }

  /* The data: y = sin(3 x) for x between -1 and 1. The start: small numbers of both signs. */
  for (int i = 0; i < POINTS; i++) {
    x[i] = 2.0 * i / (POINTS - 1) - 1;
    y[i] = sin(3 * x[i]);
  }
  for (int i = 0; i < HIDDEN; i++) {
    weight1[i] = 2 * cos(i);
    bias1[i] = sin(2 * i);
    weight2[i] = sin(3 * i + 1) / 4;
  }

  /* Tensors are windows on that memory. */
  int64_t column[] = {POINTS, 1}, wide[] = {POINTS, HIDDEN}, in[] = {HIDDEN, 1}, back[] = {1, HIDDEN}, hidden[] = {HIDDEN}, one[] = {1};
  const DLTensor input = tensor(x, 2, column), grad_output = tensor(grad_out, 2, column);
  const DLTensor w1 = tensor(weight1, 2, in), b1 = tensor(bias1, 1, hidden), w2 = tensor(weight2, 2, back), b2 = tensor(bias2, 1, one);
  DLTensor output = tensor(out, 2, column), preactivation = tensor(pre, 2, wide);
  DLTensor grad_w1 = tensor(grad_weight1, 2, in), grad_b1 = tensor(grad_bias1, 1, hidden);
  DLTensor grad_w2 = tensor(grad_weight2, 2, back), grad_b2 = tensor(grad_bias2, 1, one);

  /* out = tanh(x weight1^T + bias1) weight2^T + bias2. Forward also writes the preactivation. */
  const DLTensor *forward_inputs[] = {&input, &w1, &b1, &w2, &b2};
  DLTensor *forward_outputs[] = {&output, &preactivation};
  epg_call forward = {.struct_size = sizeof forward, .op = "mlp", .kind = "tanh", .num_inputs = 5, .num_outputs = 2};
  forward.inputs = forward_inputs;
  forward.outputs = forward_outputs;
  prepare(&forward);

  /* Backward reads it. The gradient to the input is NULL, so it is not computed. */
  const DLTensor *backward_inputs[] = {&grad_output, &input, &w1, &b1, &w2, &b2, &preactivation};
  DLTensor *backward_outputs[] = {NULL, &grad_w1, &grad_b1, &grad_w2, &grad_b2};
  epg_call backward = {.struct_size = sizeof backward, .op = "mlp_backward", .kind = "tanh", .num_inputs = 7, .num_outputs = 5};
  backward.inputs = backward_inputs;
  backward.outputs = backward_outputs;
  prepare(&backward);

  for (int step = 0; step <= STEPS; step++) {
    require(epg_run(&forward));
    double loss = 0; /* the mean squared error, and its gradient */
    for (int i = 0; i < POINTS; i++) {
      const double difference = out[i] - y[i];
      loss += difference * difference / POINTS;
      grad_out[i] = 2 * difference / POINTS;
    }
    if (step % 1000 == 0) printf("step %4d: loss %.4f\n", step, loss);
    require(epg_run(&backward));
    descend(weight1, grad_weight1, HIDDEN);
    descend(bias1, grad_bias1, HIDDEN);
    descend(weight2, grad_weight2, HIDDEN);
    descend(bias2, grad_bias2, 1);
  }
  for (int i = 0; i < POINTS; i += 21) printf("x = %5.2f: the network says %5.2f, sin(3 x) is %5.2f\n", x[i], out[i], y[i]);

  /* An error is a status, and nothing has been written: here a bias of the wrong size. */
  forward_inputs[2] = &b2;
  const int32_t status = epg_run(&forward);
  printf("%s: %s\n", epg_status_class(status), epg_last_error());
  free(forward.workspace);
  free(backward.workspace);
  return status == EPG_INVALID_PROBLEM ? 0 : 1;
}
