#include "planted.h"

#include <pthread.h>
#include <stdlib.h>

int epg_plant_overflow(int bytes) {
  volatile char *memory = calloc(1, (size_t)bytes);
  const int behind = memory ? memory[bytes] : 0;
  free((void *)memory);
  return behind;
}

int epg_plant_shift(int by) { return 1 << by; }

static int shared;

static void *write_often(void *unused) {
  for (int i = 0; i < 100000; i++) shared++;
  return unused;
}

int epg_plant_race(void) {
  pthread_t other;
  if (pthread_create(&other, NULL, write_often, NULL)) return -1;
  write_often(NULL);
  pthread_join(other, NULL);
  return shared;
}
