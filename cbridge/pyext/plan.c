//go:build pyext

/* The module's plans. A plan is a capsule, which destroys it; the capsule's context is the name of
 * its operation. */
#include "arguments.h"

static const char capsule_name[] = "epg_plan";

static void destroy(PyObject *capsule) { epg_plan_destroy((epg_plan)(intptr_t)PyCapsule_GetPointer(capsule, capsule_name)); }

/* Reads a flag for each tensor of the call; returns 0, or -1 with a Python exception. */
static int read_exact(const call_arguments *a, PyObject *flags, uint8_t *exact) {
  const Py_ssize_t n = PyTuple_Check(flags) ? PyTuple_Size(flags) : -1;
  if (n != a->call.num_inputs + a->call.num_outputs) {
    PyErr_SetString(PyExc_TypeError, "exact must be a tuple with a bool for each tensor");
    return -1;
  }
  for (Py_ssize_t i = 0; i < n; i++) exact[i] = PyTuple_GetItem(flags, i) == Py_True;
  return 0;
}

/* plan_create(call, inputs, outputs, exact, device, allow_tf32) -> plan. Tensors are None or
 * (dtype, shape, strides), and the device is (DLDeviceType, index). */
PyObject *epg_py_plan_create(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  call_arguments a;
  uint8_t exact[MAX_TENSORS];
  epg_plan plan = 0;
  int32_t status = -1;
  if (!epg_py_ready(n, 6)) return NULL;
  epg_py_begin(&a);
  if (!epg_py_read_call(&a, args[0]) && !epg_py_read_described(&a, args[1], args[2], args[4]) && !read_exact(&a, args[3], exact)) {
    if (args[5] == Py_True && epg_launch_may_use_tf32(&a)) a.call.flags |= EPG_ALLOW_TF32;
    Py_BEGIN_ALLOW_THREADS;
    status = epg_plan_create(&a.call, exact, &plan);
    Py_END_ALLOW_THREADS;
  }
  epg_py_end(&a);
  if (status) return status > 0 ? epg_py_raise_last(status) : NULL;
  PyObject *capsule = PyCapsule_New((void *)(intptr_t)plan, capsule_name, destroy);
  if (!capsule)
    epg_plan_destroy(plan);
  else
    PyCapsule_SetContext(capsule, (void *)epg_operation_of(a.call.op)->name);
  return capsule;
}

/* plan_facts(plan) -> (workspace_size, sku, precision_guarantee) */
PyObject *epg_py_plan_facts(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  if (!epg_py_ready(n, 1)) return NULL;
  const epg_plan plan = (epg_plan)(intptr_t)PyCapsule_GetPointer(args[0], capsule_name);
  if (!plan) return NULL;
  uint64_t bytes = 0;
  epg_plan_facts f = {.struct_size = sizeof f};
  int32_t status = epg_plan_workspace(plan, &bytes);
  if (!status) status = epg_plan_query(plan, &f);
  if (status) return epg_py_raise_last(status);
  return Py_BuildValue("K(ssssssssi)(ssNNN)", (unsigned long long)bytes, f.op, f.kind, f.dtype, f.accumulator, f.backend, f.arch, f.kernel, f.layout,
                       (int)f.vector_width, f.math_precision, f.accumulator, PyBool_FromLong(f.deterministic), PyBool_FromLong(f.bit_stable_on_same_hardware),
                       PyBool_FromLong(f.batch_invariant));
}

static PyObject *use(PyObject *const *args, PyObject *stream, PyObject *threads, PyObject *accumulate, int32_t (*do_call)(epg_plan, const epg_call *)) {
  call_arguments a;
  int32_t status = -1;
  const epg_plan plan = (epg_plan)(intptr_t)PyCapsule_GetPointer(args[0], capsule_name);
  if (!plan) return NULL;
  epg_py_begin(&a);
  a.call.op = PyCapsule_GetContext(args[0]);
  if (!epg_py_read_tensors(&a, args[1], args[2]) && !epg_py_read_workspace(&a, args[3]) && !epg_py_read_execution(&a, stream, threads, accumulate) &&
      (stream != Py_None || !epg_py_read_current_stream(&a))) {
    if (do_call == epg_plan_validate && args[3] == Py_None) a.call.flags |= EPG_ASSUME_WORKSPACE;
    Py_BEGIN_ALLOW_THREADS;
    status = do_call(plan, &a.call);
    Py_END_ALLOW_THREADS;
  }
  epg_py_end(&a);
  if (status > 0) epg_py_raise_last(status);
  return status ? NULL : Py_NewRef(Py_None);
}

/* plan_check(plan, inputs, outputs, workspace, accumulate): without a workspace a sufficient one is
 * assumed */
PyObject *epg_py_plan_check(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  return epg_py_ready(n, 5) ? use(args, NULL, NULL, args[4], epg_plan_validate) : NULL;
}

/* plan_run(plan, inputs, outputs, workspace, stream, threads, accumulate) */
PyObject *epg_py_plan_run(PyObject *module, PyObject *const *args, Py_ssize_t n) {
  (void)module;
  return epg_py_ready(n, 7) ? use(args, args[4], args[5], args[6], epg_plan_run) : NULL;
}
