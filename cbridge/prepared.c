/* Prepared calls: calls of one geometry, which share a kernel. C checks what may differ between
 * them. It runs the kernel's program, or has Go run a kernel that has none. */
#include <stdatomic.h>

#include "_cgo_export.h"
#include "bridge.h"

static _Atomic uint64_t generation = 1;

uint64_t epg_prepared_generation(void) { return generation; }

void epg_prepared_next_generation(void) { generation++; }

int32_t epg_prepare(const epg_call *call, epg_prepared *prepared) {
  *prepared = (epg_prepared){.generation = generation};
  return epg_forked() ? epg_refuse_forked() : epgGoPrepare((epg_call *)call, prepared);
}

void epg_prepared_release(epg_prepared *prepared) {
  if (prepared->kernel && !epg_forked()) epgGoRelease(prepared->kernel);
  prepared->program = NULL;
  prepared->kernel = 0;
}

/* The address of a tensor's first element, 0 for none; -1 where it is not what Go accepts. */
static int base_of(const DLTensor *t, uint64_t *base) {
  *base = 0;
  if (!t) return 0;
  *base = (uint64_t)(uintptr_t)t->data + t->byte_offset;
  return t->data && *base % (t->dtype.bits / 8) == 0 ? 0 : -1;
}

int32_t epg_prepared_run(const epg_prepared *prepared, const epg_call *call) {
  if (epg_forked()) return epg_refuse_forked();
  uint64_t bases[EPG_MAX_INPUTS + EPG_MAX_OUTPUTS];
  const int inputs = prepared->num_inputs, all = inputs + call->num_outputs;
  if (!prepared->kernel || call->num_inputs > inputs || call->num_outputs > EPG_MAX_OUTPUTS) return -1;
  if (prepared->workspace_nbytes &&
      (call->workspace_nbytes < prepared->workspace_nbytes || (uintptr_t)call->workspace % prepared->workspace_alignment || !call->workspace))
    return -1;
  for (int i = 0; i < all; i++) {
    const DLTensor *input = i < call->num_inputs ? call->inputs[i] : NULL;
    if (base_of(i < inputs ? input : call->outputs[i - inputs], &bases[i])) return -1;
  }
  epg_run_arguments arguments = {
      .workspace = (uint64_t)(uintptr_t)call->workspace,
      .stream = (uint64_t)(uintptr_t)call->stream,
      .accumulate = (call->flags & EPG_ACCUMULATE) != 0,
      .threads = call->num_threads,
  };
  const double *parameters = prepared->num_parameters ? prepared->parameters : call->parameters;
  const int count = prepared->num_parameters ? prepared->num_parameters : call->num_parameters;
  for (int i = 0; i < count && i < EPG_MOST_PARAMETERS; i++) arguments.parameters[i] = parameters[i];
  if (!prepared->program) return epgGoRunPrepared(prepared->kernel, bases, all, &arguments);
  epg_failure failure;
  return prepared->program->run(prepared->program, bases, &arguments, &failure) ? epgGoFailed((char *)prepared->program->backend, &failure) : EPG_OK;
}
