/* Timing candidates, for tuning: in memory of their own, on a stream of their own. */
#include <math.h>
#include <string.h>

#include "libraries.h"

int epg_bench_open(epg_bench *b, epg_failure *failure) {
  enum { NON_BLOCKING = 1 };
  memset(b, 0, sizeof *b);
  DRIVER(cuStreamCreate, &b->stream, NON_BLOCKING);
  DRIVER(cuEventCreate, &b->start, 0);
  DRIVER(cuEventCreate, &b->end, 0);
  return 0;
}

int epg_bench_allocate(epg_bench *b, uint64_t bytes, uint64_t *address, epg_failure *failure) {
  enum { PATTERN = 0x3c }; /* small normal numbers in every dtype */
  if (!bytes) return 0;
  DRIVER(cuMemAlloc, address, bytes);
  b->owned[b->num_owned++] = *address;
  DRIVER(cuMemsetD8Async, *address, PATTERN, bytes, b->stream);
  return 0;
}

void epg_bench_close(epg_bench *b) {
  if (b->stream) epg_driver.cuStreamSynchronize(b->stream);
  for (int i = 0; i < b->num_owned; i++) epg_driver.cuMemFree(b->owned[i]);
  if (b->start) epg_driver.cuEventDestroy(b->start);
  if (b->end) epg_driver.cuEventDestroy(b->end);
  if (b->stream) epg_driver.cuStreamDestroy(b->stream);
}

/* Times `calls` runs of a candidate; a candidate that does not run is slower than all. */
static float milliseconds(epg_bench *b, epg_candidate run, void *self, int which, int calls) {
  float elapsed = 0;
  int failed = epg_driver.cuEventRecord(b->start, b->stream);
  for (int i = 0; i < calls && !failed; i++) failed = run(self, which, b->stream);
  if (failed || epg_driver.cuEventRecord(b->end, b->stream) || epg_driver.cuStreamSynchronize(b->stream) ||
      epg_driver.cuEventElapsedTime(&elapsed, b->start, b->end))
    return INFINITY;
  return elapsed;
}

int epg_bench_fastest(epg_bench *b, epg_candidate run, void *self, int count, float round) {
  enum { ROUNDS = 5, MOST_CALLS_IN_A_MILLISECOND = 50 };
  const float most = MOST_CALLS_IN_A_MILLISECOND * round;
  float best[EPG_MOST_CANDIDATES];
  int calls[EPG_MOST_CANDIDATES], winner = 0;
  for (int turn = 0; turn <= ROUNDS; turn++)
    for (int i = 0; i < count; i++) {
      if (!turn) { /* the first warms up and tells how many calls are a round */
        milliseconds(b, run, self, i, 1);
        best[i] = milliseconds(b, run, self, i, 1);
        calls[i] = (int)fmaxf(1, fminf(most, round / best[i]));
        continue;
      }
      if (best[i] < INFINITY) best[i] = fminf(best[i], milliseconds(b, run, self, i, calls[i]) / (float)calls[i]);
    }
  for (int i = 1; i < count; i++)
    if (best[i] < best[winner]) winner = i;
  return best[winner] < INFINITY ? winner : -1;
}
