/* What gopy's generated code calls, and what it stands on: Python's limited API. */
#ifndef EPG_GOPY_H
#define EPG_GOPY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

#include "epigrad.h"

/* Raise what a wrapper failed with. The caller holds the GIL; the text is freed. */
void gopy_raise_stale_handle(void);
void gopy_raise_failure(char *text);

/* Raises RuntimeError for a call in a forked child; returns NULL. */
PyObject *gopy_refuse(void);

#endif
