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

/* The functions of each library: what they return, their names, the version that a symbol's name
 * ends with, and their arguments. */
/* clang-format off */
#define EPG_DRIVER_FUNCTIONS(macro) \
  macro(int, cuInit, , (unsigned flags)) \
  macro(int, cuDriverGetVersion, , (int *version)) \
  macro(int, cuDeviceGetCount, , (int *count)) \
  macro(int, cuDeviceGet, , (int *device, int ordinal)) \
  macro(int, cuDeviceGetName, , (char *name, int length, int device)) \
  macro(int, cuDeviceGetAttribute, , (int *value, int attribute, int device)) \
  macro(int, cuDevicePrimaryCtxRetain, , (epg_context *context, int device)) \
  macro(int, cuCtxGetCurrent, , (epg_context *context)) \
  macro(int, cuCtxPushCurrent, _v2, (epg_context context)) \
  macro(int, cuCtxPopCurrent, _v2, (epg_context *context)) \
  macro(int, cuLibraryLoadData, , (epg_library *library, const void *image, void *, void **, unsigned, void *, void **, unsigned)) \
  macro(int, cuLibraryGetKernel, , (epg_function *kernel, epg_library library, const char *name)) \
  macro(int, cuLaunchKernel, , (epg_function function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, \
        void *stream, void **parameters, void **extra)) \
  macro(int, cuLaunchKernelEx, , (const epg_launch_config *config, epg_function function, void **parameters, void **extra)) \
  macro(int, cuMemsetD8Async, , (uint64_t address, unsigned char value, size_t count, void *stream)) \
  macro(int, cuMemcpyDtoDAsync, _v2, (uint64_t to, uint64_t from, size_t count, void *stream)) \
  macro(int, cuMemAlloc, _v2, (uint64_t *address, size_t bytes)) \
  macro(int, cuMemFree, _v2, (uint64_t address)) \
  macro(int, cuStreamCreate, , (void **stream, unsigned flags)) \
  macro(int, cuStreamSynchronize, , (void *stream)) \
  macro(int, cuThreadExchangeStreamCaptureMode, , (int *mode)) \
  macro(int, cuStreamDestroy, _v2, (void *stream)) \
  macro(int, cuEventCreate, , (void **event, unsigned flags)) \
  macro(int, cuEventRecord, , (void *event, void *stream)) \
  macro(int, cuEventElapsedTime, , (float *milliseconds, void *start, void *end)) \
  macro(int, cuEventDestroy, _v2, (void *event)) \
  macro(int, cuGetErrorName, , (int code, const char **name)) \
  macro(int, cuGetErrorString, , (int code, const char **text))

#define EPG_BLAS_FUNCTIONS(macro) \
  macro(size_t, cublasLtGetVersion, , (void)) \
  macro(int, cublasLtCreate, , (epg_blas *handle)) \
  macro(const char *, cublasLtGetStatusName, , (int status)) \
  macro(const char *, cublasLtGetStatusString, , (int status)) \
  macro(int, cublasLtMatmulDescCreate, , (void **desc, int compute, int scale)) \
  macro(int, cublasLtMatmulDescDestroy, , (void *desc)) \
  macro(int, cublasLtMatmulDescSetAttribute, , (void *desc, int attribute, const void *value, size_t bytes)) \
  macro(int, cublasLtMatrixLayoutCreate, , (void **layout, int dtype, uint64_t rows, uint64_t columns, int64_t leading)) \
  macro(int, cublasLtMatrixLayoutDestroy, , (void *layout)) \
  macro(int, cublasLtMatrixLayoutSetAttribute, , (void *layout, int attribute, const void *value, size_t bytes)) \
  macro(int, cublasLtMatmulPreferenceCreate, , (void **preference)) \
  macro(int, cublasLtMatmulPreferenceDestroy, , (void *preference)) \
  macro(int, cublasLtMatmulPreferenceSetAttribute, , (void *preference, int attribute, const void *value, size_t bytes)) \
  macro(int, cublasLtMatmulAlgoGetHeuristic, , (epg_blas handle, void *desc, void *a, void *b, void *c, void *d, void *preference, \
        int requested, void *results, int *found)) \
  macro(int, cublasLtMatmul, , (epg_blas handle, void *desc, const void *alpha, const void *a, void *layout_a, const void *b, void *layout_b, \
        const void *beta, const void *c, void *layout_c, void *d, void *layout_d, const void *algorithm, void *workspace, size_t workspace_bytes, void *stream))
/* clang-format on */

#define EPG_POINTER(result, name, version, arguments) result(*name) arguments;
extern struct epg_driver {
  EPG_DRIVER_FUNCTIONS(EPG_POINTER)
  /* Both NULL in the emulator, whose device has no copy engine. */
  int (*cuKernelSetAttribute)(int attribute, int value, epg_function kernel, int device);
  int (*cuTensorMapEncodeTiled)(void *map, int type, unsigned rank, void *base, const uint64_t *sizes, const uint64_t *strides, const unsigned *box,
                                const unsigned *steps, int interleave, int swizzle, int promotion, int fill);
} epg_driver;
extern struct epg_blas_library {
  EPG_BLAS_FUNCTIONS(EPG_POINTER)
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
