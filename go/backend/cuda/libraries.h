/* The functions of NVIDIA's driver and of cuBLASLt, once they are opened, and how their failures
 * are told. */
#ifndef EPG_CUDA_LIBRARIES_H
#define EPG_CUDA_LIBRARIES_H

#include "cuda.h"

/* CUlaunchAttribute and CUlaunchConfig. */
typedef struct {
  int32_t id, pad;
  union {
    int32_t flag;
    uint64_t bytes[8];
  } value;
} epg_launch_attribute;
typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream;
  epg_launch_attribute *attributes;
  unsigned count;
} epg_launch_config;

extern struct epg_driver {
  int (*cuInit)(unsigned flags);
  int (*cuDriverGetVersion)(int *version);
  int (*cuDeviceGetCount)(int *count);
  int (*cuDeviceGet)(int *device, int ordinal);
  int (*cuDeviceGetName)(char *name, int length, int device);
  int (*cuDeviceGetAttribute)(int *value, int attribute, int device);
  int (*cuDevicePrimaryCtxRetain)(epg_context *context, int device);
  int (*cuCtxGetCurrent)(epg_context *context);
  int (*cuCtxPushCurrent)(epg_context context);
  int (*cuCtxPopCurrent)(epg_context *context);
  int (*cuLibraryLoadData)(epg_library *library, const void *image, void *, void **, unsigned, void *, void **, unsigned);
  int (*cuLibraryGetKernel)(epg_function *kernel, epg_library library, const char *name);
  /* Both NULL in the emulator, whose device has no copy engine. */
  int (*cuKernelSetAttribute)(int attribute, int value, epg_function kernel, int device);
  int (*cuTensorMapEncodeTiled)(void *map, int type, unsigned rank, void *base, const uint64_t *sizes, const uint64_t *strides, const unsigned *box,
                                const unsigned *steps, int interleave, int swizzle, int promotion, int fill);
  int (*cuLaunchKernel)(epg_function function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, void *stream, void **parameters,
                        void **extra);
  int (*cuLaunchKernelEx)(const epg_launch_config *config, epg_function function, void **parameters, void **extra);
  int (*cuMemsetD8Async)(uint64_t address, unsigned char value, size_t count, void *stream);
  int (*cuMemcpyDtoDAsync)(uint64_t to, uint64_t from, size_t count, void *stream);
  int (*cuMemAlloc)(uint64_t *address, size_t bytes);
  int (*cuMemFree)(uint64_t address);
  int (*cuStreamCreate)(void **stream, unsigned flags);
  int (*cuStreamSynchronize)(void *stream);
  int (*cuThreadExchangeStreamCaptureMode)(int *mode);
  int (*cuStreamDestroy)(void *stream);
  int (*cuEventCreate)(void **event, unsigned flags);
  int (*cuEventRecord)(void *event, void *stream);
  int (*cuEventElapsedTime)(float *milliseconds, void *start, void *end);
  int (*cuEventDestroy)(void *event);
  int (*cuGetErrorName)(int code, const char **name);
  int (*cuGetErrorString)(int code, const char **text);
} epg_driver;

extern struct epg_blas_library {
  size_t (*cublasLtGetVersion)(void);
  int (*cublasLtCreate)(epg_blas *handle);
  const char *(*cublasLtGetStatusName)(int status);
  const char *(*cublasLtGetStatusString)(int status);
  int (*cublasLtMatmulDescCreate)(void **desc, int compute, int scale);
  int (*cublasLtMatmulDescDestroy)(void *desc);
  int (*cublasLtMatmulDescSetAttribute)(void *desc, int attribute, const void *value, size_t bytes);
  int (*cublasLtMatrixLayoutCreate)(void **layout, int dtype, uint64_t rows, uint64_t columns, int64_t leading);
  int (*cublasLtMatrixLayoutDestroy)(void *layout);
  int (*cublasLtMatrixLayoutSetAttribute)(void *layout, int attribute, const void *value, size_t bytes);
  int (*cublasLtMatmulPreferenceCreate)(void **preference);
  int (*cublasLtMatmulPreferenceDestroy)(void *preference);
  int (*cublasLtMatmulPreferenceSetAttribute)(void *preference, int attribute, const void *value, size_t bytes);
  int (*cublasLtMatmulAlgoGetHeuristic)(epg_blas handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int requested, void *results,
                                        int *found);
  int (*cublasLtMatmul)(epg_blas handle, void *desc, const void *alpha, const void *a, void *layout_a, const void *b, void *layout_b, const void *beta,
                        const void *c, void *layout_c, void *d, void *layout_d, const void *algorithm, void *workspace, size_t workspace_bytes, void *stream);
} epg_blas_library;

/* Describes a failed call; always returns -1. */
int epg_fail(epg_failure *failure, const char *call, int code, const char *name, const char *text);
int epg_fail_driver(epg_failure *failure, const char *call, int code);
int epg_fail_blas(epg_failure *failure, const char *call, int status);

/* Calls a function of the driver and leaves with -1 if it fails. */
#define DRIVER(name, ...)                                     \
  do {                                                        \
    const int code_ = epg_driver.name(__VA_ARGS__);           \
    if (code_) return epg_fail_driver(failure, #name, code_); \
  } while (0)

/* Makes the device's context current; returns 1 if there is something to undo, 0 if it was current,
 * -1 with a failure. */
int epg_enter(const epg_device *device, epg_failure *failure);
void epg_leave(int entered);

/* While a stream is captured into a graph, whatever may allocate or wait would end that; between
 * these two this thread's calls are not taken for a part of it. */
int epg_relax_capture(void);
void epg_restore_capture(int mode);

#endif
