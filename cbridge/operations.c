/* The tables of operations and of slopes. Go fills them once, at their first use. */
#include <pthread.h>
#include <string.h>

#include "_cgo_export.h"
#include "bridge.h"

enum { MOST_OPERATIONS = 64, MOST_SLOPES = 32 };

static epg_operation operations[MOST_OPERATIONS];
static epg_named_slope slopes[MOST_SLOPES];
static int32_t count, slope_count;
static pthread_once_t asked = PTHREAD_ONCE_INIT;

static void ask(void) {
  count = epgGoOperations(operations, MOST_OPERATIONS);
  slope_count = epgGoSlopes(slopes, MOST_SLOPES);
}

const epg_operation *epg_operations(int32_t *number) {
  *number = 0;
  if (epg_forked()) return NULL;
  pthread_once(&asked, ask);
  *number = count;
  return operations;
}

const epg_operation *epg_operation_of(const char *name) {
  int32_t number;
  const epg_operation *all = epg_operations(&number);
  for (int32_t i = 0; name && i < number; i++)
    if (!strcmp(all[i].name, name)) return &all[i];
  return NULL;
}

epg_slope epg_slope_of(const char *activation) {
  pthread_once(&asked, ask);
  for (int32_t i = 0; i < slope_count; i++)
    if (!strcmp(slopes[i].name, activation)) return slopes[i].slope;
  return EPG_SLOPE_OF_PREACTIVATION;
}
