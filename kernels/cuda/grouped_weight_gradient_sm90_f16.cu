#include "instances_sm90.cuh"

GROUPED_WEIGHT_GRADIENT_SM90(f16)
