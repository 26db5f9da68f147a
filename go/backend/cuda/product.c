/* Products by cuBLASLt: what it is asked for, and which of its algorithms is taken. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "libraries.h"

/* cublasLtMatmulHeuristicResult_t */
typedef struct {
  uint64_t algorithm[EPG_ALGORITHM_BYTES / 8];
  size_t workspace;
  int32_t state;
  float waves;
  int32_t reserved[4];
} heuristic;

enum { LAYOUT_BATCH_COUNT = 5, LAYOUT_BATCH_STRIDE = 6 };
enum { DESC_TRANSPOSE_A = 3, DESC_TRANSPOSE_B = 4, DESC_EPILOGUE = 7, DESC_BIAS_POINTER = 8 };
enum { PREFERENCE_WORKSPACE = 1, PREFERENCE_REDUCTION = 3, PREFERENCE_ALIGNMENT_A = 5, PREFERENCE_ALIGNMENT_D = 8 };
enum { EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4 };

/* The heuristic's choices for layouts and for addresses of an alignment, best first; returns how
 * many, or -1. */
static int candidates(const epg_device *d, const epg_matmul_problem *p, const epg_matmul *m, void *const *l, uint32_t alignment, int wanted, heuristic *found,
                      epg_failure *failure) {
  enum { NOT_SUPPORTED = 15 };
  void *preference = NULL;
  int count = 0, status = epg_blas_library.cublasLtMatmulPreferenceCreate(&preference);
  const uint32_t mask = (uint32_t)p->reduction_mask;
  if (!status) status = epg_blas_library.cublasLtMatmulPreferenceSetAttribute(preference, PREFERENCE_WORKSPACE, &p->most_workspace, sizeof p->most_workspace);
  if (!status) status = epg_blas_library.cublasLtMatmulPreferenceSetAttribute(preference, PREFERENCE_REDUCTION, &mask, sizeof mask);
  for (int attribute = PREFERENCE_ALIGNMENT_A; !status && attribute <= PREFERENCE_ALIGNMENT_D; attribute++)
    status = epg_blas_library.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment, sizeof alignment);
  if (!status) status = epg_blas_library.cublasLtMatmulAlgoGetHeuristic(d->blas, m->desc, l[0], l[1], l[2], l[2], preference, wanted, found, &count);
  if (preference) epg_blas_library.cublasLtMatmulPreferenceDestroy(preference);
  if (status || !count) return epg_fail_blas(failure, "cublasLtMatmulAlgoGetHeuristic", status ? status : NOT_SUPPORTED);
  return count;
}

static void take(epg_algorithm *choice, const heuristic *from) {
  memcpy(choice->algorithm, from->algorithm, EPG_ALGORITHM_BYTES);
  choice->workspace = from->workspace;
}

int epg_matmul_enqueue(const epg_device *d, epg_matmul *m, const epg_algorithm *choice, const epg_matmul_addresses *at, int accumulate, void *stream,
                       epg_failure *failure) {
  static const float floats[] = {0, 1};
  static const double doubles[] = {0, 1};
  const void *one = m->is_double ? (const void *)&doubles[1] : &floats[1];
  const void *beta = m->is_double ? (const void *)&doubles[accumulate] : &floats[accumulate];
  int status = 0;
  if (m->has_bias) {
    /* the descriptor holds the bias's address until the call has read it */
    pthread_mutex_lock(m->lock);
    status = epg_blas_library.cublasLtMatmulDescSetAttribute(m->desc, DESC_BIAS_POINTER, &at->bias, sizeof at->bias);
  }
  const void *a = (const void *)(uintptr_t)at->matrices[0], *b = (const void *)(uintptr_t)at->matrices[1];
  void *out = (void *)(uintptr_t)at->matrices[2], *scratch = (void *)(uintptr_t)at->scratch;
  void *const *l = m->layouts;
  if (!status)
    status = epg_blas_library.cublasLtMatmul(d->blas, m->desc, one, a, l[0], b, l[1], beta, out, l[2], out, l[2], choice->algorithm, scratch, choice->workspace,
                                             stream);
  if (m->has_bias) pthread_mutex_unlock(m->lock);
  return status ? epg_fail_blas(failure, "cublasLtMatmul", status) : 0;
}

/* --- tuning --------------------------------------------------------------------------------- */

/* The candidates of a product, and where they compute. */
typedef struct {
  const epg_device *device;
  epg_matmul *matmul;
  const heuristic *found;
  epg_matmul_addresses at;
} contest;

static int run_candidate(void *self, int which, void *stream) {
  const contest *c = self;
  epg_algorithm choice;
  epg_failure ignored;
  take(&choice, &c->found[which]);
  return epg_matmul_enqueue(c->device, c->matmul, &choice, &c->at, 0, stream, &ignored);
}

static int allocate(epg_bench *b, const epg_matmul_problem *p, epg_matmul_addresses *at, epg_failure *failure) {
  for (int i = 0; i < EPG_MATRICES; i++) {
    const uint64_t one = (uint64_t)p->leading[i] * (p->columns[i] - 1) + p->rows[i];
    const uint64_t all = one + (uint64_t)(p->batch - 1) * (uint64_t)p->batch_stride[i];
    if (epg_bench_allocate(b, all * (i < 2 ? p->element : p->result_element), &at->matrices[i], failure)) return -1;
  }
  if (epg_bench_allocate(b, p->most_workspace, &at->scratch, failure)) return -1;
  return p->has_bias ? epg_bench_allocate(b, p->rows[2] * p->element, &at->bias, failure) : 0;
}

/* Returns 1 if the choice was timed, 0 if there was nothing to choose, no memory to time with or no
 * candidate that runs: then it is the heuristic's. */
static int tune(const epg_device *d, const epg_matmul_problem *p, epg_matmul *m, const heuristic *found, int count) {
  const float round = 1;
  contest c = {.device = d, .matmul = m, .found = found};
  epg_bench b;
  epg_failure ignored;
  if (count < 2) return 0;
  const int mode = epg_relax_capture();
  const int opened = !epg_bench_open(&b, &ignored) && !allocate(&b, p, &c.at, &ignored);
  const int winner = opened ? epg_bench_fastest(&b, run_candidate, &c, count, round) : -1;
  epg_bench_close(&b);
  epg_restore_capture(mode);
  if (winner < 0) return 0;
  take(&m->choices[0], &found[winner]);
  return 1;
}

/* --- making one ----------------------------------------------------------------------------- */

static void destroy_layouts(void *const *layouts) {
  for (int i = 0; i < EPG_MATRICES; i++)
    if (layouts[i]) epg_blas_library.cublasLtMatrixLayoutDestroy(layouts[i]);
}

/* Describes a problem's matrices with these sizes; returns cuBLASLt's status. */
static int make_layouts(const epg_matmul_problem *p, const uint64_t *rows, const uint64_t *columns, void **layouts) {
  int status = 0;
  for (int i = 0; !status && i < EPG_MATRICES; i++) {
    const int32_t type = i < 2 ? p->dtype : p->result;
    const int64_t leading = p->leading[i] < (int64_t)rows[i] ? (int64_t)rows[i] : p->leading[i];
    status = epg_blas_library.cublasLtMatrixLayoutCreate(&layouts[i], type, rows[i], columns[i], leading);
    if (status || p->batch == 1) continue;
    status = epg_blas_library.cublasLtMatrixLayoutSetAttribute(layouts[i], LAYOUT_BATCH_COUNT, &p->batch, sizeof p->batch);
    if (!status) status = epg_blas_library.cublasLtMatrixLayoutSetAttribute(layouts[i], LAYOUT_BATCH_STRIDE, &p->batch_stride[i], sizeof p->batch_stride[i]);
  }
  return status;
}

/* Chooses the algorithms of a product, whose sizes these layouts may have others of. */
static int choose(const epg_device *d, const epg_matmul_problem *p, epg_matmul *m, void *const *layouts, epg_failure *failure) {
  heuristic found[EPG_MOST_CANDIDATES];
  if (candidates(d, p, m, layouts, p->element, 1, found, failure) < 0) return -1;
  take(&m->choices[1], &found[0]);
  if (p->known) {
    m->choices[0] = *p->known;
    return 0;
  }
  const int count = candidates(d, p, m, layouts, p->alignment, p->tune ? EPG_MOST_CANDIDATES : 1, found, failure);
  if (count < 0) return -1;
  take(&m->choices[0], &found[0]);
  m->tuned = p->tune && tune(d, p, m, found, count);
  return 0;
}

static int describe(const epg_device *d, const epg_matmul_problem *p, epg_matmul *m, epg_failure *failure) {
  const int32_t epilogue = p->has_bias ? EPILOGUE_BIAS : EPILOGUE_DEFAULT;
  int status = epg_blas_library.cublasLtMatmulDescCreate(&m->desc, p->compute, p->scale);
  if (!status) status = epg_blas_library.cublasLtMatmulDescSetAttribute(m->desc, DESC_TRANSPOSE_A, &p->transpose[0], sizeof p->transpose[0]);
  if (!status) status = epg_blas_library.cublasLtMatmulDescSetAttribute(m->desc, DESC_TRANSPOSE_B, &p->transpose[1], sizeof p->transpose[1]);
  if (!status) status = epg_blas_library.cublasLtMatmulDescSetAttribute(m->desc, DESC_EPILOGUE, &epilogue, sizeof epilogue);
  if (!status) status = make_layouts(p, p->rows, p->columns, m->layouts);
  void *chosen[EPG_MATRICES] = {NULL};
  if (!status) status = make_layouts(p, p->chosen_rows, p->chosen_columns, chosen);
  const int failed = status ? epg_fail_blas(failure, "cublasLtMatmulDescCreate", status) : choose(d, p, m, chosen, failure);
  destroy_layouts(chosen);
  return failed;
}

int epg_matmul_create(const epg_device *d, const epg_matmul_problem *p, epg_matmul *m, epg_failure *failure) {
  m->has_bias = p->has_bias;
  m->is_double = p->element == sizeof(double);
  if (p->has_bias) {
    if (!(m->lock = malloc(sizeof(pthread_mutex_t)))) return epg_fail(failure, "malloc", 2, "out of memory", "");
    pthread_mutex_init(m->lock, NULL);
  }
  const int entered = epg_enter(d, failure);
  if (entered < 0) return -1;
  const int failed = describe(d, p, m, failure);
  epg_leave(entered);
  return failed;
}

void epg_matmul_destroy(epg_matmul *m) {
  destroy_layouts(m->layouts);
  if (m->desc) epg_blas_library.cublasLtMatmulDescDestroy(m->desc);
  if (m->lock) {
    pthread_mutex_destroy(m->lock);
    free(m->lock);
  }
}
