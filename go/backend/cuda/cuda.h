/* What epigrad uses of NVIDIA's driver and of cuBLASLt, both opened at run time, and the programs
 * that run on them. The numbers are those of cuda.h, library_types.h and cublasLt.h. */
#ifndef EPG_CUDA_H
#define EPG_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "program.h"

typedef struct CUctx_st *epg_context;
typedef struct CUlib_st *epg_library;
typedef struct CUfunc_st *epg_function;
typedef void *epg_blas; /* cublasLtHandle_t */

/* One GPU. */
typedef struct {
  int32_t ordinal, processors, major, minor, driver;
  char name[256];
  epg_context context; /* the primary one, which PyTorch and the CUDA runtime use too */
  epg_blas blas;
} epg_device;

/* The driver for the release of CUDA that the kernels are compiled with, as people know it. */
#define EPG_WANTED_DRIVER "driver 580 or newer"

/* Opens NVIDIA's driver once for the process; returns 0, or -1 with a reason. */
int epg_cuda_open(char *reason, size_t capacity);
/* The number of GPUs, or -1. */
int epg_cuda_count(epg_failure *failure);
/* Says what a GPU is; with its context, which takes memory on it, where that is needed. */
int epg_cuda_describe(int ordinal, epg_device *device, epg_failure *failure);
int epg_cuda_device(int ordinal, epg_device *device, epg_failure *failure);
/* Opens cuBLASLt once for the process, the file that EPIGRAD_CUBLASLT names if it does; returns 0,
 * or -1 with a reason. */
int epg_blas_open(char *reason, size_t capacity);
size_t epg_blas_version(void);
int epg_blas_create(epg_device *device, epg_failure *failure);
int epg_cuda_load(const epg_device *device, const void *image, epg_library *library, epg_failure *failure);
int epg_cuda_function(epg_library library, const char *name, epg_function *function, epg_failure *failure);
/* Lets a kernel have so many bytes of dynamic shared memory on a device. */
int epg_cuda_allow_shared(const epg_device *device, epg_function function, uint32_t bytes, epg_failure *failure);
/* Whether the driver encodes tensor maps, and gives kernels more shared memory. */
int epg_cuda_has_maps(void);

/* An address in a step: where it goes, which buffer (-1: the workspace), and how far into it. */
typedef struct {
  int32_t at, operand;
  int64_t offset;
} epg_pointer;

/* A tensor that a kernel copies by boxes: a CUtensorMap in its parameters, encoded for each run.
 * The innermost dimension comes first, and is contiguous. */
enum { EPG_MAP_RANK = 4 };
typedef struct {
  epg_pointer pointer; /* at: the map's place */
  int32_t type, rank;  /* type: CUtensorMapDataType */
  uint64_t sizes[EPG_MAP_RANK];
  uint64_t strides[EPG_MAP_RANK - 1]; /* in bytes, from the second dimension on */
  uint32_t box[EPG_MAP_RANK];
} epg_tensor_map;

typedef struct {
  epg_function function; /* NULL: there is no such form */
  uint32_t grid[3], block[3];
  uint32_t shared; /* bytes of dynamic shared memory */
  uint32_t param_bytes, num_pointers, num_maps;
  /* whether its blocks may start before the step before it ends, for which the kernel itself waits
   * (intrinsics.cuh) */
  int32_t early;
  /* places in params of the run's parameters (doubles) and accumulate (int32); -1 for none */
  int32_t parameters, accumulate;
  const uint8_t *params;
  const epg_pointer *pointers;
  const epg_tensor_map *maps;
} epg_launch;

enum { EPG_ALGORITHM_BYTES = 64, EPG_MATRICES = 3 };

/* One of cuBLASLt's algorithms, cublasLtMatmulAlgo_t, with the bytes of workspace that it needs. */
typedef struct {
  uint8_t algorithm[EPG_ALGORITHM_BYTES];
  uint64_t workspace;
} epg_algorithm;

enum { EPG_NEVER, EPG_IF_ACCUMULATING, EPG_ALWAYS };

/* A product in cuBLASLt's terms, column-major: D = op(A) op(B) (+ D). From epg_matmul_create. */
typedef struct {
  void *desc, *layouts[EPG_MATRICES]; /* A, B, D */
  void *lock;
  epg_pointer pointers[EPG_MATRICES], bias, scratch;
  /* where a bias of so many bytes is copied to unless it starts at a multiple of 16 bytes: cuBLASLt
   * takes that for granted, and has no preference for it */
  epg_pointer aligned_bias;
  uint64_t bias_bytes;
  /* adds: in which runs D is added to, EPG_NEVER and so on */
  int32_t has_bias, is_double, adds, tuned;
  /* for addresses that are multiples of 16 bytes, and for any */
  epg_algorithm choices[2];
} epg_matmul;

/* What a product is made of. */
typedef struct {
  int32_t dtype, result, compute, scale; /* cudaDataType_t, result: D's; cublasComputeType_t */
  int32_t transpose[2];
  uint64_t rows[EPG_MATRICES], columns[EPG_MATRICES];
  /* sizes that the algorithm is chosen for */
  uint64_t chosen_rows[EPG_MATRICES], chosen_columns[EPG_MATRICES];
  int64_t leading[EPG_MATRICES], batch_stride[EPG_MATRICES];
  int32_t batch, has_bias, reduction_mask, tune; /* tune: time the candidates */
  uint32_t element, result_element;              /* bytes */
  uint32_t alignment;                            /* bytes, that addresses mostly have */
  uint64_t most_workspace;
  const epg_algorithm *known; /* a choice made before, or NULL */
} epg_matmul_problem;

/* Where a product's memory is. */
typedef struct {
  uint64_t matrices[EPG_MATRICES], bias, scratch;
} epg_matmul_addresses;

int epg_matmul_enqueue(const epg_device *device, epg_matmul *matmul, const epg_algorithm *choice, const epg_matmul_addresses *at, int accumulate, void *stream,
                       epg_failure *failure);
int epg_matmul_create(const epg_device *device, const epg_matmul_problem *problem, epg_matmul *matmul, epg_failure *failure);
void epg_matmul_destroy(epg_matmul *matmul);

enum { EPG_ACCUMULATING = 1, EPG_OVERWRITING = 2, EPG_BOXABLE = 4, EPG_NOT_BOXABLE = 8 };

typedef struct {
  enum { EPG_LAUNCH, EPG_MATMUL, EPG_FILL } kind;
  /* which runs leave the step out: a bit for each of what a run can be */
  uint32_t unless;
  epg_launch vector, general;
  epg_matmul matmul;
  epg_pointer fill; /* zeros, for fill_bytes */
  uint64_t fill_bytes;
} epg_step;

/* The steps of a problem on a device. */
typedef struct {
  epg_program program; /* first: what others know of it */
  const epg_device *device;
  epg_step *steps;
  int32_t count;
} epg_cuda_program;

/* What candidates are timed with. */
enum { EPG_MOST_CANDIDATES = 8, EPG_BENCH_BUFFERS = 25 };
typedef struct {
  void *stream, *start, *end; /* two events */
  uint64_t owned[EPG_BENCH_BUFFERS];
  int num_owned;
} epg_bench;

/* Enqueues a candidate; returns 0, or something else if that failed. */
typedef int (*epg_candidate)(void *self, int which, void *stream);

/* A bench is closed however opening it ended. What is allocated is full of small numbers, and is
 * the bench's to free; at most EPG_BENCH_BUFFERS times. */
int epg_bench_open(epg_bench *bench, epg_failure *failure);
int epg_bench_allocate(epg_bench *bench, uint64_t bytes, uint64_t *address, epg_failure *failure);
void epg_bench_close(epg_bench *bench);
/* The fastest of at most EPG_MOST_CANDIDATES, measured in turns: each runs every one for about so
 * many milliseconds, and its best turn counts; -1 where none runs. */
int epg_bench_fastest(epg_bench *bench, epg_candidate run, void *self, int count, float milliseconds);

/* Makes a program of steps, which are the program's to free. */
epg_cuda_program *epg_cuda_program_create(const epg_device *device, int32_t count);
void epg_cuda_program_destroy(epg_cuda_program *program);
/* Which of some programs for one problem is the fastest, whose operands and workspace have so many
 * bytes; -1 where there is no memory to time them with, or none runs. */
int epg_cuda_fastest(epg_cuda_program *const *programs, int count, const uint64_t *operand_bytes, int operands, uint64_t workspace_bytes);

#endif
