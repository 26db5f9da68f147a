/* The table of operations. Go fills it once, at its first use. */
#include <pthread.h>
#include <string.h>

#include "_cgo_export.h"
#include "bridge.h"

enum { MOST_OPERATIONS = 64 };

static epg_operation operations[MOST_OPERATIONS];
static int32_t count;
static pthread_once_t asked = PTHREAD_ONCE_INIT;

static void ask(void) { count = epgGoOperations(operations, MOST_OPERATIONS); }

const epg_operation *epg_operation_of(const char *name) {
  if (epg_forked()) return NULL;
  pthread_once(&asked, ask);
  for (int32_t i = 0; i < count; i++)
    if (!strcmp(operations[i].name, name)) return &operations[i];
  return NULL;
}
