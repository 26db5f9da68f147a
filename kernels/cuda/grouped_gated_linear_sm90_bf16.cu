#include "instances_sm90.cuh"

GROUPED_GATED_LINEAR_SM90(Gated, swish, bf16, nt, halves)
GROUPED_GATED_LINEAR_SM90(Gated, gelu_tanh, bf16, nt, halves)
GROUPED_GATED_LINEAR_SM90(GatedInterleaved, swish, bf16, nn, interleaved)
