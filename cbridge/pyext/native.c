/* The module epigrad._native: the hot path from PyTorch tensors to the C ABI.
 *
 * A tensor becomes a DLTensor through its type's __dlpack_c_exchange_api__ (torch >= 2.10), which neither copies nor takes ownership: the tensors stay alive
 * for the call, since the caller's tuple holds them. The GIL is released while Go runs. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "epigrad.h"
#include "exchange.h"

/* Of go/tensor (Meta): a device type for tensors that have a geometry and no memory. */
enum { META_DEVICE = -1, MAX_INPUTS = 6, MAX_OUTPUTS = 3, MAX_TENSORS = MAX_INPUTS + MAX_OUTPUTS };

/* cbridge/names.go */
extern void epgGoArgument(char *op, int32_t index, int32_t is_output, char *text, size_t capacity);

static PyObject *tensor_type, *parameter_type, *make_error, *is_meta_name, *is_neg_name, *resolve_neg_name, *new_empty_name;
static const DLPackExchangeAPI *exchange;

/* One call's arguments, in C's terms. */
typedef struct {
  epg_call call;
  const DLTensor *inputs[MAX_INPUTS];
  DLTensor *outputs[MAX_OUTPUTS];
  DLTensor tensors[MAX_TENSORS];
  int64_t sizes[MAX_TENSORS][2 * EPG_MAX_RANK]; /* of meta tensors */
} call_arguments;

/* Raises the Python exception of a status; always returns NULL. */
static PyObject *raise_status(int32_t status, const char *message, int64_t needed, int64_t got) {
  if (!make_error) {
    PyErr_SetString(PyExc_RuntimeError, message);
    return NULL;
  }
  PyObject *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
  if (!text) return NULL;
  PyObject *error = PyObject_CallFunction(make_error, "isNLL", (int)status, epg_status_class(status), text, (long long)needed, (long long)got);
  if (!error) return NULL;
  PyErr_SetObject((PyObject *)Py_TYPE(error), error);
  Py_DECREF(error);
  return NULL;
}

static PyObject *raise_last(int32_t status) {
  int64_t needed, got;
  epg_last_error_bytes(&needed, &got);
  return raise_status(status, epg_last_error(), needed, got);
}

/* Raises an error about one argument of an op. */
static void raise_argument(int32_t status, const call_arguments *a, int operand, const char *text) {
  char name[64] = "tensor", message[512];
  const int is_output = operand >= MAX_INPUTS;
  if (a->call.op && !epg_forked()) epgGoArgument((char *)a->call.op, is_output ? operand - MAX_INPUTS : operand, is_output, name, sizeof name);
  PyOS_snprintf(message, sizeof message, "%s: %s: %s", a->call.op ? a->call.op : "plan", name, text);
  raise_status(status, message, 0, 0);
}

/* Reads a meta tensor's geometry through its Python attributes. */
static int read_sizes(PyObject *sequence, int64_t *sizes, int32_t *rank) {
  const Py_ssize_t n = PySequence_Size(sequence);
  if (n < 0) return -1;
  *rank = (int32_t)n;
  for (Py_ssize_t i = 0; i < n && i < EPG_MAX_RANK; i++) {
    PyObject *item = PySequence_GetItem(sequence, i);
    if (!item) return -1;
    sizes[i] = PyLong_AsLongLong(item);
    Py_DECREF(item);
    if (sizes[i] == -1 && PyErr_Occurred()) return -1;
  }
  return 0;
}

static int read_dtype(PyObject *tensor, DLDataType *dtype) {
  static const struct {
    const char *name;
    DLDataType dtype;
  } known[] = {
      {"torch.float32", {kDLFloat, 32, 1}},
      {"torch.float64", {kDLFloat, 64, 1}},
      {"torch.bfloat16", {kDLBfloat, 16, 1}},
      {"torch.float16", {kDLFloat, 16, 1}},
  };
  PyObject *object = PyObject_GetAttrString(tensor, "dtype");
  PyObject *text = object ? PyObject_Str(object) : NULL;
  const char *name = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
  *dtype = (DLDataType){255, 0, 1}; /* none of the four: Go refuses it */
  for (size_t i = 0; name && i < sizeof known / sizeof *known; i++)
    if (!strcmp(name, known[i].name)) *dtype = known[i].dtype;
  Py_XDECREF(text);
  Py_XDECREF(object);
  return name ? 0 : -1;
}

static int read_meta(PyObject *tensor, DLTensor *t, int64_t *sizes) {
  *t = (DLTensor){.device = {META_DEVICE, 0}, .shape = sizes, .strides = sizes + EPG_MAX_RANK};
  int32_t rank = 0;
  PyObject *shape = PyObject_GetAttrString(tensor, "shape");
  PyObject *stride = shape ? PyObject_CallMethod(tensor, "stride", NULL) : NULL;
  const int failed = !stride || read_sizes(shape, t->shape, &t->ndim) || read_sizes(stride, t->strides, &rank) || read_dtype(tensor, &t->dtype);
  Py_XDECREF(stride);
  Py_XDECREF(shape);
  return failed ? -1 : 0;
}

static int is_meta(PyObject *tensor) {
  PyObject *value = PyObject_GetAttr(tensor, is_meta_name);
  const int meta = value == Py_True;
  Py_XDECREF(value);
  PyErr_Clear();
  return meta;
}

/* Fills tensors[operand]; returns 0, or -1 with a Python exception. */
static int read_tensor(call_arguments *a, PyObject *o, int operand) {
  DLTensor *t = &a->tensors[operand];
  PyObject *type = (PyObject *)Py_TYPE(o);
  if (type != tensor_type && type != parameter_type) {
    const int is_tensor = PyObject_IsInstance(o, tensor_type);
    if (is_tensor < 0) return -1;
    if (is_tensor)
      raise_argument(EPG_UNSUPPORTED, a, operand, "a subclass of torch.Tensor, want a plain torch.Tensor or torch.nn.Parameter");
    else
      raise_argument(EPG_DTYPE, a, operand, "not a tensor, want a torch.Tensor");
    return -1;
  }
  /* Asked first: the exchange refuses a meta tensor too, but takes milliseconds to describe where it was called from. */
  if (is_meta(o)) return read_meta(o, t, a->sizes[operand]);
  if (!exchange->dltensor_from_py_object_no_sync(o, t)) return 0;
  PyErr_Clear();
  raise_argument(EPG_UNSUPPORTED, a, operand,
                 "a tensor without strided memory of its own (sparse, quantised, nested, or inside a torch.func transform), want a plain strided one");
  return -1;
}

/* Reads a tuple of tensors and Nones from tensors[first] on; returns its length or -1. */
static int read_tuple(call_arguments *a, PyObject *tuple, int first, int most, const char *what) {
  const Py_ssize_t n = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
  if (n < 0 || n > most) {
    PyErr_Format(PyExc_TypeError, "%s must be a tuple of at most %d tensors or None", what, most);
    return -1;
  }
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject *item = PyTuple_GetItem(tuple, i);
    const int absent = item == Py_None;
    if (!absent && read_tensor(a, item, first + (int)i)) return -1;
    DLTensor *t = absent ? NULL : &a->tensors[first + i];
    if (first)
      a->outputs[i] = t;
    else
      a->inputs[i] = t;
  }
  return (int)n;
}

static int read_tensors(call_arguments *a, PyObject *inputs, PyObject *outputs) {
  a->call.inputs = a->inputs;
  a->call.outputs = a->outputs;
  a->call.num_inputs = read_tuple(a, inputs, 0, MAX_INPUTS, "inputs");
  if (a->call.num_inputs < 0) return -1;
  if (!outputs) return 0;
  a->call.num_outputs = read_tuple(a, outputs, MAX_INPUTS, MAX_OUTPUTS, "outputs");
  return a->call.num_outputs < 0 ? -1 : 0;
}

static int read_workspace(call_arguments *a, PyObject *o) {
  if (o == Py_None) return 0;
  const char *op = a->call.op ? a->call.op : "plan";
  char message[256];
  DLTensor t;
  if (Py_TYPE(o) != (PyTypeObject *)tensor_type || exchange->dltensor_from_py_object_no_sync(o, &t)) {
    PyErr_Clear();
    PyOS_snprintf(message, sizeof message, "%s: workspace: not a tensor with memory, want a contiguous uint8 torch.Tensor or None", op);
    raise_status(EPG_DTYPE, message, 0, 0);
    return -1;
  }
  if (t.dtype.code != 1 || t.dtype.bits != 8) { /* kDLUInt */
    PyOS_snprintf(message, sizeof message, "%s: workspace: dtype with DLPack code %d and %d bits, want uint8", op, t.dtype.code, t.dtype.bits);
    raise_status(EPG_DTYPE, message, 0, 0);
    return -1;
  }
  uint64_t bytes = 1;
  int64_t next = 1;
  int contiguous = 1;
  for (int d = t.ndim - 1; d >= 0; d--) {
    if (t.shape[d] != 1 && t.strides && t.strides[d] != next) contiguous = 0;
    next *= t.shape[d];
    bytes *= (uint64_t)t.shape[d];
  }
  if (!contiguous && bytes) {
    PyOS_snprintf(message, sizeof message, "%s: workspace: strided, want a contiguous uint8 tensor", op);
    raise_status(EPG_INVALID_PROBLEM, message, 0, 0);
    return -1;
  }
  int shared = 0; /* inputs on several devices are Go's to refuse */
  for (int i = 0; i < a->call.num_inputs; i++) {
    const DLTensor *input = a->inputs[i];
    if (input && input->device.device_type == t.device.device_type && input->device.device_id == t.device.device_id) shared = 1;
  }
  if (!shared) {
    PyOS_snprintf(message, sizeof message, "%s: workspace: on another device than the inputs, want one device per call", op);
    raise_status(EPG_DEVICE_MISMATCH, message, 0, 0);
    return -1;
  }
  a->call.workspace = bytes ? (char *)t.data + t.byte_offset : NULL;
  a->call.workspace_nbytes = bytes;
  return 0;
}

/* Reads the arguments that infer and run share: op, kind, dim, gate_first, weight. */
static int read_problem(call_arguments *a, PyObject *const *args) {
  a->call.op = PyUnicode_AsUTF8AndSize(args[0], NULL);
  if (!a->call.op) return -1;
  if (args[1] != Py_None && !(a->call.kind = PyUnicode_AsUTF8AndSize(args[1], NULL))) return -1;
  int overflow = 0;
  const long long dim = PyLong_AsLongLongAndOverflow(args[2], &overflow);
  if (dim == -1 && PyErr_Occurred()) return -1;
  if (overflow || dim < INT32_MIN || dim > INT32_MAX) {
    char message[128];
    PyOS_snprintf(message, sizeof message, "%s: dim: beyond 32 bits, want a dimension of the input", a->call.op);
    raise_status(EPG_INVALID_PROBLEM, message, 0, 0);
    return -1;
  }
  a->call.dim = (int32_t)dim;
  const int gate_first = PyObject_IsTrue(args[3]);
  if (gate_first < 0) return -1;
  if (gate_first) a->call.flags |= EPG_GATE_FIRST;
  if (args[4] != Py_None) {
    a->call.weight = PyFloat_AsDouble(args[4]);
    if (a->call.weight == -1.0 && PyErr_Occurred()) return -1;
    a->call.flags |= EPG_HAS_WEIGHT;
  }
  return 0;
}

/* Reads stream, threads and accumulate. */
static int read_execution(call_arguments *a, PyObject *stream, PyObject *threads, PyObject *accumulate) {
  if (stream) a->call.stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(stream);
  if (threads) a->call.num_threads = (int32_t)PyLong_AsLong(threads);
  if (PyErr_Occurred()) return -1;
  const int add = PyObject_IsTrue(accumulate);
  if (add > 0) a->call.flags |= EPG_ACCUMULATE;
  return add < 0 ? -1 : 0;
}

/* Refuses a call with the wrong number of arguments, or before configure. */
static int ready(Py_ssize_t got, Py_ssize_t want) {
  if (got != want) {
    PyErr_Format(PyExc_TypeError, "got %zd arguments, want %zd", got, want);
    return 0;
  }
  if (!exchange) {
    PyErr_SetString(PyExc_RuntimeError, "epigrad._native.configure has not been called");
    return 0;
  }
  return 1;
}

static void begin(call_arguments *a) {
  memset(&a->call, 0, sizeof a->call);
  a->call.struct_size = sizeof a->call;
}

/* configure(tensor_type, parameter_type, make_error) */
static PyObject *configure(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  if (n != 3) {
    PyErr_Format(PyExc_TypeError, "configure: got %zd arguments, want 3", n);
    return NULL;
  }
  PyObject *capsule = PyObject_GetAttrString(args[0], "__dlpack_c_exchange_api__");
  if (!capsule) {
    PyErr_SetString(PyExc_ImportError, "torch.Tensor has no __dlpack_c_exchange_api__: epigrad needs PyTorch 2.10 or newer");
    return NULL;
  }
  const DLPackExchangeAPI *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  Py_DECREF(capsule);
  if (!api) return NULL;
  while (api && api->header.version.major != EPG_EXCHANGE_MAJOR) api = (const DLPackExchangeAPI *)api->header.prev_api;
  if (!api || !api->dltensor_from_py_object_no_sync) {
    PyErr_SetString(PyExc_ImportError, "this PyTorch's DLPack exchange API has no version 1: epigrad does not know its layout");
    return NULL;
  }
  const struct {
    PyObject **slot;
    const char *name;
  } names[] = {{&is_meta_name, "is_meta"}, {&is_neg_name, "is_neg"}, {&resolve_neg_name, "resolve_neg"}, {&new_empty_name, "new_empty"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!*names[i].slot && !(*names[i].slot = PyUnicode_InternFromString(names[i].name))) return NULL;
  exchange = api;
  PyObject **slots[] = {&tensor_type, &parameter_type, &make_error};
  for (int i = 0; i < 3; i++) {
    PyObject *old = *slots[i];
    Py_INCREF(args[i]);
    *slots[i] = args[i];
    Py_XDECREF(old);
  }
  Py_RETURN_NONE;
}

/* What epg_infer tells of a call. */
typedef struct {
  int64_t sizes[MAX_OUTPUTS * EPG_MAX_RANK];
  int32_t ranks[MAX_OUTPUTS]; /* -1: no such output */
  uint64_t workspace_nbytes;
} geometry;

/* Infers a call's outputs; returns how many places `needs` has, or -1 with a Python exception. */
static int infer_geometry(call_arguments *a, PyObject *needs, geometry *g) {
  uint8_t wanted[MAX_OUTPUTS] = {0};
  const Py_ssize_t places = PyTuple_Check(needs) ? PyTuple_Size(needs) : -1;
  if (places < 0 || places > MAX_OUTPUTS) {
    PyErr_Format(PyExc_TypeError, "needs must be a tuple of at most %d bools", MAX_OUTPUTS);
    return -1;
  }
  for (Py_ssize_t i = 0; i < places; i++) {
    const int need = PyObject_IsTrue(PyTuple_GetItem(needs, i));
    if (need < 0) return -1;
    wanted[i] = (uint8_t)need;
  }
  int32_t status;
  Py_BEGIN_ALLOW_THREADS;
  status = epg_infer(&a->call, wanted, g->sizes, g->ranks, &g->workspace_nbytes);
  Py_END_ALLOW_THREADS;
  if (!status) return (int)places;
  raise_last(status);
  return -1;
}

/* An output's shape as a tuple; None where there is no such output. */
static PyObject *shape_of(const geometry *g, int output) {
  const int32_t rank = g->ranks[output];
  if (rank < 0) Py_RETURN_NONE;
  PyObject *shape = PyTuple_New(rank);
  for (int32_t d = 0; shape && d < rank; d++) {
    PyObject *size = PyLong_FromLongLong(g->sizes[output * EPG_MAX_RANK + d]);
    if (!size || PyTuple_SetItem(shape, d, size)) Py_CLEAR(shape);
  }
  return shape;
}

/* infer(op, kind, dim, gate_first, weight, inputs, needs) -> (shapes, workspace_bytes) */
static PyObject *infer(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  call_arguments a;
  geometry g;
  if (!ready(n, 7)) return NULL;
  begin(&a);
  if (read_problem(&a, args) || read_tensors(&a, args[5], NULL)) return NULL;
  const int places = infer_geometry(&a, args[6], &g);
  if (places < 0) return NULL;
  PyObject *shapes = PyTuple_New(places);
  for (int i = 0; shapes && i < places; i++) {
    PyObject *shape = shape_of(&g, i);
    if (!shape || PyTuple_SetItem(shapes, i, shape)) Py_CLEAR(shapes);
  }
  return shapes ? Py_BuildValue("NK", shapes, (unsigned long long)g.workspace_nbytes) : NULL;
}

/* A new tensor with the dtype and on the device of another. */
static PyObject *new_empty(PyObject *like, PyObject *shape) {
  PyObject *tensor = PyObject_CallMethodObjArgs(like, new_empty_name, shape, NULL);
  Py_DECREF(shape);
  return tensor;
}

/* Allocates the workspace that a call needs, with room to align it; NULL with a Python exception. */
static PyObject *new_workspace(call_arguments *a, PyObject *like, uint64_t nbytes) {
  enum { ALIGNMENT = 256 };
  const uint64_t element = a->inputs[0]->dtype.bits / 8;
  PyObject *shape = Py_BuildValue("(K)", (unsigned long long)((nbytes + ALIGNMENT) / element));
  PyObject *tensor = shape ? new_empty(like, shape) : NULL;
  DLTensor t;
  if (!tensor || exchange->dltensor_from_py_object_no_sync(tensor, &t)) {
    Py_XDECREF(tensor);
    return NULL;
  }
  const uintptr_t start = (uintptr_t)t.data + t.byte_offset;
  a->call.workspace = (void *)((start + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  a->call.workspace_nbytes = nbytes;
  return tensor;
}

/* Materialises tensors that negate on reading: PyTorch's flag, which no DLTensor shows. Returns a new reference. */
static PyObject *resolve_negative(PyObject *inputs) {
  const Py_ssize_t n = PyTuple_Check(inputs) ? PyTuple_Size(inputs) : 0;
  Py_INCREF(inputs);
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject *item = PyTuple_GetItem(inputs, i);
    if ((PyObject *)Py_TYPE(item) != tensor_type && (PyObject *)Py_TYPE(item) != parameter_type) continue; /* read_tensor says why not */
    PyObject *negative = PyObject_CallMethodObjArgs(item, is_neg_name, NULL);
    const int is_negative = negative == Py_True;
    Py_XDECREF(negative);
    if (negative && !is_negative) continue;
    PyObject *resolved = negative ? PyObject_CallMethodObjArgs(item, resolve_neg_name, NULL) : NULL;
    PyObject *list = resolved ? PySequence_List(inputs) : NULL;
    Py_DECREF(inputs);
    inputs = NULL;
    if (list && !PyList_SetItem(list, i, resolved))
      inputs = PyList_AsTuple(list);
    else if (!list)
      Py_XDECREF(resolved);
    Py_XDECREF(list);
    if (!inputs) return NULL;
  }
  return inputs;
}

/* Fills a.outputs and `results` with the outputs to compute: those of `given`, and new tensors for the others. */
static int make_outputs(call_arguments *a, const geometry *g, PyObject *like, PyObject *needs, PyObject *given, PyObject *results) {
  a->call.outputs = a->outputs;
  a->call.num_outputs = (int32_t)PyTuple_Size(results);
  for (int i = 0; i < a->call.num_outputs; i++) {
    PyObject *output = given == Py_None ? Py_None : PyTuple_GetItem(given, i);
    if (!output) return -1;
    const int needed = PyObject_IsTrue(PyTuple_GetItem(needs, i));
    if (needed < 0) return -1;
    if (!needed || (output == Py_None && g->ranks[i] < 0)) {
      output = Py_None;
      Py_INCREF(output);
    } else if (output == Py_None) {
      PyObject *shape = shape_of(g, i);
      output = shape ? new_empty(like, shape) : NULL;
      if (!output) return -1;
    } else {
      Py_INCREF(output);
    }
    a->outputs[i] = NULL;
    if (output != Py_None) {
      if (read_tensor(a, output, MAX_INPUTS + i)) {
        Py_DECREF(output);
        return -1;
      }
      a->outputs[i] = &a->tensors[MAX_INPUTS + i];
    }
    if (PyTuple_SetItem(results, i, output)) return -1;
  }
  return 0;
}

static int is_on_meta(const call_arguments *a) { return a->inputs[0] && a->inputs[0]->device.device_type == META_DEVICE; }

/* Runs a call whose outputs are there; `like` is its first input. */
static int run_inferred(call_arguments *a, PyObject *like, uint64_t workspace_nbytes) {
  PyObject *workspace = NULL;
  if (workspace_nbytes && !(workspace = new_workspace(a, like, workspace_nbytes))) return -1;
  const DLDevice *device = &a->inputs[0]->device;
  int32_t status;
  if (device->device_type == kDLCUDA && exchange->current_work_stream(device->device_type, device->device_id, &a->call.stream)) {
    Py_XDECREF(workspace);
    return -1;
  }
  Py_BEGIN_ALLOW_THREADS;
  status = epg_run(&a->call);
  Py_END_ALLOW_THREADS;
  Py_XDECREF(workspace);
  if (!status) return 0;
  raise_last(status);
  return -1;
}

/* launch(op, kind, dim, gate_first, weight, inputs, needs, outputs, threads, accumulate) -> outputs: infer, allocate and run in one. `outputs` is None or
 * a tuple with a tensor for each output that the caller has; meta tensors give meta outputs. */
static PyObject *launch(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  call_arguments a;
  geometry g;
  if (!ready(n, 10)) return NULL;
  begin(&a);
  PyObject *results = NULL, *inputs = resolve_negative(args[5]);
  if (!inputs) return NULL;
  if (read_problem(&a, args) || read_tensors(&a, inputs, NULL)) goto fail;
  const int places = infer_geometry(&a, args[6], &g);
  if (places < 0) goto fail;
  if (args[7] != Py_None && !(PyTuple_Check(args[7]) && PyTuple_Size(args[7]) == places)) {
    PyErr_Format(PyExc_TypeError, "outputs must be None or a tuple of %d tensors or None", places);
    goto fail;
  }
  PyObject *like = PyTuple_GetItem(inputs, 0); /* no op has an optional first input, and infer has checked it */
  if (!(results = PyTuple_New(places)) || make_outputs(&a, &g, like, args[6], args[7], results) || read_execution(&a, NULL, args[8], args[9])) goto fail;
  if (!is_on_meta(&a) && run_inferred(&a, like, g.workspace_nbytes)) goto fail;
  Py_DECREF(inputs);
  return results;
fail:
  Py_XDECREF(results);
  Py_DECREF(inputs);
  return NULL;
}

/* run(op, kind, dim, gate_first, weight, inputs, outputs, workspace, stream, threads, accumulate) */
static PyObject *run(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  call_arguments a;
  if (!ready(n, 11)) return NULL;
  begin(&a);
  if (read_problem(&a, args) || read_tensors(&a, args[5], args[6]) || read_workspace(&a, args[7]) || read_execution(&a, args[8], args[9], args[10]))
    return NULL;
  int32_t status;
  Py_BEGIN_ALLOW_THREADS;
  status = epg_run(&a.call);
  Py_END_ALLOW_THREADS;
  if (status) return raise_last(status);
  Py_RETURN_NONE;
}

static PyObject *use_plan(PyObject *const *args, PyObject *stream, PyObject *threads, PyObject *accumulate, int32_t (*use)(epg_plan, const epg_call *)) {
  call_arguments a;
  begin(&a);
  const epg_plan plan = PyLong_AsLongLong(args[0]);
  if (plan == -1 && PyErr_Occurred()) return NULL;
  if (read_tensors(&a, args[1], args[2]) || read_workspace(&a, args[3]) || read_execution(&a, stream, threads, accumulate)) return NULL;
  if (use == epg_plan_validate && args[3] == Py_None) a.call.flags |= EPG_ASSUME_WORKSPACE;
  int32_t status;
  Py_BEGIN_ALLOW_THREADS;
  status = use(plan, &a.call);
  Py_END_ALLOW_THREADS;
  if (status) return raise_last(status);
  Py_RETURN_NONE;
}

/* plan_check(handle, inputs, outputs, workspace, accumulate): without a workspace a sufficient one is assumed */
static PyObject *plan_check(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  return ready(n, 5) ? use_plan(args, NULL, NULL, args[4], epg_plan_validate) : NULL;
}

/* plan_run(handle, inputs, outputs, workspace, stream, threads, accumulate) */
static PyObject *plan_run(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  return ready(n, 7) ? use_plan(args, args[4], args[5], args[6], epg_plan_run) : NULL;
}

/* forked() -> bool */
static PyObject *forked(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module, (void)args, (void)n;
  return PyBool_FromLong(epg_forked());
}

#define METHOD(name, text) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, text}

static PyMethodDef methods[] = {
    METHOD(configure, "configure(tensor_type, parameter_type, make_error)"),
    METHOD(infer, "infer(op, kind, dim, gate_first, weight, inputs, needs) -> (shapes, workspace_bytes)"),
    METHOD(launch, "launch(op, kind, dim, gate_first, weight, inputs, needs, outputs, threads, accumulate) -> outputs"),
    METHOD(run, "run(op, kind, dim, gate_first, weight, inputs, outputs, workspace, stream, threads, accumulate)"),
    METHOD(plan_check, "plan_check(handle, inputs, outputs, workspace, accumulate)"),
    METHOD(plan_run, "plan_run(handle, inputs, outputs, workspace, stream, threads, accumulate)"),
    METHOD(forked, "forked() -> bool"),
    {0},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", "The hot path from tensors to epigrad's core.", -1, methods};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&definition); }
