/* What calls of one geometry have in common, remembered between them. */
#ifndef EPG_GEOMETRY_H
#define EPG_GEOMETRY_H

#include "bridge.h"

/* Of go/tensor (Meta): a device type for tensors that have a geometry and no memory. */
enum { META_DEVICE = -1, MAX_INPUTS = EPG_MAX_INPUTS, MAX_OUTPUTS = EPG_MAX_OUTPUTS, MAX_TENSORS = MAX_INPUTS + MAX_OUTPUTS };

/* A call and room for what it points to. */
typedef struct {
  epg_call call;
  const DLTensor *inputs[MAX_INPUTS];
  DLTensor *outputs[MAX_OUTPUTS];
  DLTensor tensors[MAX_TENSORS];
  double parameters[EPG_MOST_PARAMETERS];
  /* each tensor's, where its framework has none to point to: too much for a small stack */
  int64_t (*sizes)[2 * EPG_MAX_RANK];
} call_arguments;

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

/* Writes a call's key and, where its geometry is remembered, that. Returns whether it is. `wanted`
 * has a flag for each of MAX_OUTPUTS outputs. */
int epg_geometry_find(const call_arguments *a, const uint8_t *wanted, memo_key *key, geometry *g);
/* Asks Go for a geometry, and remembers it under the key; returns a status. */
int32_t epg_geometry_infer(const call_arguments *a, const uint8_t *wanted, const memo_key *key, geometry *g);
void epg_geometry_forget_all(void);

/* Runs a call that is complete, by the kernel that is held for its geometry where there is one;
 * returns a status. Go runs a key of NULL, which is for outputs that may overlap something. */
int32_t epg_geometry_run(const call_arguments *a, const memo_key *key);
/* How many calls a held kernel has run, how many of them C has run alone, and how often Go was
 * asked for a call's outputs. */
uint64_t epg_runs_prepared(void);
uint64_t epg_runs_alone(void);
uint64_t epg_inferred(void);

#endif
