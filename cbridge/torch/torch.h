/* Operators of PyTorch whose kernels are C: a program that calls them needs no Python. */
#ifndef EPG_TORCH_H
#define EPG_TORCH_H

#include <stdint.h>

/* Gives `torch.ops.epigrad._linear` and its like, which Python has defined, their kernels for the
 * CPU and for CUDA. `allows_tf32` tells whether PyTorch lets float32 products be computed in TF32.
 * EPG_BACKEND_UNAVAILABLE where this PyTorch lacks a function that they need. */
int32_t epg_torch_give_kernels(int (*allows_tf32)(void));

#endif
