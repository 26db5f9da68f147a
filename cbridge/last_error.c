/* The calling thread's last failure. Go runs an exported function on the thread that called it, so the thread-local slot is the caller's own. */
#include "bridge.h"

#include <string.h>

static _Thread_local char message[4096];
static _Thread_local int64_t bytes_needed, bytes_got;

const char *epg_last_error(void) { return message; }

void epg_last_error_bytes(int64_t *needed, int64_t *got) {
  if (needed) *needed = bytes_needed;
  if (got) *got = bytes_got;
}

void epg_set_last_error(const char *text, size_t length, int64_t needed, int64_t got) {
  if (length >= sizeof message) {
    length = sizeof message - 1;
    while (length > 0 && (text[length] & 0xc0) == 0x80) length--; /* not inside a UTF-8 character */
  }
  memcpy(message, text, length);
  message[length] = '\0';
  bytes_needed = needed;
  bytes_got = got;
}
