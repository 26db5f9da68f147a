#define _GNU_SOURCE
#include "libraries.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct epg_driver epg_driver;
struct epg_blas_library epg_blas_library;

typedef struct {
  const char *name;
  void *slot; /* of the function pointer */
} symbol;

#define DRIVER_SYMBOL(result, name, version, arguments) {#name #version, &epg_driver.name},
#define BLAS_SYMBOL(result, name, version, arguments) {#name #version, &epg_blas_library.name},

static int resolve(void *library, const symbol *symbols, size_t count, const char *what, const char *wanted, char *reason, size_t capacity) {
  for (size_t i = 0; i < count; i++) {
    void *address = dlsym(library, symbols[i].name);
    if (!address) {
      snprintf(reason, capacity, "%s has no %s: it is too old, want %s", what, symbols[i].name, wanted);
      return -1;
    }
    memcpy(symbols[i].slot, &address, sizeof address);
  }
  return 0;
}

int epg_fail(epg_failure *failure, const char *call, int code, const char *name, const char *text) {
  failure->code = code;
  snprintf(failure->call, sizeof failure->call, "%s", call);
  snprintf(failure->name, sizeof failure->name, "%s", name ? name : "unknown error");
  snprintf(failure->text, sizeof failure->text, "%s", text ? text : "");
  return -1;
}

int epg_fail_driver(epg_failure *failure, const char *call, int code) {
  const char *name = NULL, *text = NULL;
  epg_driver.cuGetErrorName(code, &name);
  epg_driver.cuGetErrorString(code, &text);
  return epg_fail(failure, call, code, name, text);
}

int epg_fail_blas(epg_failure *failure, const char *call, int status) {
  return epg_fail(failure, call, status, epg_blas_library.cublasLtGetStatusName(status), epg_blas_library.cublasLtGetStatusString(status));
}

int epg_cuda_open(char *reason, size_t capacity) {
  static const symbol symbols[] = {EPG_DRIVER_FUNCTIONS(DRIVER_SYMBOL)};
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(reason, capacity, "NVIDIA's driver is not installed (%s): want " EPG_WANTED_DRIVER, dlerror());
    return -1;
  }
  if (resolve(library, symbols, sizeof symbols / sizeof *symbols, "NVIDIA's driver (libcuda.so.1)", EPG_WANTED_DRIVER, reason, capacity)) return -1;
  void *encode = dlsym(library, "cuTensorMapEncodeTiled"), *set_attribute = dlsym(library, "cuKernelSetAttribute");
  memcpy(&epg_driver.cuTensorMapEncodeTiled, &encode, sizeof encode);
  memcpy(&epg_driver.cuKernelSetAttribute, &set_attribute, sizeof set_attribute);
  const int code = epg_driver.cuInit(0);
  if (!code) return 0;
  const char *name = NULL, *text = NULL;
  epg_driver.cuGetErrorName(code, &name);
  epg_driver.cuGetErrorString(code, &text);
  snprintf(reason, capacity, "NVIDIA's driver finds no GPU that it can use: %s (%d): %s; want one that nvidia-smi lists and CUDA_VISIBLE_DEVICES names",
           name ? name : "?", code, text ? text : "");
  return -1;
}

int epg_cuda_count(epg_failure *failure) {
  int count = 0;
  DRIVER(cuDeviceGetCount, &count);
  return count;
}

int epg_cuda_describe(int ordinal, epg_device *d, epg_failure *failure) {
  enum { MULTIPROCESSOR_COUNT = 16, COMPUTE_CAPABILITY_MAJOR = 75, COMPUTE_CAPABILITY_MINOR = 76 };
  int handle;
  memset(d, 0, sizeof *d);
  d->ordinal = ordinal;
  DRIVER(cuDriverGetVersion, &d->driver);
  DRIVER(cuDeviceGet, &handle, ordinal);
  DRIVER(cuDeviceGetName, d->name, (int)sizeof d->name, handle);
  DRIVER(cuDeviceGetAttribute, &d->processors, MULTIPROCESSOR_COUNT, handle);
  DRIVER(cuDeviceGetAttribute, &d->major, COMPUTE_CAPABILITY_MAJOR, handle);
  DRIVER(cuDeviceGetAttribute, &d->minor, COMPUTE_CAPABILITY_MINOR, handle);
  return 0;
}

int epg_cuda_device(int ordinal, epg_device *d, epg_failure *failure) {
  int handle;
  if (epg_cuda_describe(ordinal, d, failure)) return -1;
  DRIVER(cuDeviceGet, &handle, ordinal);
  DRIVER(cuDevicePrimaryCtxRetain, &d->context, handle);
  return 0;
}

int epg_enter(const epg_device *d, epg_failure *failure) {
  epg_context current = NULL;
  DRIVER(cuCtxGetCurrent, &current);
  if (current == d->context) return 0;
  DRIVER(cuCtxPushCurrent, d->context);
  return 1;
}

void epg_leave(int entered) {
  epg_context popped;
  if (entered > 0) epg_driver.cuCtxPopCurrent(&popped);
}

int epg_relax_capture(void) {
  enum { RELAXED = 2 };
  int mode = RELAXED;
  epg_driver.cuThreadExchangeStreamCaptureMode(&mode);
  return mode;
}

void epg_restore_capture(int mode) { epg_driver.cuThreadExchangeStreamCaptureMode(&mode); }

int epg_cuda_load(const epg_device *d, const void *image, epg_library *library, epg_failure *failure) {
  const int entered = epg_enter(d, failure);
  if (entered < 0) return -1;
  const int mode = epg_relax_capture();
  const int code = epg_driver.cuLibraryLoadData(library, image, NULL, NULL, 0, NULL, NULL, 0);
  epg_restore_capture(mode);
  epg_leave(entered);
  return code ? epg_fail_driver(failure, "cuLibraryLoadData", code) : 0;
}

int epg_cuda_function(epg_library library, const char *name, epg_function *function, epg_failure *failure) {
  DRIVER(cuLibraryGetKernel, function, library, name);
  return 0;
}

int epg_cuda_allow_shared(const epg_device *d, epg_function function, uint32_t bytes, epg_failure *failure) {
  enum { MAX_DYNAMIC_SHARED_SIZE_BYTES = 8, ALWAYS_ALLOWED = 48 << 10 };
  if (bytes <= ALWAYS_ALLOWED) return 0;
  int device;
  DRIVER(cuDeviceGet, &device, d->ordinal);
  DRIVER(cuKernelSetAttribute, MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)bytes, function, device);
  return 0;
}

int epg_cuda_has_maps(void) { return epg_driver.cuTensorMapEncodeTiled && epg_driver.cuKernelSetAttribute; }

int epg_blas_open(char *reason, size_t capacity) {
  static const symbol symbols[] = {EPG_BLAS_FUNCTIONS(BLAS_SYMBOL)};
  /* By name the copy that PyTorch has loaded is found, wherever it lies. */
  const char *names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
  /* C's: Go's environment does not have what Python has set since */
  const char *path = getenv("EPIGRAD_CUBLASLT");
  void *library = NULL;
  if (path && *path) {
    if (!(library = dlopen(path, RTLD_NOW | RTLD_LOCAL))) {
      snprintf(reason, capacity, "EPIGRAD_CUBLASLT names no library that can be opened (%s)", dlerror());
      return -1;
    }
  }
  for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(reason, capacity,
             "cuBLASLt (libcublasLt.so.13 or .12) was not found; install CUDA's, name the file in EPIGRAD_CUBLASLT, or, in Python, import a CUDA build of "
             "torch first");
    return -1;
  }
  return resolve(library, symbols, sizeof symbols / sizeof *symbols, "cuBLASLt", "that of CUDA 12 or 13", reason, capacity);
}

size_t epg_blas_version(void) { return epg_blas_library.cublasLtGetVersion ? epg_blas_library.cublasLtGetVersion() : 0; }

int epg_blas_create(epg_device *d, epg_failure *failure) {
  const int entered = epg_enter(d, failure);
  if (entered < 0) return -1;
  const int mode = epg_relax_capture();
  const int status = epg_blas_library.cublasLtCreate(&d->blas);
  epg_restore_capture(mode);
  epg_leave(entered);
  return status ? epg_fail_blas(failure, "cublasLtCreate", status) : 0;
}
