/* The outputs that a call makes, and the call itself. */
#include "launch.h"

static void *leave(const epg_framework *f) { return f->leave ? f->leave() : NULL; }

static void enter(const epg_framework *f, void *left) {
  if (f->enter) f->enter(left);
}

/* Asks Go for a geometry. */
static int32_t infer(const call_arguments *a, const uint8_t *wanted, const epg_framework *f, const memo_key *key, geometry *g) {
  void *left = leave(f);
  const int32_t status = epg_geometry_infer(a, wanted, key, g);
  enter(f, left);
  return status;
}

/* Whether input i is an adapter that is float32 beside half types. What Go refuses is none. */
static int is_wide_adapter(const call_arguments *a, int i) {
  const DLTensor *first = a->inputs[0], *t = a->inputs[i];
  if (!t || t->dtype.code != kDLFloat || t->dtype.bits != 32 || !first || first->dtype.bits != 16) return 0;
  if (t->ndim > EPG_MAX_RANK || first->device.device_type == kDLWebGPU) return 0;
  const epg_operation *o = epg_operation_of(a->call.op);
  return o && i >= o->own_inputs;
}

/* Gives adapters the first input's dtype, and no other memory. */
static void describe_rounded(call_arguments *a) {
  for (int i = 0; i < a->call.num_inputs; i++)
    if (is_wide_adapter(a, i)) a->tensors[i].dtype = a->inputs[0]->dtype;
}

int32_t epg_launch_infer(call_arguments *a, const uint8_t *wanted, const epg_framework *f, geometry *g) {
  memo_key key;
  describe_rounded(a);
  return epg_geometry_find(a, wanted, &key, g) ? EPG_OK : infer(a, wanted, f, &key, g);
}

/* Whether a tensor is a matrix, or a dense row of matrices, whose columns are contiguous. */
static int lies_transposed(const DLTensor *t) {
  const int d = t->ndim - 2; /* of the matrix's rows */
  if (d < 0 || d > 1 || t->shape[d] < 2 || t->shape[d + 1] < 2) return 0;
  return t->strides[d] == 1 && t->strides[d + 1] == t->shape[d] && (!d || t->strides[0] == t->shape[1] * t->shape[2]);
}

/* Whether an output is the gradient of a weight that is transposed, dense. It gets the weight's
 * layout then, in which PyTorch keeps a parameter's gradient: GPT-2's Conv1D layers have such
 * weights, and gpt-oss's experts. python/epigrad/ops/operator.py has the same rule. The first
 * output is the input's gradient. Arrays are no tensors, and have no gradients to keep. */
static int is_transposed_gradient(const call_arguments *a, const epg_operation *o, int output) {
  const int input = output && o && o->multiplies ? o->gradient_of[output] : -1;
  const DLTensor *weight = input >= 0 && input < a->call.num_inputs ? a->inputs[input] : NULL;
  return weight && lies_transposed(weight) && weight->device.device_type != kDLWebGPU;
}

/* A new tensor with the dtype of an input, whose matrices may lie transposed. */
static void *new_tensor(const epg_framework *f, int like, const int64_t *sizes, int32_t rank, int transposed, DLTensor *t) {
  int64_t strides[EPG_MAX_RANK], next = 1;
  for (int32_t d = rank - 1; d >= 0; d--) {
    strides[d] = next;
    next *= sizes[d] > 1 ? sizes[d] : 1;
  }
  if (transposed) {
    strides[rank - 2] = 1;
    strides[rank - 1] = sizes[rank - 2];
  }
  return f->make(f->self, like, sizes, strides, rank, t);
}

/* Rounds adapters to the first input's dtype, into tensors that become the call's; returns how
 * many, or -1 where the framework failed. */
static int round_adapters(call_arguments *a, const epg_framework *f, void **rounded) {
  int count = 0;
  for (int i = 0; i < a->call.num_inputs; i++) {
    if (!is_wide_adapter(a, i)) continue;
    const DLTensor wide = a->tensors[i];
    const DLDevice device = a->inputs[0]->device;
    a->tensors[i].dtype = a->inputs[0]->dtype;
    /* another device is Go's to refuse */
    if (device.device_type == META_DEVICE || device.device_type != wide.device.device_type || device.device_id != wide.device.device_id) continue;
    rounded[i] = new_tensor(f, 0, wide.shape, wide.ndim, lies_transposed(&wide), &a->tensors[i]);
    if (!rounded[i] || f->copy(f->self, i, rounded[i])) return -1;
    count++;
  }
  return count;
}

/* Makes the outputs that exist and are not given; they join the call's. */
static int make_outputs(call_arguments *a, const geometry *g, int places, const epg_framework *f, void **tensors) {
  const int from = a->call.num_outputs;
  const epg_operation *o = epg_operation_of(a->call.op);
  a->call.outputs = a->outputs;
  a->call.num_outputs = places;
  for (int i = 0; i < places; i++) {
    if (i >= from) a->outputs[i] = NULL;
    if (a->outputs[i] || g->ranks[i] < 0) continue;
    const int64_t *sizes = &g->sizes[i * EPG_MAX_RANK];
    tensors[i] = new_tensor(f, o ? o->like[i] : 0, sizes, g->ranks[i], is_transposed_gradient(a, o, i), &a->tensors[MAX_INPUTS + i]);
    if (!tensors[i]) return -1;
    a->outputs[i] = &a->tensors[MAX_INPUTS + i];
  }
  return 0;
}

/* The address of a tensor's lowest element, and that behind its highest. */
static void bytes_of(const DLTensor *t, uintptr_t *first, uintptr_t *behind) {
  const int64_t size = t->dtype.bits / 8;
  int64_t below = 0, above = size;
  for (int32_t d = 0; d < t->ndim; d++) {
    const int64_t reach = (t->shape[d] - 1) * t->strides[d] * size;
    *(reach < 0 ? &below : &above) += reach;
  }
  const uintptr_t base = (uintptr_t)t->data + t->byte_offset;
  *first = base + (uintptr_t)below;
  *behind = base + (uintptr_t)above;
}

/* Whether each of the first `given` outputs lies apart from all other tensors. Where one does not,
 * Go says whether they share an element. */
static int lie_apart(const call_arguments *a, int given) {
  const int inputs = a->call.num_inputs, all = inputs + a->call.num_outputs;
  for (int i = 0; i < given; i++) {
    uintptr_t first, behind, other_first, other_behind;
    if (!a->outputs[i]) continue;
    bytes_of(a->outputs[i], &first, &behind);
    for (int j = 0; j < all; j++) {
      const DLTensor *other = j < inputs ? a->inputs[j] : a->outputs[j - inputs];
      if (!other || other == a->outputs[i]) continue;
      bytes_of(other, &other_first, &other_behind);
      if (first < other_behind && other_first < behind) return 0;
    }
  }
  return 1;
}

/* Allocates the workspace that a call needs, with room to align it. */
static void *new_workspace(call_arguments *a, const epg_framework *f, uint64_t nbytes) {
  enum { ALIGNMENT = 256 };
  const int64_t elements = (int64_t)((nbytes + ALIGNMENT) / (a->inputs[0]->dtype.bits / 8)), stride = 1;
  DLTensor t;
  void *tensor = f->make(f->self, 0, &elements, &stride, 1, &t);
  if (!tensor) return NULL;
  const uintptr_t start = (uintptr_t)t.data + t.byte_offset;
  a->call.workspace = (void *)((start + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  a->call.workspace_nbytes = nbytes;
  return tensor;
}

/* Runs a call whose outputs are there, with a workspace for it; key is NULL where they may overlap
 * something. */
static int32_t run(call_arguments *a, const epg_framework *f, const memo_key *key, uint64_t workspace_nbytes) {
  void *workspace = NULL;
  if (workspace_nbytes && !(workspace = new_workspace(a, f, workspace_nbytes))) return EPG_FRAMEWORK_FAILED;
  void *left = leave(f);
  const int32_t status = epg_geometry_run(a, key);
  enter(f, left);
  if (workspace) f->drop(f->self, workspace);
  a->call.workspace = NULL;
  a->call.workspace_nbytes = 0;
  return status;
}

/* Forgets all geometries: one is out of date. */
static void forget(const epg_framework *f) {
  void *left = leave(f);
  epg_geometry_forget_all();
  enter(f, left);
}

int32_t epg_launch(call_arguments *a, const uint8_t *wanted, int places, const epg_framework *f, void **tensors) {
  memo_key key;
  geometry g;
  void *rounded[MAX_INPUTS] = {NULL};
  const int given = a->call.num_outputs;
  int all_new = 1;
  for (int i = 0; i < given; i++) all_new = all_new && !a->outputs[i];
  for (int i = 0; i < places; i++) tensors[i] = NULL;
  const int wide = round_adapters(a, f, rounded);
  int32_t status = wide < 0 ? EPG_FRAMEWORK_FAILED : EPG_OK;
  if (!status && !epg_geometry_find(a, wanted, &key, &g)) status = infer(a, wanted, f, &key, &g);
  if (!status && make_outputs(a, &g, places, f, tensors)) status = EPG_FRAMEWORK_FAILED;
  /* Go has taken the adapters' gradients for half types */
  if (!status && wide && !epg_geometry_find(a, wanted, &key, &g)) status = infer(a, wanted, f, &key, &g);
  if (!status && a->inputs[0]->device.device_type != META_DEVICE) {
    status = run(a, f, all_new || (key.bytes && lie_apart(a, given)) ? &key : NULL, g.workspace_nbytes);
    if (status == EPG_WORKSPACE_TOO_SMALL) {
      /* another algorithm was tuned meanwhile */
      forget(f);
      status = epg_launch_infer(a, wanted, f, &g);
      if (!status) status = run(a, f, NULL, g.workspace_nbytes);
    }
  }
  for (int i = 0; i < a->call.num_inputs; i++)
    if (rounded[i]) f->drop(f->self, rounded[i]);
  for (int i = 0; status && i < places; i++) {
    if (tensors[i]) f->drop(f->self, tensors[i]);
    tensors[i] = NULL;
  }
  return status;
}

int epg_launch_may_use_tf32(const call_arguments *a) {
  const DLTensor *first = a->call.num_inputs ? a->inputs[0] : NULL;
  if (!first || first->device.device_type != kDLCUDA || first->dtype.bits != 32) return 0;
  const epg_operation *o = epg_operation_of(a->call.op);
  return o && o->multiplies;
}
