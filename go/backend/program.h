/* A kernel that needs nothing of Go once it is chosen: a program that C starts by itself
 * (Programmed in backend.go). */
#ifndef EPG_PROGRAM_H
#define EPG_PROGRAM_H

#include <stdint.h>

/* A failed call of a device's library: which one, its code, and what the library says of it. */
typedef struct {
  int32_t code; /* 0: none */
  char call[64], name[96], text[256];
} epg_failure;

/* The most parameters of a kind (go/activation). */
enum { EPG_MOST_PARAMETERS = 4 };

/* What a run brings; all addresses are the device's. Threads are the host's, 0 for as many as the
 * backend likes. */
typedef struct {
  uint64_t workspace, stream;
  double parameters[EPG_MOST_PARAMETERS];
  int32_t accumulate, threads;
} epg_run_arguments;

typedef struct epg_program {
  const char *backend; /* its name, for messages */
  /* Enqueues the program on a stream; `bases` are the operands' addresses, inputs before outputs.
   * Returns 0, or -1 with what failed. Any thread may call it. */
  int (*run)(const struct epg_program *program, const uint64_t *bases, const epg_run_arguments *arguments, epg_failure *failure);
} epg_program;

#endif
