#include "instances_sm90.cuh"

GROUPED_LINEAR_SM90(Linear, none, f16, nt)
GROUPED_LINEAR_SM90(Linear, none, f16, nn)
GROUPED_LINEAR_SM90(Forward, relu2, f16, nt)
GROUPED_LINEAR_SM90(Forward, relu2, f16, nn)
