/* What calls of one geometry have in common, remembered between them. */
#ifndef EPG_PYEXT_GEOMETRY_H
#define EPG_PYEXT_GEOMETRY_H

#include "arguments.h"

/* What epg_infer tells of a call. Sizes come last: most of their room is never touched. */
typedef struct {
  uint64_t workspace_nbytes;
  int32_t ranks[MAX_OUTPUTS]; /* -1: no such output */
  int64_t sizes[MAX_OUTPUTS * EPG_MAX_RANK];
} geometry;

/* All that a geometry follows from; no bytes if that is too long to be kept. */
enum { MEMO_KEY_BYTES = 512 };
typedef struct {
  uint64_t hash;
  uint32_t bytes;
  uint8_t text[MEMO_KEY_BYTES];
} memo_key;

/* Infers a call's outputs; returns how many places `needs` has, or -1 with a Python exception. */
int epg_py_infer_geometry(call_arguments *a, PyObject *needs, memo_key *key, geometry *g);
void epg_py_forget_geometries(void);

/* Runs a call that is complete, by the kernel that is held for its geometry where there is one;
 * returns a status. Go runs a key of NULL, which is for outputs that may overlap something. */
int32_t epg_py_run_remembered(call_arguments *a, const memo_key *key);
/* How many calls a held kernel has run, how many of them C has run alone, and how often Go was
 * asked for a call's outputs. */
uint64_t epg_py_runs_prepared(void);
uint64_t epg_py_runs_alone(void);
uint64_t epg_py_inferred(void);

#endif
