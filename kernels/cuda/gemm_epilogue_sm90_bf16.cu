#include "instances_sm90.cuh"

EPG_FOR_EACH_ACTIVATION(GEMM_EPILOGUE_SM90, bf16)
