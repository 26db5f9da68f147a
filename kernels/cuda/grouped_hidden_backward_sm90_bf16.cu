#include "instances_sm90.cuh"

GROUPED_GATED_HIDDEN_BACKWARD_SM90(GatedSloped, swish, bf16, nn, halves)
GROUPED_GATED_HIDDEN_BACKWARD_SM90(GatedSloped, gelu_tanh, bf16, nn, halves)
GROUPED_GATED_HIDDEN_BACKWARD_SM90(GatedSlopedInterleaved, swish, bf16, nt, interleaved)
GROUPED_HIDDEN_BACKWARD_SM90(relu2, bf16, nn)
