/* What the parts of the hot path share: reading Python's arguments into an epg_call, and raising
 * what comes back. */
#ifndef EPG_PYEXT_ARGUMENTS_H
#define EPG_PYEXT_ARGUMENTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../launch.h"
#include "exchange.h"

/* What `configure` was given, and names that are looked up on every call. */
extern struct epg_py_state {
  PyObject *tensor_type, *parameter_type, *make_error, *get_precision, *array_type, *get_num_threads;
  /* None where this PyTorch has no such function */
  PyObject *empty_strided_cpu, *empty_strided_cuda, *current_cuda_device;
  PyObject *is_grad_enabled;
  PyObject *requires_grad_name, *is_meta_name, *is_neg_name, *resolve_neg_name, *is_zerotensor_name, *clone_name, *new_empty_name, *new_empty_strided_name,
      *dtype_name, *copy_name;
  const DLPackExchangeAPI *exchange;
} epg_py;

/* Raise the Python exception of a status, or of the thread's last error; always return NULL. */
PyObject *epg_py_raise_status(int32_t status, const char *message, int64_t needed, int64_t got);
PyObject *epg_py_raise_last(int32_t status);

void epg_py_begin(call_arguments *a);
void epg_py_end(call_arguments *a);

/* Refuses a call with the wrong number of arguments, or before configure. */
int epg_py_ready(Py_ssize_t got, Py_ssize_t want);

/* Each returns 0, or -1 with a Python exception. */
int epg_py_read_call(call_arguments *a, PyObject *call); /* epigrad._core.call.Call, a tuple */
int epg_py_read_tensor(call_arguments *a, PyObject *o, int operand);
int epg_py_read_tensors(call_arguments *a, PyObject *inputs, PyObject *outputs);
/* Tensors without memory: None or (dtype, shape, strides), where strides may be None. The device is
 * (DLDeviceType, index). */
int epg_py_read_described(call_arguments *a, PyObject *inputs, PyObject *outputs, PyObject *device);
/* Gives inputs that are absent the shapes of a tuple, which begins with the second input's: their
 * values are not read. */
int epg_py_read_shapes(call_arguments *a, PyObject *shapes);
int epg_py_read_workspace(call_arguments *a, PyObject *o);
int epg_py_read_precision(call_arguments *a);
int epg_py_allows_tf32(void); /* 1, 0 or -1 */
int epg_py_read_current_stream(call_arguments *a);
int epg_py_read_execution(call_arguments *a, PyObject *stream, PyObject *threads, PyObject *accumulate);

/* launch.c and plan.c: methods of the module. */
PyObject *epg_py_infer(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *epg_py_launch(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *epg_py_recorded(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *epg_py_plan_create(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *epg_py_plan_facts(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *epg_py_plan_check(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *epg_py_plan_run(PyObject *module, PyObject *const *args, Py_ssize_t n);

#endif
