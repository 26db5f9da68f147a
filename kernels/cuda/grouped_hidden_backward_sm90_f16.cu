#include "instances_sm90.cuh"

GROUPED_GATED_HIDDEN_BACKWARD_SM90(GatedSloped, swish, f16, nn, halves)
GROUPED_GATED_HIDDEN_BACKWARD_SM90(GatedSloped, gelu_tanh, f16, nn, halves)
GROUPED_GATED_HIDDEN_BACKWARD_SM90(GatedSlopedInterleaved, swish, f16, nt, interleaved)
GROUPED_HIDDEN_BACKWARD_SM90(relu2, f16, nn)
