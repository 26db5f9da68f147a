#include "instances_sm90.cuh"

GROUPED_LINEAR_SM90(Linear, none, bf16, nt)
GROUPED_LINEAR_SM90(Linear, none, bf16, nn)
GROUPED_LINEAR_SM90(Forward, relu2, bf16, nt)
GROUPED_LINEAR_SM90(Forward, relu2, bf16, nn)
