// Four defects, one for each tool of compute-sanitizer, which must find it.
// tests/tools/cuda_record.py runs them before it believes a tool that finds nothing.
//
//	nvcc -arch=sm_90 -o planted tests/cuda/planted.cu
//	compute-sanitizer --tool racecheck --error-exitcode 77 ./planted racecheck
#include <cstdio>
#include <cstring>

enum { COUNT = 64 };  // threads, of two warps, and elements

// memcheck: writes behind the last element.
__global__ void memcheck(const int *in, int *out) { out[threadIdx.x + 1] = in[threadIdx.x]; }

// racecheck: reads what the other warp writes, without a barrier in between.
__global__ void racecheck(const int *in, int *out) {
  __shared__ int shared[COUNT];
  shared[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = shared[COUNT - 1 - threadIdx.x];
}

// synccheck: half of a warp passes a barrier by. Its threads end, so that nobody waits for them.
__global__ void synccheck(const int *in, int *out) {
  __shared__ int shared[COUNT];
  shared[threadIdx.x] = in[threadIdx.x];
  if (threadIdx.x % 32 < 16) __syncthreads();
  out[threadIdx.x] = shared[threadIdx.x];
}

// initcheck: reads what nobody has written.
__global__ void initcheck(const int *, int *out) { out[threadIdx.x] = out[threadIdx.x] + 1; }

static const struct {
  const char *tool;
  void (*kernel)(const int *, int *);
} defects[] = {{"memcheck", memcheck}, {"racecheck", racecheck}, {"synccheck", synccheck}, {"initcheck", initcheck}};

int main(int count, char **arguments) {
  int *in, *out;
  if (cudaMalloc(&in, COUNT * sizeof *in) || cudaMalloc(&out, COUNT * sizeof *out) || cudaMemset(in, 1, COUNT * sizeof *in)) return 1;
  for (const auto &defect : defects) {
    if (count != 2 || strcmp(defect.tool, arguments[1])) continue;
    defect.kernel<<<1, COUNT>>>(in, out);
    // memcheck ends a kernel at its defect, and the kernel's error is the tool's to report
    printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    return 0;
  }
  return 2;
}
