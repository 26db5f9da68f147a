// A stand-in for NVIDIA's driver and for cuBLASLt on machines without a GPU: the functions that
// go/backend/cuda calls, on host memory. Kernels are those of the emulator, and products are plain
// loops, accumulated in double. It is strict where the libraries are: about contexts, alignments,
// leading dimensions, and who may touch the scratch.
//
// Built into one shared library that go/backend/cuda's tests find under the names of both (see
// emulated_test.go). It also runs jobs, for emulator.cpp.
#include <atomic>

#include "jobs.h"

namespace {

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, INVALID_CONTEXT = 201, FAULT = 700, NO_EXECUTION = 13, NOT_SUPPORTED = 15 };

struct Context {
} primary[2];
thread_local std::vector<Context *> contexts;

bool in_context() { return !contexts.empty() && contexts.back() != nullptr; }

// EPIGRAD_EMULATED_FAULT_AT=N has a process's Nth call that can fail do so, and N+ those after it
// too: the device is lost.
bool refused() {
  static std::atomic<long> calls;
  const char *which = getenv("EPIGRAD_EMULATED_FAULT_AT");
  if (which == nullptr) return false;
  char *end = nullptr;
  const long wanted = strtol(which, &end, 10), call = ++calls;
  if (call != wanted && (*end != '+' || call < wanted)) return false;
  fprintf(stderr, "emulator: refuses call %ld\n", call);
  return true;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuInit(unsigned) { return SUCCESS; }
EXPORT int cuDriverGetVersion(int *version) {
  if (refused()) return FAULT;
  const char *other = getenv("EPIGRAD_EMULATED_DRIVER");
  return *version = other != nullptr ? atoi(other) : 13000, SUCCESS;
}
EXPORT int cuDeviceGetCount(int *count) {
  if (refused()) return FAULT;
  return *count = 2, SUCCESS;
}
EXPORT int cuDeviceGet(int *device, int ordinal) {
  if (refused()) return FAULT;
  return *device = ordinal, ordinal < 2 ? SUCCESS : 101;
}
EXPORT int cuDeviceGetName(char *name, int length, int) {
  if (refused()) return FAULT;
  return snprintf(name, length, "emulated GPU"), SUCCESS;
}
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (refused()) return FAULT;
  const int major = device == 0 && getenv("EPIGRAD_EMULATED_OLD_GPU") != nullptr ? 7 : 9;
  *value = attribute == 16 ? 3 : attribute == 75 ? major : 0;  // processors
  return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRetain(Context **context, int device) {
  if (refused()) return FAULT;
  return *context = &primary[device], SUCCESS;
}
EXPORT int cuCtxGetCurrent(Context **context) {
  if (refused()) return FAULT;
  return *context = contexts.empty() ? nullptr : contexts.back(), SUCCESS;
}
EXPORT int cuCtxPushCurrent_v2(Context *context) {
  if (refused()) return FAULT;
  return contexts.push_back(context), SUCCESS;
}
EXPORT int cuCtxPopCurrent_v2(Context **context) {
  *context = contexts.back();
  contexts.pop_back();
  return SUCCESS;
}
EXPORT int cuLibraryLoadData(void **library, const void *image, void *, void **, unsigned, void *, void **, unsigned) {
  if (refused()) return FAULT;
  *library = const_cast<void *>(image);
  return in_context() ? SUCCESS : INVALID_CONTEXT;
}
EXPORT int cuLibraryGetKernel(const void **kernel, void *, const char *name) {
  if (refused()) return FAULT;
  *kernel = find_kernel(name);
  return *kernel != nullptr ? SUCCESS : NOT_FOUND;
}
EXPORT int cuLaunchKernel(const void *kernel, unsigned x, unsigned y, unsigned z, unsigned block, unsigned block_y, unsigned block_z, unsigned, void *,
                          void **parameters, void **) {
  if (refused()) return FAULT;
  if (!in_context()) return INVALID_CONTEXT;
  if (getenv("EPIGRAD_EMULATED_FAULT") != nullptr) return FAULT;
  if (x == 0 || y != 1 || z != 1 || block_y != 1 || block_z != 1) return INVALID_VALUE;
  run_kernel(static_cast<const epigrad::Registration *>(kernel), x, block, parameters[0]);
  return SUCCESS;
}
// CUlaunchConfig, as far as it is the launch itself.
struct Launch {
  unsigned grid[3], block[3], shared;
  void *stream;
};
EXPORT int cuLaunchKernelEx(const Launch *l, const void *kernel, void **parameters, void **extra) {
  return cuLaunchKernel(kernel, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared, l->stream, parameters, extra);
}
EXPORT int cuMemsetD8Async(uint64_t address, unsigned char value, size_t count, void *) {
  if (refused()) return FAULT;
  if (!in_context()) return INVALID_CONTEXT;
  memset(reinterpret_cast<void *>(address), value, count);
  return SUCCESS;
}
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t count, void *) {
  if (refused()) return FAULT;
  if (!in_context()) return INVALID_CONTEXT;
  memcpy(reinterpret_cast<void *>(to), reinterpret_cast<const void *>(from), count);
  return SUCCESS;
}
EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  if (refused()) return OUT_OF_MEMORY;
  *address = reinterpret_cast<uint64_t>(aligned_alloc(256, (bytes + 255) / 256 * 256));
  return in_context() ? SUCCESS : INVALID_CONTEXT;
}
EXPORT int cuMemFree_v2(uint64_t address) { return free(reinterpret_cast<void *>(address)), SUCCESS; }
EXPORT int cuStreamCreate(void **stream, unsigned) {
  if (refused()) return FAULT;
  return *stream = &primary, in_context() ? SUCCESS : INVALID_CONTEXT;
}
EXPORT int cuStreamSynchronize(void *) {
  if (refused()) return FAULT;
  return SUCCESS;
}
EXPORT int cuThreadExchangeStreamCaptureMode(int *) { return SUCCESS; }
EXPORT int cuStreamDestroy_v2(void *) { return SUCCESS; }
EXPORT int cuEventCreate(void **event, unsigned) {
  if (refused()) return FAULT;
  return *event = &primary, SUCCESS;
}
EXPORT int cuEventRecord(void *, void *) {
  if (refused()) return FAULT;
  return SUCCESS;
}
EXPORT int cuEventDestroy_v2(void *) { return SUCCESS; }
EXPORT int cuGetErrorName(int code, const char **name) { return *name = code == SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR_EMULATED", SUCCESS; }
EXPORT int cuGetErrorString(int, const char **text) { return *text = "the emulator refuses this", SUCCESS; }

// --- cuBLASLt ------------------------------------------------------------------------------------

namespace {

struct Desc {
  int compute, transpose[2], epilogue;
  const char *bias;
};

struct Layout {
  int type;
  int64_t rows, columns, leading, batch, batch_stride;
};

struct Algorithm {
  uint64_t index, alignment, reserved[6];
};

struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

struct Preference {
  uint64_t most_workspace;
  uint32_t alignment = 256;
};

// Each algorithm takes another amount of scratch; the second is the fastest.
// Another is the only one for a vector and a bias, and does nothing else.
enum { ALGORITHMS = 3, FASTEST = 1, FOR_A_VECTOR = ALGORITHMS };
bool does(uint64_t index, const Desc &desc, const Layout &out) {
  const bool is_vector = out.rows == 1 && out.columns > 1 && desc.epilogue == 4;
  return is_vector == (index == FOR_A_VECTOR);
}
size_t scratch_bytes(uint64_t index) { return 1000 * index; }
uint64_t last_index;

double load(int type, const char *p, int64_t i) {
  switch (type) {
    case 0:
      return reinterpret_cast<const float *>(p)[i];
    case 1:
      return reinterpret_cast<const double *>(p)[i];
    case 2:
      return epigrad::unpack_f16(reinterpret_cast<const uint16_t *>(p)[i]);
    default:
      return __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const uint16_t *>(p)[i]) << 16);
  }
}

void store(int type, char *p, int64_t i, double x) {
  switch (type) {
    case 0:
      reinterpret_cast<float *>(p)[i] = static_cast<float>(x);
      break;
    case 1:
      reinterpret_cast<double *>(p)[i] = x;
      break;
    case 2:
      reinterpret_cast<uint16_t *>(p)[i] = epigrad::f16_bits(static_cast<float>(x));
      break;
    default:
      reinterpret_cast<uint16_t *>(p)[i] = epigrad::bf16_bits(static_cast<float>(x));
  }
}

int64_t size_of(int type) { return type == 0 ? 4 : type == 1 ? 8 : 2; }

}  // namespace

EXPORT size_t cublasLtGetVersion() { return 130100; }
EXPORT int cublasLtCreate(void **handle) {
  if (refused()) return NO_EXECUTION;
  return *handle = &primary, in_context() ? SUCCESS : 1;
}
EXPORT const char *cublasLtGetStatusName(int) { return "CUBLAS_STATUS_EMULATED"; }
EXPORT const char *cublasLtGetStatusString(int) { return "the emulator refuses this"; }
EXPORT int cublasLtMatmulDescCreate(Desc **desc, int compute, int) {
  if (refused()) return NO_EXECUTION;
  return *desc = new Desc{compute, {0, 0}, 1, nullptr}, SUCCESS;
}
EXPORT int cublasLtMatmulDescDestroy(Desc *desc) { return delete desc, SUCCESS; }
EXPORT int cublasLtMatmulDescSetAttribute(Desc *desc, int attribute, const void *value, size_t bytes) {
  if (refused()) return NO_EXECUTION;
  switch (attribute) {
    case 3:
    case 4:
      memcpy(&desc->transpose[attribute - 3], value, bytes);
      break;
    case 7:
      memcpy(&desc->epilogue, value, bytes);
      break;
    case 8:
      memcpy(&desc->bias, value, bytes);
      break;
    default:
      return 7;
  }
  return SUCCESS;
}
EXPORT int cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  if (refused()) return NO_EXECUTION;
  *layout = new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), leading, 1, 0};
  return rows > 0 && columns > 0 && leading >= static_cast<int64_t>(rows) ? SUCCESS : 7;
}
EXPORT int cublasLtMatrixLayoutDestroy(Layout *layout) { return delete layout, SUCCESS; }
EXPORT int cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t bytes) {
  if (refused()) return NO_EXECUTION;
  int32_t batch = 0;
  if (attribute == 5) {
    memcpy(&batch, value, bytes);
    layout->batch = batch;
  } else {
    memcpy(&layout->batch_stride, value, bytes);
  }
  return SUCCESS;
}
EXPORT int cublasLtMatmulPreferenceCreate(Preference **preference) {
  if (refused()) return NO_EXECUTION;
  return *preference = new Preference, SUCCESS;
}
EXPORT int cublasLtMatmulPreferenceDestroy(Preference *preference) { return delete preference, SUCCESS; }
EXPORT int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t bytes) {
  if (refused()) return NO_EXECUTION;
  if (attribute == 1) memcpy(&preference->most_workspace, value, bytes);
  if (attribute >= 5) memcpy(&preference->alignment, value, bytes);
  return SUCCESS;
}
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *, Desc *desc, Layout *a, Layout *b, Layout *c, Layout *d, Preference *preference, int wanted, Heuristic *found,
                                          int *count) {
  if (refused()) return NO_EXECUTION;
  int64_t k = desc->transpose[0] != 0 ? a->rows : a->columns;
  bool fits = (desc->transpose[0] != 0 ? a->columns : a->rows) == d->rows && (desc->transpose[1] != 0 ? b->rows : b->columns) == d->columns &&
              (desc->transpose[1] != 0 ? b->columns : b->rows) == k && c == d;
  *count = 0;
  if (!fits || !in_context()) return 7;
  for (uint64_t i = 0; i <= FOR_A_VECTOR && *count < wanted; i++) {
    if (scratch_bytes(i) > preference->most_workspace || !does(i, *desc, *d)) continue;
    found[(*count)++] = {{i, preference->alignment, {}}, scratch_bytes(i), 0, 1, {}};
  }
  return SUCCESS;
}
EXPORT int cublasLtMatmul(void *, Desc *desc, const void *alpha, const char *a, Layout *layout_a, const char *b, Layout *layout_b, const void *beta,
                          const char *c, Layout *, char *d, Layout *layout_d, const Algorithm *algorithm, char *scratch, size_t scratch_size, void *) {
  if (refused()) return NO_EXECUTION;
  const bool is_double = layout_d->type == 1;
  const double one = is_double ? *static_cast<const double *>(alpha) : *static_cast<const float *>(alpha);
  const double old = is_double ? *static_cast<const double *>(beta) : *static_cast<const float *>(beta);
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | reinterpret_cast<uintptr_t>(d);
  const bool bias_is_aligned = desc->epilogue != 4 || reinterpret_cast<uint64_t>(desc->bias) % 16 == 0;
  if (!in_context() || one != 1 || c != d || !bias_is_aligned || addresses % algorithm->alignment != 0 || scratch_size < scratch_bytes(algorithm->index))
    return 7;
  if (!does(algorithm->index, *desc, *layout_d)) return NOT_SUPPORTED;
  if (scratch_size > 0) memset(scratch, 0x5a, scratch_size);
  last_index = algorithm->index;
  const int type = layout_a->type, result = layout_d->type;
  const int64_t size = size_of(type), depth = desc->transpose[0] != 0 ? layout_a->rows : layout_a->columns;
  for (int64_t batch = 0; batch < layout_d->batch; batch++) {
    const char *left = a + batch * layout_a->batch_stride * size, *right = b + batch * layout_b->batch_stride * size;
    char *out = d + batch * layout_d->batch_stride * size_of(result);
    for (int64_t column = 0; column < layout_d->columns; column++) {
      for (int64_t row = 0; row < layout_d->rows; row++) {
        double sum = 0;
        for (int64_t k = 0; k < depth; k++) {
          double x = load(type, left, desc->transpose[0] != 0 ? row * layout_a->leading + k : k * layout_a->leading + row);
          double y = load(type, right, desc->transpose[1] != 0 ? k * layout_b->leading + column : column * layout_b->leading + k);
          sum += x * y;
        }
        if (desc->epilogue == 4) sum += load(type, desc->bias, row);
        if (old != 0) sum += old * load(result, out, column * layout_d->leading + row);
        store(result, out, column * layout_d->leading + row, sum);
      }
    }
  }
  return SUCCESS;
}
EXPORT int cuEventElapsedTime(float *milliseconds, void *, void *) {
  if (refused()) return FAULT;
  return *milliseconds = last_index == FASTEST ? 1 : 2, SUCCESS;
}
