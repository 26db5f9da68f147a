//go:build pyext

#include "arguments.h"

#include <string.h>

/* cbridge/bridge.go */
extern void epgGoArgument(char *op, int32_t index, int32_t is_output, char *text, size_t capacity);

struct epg_py_state epg_py;

/* Raises the Python exception of a status; always returns NULL. */
PyObject *epg_py_raise_status(int32_t status, const char *message, int64_t needed, int64_t got) {
  if (!epg_py.make_error) {
    PyErr_SetString(PyExc_RuntimeError, message);
    return NULL;
  }
  PyObject *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
  if (!text) return NULL;
  PyObject *error = PyObject_CallFunction(epg_py.make_error, "isNLL", (int)status, epg_status_class(status), text, (long long)needed, (long long)got);
  if (!error) return NULL;
  PyErr_SetObject((PyObject *)Py_TYPE(error), error);
  Py_DECREF(error);
  return NULL;
}

PyObject *epg_py_raise_last(int32_t status) {
  int64_t needed, got;
  epg_last_error_bytes(&needed, &got);
  return epg_py_raise_status(status, epg_last_error(), needed, got);
}

/* Raises an error about an argument of the call; returns -1. */
static int refuse(const call_arguments *a, int32_t status, const char *argument, const char *text) {
  char message[512];
  PyOS_snprintf(message, sizeof message, "%s: %s: %s", a->call.op ? a->call.op : "plan", argument, text);
  epg_py_raise_status(status, message, 0, 0);
  return -1;
}

static int refuse_operand(const call_arguments *a, int32_t status, int operand, const char *text) {
  char name[64] = "tensor";
  const int is_output = operand >= MAX_INPUTS;
  if (a->call.op && !epg_forked()) epgGoArgument((char *)a->call.op, is_output ? operand - MAX_INPUTS : operand, is_output, name, sizeof name);
  return refuse(a, status, name, text);
}

/* Reads a sequence of sizes or of strides. */
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

static int read_dtype(PyObject *object, DLDataType *dtype) {
  static const struct {
    const char *name;
    DLDataType dtype;
  } known[] = {
      {"torch.float32", {kDLFloat, 32, 1}}, {"torch.float64", {kDLFloat, 64, 1}}, {"torch.bfloat16", {kDLBfloat, 16, 1}},
      {"torch.float16", {kDLFloat, 16, 1}}, {"torch.int64", {kDLInt, 64, 1}},     {"torch.int32", {kDLInt, 32, 1}},
  };
  PyObject *text = object ? PyObject_Str(object) : NULL;
  const char *name = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
  *dtype = (DLDataType){255, 0, 1}; /* none of these: Go refuses it */
  for (size_t i = 0; name && i < sizeof known / sizeof *known; i++)
    if (!strcmp(name, known[i].name)) *dtype = known[i].dtype;
  Py_XDECREF(text);
  return name ? 0 : -1;
}

/* Room for the sizes and strides of a tensor; NULL with a Python exception. */
static int64_t *sizes_of(call_arguments *a, int operand) {
  if (!a->sizes && !(a->sizes = PyMem_Malloc(MAX_TENSORS * sizeof *a->sizes))) {
    PyErr_NoMemory();
    return NULL;
  }
  return a->sizes[operand];
}

/* Reads a tensor without memory into tensors[operand]; strides may be None. Takes the references,
 * any of which may be NULL with a Python exception. */
static int read_geometry(call_arguments *a, int operand, DLDevice device, PyObject *dtype, PyObject *shape, PyObject *strides) {
  int64_t *sizes = dtype && shape && strides ? sizes_of(a, operand) : NULL;
  DLTensor *t = &a->tensors[operand];
  int32_t rank = 0;
  int failed = !sizes;
  if (!failed) {
    *t = (DLTensor){.device = device, .shape = sizes, .strides = strides == Py_None ? NULL : sizes + EPG_MAX_RANK};
    failed = read_dtype(dtype, &t->dtype) || read_sizes(shape, t->shape, &t->ndim) || (t->strides && read_sizes(strides, t->strides, &rank));
    if (!failed && t->strides && rank != t->ndim) {
      PyErr_SetString(PyExc_TypeError, "shape and strides differ in length");
      failed = 1;
    }
  }
  Py_XDECREF(dtype);
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  return failed ? -1 : 0;
}

/* Reads a tensor through its Python attributes. */
static int read_attributes(call_arguments *a, PyObject *tensor, int operand, DLDevice device) {
  PyObject *dtype = PyObject_GetAttr(tensor, epg_py.dtype_name);
  PyObject *shape = dtype ? PyObject_GetAttrString(tensor, "shape") : NULL;
  return read_geometry(a, operand, device, dtype, shape, shape ? PyObject_CallMethod(tensor, "stride", NULL) : NULL);
}

/* An array on a WebGPU adapter (epigrad.webgpu.Array), whose memory is named by an address. */
static int read_array(call_arguments *a, PyObject *array, int operand) {
  if (read_attributes(a, array, operand, (DLDevice){kDLWebGPU, 0})) return -1;
  DLTensor *t = &a->tensors[operand];
  PyObject *address = PyObject_GetAttrString(array, "address");
  t->data = address ? PyLong_AsVoidPtr(address) : NULL;
  Py_XDECREF(address);
  return PyErr_Occurred() ? -1 : 0;
}

static int is_meta(PyObject *tensor) {
  PyObject *value = PyObject_GetAttr(tensor, epg_py.is_meta_name);
  const int meta = value == Py_True;
  Py_XDECREF(value);
  PyErr_Clear();
  return meta;
}

/* Unwraps a functorch wrapper that outlived its transform. PyTorch 2.10 and 2.11 refuse to export
 * such wrappers through DLPack. Returns 0, or -1 without a Python exception. */
static int read_outlived(PyObject *wrapper, DLTensor *t) {
  PyObject *functorch = PyImport_ImportModule("torch._C._functorch");
  PyObject *tensor = functorch ? PyObject_CallMethod(functorch, "unwrap_if_dead", "O", wrapper) : NULL;
  const int failed = !tensor || tensor == wrapper || epg_py.exchange->dltensor_from_py_object_no_sync(tensor, t);
  Py_XDECREF(tensor);
  Py_XDECREF(functorch);
  PyErr_Clear();
  return failed ? -1 : 0;
}

/* Fills tensors[operand]; returns 0, or -1 with a Python exception. */
int epg_py_read_tensor(call_arguments *a, PyObject *o, int operand) {
  PyObject *type = (PyObject *)Py_TYPE(o);
  if (type == epg_py.array_type) return read_array(a, o, operand);
  if (type != epg_py.tensor_type && type != epg_py.parameter_type) {
    const int is_tensor = PyObject_IsInstance(o, epg_py.tensor_type);
    if (is_tensor < 0) return -1;
    return is_tensor ? refuse_operand(a, EPG_UNSUPPORTED, operand, "got a subclass of torch.Tensor, want a plain torch.Tensor or torch.nn.Parameter")
                     : refuse_operand(a, EPG_DTYPE, operand, "not a tensor, want a torch.Tensor");
  }
  /* Asked first: the exchange refuses a meta tensor too, but takes milliseconds to describe where
   * it was called from. */
  if (is_meta(o)) return read_attributes(a, o, operand, (DLDevice){META_DEVICE, 0});
  if (!epg_py.exchange->dltensor_from_py_object_no_sync(o, &a->tensors[operand])) return 0;
  PyErr_Clear();
  if (!read_outlived(o, &a->tensors[operand])) return 0;
  return refuse_operand(
      a, EPG_UNSUPPORTED, operand,
      "got a tensor without strided memory of its own (sparse, quantised, nested, or inside a torch.func transform), want a plain strided one");
}

/* Reads (dtype, shape, strides), on the device that is there. */
static int read_described(call_arguments *a, PyObject *o, int operand) {
  if (!PyTuple_Check(o) || PyTuple_Size(o) != 3) {
    PyErr_SetString(PyExc_TypeError, "want (dtype, shape, strides)");
    return -1;
  }
  PyObject *parts[3];
  for (int i = 0; i < 3; i++) parts[i] = Py_NewRef(PyTuple_GetItem(o, i));
  return read_geometry(a, operand, a->tensors[operand].device, parts[0], parts[1], parts[2]);
}

/* Reads a tuple of tensors and Nones from tensors[first] on; returns its length or -1. */
static int read_tuple(call_arguments *a, PyObject *tuple, int first, int most, const char *what, int (*read)(call_arguments *, PyObject *, int)) {
  const Py_ssize_t n = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
  if (n < 0 || n > most) {
    PyErr_Format(PyExc_TypeError, "%s must be a tuple of at most %d tensors or None", what, most);
    return -1;
  }
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject *item = PyTuple_GetItem(tuple, i);
    const int absent = item == Py_None;
    if (!absent && read(a, item, first + (int)i)) return -1;
    DLTensor *t = absent ? NULL : &a->tensors[first + i];
    if (first)
      a->outputs[i] = t;
    else
      a->inputs[i] = t;
  }
  return (int)n;
}

static int read_operands(call_arguments *a, PyObject *inputs, PyObject *outputs, int (*read)(call_arguments *, PyObject *, int)) {
  a->call.inputs = a->inputs;
  a->call.outputs = a->outputs;
  a->call.num_inputs = read_tuple(a, inputs, 0, MAX_INPUTS, "inputs", read);
  if (a->call.num_inputs < 0) return -1;
  if (!outputs) return 0;
  a->call.num_outputs = read_tuple(a, outputs, MAX_INPUTS, MAX_OUTPUTS, "outputs", read);
  return a->call.num_outputs < 0 ? -1 : 0;
}

int epg_py_read_tensors(call_arguments *a, PyObject *inputs, PyObject *outputs) { return read_operands(a, inputs, outputs, epg_py_read_tensor); }

int epg_py_read_described(call_arguments *a, PyObject *inputs, PyObject *outputs, PyObject *device) {
  DLDevice place;
  if (!PyTuple_Check(device)) {
    PyErr_SetString(PyExc_TypeError, "device must be (DLDeviceType, index)");
    return -1;
  }
  if (!PyArg_ParseTuple(device, "ii", &place.device_type, &place.device_id)) return -1;
  for (int i = 0; i < MAX_TENSORS; i++) a->tensors[i].device = place;
  return read_operands(a, inputs, outputs, read_described);
}

int epg_py_read_shapes(call_arguments *a, PyObject *shapes) {
  if (shapes == Py_None) return 0;
  const Py_ssize_t n = PyTuple_Check(shapes) ? PyTuple_Size(shapes) : -1;
  if (n < 0 || n >= a->call.num_inputs || !a->inputs[0]) {
    PyErr_SetString(PyExc_TypeError, "shapes must be None or a tuple of shapes or None, for inputs after a first one");
    return -1;
  }
  for (int i = 1; i <= n; i++) {
    PyObject *shape = PyTuple_GetItem(shapes, i - 1);
    if (shape == Py_None || a->inputs[i]) continue;
    int64_t *sizes = sizes_of(a, i);
    if (!sizes) return -1;
    /* One element of the first input stands for all. An empty input may have no address. */
    static _Alignas(double) char element[sizeof(double)];
    DLTensor *t = &a->tensors[i];
    *t = *a->inputs[0];
    t->shape = sizes;
    t->strides = sizes + EPG_MAX_RANK;
    if (!t->data && t->device.device_type != META_DEVICE) t->data = element;
    memset(t->strides, 0, EPG_MAX_RANK * sizeof *t->strides);
    if (read_sizes(shape, t->shape, &t->ndim)) return -1;
    a->inputs[i] = t;
  }
  return 0;
}

int epg_py_read_workspace(call_arguments *a, PyObject *o) {
  static const char name[] = "workspace";
  if (o == Py_None) return 0;
  DLTensor t;
  if (Py_TYPE(o) != (PyTypeObject *)epg_py.tensor_type || epg_py.exchange->dltensor_from_py_object_no_sync(o, &t)) {
    PyErr_Clear();
    return refuse(a, EPG_DTYPE, name, "got no tensor with memory, want a contiguous uint8 torch.Tensor or None");
  }
  if (t.dtype.code != 1 || t.dtype.bits != 8) { /* kDLUInt */
    char text[64];
    PyOS_snprintf(text, sizeof text, "dtype with DLPack code %d and %d bits, want uint8", t.dtype.code, t.dtype.bits);
    return refuse(a, EPG_DTYPE, name, text);
  }
  uint64_t bytes = 1;
  int64_t next = 1;
  int contiguous = 1;
  for (int d = t.ndim - 1; d >= 0; d--) {
    if (t.shape[d] != 1 && t.strides && t.strides[d] != next) contiguous = 0;
    next *= t.shape[d];
    bytes *= (uint64_t)t.shape[d];
  }
  if (!contiguous && bytes) return refuse(a, EPG_INVALID_PROBLEM, name, "got a strided tensor, want a contiguous uint8 tensor");
  int shared = 0; /* inputs on several devices are Go's to refuse */
  for (int i = 0; i < a->call.num_inputs; i++) {
    const DLTensor *input = a->inputs[i];
    if (input && input->device.device_type == t.device.device_type && input->device.device_id == t.device.device_id) shared = 1;
  }
  if (!shared) return refuse(a, EPG_DEVICE_MISMATCH, name, "got another device than the inputs', want one device per call");
  a->call.workspace = bytes ? (char *)t.data + t.byte_offset : NULL;
  a->call.workspace_nbytes = bytes;
  return 0;
}

/* Reads a name, or None. */
static int read_name(PyObject *o, const char **name) {
  *name = o == Py_None ? NULL : PyUnicode_AsUTF8AndSize(o, NULL);
  return o != Py_None && !*name ? -1 : 0;
}

static int read_parameters(call_arguments *a, PyObject *values) {
  const Py_ssize_t n = PyTuple_Check(values) ? PyTuple_Size(values) : -1;
  if (n < 0 || n > EPG_MOST_PARAMETERS) {
    PyErr_Format(PyExc_TypeError, "parameters must be a tuple of at most %d numbers", EPG_MOST_PARAMETERS);
    return -1;
  }
  for (Py_ssize_t i = 0; i < n; i++) {
    a->parameters[i] = PyFloat_AsDouble(PyTuple_GetItem(values, i));
    if (a->parameters[i] == -1.0 && PyErr_Occurred()) return -1;
  }
  a->call.parameters = a->parameters;
  a->call.num_parameters = (int32_t)n;
  return 0;
}

static int read_dim(call_arguments *a, PyObject *o) {
  int overflow = 0;
  const long long dim = PyLong_AsLongLongAndOverflow(o, &overflow);
  if (dim == -1 && PyErr_Occurred()) return -1;
  if (overflow || dim < INT32_MIN || dim > INT32_MAX)
    return refuse(a, EPG_INVALID_PROBLEM, "dim", "got a number beyond 32 bits, want a dimension of the input");
  a->call.dim = (int32_t)dim;
  return 0;
}

/* Reads an epigrad._core.call.Call, whose fields are in the order of epg_call. */
int epg_py_read_call(call_arguments *a, PyObject *call) {
  enum { OP, KIND, PARAMETERS, DIM, GATE, ACCUMULATE, BACKEND, BATCH_INVARIANT, FIELDS };
  PyObject *fields[FIELDS];
  if (!PyTuple_Check(call) || PyTuple_Size(call) != FIELDS) {
    PyErr_SetString(PyExc_TypeError, "want an epigrad._core.call.Call");
    return -1;
  }
  for (int i = 0; i < FIELDS; i++) fields[i] = PyTuple_GetItem(call, i);
  if (read_name(fields[OP], &a->call.op) || read_name(fields[KIND], &a->call.kind) || read_name(fields[BACKEND], &a->call.backend)) return -1;
  if (read_parameters(a, fields[PARAMETERS]) || read_dim(a, fields[DIM])) return -1;
  a->call.gate = (int32_t)PyLong_AsLong(fields[GATE]);
  const int accumulate = PyObject_IsTrue(fields[ACCUMULATE]);
  if (accumulate > 0) a->call.flags |= EPG_ACCUMULATE;
  if (PyObject_IsTrue(fields[BATCH_INVARIANT]) > 0) a->call.flags |= EPG_BATCH_INVARIANT;
  return PyErr_Occurred() ? -1 : 0;
}

/* Takes PyTorch's current stream for a call on CUDA tensors. */
int epg_py_read_current_stream(call_arguments *a) {
  const DLTensor *first = NULL;
  for (int i = 0; i < a->call.num_inputs && !first; i++) first = a->inputs[i];
  if (!first || first->device.device_type != kDLCUDA) return 0;
  return epg_py.exchange->current_work_stream(first->device.device_type, first->device.device_id, &a->call.stream);
}

/* Asks PyTorch whether float32 products may be computed in TF32: 1, 0, or -1 with a Python
 * exception. Its getter answers to its old settings and to its new ones. */
int epg_py_allows_tf32(void) {
  PyObject *answer = PyObject_CallFunction(epg_py.get_precision, "ss", "cuda", "matmul");
  const char *text = answer ? PyUnicode_AsUTF8AndSize(answer, NULL) : NULL;
  const int allowed = text ? !strcmp(text, "tf32") : -1;
  Py_XDECREF(answer);
  return allowed;
}

int epg_py_read_precision(call_arguments *a) {
  const int allowed = epg_launch_may_use_tf32(a) ? epg_py_allows_tf32() : 0;
  if (allowed > 0) a->call.flags |= EPG_ALLOW_TF32;
  return allowed < 0 ? -1 : 0;
}

/* Reads stream, threads and accumulate. */
int epg_py_read_execution(call_arguments *a, PyObject *stream, PyObject *threads, PyObject *accumulate) {
  if (stream && stream != Py_None) a->call.stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(stream);
  if (threads) a->call.num_threads = (int32_t)PyLong_AsLong(threads);
  if (PyErr_Occurred()) return -1;
  const int add = PyObject_IsTrue(accumulate);
  if (add > 0) a->call.flags |= EPG_ACCUMULATE;
  return add < 0 ? -1 : 0;
}

/* Refuses a call with the wrong number of arguments, or before configure. */
int epg_py_ready(Py_ssize_t got, Py_ssize_t want) {
  if (got != want) {
    PyErr_Format(PyExc_TypeError, "got %zd arguments, want %zd", got, want);
    return 0;
  }
  if (!epg_py.exchange) {
    PyErr_SetString(PyExc_RuntimeError, "epigrad._native.configure has not been called");
    return 0;
  }
  return 1;
}

void epg_py_begin(call_arguments *a) {
  memset(&a->call, 0, sizeof a->call);
  a->call.struct_size = sizeof a->call;
  a->sizes = NULL;
}

void epg_py_end(call_arguments *a) { PyMem_Free(a->sizes); }
