/* A call from a framework that allocates: its outputs and its workspace become the framework's
 * tensors, and calls that come again run without Go. */
#ifndef EPG_LAUNCH_H
#define EPG_LAUNCH_H

#include "geometry.h"

/* What a framework does for a call. `self` is its own. */
typedef struct {
  void *self;
  /* Makes a tensor on the device of the call's first input and with the dtype of input `like`,
   * fills t, which is valid as long as the tensor, and returns the tensor; or NULL, and remembers
   * by itself what went wrong. */
  void *(*make)(void *self, int like, const int64_t *sizes, const int64_t *strides, int32_t rank, DLTensor *t);
  void (*drop)(void *self, void *tensor);
  /* Copies the call's input i to a tensor that was made, converting it; returns 0, or -1 and
   * remembers what went wrong. */
  int (*copy)(void *self, int i, void *tensor);
  /* Around Go; both may be NULL. `leave` lets go of what other threads of the framework's wait for,
   * and what it returns is for `enter`. */
  void *(*leave)(void);
  void (*enter)(void *left);
} epg_framework;

/* A status of a framework's own failure, which is no epg_status. */
enum { EPG_FRAMEWORK_FAILED = -1 };

/* Infers, allocates and runs. Adapters that are float32 beside half types are rounded first; their
 * gradients are float32. The call has everything but outputs and workspace; its first
 * `num_outputs` outputs may be given. `wanted` has a flag for each of MAX_OUTPUTS outputs, of which
 * the first `places` count. tensors[i] becomes the new tensor of output i, or NULL where the output
 * is given or does not exist. Meta tensors get meta outputs, and nothing runs. After a failure no
 * tensors are left. */
int32_t epg_launch(call_arguments *a, const uint8_t *wanted, int places, const epg_framework *framework, void **tensors);

/* Tells a call's outputs and workspace, without memory. */
int32_t epg_launch_infer(call_arguments *a, const uint8_t *wanted, const epg_framework *framework, geometry *g);

/* Whether a call has products that may be computed in TF32 if PyTorch allows it: those of float32
 * on CUDA. */
int epg_launch_may_use_tf32(const call_arguments *a);

#endif
