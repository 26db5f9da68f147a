/* What the C files of the bridge share with its Go half and with the extension: facts of the
 * operations, the last error, fork(), prepared calls. */
#ifndef EPG_BRIDGE_H
#define EPG_BRIDGE_H

#include "epigrad.h"
#include "program.h"

/* What C has to know of an operation, from its row in go/op. */
typedef struct {
  /* Each ends with a null: PyTorch's schema of its operator; that with adapters, "" for none. */
  char name[48], schema[1024], adapted[1024];
  int32_t multiplies; /* it has a product of matrices: EPG_ALLOW_TF32 */
  int32_t factor;     /* a number may stand for an operand: each call has another */
  int32_t keeps;      /* an epg_kept */
  int32_t own_inputs; /* how many come before the adapters */
  /* Of each output: the input that it is the gradient of, or -1; and that whose dtype it has. */
  int32_t gradient_of[EPG_MAX_OUTPUTS], like[EPG_MAX_OUTPUTS];
} epg_operation;

/* What backward needs of a forward's preactivation: nothing; the slope, which may be constant; or
 * follow from the output; or the hidden activation too. */
typedef enum { EPG_KEEPS_NOTHING, EPG_KEEPS_SLOPE, EPG_KEEPS_OUTPUT, EPG_KEEPS_HIDDEN } epg_kept;

/* The operations, in the order of go/op; none in a forked child. */
const epg_operation *epg_operations(int32_t *count);

/* The operation of a name; NULL for none, for no name, and in a forked child. */
const epg_operation *epg_operation_of(const char *name);

/* What the slope of an activation depends on: the preactivation; nothing, as of "none"; the output,
 * or the preactivation. That of an unknown name depends on the preactivation. */
typedef enum { EPG_SLOPE_OF_PREACTIVATION, EPG_SLOPE_OF_NOTHING, EPG_SLOPE_OF_OUTPUT } epg_slope;

/* A name of an activation whose slope needs no preactivation. */
typedef struct {
  char name[32]; /* ends with a null */
  epg_slope slope;
} epg_named_slope;

epg_slope epg_slope_of(const char *activation);

void epg_set_last_error(const char *text, size_t length, int64_t needed, int64_t got);

/* Records the failure of a call in a forked child and returns its status. */
int32_t epg_refuse_forked(void);

/* A prepared call: the kernel that calls of one geometry share (prepared.c). C runs the kernel's
 * program where it has one, which saves the way into Go. */
typedef struct {
  uintptr_t kernel;           /* 0: none, each call is Go's to check */
  const epg_program *program; /* the kernel's; NULL: it is Go's to run */
  uint64_t generation;        /* epg_prepared_generation() when it was chosen */
  uint64_t workspace_nbytes;  /* what it needs, and from a multiple of what */
  uint64_t workspace_alignment;
  int32_t num_inputs;     /* of the operation: trailing ones may be absent in the call */
  int32_t num_parameters; /* of the kernel's formula; 0: they are the call's */
  double parameters[EPG_MOST_PARAMETERS];
} epg_prepared;

/* Prepares calls of the geometry of one that would run. */
int32_t epg_prepare(const epg_call *call, epg_prepared *prepared);
void epg_prepared_release(epg_prepared *prepared);
/* Runs a call of that geometry, whose outputs are new memory; returns a status, or -1, and has done
 * nothing, where only epg_run can say what is wrong. */
int32_t epg_prepared_run(const epg_prepared *prepared, const epg_call *call);
/* The generation grows when calls may get other kernels than before: what an older one prepared is
 * out of date. */
uint64_t epg_prepared_generation(void);
void epg_prepared_next_generation(void);

#endif
