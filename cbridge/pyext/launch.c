//go:build pyext

/* The module's infer, launch and recorded: the outputs that a call makes, the call itself, and
 * whether autograd looks at it. */
#include <string.h>

#include "arguments.h"

/* A tuple of sizes, or of strides. */
static PyObject *tuple_of(const int64_t *numbers, int32_t count) {
  PyObject *tuple = PyTuple_New(count);
  for (int32_t d = 0; tuple && d < count; d++) {
    PyObject *number = PyLong_FromLongLong(numbers[d]);
    if (!number || PyTuple_SetItem(tuple, d, number)) Py_CLEAR(tuple);
  }
  return tuple;
}

/* What makes new tensors like a call's first input, asked for by the first that is made. */
typedef struct {
  const call_arguments *call;
  PyObject *inputs;        /* borrowed */
  PyObject *like;          /* borrowed */
  PyObject *empty_strided; /* borrowed; NULL: a method of like's makes them */
  PyObject *dtype;         /* NULL: not asked for */
} maker;

/* Finds the function that the code of torch.compile allocates with. new_empty looks for much that
 * a plain tensor does not have, and takes three times as long. There may be none. On CUDA it
 * allocates on the current device, which may be another than the first input's. Returns 0, or -1
 * with a Python exception. */
static int find_maker(maker *m) {
  const DLDevice device = m->call->inputs[0]->device;
  PyObject *function = device.device_type == kDLCPU ? epg_py.empty_strided_cpu : device.device_type == kDLCUDA ? epg_py.empty_strided_cuda : Py_None;
  if (!(m->dtype = PyObject_GetAttr(m->like, epg_py.dtype_name))) return -1;
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
  return 0;
}

/* Describes a tensor that was just made like the first input: what that is need not be asked
 * again. Only outputs, which have a place in the call, are of other devices than the exchange's. */
static int read_new(call_arguments *a, PyObject *tensor, DLTensor *t) {
  const int device = a->inputs[0]->device.device_type;
  if (device == META_DEVICE || device == kDLWebGPU) return epg_py_read_tensor(a, tensor, (int)(t - a->tensors));
  return epg_py.exchange->dltensor_from_py_object_no_sync(tensor, t) ? -1 : 0;
}

/* A tensor of another input's dtype, which few outputs have. */
static PyObject *make_of_dtype(maker *m, int like, PyObject *shape, PyObject *steps) {
  PyObject *dtype = PyObject_GetAttr(PyTuple_GetItem(m->inputs, like), epg_py.dtype_name), *method = NULL, *arguments = NULL, *options = NULL, *tensor = NULL;
  if (dtype) method = PyObject_GetAttr(m->like, epg_py.new_empty_strided_name);
  if (method) arguments = PyTuple_Pack(2, shape, steps);
  if (arguments) options = PyDict_New();
  if (options && !PyDict_SetItem(options, epg_py.dtype_name, dtype)) tensor = PyObject_Call(method, arguments, options);
  Py_XDECREF(options);
  Py_XDECREF(arguments);
  Py_XDECREF(method);
  Py_XDECREF(dtype);
  return tensor;
}

static void *make_tensor(void *self, int like, const int64_t *sizes, const int64_t *strides, int32_t rank, DLTensor *t) {
  maker *m = self;
  if (!m->dtype && find_maker(m)) return NULL;
  PyObject *shape = tuple_of(sizes, rank), *steps = shape ? tuple_of(strides, rank) : NULL, *tensor = NULL;
  if (steps && (PyObject *)Py_TYPE(m->like) == epg_py.array_type)
    tensor = PyObject_CallMethodObjArgs(PyTuple_GetItem(m->inputs, like), epg_py.new_empty_name, shape, NULL);
  else if (steps && like)
    tensor = make_of_dtype(m, like, shape, steps);
  else if (steps && m->empty_strided)
    tensor = PyObject_CallFunctionObjArgs(m->empty_strided, shape, steps, m->dtype, NULL);
  else if (steps)
    tensor = PyObject_CallMethodObjArgs(m->like, epg_py.new_empty_strided_name, shape, steps, NULL);
  Py_XDECREF(steps);
  Py_XDECREF(shape);
  if (tensor && read_new((call_arguments *)m->call, tensor, t)) Py_CLEAR(tensor);
  return tensor;
}

static void drop_tensor(void *self, void *tensor) {
  (void)self;
  Py_DECREF((PyObject *)tensor);
}

static int copy_tensor(void *self, int i, void *tensor) {
  const maker *m = self;
  PyObject *copied = PyObject_CallMethodObjArgs(tensor, epg_py.copy_name, PyTuple_GetItem(m->inputs, i), NULL);
  Py_XDECREF(copied);
  return copied ? 0 : -1;
}

static void *leave(void) { return PyEval_SaveThread(); }

static void enter(void *left) { PyEval_RestoreThread(left); }

/* Reads `needs`, a tuple of bools; returns how many there are, or -1 with a Python exception. */
static int read_needs(PyObject *needs, uint8_t *wanted) {
  const Py_ssize_t places = PyTuple_Check(needs) ? PyTuple_Size(needs) : -1;
  if (places < 0 || places > MAX_OUTPUTS) {
    PyErr_Format(PyExc_TypeError, "needs must be a tuple of at most %d bools", MAX_OUTPUTS);
    return -1;
  }
  memset(wanted, 0, MAX_OUTPUTS);
  for (Py_ssize_t i = 0; i < places; i++) {
    const int need = PyObject_IsTrue(PyTuple_GetItem(needs, i));
    if (need < 0) return -1;
    wanted[i] = (uint8_t)need;
  }
  return (int)places;
}

/* infer(call, inputs, needs) -> (shapes, workspace_bytes) */
PyObject *epg_py_infer(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  const epg_framework python = {.leave = leave, .enter = enter};
  call_arguments a;
  geometry g;
  uint8_t wanted[MAX_OUTPUTS];
  if (!epg_py_ready(n, 3)) return NULL;
  epg_py_begin(&a);
  const int read = !epg_py_read_call(&a, args[0]) && !epg_py_read_tensors(&a, args[1], NULL) && !epg_py_read_precision(&a);
  const int places = read ? read_needs(args[2], wanted) : -1;
  const int32_t status = places < 0 ? -1 : epg_launch_infer(&a, wanted, &python, &g);
  epg_py_end(&a);
  if (status) return status > 0 ? epg_py_raise_last(status) : NULL;
  PyObject *shapes = PyTuple_New(places);
  for (int i = 0; shapes && i < places; i++) {
    PyObject *shape = g.ranks[i] < 0 ? Py_NewRef(Py_None) : tuple_of(&g.sizes[i * EPG_MAX_RANK], g.ranks[i]);
    if (!shape || PyTuple_SetItem(shapes, i, shape)) Py_CLEAR(shapes);
  }
  return shapes ? Py_BuildValue("NK", shapes, (unsigned long long)g.workspace_nbytes) : NULL;
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

/* Asks PyTorch how many threads a call may use. */
static int read_threads(call_arguments *a) {
  PyObject *threads = PyObject_CallNoArgs(epg_py.get_num_threads);
  if (!threads) return -1;
  a->call.num_threads = (int32_t)PyLong_AsLong(threads);
  Py_DECREF(threads);
  return PyErr_Occurred() ? -1 : 0;
}

/* The outputs of a call, by place: new tensors, whose references it takes, or what was given. */
static PyObject *results_of(const call_arguments *a, void *const *tensors, PyObject *given) {
  const int places = a->call.num_outputs;
  PyObject *results = PyTuple_New(places);
  for (int i = 0; i < places; i++) {
    PyObject *tensor = tensors[i] ? tensors[i] : Py_NewRef(a->outputs[i] ? PyTuple_GetItem(given, i) : Py_None);
    if (!results)
      Py_DECREF(tensor);
    else if (PyTuple_SetItem(results, i, tensor))
      Py_CLEAR(results);
  }
  return results;
}

/* launch(call, inputs, needs, outputs=None, shapes=None) -> outputs: infers, allocates and runs.
 * `outputs` is None or a tuple with a tensor for each output that the caller has; meta tensors give
 * meta outputs. `shapes` is None or a tuple for the inputs after the first: of one that is None and
 * has a shape there, only that counts. Positions only: this is every call's path. */
PyObject *epg_py_launch(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  enum { LEAST = 3, MOST = 5 };
  call_arguments a;
  uint8_t wanted[MAX_OUTPUTS];
  void *tensors[MAX_OUTPUTS];
  if (!epg_py_ready(n < LEAST || n > MOST ? n : MOST, MOST)) return NULL;
  PyObject *needs = args[2], *given = n > LEAST ? args[LEAST] : Py_None, *shapes = n == MOST ? args[MOST - 1] : Py_None;
  maker m = {.call = &a};
  epg_py_begin(&a);
  PyObject *results = NULL, *inputs = resolve_negative(args[1]);
  if (!inputs) return NULL;
  if (epg_py_read_call(&a, args[0]) || !(inputs = read_inputs(&a, inputs)) || epg_py_read_shapes(&a, shapes)) goto end;
  if (epg_py_read_precision(&a) || read_given(&a, needs, given) || read_threads(&a) || epg_py_read_current_stream(&a)) goto end;
  int all_new = 1;
  for (int i = 0; i < a.call.num_outputs; i++) all_new = all_new && !a.outputs[i];
  if (inputs != args[1] && !all_new && a.inputs[0]->device.device_type != META_DEVICE &&
      (refuse_written_inputs(&a, args[1], inputs) || epg_py_read_shapes(&a, shapes)))
    goto end;
  const int places = read_needs(needs, wanted);
  if (places < 0) goto end;
  m.inputs = inputs;
  m.like = PyTuple_Size(inputs) ? PyTuple_GetItem(inputs, 0) : Py_None;
  const epg_framework python = {&m, make_tensor, drop_tensor, copy_tensor, leave, enter};
  const int32_t status = epg_launch(&a, wanted, places, &python, tensors);
  if (status > 0) epg_py_raise_last(status);
  if (!status) results = results_of(&a, tensors, given);
end:
  epg_py_end(&a);
  Py_XDECREF(m.dtype);
  Py_XDECREF(inputs);
  return results;
}

/* recorded(may_be_none, *tensors) -> bool or None: whether autograd records a call on these
 * tensors. Those whose bits are set may be None. None: one is something else, or a subclass. */
PyObject *epg_py_recorded(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  if (!epg_py_ready(n ? 1 : 0, 1)) return NULL;
  const unsigned long long may_be_none = PyLong_AsUnsignedLongLong(args[0]);
  if (may_be_none == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
  for (Py_ssize_t i = 1; i < n; i++) {
    PyObject *type = (PyObject *)Py_TYPE(args[i]);
    const int absent = args[i] == Py_None && i <= 64 && may_be_none >> (i - 1) & 1;
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
