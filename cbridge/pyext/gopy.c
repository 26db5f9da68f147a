//go:build pyext

#include "gopy.h"

void gopy_raise_stale_handle(void) { PyErr_SetString(PyExc_ValueError, "epigrad: this object's handle is stale: it is closed, or never was one"); }

void gopy_raise_failure(char *text) {
  PyErr_SetString(PyExc_RuntimeError, text);
  free(text);
}

PyObject *gopy_refuse(void) {
  PyErr_SetString(PyExc_RuntimeError,
                  "BackendUnavailableError: epigrad was used before fork(), and its Go runtime does not survive in the child: start workers with the "
                  "spawn or forkserver method, or use epigrad for the first time in the child");
  return NULL;
}
