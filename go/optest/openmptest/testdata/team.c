/* Stands in for PyTorch and its OpenMP runtime in tests: a team of threads that live as long as one
 * call, as many as are asked for or as TEAM says. */
#include <pthread.h>
#include <stdlib.h>

enum { MOST = 64, TOO_MANY = 4096 };

typedef struct {
  void (*member)(void *);
  void *data;
} call;

static void *start(void *argument) {
  call *c = argument;
  c->member(c->data);
  return 0;
}

void GOMP_parallel(void (*member)(void *), void *data, unsigned threads, unsigned flags);

void GOMP_parallel(void (*member)(void *), void *data, unsigned threads, unsigned flags) {
  (void)flags;
  pthread_t others[MOST];
  unsigned started = 0;
  const char *size = getenv("TEAM");
  if (size) threads = (unsigned)atoi(size);
  if (threads > TOO_MANY) abort(); /* a runtime would try */
  call c = {member, data};
  while (started < MOST && started + 1 < threads && pthread_create(&others[started], 0, start, &c) == 0) started++;
  member(data);
  while (started > 0) pthread_join(others[--started], 0);
}
