#include "instances_sm90.cuh"

GROUPED_GATED_LINEAR_SM90(Gated, swish, f16, nt, halves)
GROUPED_GATED_LINEAR_SM90(Gated, gelu_tanh, f16, nt, halves)
GROUPED_GATED_LINEAR_SM90(GatedInterleaved, swish, f16, nn, interleaved)
