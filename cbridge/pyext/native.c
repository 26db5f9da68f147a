//go:build pyext

/* The module epigrad._native: the hot path from PyTorch tensors to the C ABI.
 *
 * A tensor becomes a DLTensor through its type's __dlpack_c_exchange_api__ (torch >= 2.10), which
 * neither copies nor takes ownership: the tensors stay alive for the call, since the caller's tuple
 * holds them. The GIL is released while Go runs.
 *
 * A free-threaded Python has no GIL, and nothing here needs one. `configure` runs once, under the
 * lock of loader.py, before any other function is called. Afterwards epg_py is only read. What else
 * calls share has a lock of its own (geometry.c, go/). References are borrowed only from tuples,
 * which never change. */
#include <string.h>

#include "../torch/torch.h"
#include "arguments.h"

/* configure(tensor_type, parameter_type, make_error, get_precision, array_type, get_num_threads,
 * empty_strided_cpu, empty_strided_cuda, current_cuda_device, is_grad_enabled) */
static PyObject *configure(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  enum { SLOTS = 10 };
  if (n != SLOTS) {
    PyErr_Format(PyExc_TypeError, "configure: got %zd arguments, want %d", n, SLOTS);
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
  } names[] = {{&epg_py.requires_grad_name, "requires_grad"},
               {&epg_py.is_meta_name, "is_meta"},
               {&epg_py.is_neg_name, "is_neg"},
               {&epg_py.resolve_neg_name, "resolve_neg"},
               {&epg_py.is_zerotensor_name, "_is_zerotensor"},
               {&epg_py.clone_name, "clone"},
               {&epg_py.new_empty_name, "new_empty"},
               {&epg_py.new_empty_strided_name, "new_empty_strided"},
               {&epg_py.dtype_name, "dtype"},
               {&epg_py.copy_name, "copy_"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!*names[i].slot && !(*names[i].slot = PyUnicode_InternFromString(names[i].name))) return NULL;
  epg_py.exchange = api;
  PyObject **slots[] = {&epg_py.tensor_type,     &epg_py.parameter_type,    &epg_py.make_error,         &epg_py.get_precision,       &epg_py.array_type,
                        &epg_py.get_num_threads, &epg_py.empty_strided_cpu, &epg_py.empty_strided_cuda, &epg_py.current_cuda_device, &epg_py.is_grad_enabled};
  for (int i = 0; i < SLOTS; i++) {
    PyObject *old = *slots[i];
    Py_INCREF(args[i]);
    *slots[i] = args[i];
    Py_XDECREF(old);
  }
  Py_RETURN_NONE;
}

/* What a method returns that has no result; a negative status is a Python exception that is raised
 * already. */
static PyObject *returned(int32_t status) {
  if (status > 0) epg_py_raise_last(status);
  return status ? NULL : Py_NewRef(Py_None);
}

/* For kernels that PyTorch calls without Python's lock. */
static int allows_tf32(void) {
  const PyGILState_STATE state = PyGILState_Ensure();
  const int allowed = epg_py_allows_tf32();
  if (allowed < 0) PyErr_Clear();
  PyGILState_Release(state);
  return allowed > 0;
}

/* give_torch_kernels() */
static PyObject *give_torch_kernels(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module, (void)args;
  return epg_py_ready(n, 0) ? returned(epg_torch_give_kernels(allows_tf32)) : NULL;
}

#define COUNT(name)                                                              \
  static PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t n) { \
    (void)module, (void)args, (void)n;                                           \
    return PyLong_FromUnsignedLongLong(epg_##name());                            \
  }
COUNT(runs_prepared)
COUNT(runs_alone)
COUNT(inferred)
#undef COUNT

/* Reads integers that fit 64 bits; returns 0, or -1 with a Python exception. */
static int read_numbers(PyObject *const *args, Py_ssize_t got, Py_ssize_t want, uint64_t *numbers) {
  if (!epg_py_ready(got, want)) return -1;
  for (Py_ssize_t i = 0; i < want; i++) {
    numbers[i] = PyLong_AsUnsignedLongLong(args[i]);
    if (PyErr_Occurred()) return -1;
  }
  return 0;
}

/* webgpu_alloc(nbytes) -> address */
static PyObject *webgpu_alloc(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  uint64_t numbers[1];
  void *data = NULL;
  int32_t status;
  if (read_numbers(args, n, 1, numbers)) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = epg_webgpu_alloc(numbers[0], &data);
  Py_END_ALLOW_THREADS;
  return status ? epg_py_raise_last(status) : PyLong_FromVoidPtr(data);
}

/* webgpu_free(address) */
static PyObject *webgpu_free(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  uint64_t numbers[1];
  int32_t status;
  if (read_numbers(args, n, 1, numbers)) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = epg_webgpu_free((void *)(uintptr_t)numbers[0]);
  Py_END_ALLOW_THREADS;
  return returned(status);
}

static PyObject *transfer(PyObject *const *args, Py_ssize_t n, int to_host) {
  uint64_t numbers[3];
  int32_t status;
  if (read_numbers(args, n, 3, numbers)) return NULL;
  void *data = (void *)(uintptr_t)numbers[0], *host = (void *)(uintptr_t)numbers[1];
  Py_BEGIN_ALLOW_THREADS;
  status = to_host ? epg_webgpu_read(data, host, numbers[2]) : epg_webgpu_write(data, host, numbers[2]);
  Py_END_ALLOW_THREADS;
  return returned(status);
}

/* webgpu_write(address, host, nbytes) */
static PyObject *webgpu_write(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  return transfer(args, n, 0);
}

/* webgpu_read(address, host, nbytes) */
static PyObject *webgpu_read(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  return transfer(args, n, 1);
}

#define METHOD(name, function, text) {#name, (PyCFunction)(void (*)(void))function, METH_FASTCALL, text}

static PyMethodDef methods[] = {
    METHOD(configure, configure,
           "configure(tensor_type, parameter_type, make_error, get_precision, array_type, get_num_threads, empty_strided_cpu, empty_strided_cuda, "
           "current_cuda_device, is_grad_enabled)"),
    METHOD(infer, epg_py_infer, "infer(call, inputs, needs) -> (shapes, workspace_bytes)"),
    METHOD(launch, epg_py_launch, "launch(call, inputs, needs, outputs=None, shapes=None) -> outputs"),
    METHOD(recorded, epg_py_recorded, "recorded(may_be_none, *tensors) -> bool or None: whether autograd records a call on them; None: not plain tensors"),
    METHOD(plan_create, epg_py_plan_create, "plan_create(call, inputs, outputs, exact, device, allow_tf32) -> plan"),
    METHOD(plan_facts, epg_py_plan_facts, "plan_facts(plan) -> (workspace_size, sku, precision_guarantee)"),
    METHOD(plan_check, epg_py_plan_check, "plan_check(plan, inputs, outputs, workspace, accumulate)"),
    METHOD(plan_run, epg_py_plan_run, "plan_run(plan, inputs, outputs, workspace, stream, threads, accumulate)"),
    METHOD(give_torch_kernels, give_torch_kernels, "give_torch_kernels(): gives torch.ops.epigrad._linear and its like kernels in C"),
    METHOD(runs_prepared, runs_prepared, "runs_prepared() -> int: how many calls were run by a kernel that is held for their geometry"),
    METHOD(runs_alone, runs_alone, "runs_alone() -> int: how many of those were run without Go"),
    METHOD(inferred, inferred, "inferred() -> int: how often Go was asked for a call's outputs"),
    METHOD(webgpu_alloc, webgpu_alloc, "webgpu_alloc(nbytes) -> address"),
    METHOD(webgpu_free, webgpu_free, "webgpu_free(address)"),
    METHOD(webgpu_write, webgpu_write, "webgpu_write(address, host, nbytes)"),
    METHOD(webgpu_read, webgpu_read, "webgpu_read(address, host, nbytes)"),
    {0},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", "The hot path from tensors to epigrad's core.", -1, methods};

PyMODINIT_FUNC PyInit__control(void); /* gopy's, generated */

PyMODINIT_FUNC PyInit__native(void) {
  PyObject *module = PyModule_Create(&definition), *control = PyInit__control();
  if (module && PyModule_AddObjectRef(module, "_control", control)) Py_CLEAR(module);
  Py_XDECREF(control);
#ifdef Py_GIL_DISABLED
  if (module && PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED)) Py_CLEAR(module);
#endif
  return module;
}
