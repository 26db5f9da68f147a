/* The calling thread's last failure. Go runs an exported function on the thread that called it, so
 * the thread's slot is the caller's own.
 *
 * The slot is behind a pthread key and not _Thread_local: a Go shared library's thread-local memory
 * is static, and a process that loads it late has only some hundred bytes of that left. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bridge.h"

typedef struct {
  int64_t needed, got;
  char message[4096];
} failure;

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int have_key; /* a process has some thousand keys */

static void make_key(void) { have_key = !pthread_key_create(&key, free); }

static failure *slot(void) {
  pthread_once(&once, make_key);
  return have_key ? pthread_getspecific(key) : NULL;
}

const char *epg_last_error(void) {
  const failure *f = slot();
  return f ? f->message : "";
}

void epg_last_error_bytes(int64_t *needed, int64_t *got) {
  const failure *f = slot();
  if (needed) *needed = f ? f->needed : 0;
  if (got) *got = f ? f->got : 0;
}

void epg_set_last_error(const char *text, size_t length, int64_t needed, int64_t got) {
  failure *f = slot();
  if (!f) {
    f = have_key ? malloc(sizeof *f) : NULL;
    if (!f || pthread_setspecific(key, f)) {
      free(f);
      return; /* the status still tells the class of the failure */
    }
  }
  if (length >= sizeof f->message) {
    length = sizeof f->message - 1;
    while (length > 0 && (text[length] & 0xc0) == 0x80) length--; /* not inside a UTF-8 character */
  }
  memcpy(f->message, text, length);
  f->message[length] = '\0';
  f->needed = needed;
  f->got = got;
}
