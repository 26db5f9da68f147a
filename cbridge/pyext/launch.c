//go:build pyext

/* The module's infer, launch and recorded: the outputs that a call makes, the call itself, and
 * whether autograd looks at it. */
#include <string.h>

#include "geometry.h"

/* A tuple of sizes, or of strides. */
static PyObject *tuple_of(const int64_t *numbers, int32_t count) {
  PyObject *tuple = PyTuple_New(count);
  for (int32_t d = 0; tuple && d < count; d++) {
    PyObject *number = PyLong_FromLongLong(numbers[d]);
    if (!number || PyTuple_SetItem(tuple, d, number)) Py_CLEAR(tuple);
  }
  return tuple;
}

/* infer(call, inputs, needs) -> (shapes, workspace_bytes) */
PyObject *epg_py_infer(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  call_arguments a;
  memo_key key;
  geometry g;
  if (!epg_py_ready(n, 3)) return NULL;
  epg_py_begin(&a);
  const int read = !epg_py_read_call(&a, args[0]) && !epg_py_read_tensors(&a, args[1], NULL) && !epg_py_read_precision(&a);
  const int places = read ? epg_py_infer_geometry(&a, args[2], &key, &g) : -1;
  epg_py_end(&a);
  if (places < 0) return NULL;
  PyObject *shapes = PyTuple_New(places);
  for (int i = 0; shapes && i < places; i++) {
    PyObject *shape = g.ranks[i] < 0 ? Py_NewRef(Py_None) : tuple_of(&g.sizes[i * EPG_MAX_RANK], g.ranks[i]);
    if (!shape || PyTuple_SetItem(shapes, i, shape)) Py_CLEAR(shapes);
  }
  return shapes ? Py_BuildValue("NK", shapes, (unsigned long long)g.workspace_nbytes) : NULL;
}

/* What makes new tensors like a call's first input, asked for once in a call. */
typedef struct {
  PyObject *like;          /* borrowed */
  PyObject *empty_strided; /* borrowed; NULL: like.new_empty makes them */
  PyObject *dtype;
} maker;

/* Finds the function that the code of torch.compile allocates with. new_empty looks for much that
 * a plain tensor does not have, and takes three times as long. There may be none. On CUDA it
 * allocates on the current device, which may be another than the first input's. Returns 0, or -1
 * with a Python exception. */
static int find_maker(const call_arguments *a, PyObject *like, maker *m) {
  const DLDevice device = a->inputs[0]->device;
  PyObject *function = device.device_type == kDLCPU ? epg_py.empty_strided_cpu : device.device_type == kDLCUDA ? epg_py.empty_strided_cuda : Py_None;
  *m = (maker){.like = like};
  if (function == Py_None) return 0;
  if (device.device_type == kDLCUDA) {
    if (epg_py.current_cuda_device == Py_None) return 0;
    PyObject *current = PyObject_CallNoArgs(epg_py.current_cuda_device);
    const long index = current ? PyLong_AsLong(current) : -1;
    Py_XDECREF(current);
    if (PyErr_Occurred()) return -1;
    if (index != device.device_id) return 0;
  }
  m->empty_strided = function;
  m->dtype = PyObject_GetAttr(like, epg_py.dtype_name);
  return m->dtype ? 0 : -1;
}

/* A new contiguous tensor. */
static PyObject *new_tensor(const maker *m, const int64_t *sizes, int32_t rank) {
  int64_t contiguous[EPG_MAX_RANK], next = 1;
  for (int32_t d = rank - 1; d >= 0; d--) {
    contiguous[d] = next;
    next *= sizes[d] > 1 ? sizes[d] : 1;
  }
  PyObject *shape = tuple_of(sizes, rank), *strides = shape && m->empty_strided ? tuple_of(contiguous, rank) : NULL, *tensor = NULL;
  if (strides)
    tensor = PyObject_CallFunctionObjArgs(m->empty_strided, shape, strides, m->dtype, NULL);
  else if (shape && !m->empty_strided)
    tensor = PyObject_CallMethodObjArgs(m->like, epg_py.new_empty_name, shape, NULL);
  Py_XDECREF(strides);
  Py_XDECREF(shape);
  return tensor;
}

/* Allocates the workspace that a call needs, with room to align it; NULL with an exception. */
static PyObject *new_workspace(call_arguments *a, const maker *m, uint64_t nbytes) {
  enum { ALIGNMENT = 256 };
  const int64_t elements = (int64_t)((nbytes + ALIGNMENT) / (a->inputs[0]->dtype.bits / 8));
  PyObject *tensor = new_tensor(m, &elements, 1);
  DLTensor t;
  if (!tensor || epg_py.exchange->dltensor_from_py_object_no_sync(tensor, &t)) {
    Py_XDECREF(tensor);
    return NULL;
  }
  const uintptr_t start = (uintptr_t)t.data + t.byte_offset;
  a->call.workspace = (void *)((start + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  a->call.workspace_nbytes = nbytes;
  return tensor;
}

/* Asks a tensor a question that takes no arguments: 1, 0, or -1 with a Python exception. */
static int ask(PyObject *tensor, PyObject *question) {
  PyObject *answer = PyObject_CallMethodObjArgs(tensor, question, NULL);
  Py_XDECREF(answer);
  return answer ? answer == Py_True : -1;
}

/* Puts what a method of input i gives in that input's place. Takes the reference to inputs and
 * returns a new one, or NULL with a Python exception. */
static PyObject *replace_input(PyObject *inputs, Py_ssize_t i, PyObject *method) {
  PyObject *tensor = PyObject_CallMethodObjArgs(PyTuple_GetItem(inputs, i), method, NULL), *changed = NULL;
  PyObject *list = tensor ? PySequence_List(inputs) : NULL;
  if (list && !PyList_SetItem(list, i, Py_NewRef(tensor))) changed = PyList_AsTuple(list);
  Py_XDECREF(list);
  Py_XDECREF(tensor);
  Py_DECREF(inputs);
  return changed;
}

/* Materialises tensors that negate on reading: PyTorch's flag, which no DLTensor shows. Returns a
 * new reference. */
static PyObject *resolve_negative(PyObject *inputs) {
  const Py_ssize_t n = PyTuple_Check(inputs) ? PyTuple_Size(inputs) : 0;
  Py_INCREF(inputs);
  for (Py_ssize_t i = 0; inputs && i < n; i++) {
    PyObject *item = PyTuple_GetItem(inputs, i);
    /* epg_py_read_tensor says why not */
    if ((PyObject *)Py_TYPE(item) != epg_py.tensor_type && (PyObject *)Py_TYPE(item) != epg_py.parameter_type) continue;
    const int is_negative = ask(item, epg_py.is_neg_name);
    if (is_negative < 0) Py_CLEAR(inputs);
    if (is_negative > 0) inputs = replace_input(inputs, i, epg_py.resolve_neg_name);
  }
  return inputs;
}

/* Whether a tensor has elements and no memory. */
static int lacks_memory(const DLTensor *t) {
  if (!t || t->data || t->device.device_type == META_DEVICE) return 0;
  for (int32_t d = 0; d < t->ndim; d++)
    if (!t->shape[d]) return 0;
  return 1;
}

/* Reads the inputs, and materialises PyTorch's tensors of zeros without memory, which forward mode
 * makes. Takes the reference to inputs and returns a new one, or NULL with a Python exception. */
static PyObject *read_inputs(call_arguments *a, PyObject *inputs) {
  int changed = 0;
  if (epg_py_read_tensors(a, inputs, NULL)) Py_CLEAR(inputs);
  for (int i = 0; inputs && i < a->call.num_inputs; i++) {
    if (!lacks_memory(a->inputs[i])) continue;
    const int is_zero = ask(PyTuple_GetItem(inputs, i), epg_py.is_zerotensor_name);
    if (is_zero < 0) Py_CLEAR(inputs);
    if (is_zero > 0) inputs = replace_input(inputs, i, epg_py.clone_name);
    changed |= is_zero > 0;
  }
  if (inputs && changed && epg_py_read_tensors(a, inputs, NULL)) Py_CLEAR(inputs);
  return inputs;
}

/* Refuses an output in the memory of an input that was materialised: the call itself reads the
 * copy, and would not see that they overlap. Returns 0, or -1 with a Python exception. */
static int refuse_written_inputs(call_arguments *a, PyObject *original, PyObject *inputs) {
  for (int i = 0; i < a->call.num_inputs; i++) {
    if (PyTuple_GetItem(original, i) == PyTuple_GetItem(inputs, i)) continue;
    if (epg_py_read_tensor(a, PyTuple_GetItem(original, i), i)) return -1;
    if (lacks_memory(a->inputs[i]) && epg_py_read_tensor(a, PyTuple_GetItem(inputs, i), i)) return -1;
  }
  int32_t status;
  a->call.flags |= EPG_ASSUME_WORKSPACE;
  Py_BEGIN_ALLOW_THREADS;
  status = epg_validate(&a->call);
  Py_END_ALLOW_THREADS;
  a->call.flags &= ~(uint32_t)EPG_ASSUME_WORKSPACE;
  if (status) epg_py_raise_last(status);
  return status ? -1 : epg_py_read_tensors(a, inputs, NULL);
}

/* Puts the tensors of `given`, None or a tuple, that are needed among the call's outputs: their
 * strides count for the workspace. */
static int read_given(call_arguments *a, PyObject *needs, PyObject *given) {
  if (given == Py_None) return 0;
  const Py_ssize_t places = PyTuple_Check(needs) ? PyTuple_Size(needs) : -1;
  if (places > MAX_OUTPUTS || !PyTuple_Check(given) || PyTuple_Size(given) != places) {
    PyErr_Format(PyExc_TypeError, "outputs must be None or a tuple with a tensor or None for each of at most %d needs", MAX_OUTPUTS);
    return -1;
  }
  a->call.outputs = a->outputs;
  a->call.num_outputs = (int32_t)places;
  for (int i = 0; i < places; i++) {
    PyObject *output = PyTuple_GetItem(given, i);
    const int needed = PyObject_IsTrue(PyTuple_GetItem(needs, i));
    if (needed < 0) return -1;
    a->outputs[i] = NULL;
    if (!needed || output == Py_None) continue;
    if (epg_py_read_tensor(a, output, MAX_INPUTS + i)) return -1;
    a->outputs[i] = &a->tensors[MAX_INPUTS + i];
  }
  return 0;
}

/* Reads a tensor that was just made like the first input: what that is need not be asked again. */
static int read_new(call_arguments *a, PyObject *tensor, int operand) {
  const int device = a->inputs[0]->device.device_type;
  if (device == META_DEVICE || device == kDLWebGPU) return epg_py_read_tensor(a, tensor, operand);
  return epg_py.exchange->dltensor_from_py_object_no_sync(tensor, &a->tensors[operand]) ? -1 : 0;
}

/* Whether an output is the gradient of a weight that is a transposed matrix, dense. It gets the
 * weight's layout then, in which PyTorch keeps a parameter's gradient: GPT-2's Conv1D layers have
 * such weights. python/epigrad/ops/operator.py has the same rule. Arrays are no tensors, and have
 * no gradients to keep. */
static int is_transposed_gradient(const call_arguments *a, int output) {
  static const char *const operations[] = {"linear_backward", "matmul_bias_activation_backward", "gated_linear_backward", "mlp_backward", "gated_mlp_backward"};
  const DLTensor *weight = output && output + 1 < a->call.num_inputs ? a->inputs[output + 1] : NULL;
  if (!weight || weight->ndim != 2 || weight->strides[0] != 1 || weight->strides[1] != weight->shape[0]) return 0;
  if (weight->shape[0] < 2 || weight->shape[1] < 2 || weight->device.device_type == kDLWebGPU) return 0;
  for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
    if (!strcmp(a->call.op, operations[i])) return 1;
  return 0;
}

/* A new tensor for an output. */
static PyObject *new_output(const call_arguments *a, const maker *m, const int64_t *sizes, int32_t rank, int output) {
  if (!is_transposed_gradient(a, output)) return new_tensor(m, sizes, rank);
  const int64_t exchanged[] = {sizes[1], sizes[0]};
  PyObject *rows = new_tensor(m, exchanged, 2), *tensor = rows ? PyObject_CallMethod(rows, "t", NULL) : NULL;
  Py_XDECREF(rows);
  return tensor;
}

/* Fills `results` with the outputs that were given and with new tensors for the others that exist,
 * which join the call's. */
static int make_outputs(call_arguments *a, const geometry *g, const maker *m, PyObject *given, PyObject *results) {
  const int places = (int)PyTuple_Size(results), from = a->call.num_outputs;
  for (int i = 0; i < places; i++) {
    PyObject *output = i < from && a->outputs[i] ? PyTuple_GetItem(given, i) : Py_None;
    if (i >= from) a->outputs[i] = NULL;
    if (output == Py_None && g->ranks[i] >= 0) {
      if (!(output = new_output(a, m, &g->sizes[i * EPG_MAX_RANK], g->ranks[i], i))) return -1;
      if (read_new(a, output, MAX_INPUTS + i)) {
        Py_DECREF(output);
        return -1;
      }
      a->outputs[i] = &a->tensors[MAX_INPUTS + i];
    } else {
      Py_INCREF(output);
    }
    if (PyTuple_SetItem(results, i, output)) return -1;
  }
  a->call.outputs = a->outputs;
  a->call.num_outputs = places;
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

/* Whether each of so many outputs, some of which were given, lies apart from all other tensors.
 * Where one does not, Go says whether they share an element. */
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

/* Runs a call whose outputs are there, with a workspace for it; key is NULL where they may overlap
 * something. */
static int32_t run_inferred(call_arguments *a, const maker *m, const memo_key *key, uint64_t workspace_nbytes) {
  PyObject *workspace = NULL;
  if (workspace_nbytes && !(workspace = new_workspace(a, m, workspace_nbytes))) return -1;
  const int32_t status = epg_py_read_current_stream(a) ? -1 : epg_py_run_remembered(a, key);
  Py_XDECREF(workspace);
  return status;
}

/* Runs a call; returns 0, or -1 with a Python exception. */
static int run_or_raise(call_arguments *a, const maker *m, PyObject *needs, memo_key *key, int apart, geometry *g) {
  if (a->inputs[0]->device.device_type == META_DEVICE) return 0;
  int32_t status = run_inferred(a, m, apart ? key : NULL, g->workspace_nbytes);
  if (status == EPG_WORKSPACE_TOO_SMALL) {
    epg_py_forget_geometries();
    if (epg_py_infer_geometry(a, needs, key, g) < 0) return -1;
    status = run_inferred(a, m, NULL, g->workspace_nbytes);
  }
  if (status > 0) epg_py_raise_last(status);
  return status ? -1 : 0;
}

/* Asks PyTorch how many threads a call may use. */
static int read_threads(call_arguments *a) {
  PyObject *threads = PyObject_CallNoArgs(epg_py.get_num_threads);
  if (!threads) return -1;
  a->call.num_threads = (int32_t)PyLong_AsLong(threads);
  Py_DECREF(threads);
  return PyErr_Occurred() ? -1 : 0;
}

/* launch(call, inputs, needs, outputs=None, shapes=None) -> outputs: infers, allocates and runs.
 * `outputs` is None or a tuple with a tensor for each output that the caller has; meta tensors give
 * meta outputs. `shapes` is None or a tuple for the inputs after the first: of one that is None and
 * has a shape there, only that counts. Positions only: this is every call's path. */
PyObject *epg_py_launch(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  enum { LEAST = 3, MOST = 5 };
  call_arguments a;
  memo_key key;
  geometry g;
  maker m = {0};
  if (!epg_py_ready(n < LEAST || n > MOST ? n : MOST, MOST)) return NULL;
  PyObject *needs = args[2], *given = n > LEAST ? args[LEAST] : Py_None, *shapes = n == MOST ? args[MOST - 1] : Py_None;
  epg_py_begin(&a);
  PyObject *results = NULL, *inputs = resolve_negative(args[1]);
  if (!inputs) return NULL;
  if (epg_py_read_call(&a, args[0]) || !(inputs = read_inputs(&a, inputs)) || epg_py_read_shapes(&a, shapes)) goto fail;
  if (epg_py_read_precision(&a) || read_given(&a, needs, given)) goto fail;
  const int places_given = a.call.num_outputs;
  int all_new = 1;
  for (int i = 0; i < places_given; i++) all_new = all_new && !a.outputs[i];
  if (inputs != args[1] && !all_new && a.inputs[0]->device.device_type != META_DEVICE &&
      (refuse_written_inputs(&a, args[1], inputs) || epg_py_read_shapes(&a, shapes)))
    goto fail;
  const int places = epg_py_infer_geometry(&a, needs, &key, &g);
  if (places < 0) goto fail;
  /* no op has an optional first input, and infer has checked it */
  if (find_maker(&a, PyTuple_GetItem(inputs, 0), &m) || !(results = PyTuple_New(places)) || make_outputs(&a, &g, &m, given, results)) goto fail;
  if (read_threads(&a) || run_or_raise(&a, &m, needs, &key, all_new || (key.bytes && lie_apart(&a, places_given)), &g)) goto fail;
  Py_XDECREF(m.dtype);
  Py_DECREF(inputs);
  epg_py_end(&a);
  return results;
fail:
  epg_py_end(&a);
  Py_XDECREF(m.dtype);
  Py_XDECREF(results);
  Py_XDECREF(inputs);
  return NULL;
}

/* recorded(required, *tensors) -> bool or None: whether autograd records a call on these tensors.
 * The first so many may not be None. None: one is something else, or a subclass. */
PyObject *epg_py_recorded(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  if (!epg_py_ready(n ? 1 : 0, 1)) return NULL;
  const long required = PyLong_AsLong(args[0]);
  if (required == -1 && PyErr_Occurred()) return NULL;
  for (Py_ssize_t i = 1; i < n; i++) {
    PyObject *type = (PyObject *)Py_TYPE(args[i]);
    const int absent = args[i] == Py_None && i > required;
    if (!absent && type != epg_py.tensor_type && type != epg_py.parameter_type) Py_RETURN_NONE;
  }
  int requires_grad = 0;
  for (Py_ssize_t i = 1; i < n && !requires_grad; i++) {
    if (args[i] == Py_None) continue;
    PyObject *answer = PyObject_GetAttr(args[i], epg_py.requires_grad_name);
    if (!answer) return NULL;
    requires_grad = answer == Py_True;
    Py_DECREF(answer);
  }
  return requires_grad ? PyObject_CallNoArgs(epg_py.is_grad_enabled) : Py_NewRef(Py_False);
}
