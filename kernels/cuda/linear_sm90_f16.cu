#include "instances_sm90.cuh"

EPG_FOR_EACH_ACTIVATION(LINEAR_SM90, f16)
