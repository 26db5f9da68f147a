/* The memo of geometries: the outputs of calls of one geometry, and the prepared call that they
 * share. A lock guards it, which is never held while Go is at work. */
#include "geometry.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A prepared kernel that entries and running threads hold. It is given back when the last of them
 * lets it go. */
typedef struct held {
  epg_prepared prepared;
  int holders;
  struct held *next; /* of the free ones, without holders */
} held;

/* Geometries inferred before. What an op's outputs look like follows from its tensors' shapes,
 * strides and dtypes alone, so a small call need not ask Go again; a workspace that has become too
 * small (another algorithm was tuned meanwhile) is found out by the run, which then asks. */
enum { MEMO_ENTRIES = 512, MEMO_PLACES = 4 };

static struct memo_entry {
  memo_key key; /* no bytes: empty */
  geometry value;
  held *kernel;      /* NULL: none yet, or every run is Go's to check */
  uint64_t asked_at; /* epg_prepared_generation() when one was last asked for */
  int has_run;       /* such a call has, in Go, at any time */
} *memo_table;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Calls that a held kernel has run, those of them that C has run alone, and those whose outputs Go
 * was asked for. */
static _Atomic uint64_t runs_prepared, runs_alone, inferred;

uint64_t epg_runs_prepared(void) { return runs_prepared; }
uint64_t epg_runs_alone(void) { return runs_alone; }
uint64_t epg_inferred(void) { return inferred; }

/* Releases a kernel, under the lock. If it has no other holder, it joins `unheld`. */
static void let_go(held *h, held **unheld) {
  if (!h || --h->holders) return;
  h->next = *unheld;
  *unheld = h;
}

/* Frees kernels without holders, outside of the lock. */
static void give_back(held *unheld) {
  while (unheld) {
    held *next = unheld->next;
    epg_prepared_release(&unheld->prepared);
    free(unheld);
    unheld = next;
  }
}

/* Forgets the kernels that would not be chosen any more. */
static void forget_old(held **unheld) {
  static uint64_t seen;
  if (seen == epg_prepared_generation()) return;
  seen = epg_prepared_generation();
  for (int i = 0; memo_table && i < MEMO_ENTRIES; i++) {
    let_go(memo_table[i].kernel, unheld);
    memo_table[i].kernel = NULL;
  }
}

static int append(memo_key *k, const void *data, size_t bytes) {
  if (k->bytes + bytes > MEMO_KEY_BYTES) return -1;
  if (bytes) memcpy(k->text + k->bytes, data, bytes);
  k->bytes += (uint32_t)bytes;
  return 0;
}

/* FNV-1a over words. */
static uint64_t hash_of(const memo_key *k) {
  uint64_t hash = 14695981039346656037u;
  for (uint32_t i = 0; i < k->bytes; i += 8) {
    uint64_t word = 0;
    memcpy(&word, k->text + i, k->bytes - i < 8 ? k->bytes - i : 8);
    hash = (hash ^ word) * 1099511628211u;
    hash ^= hash >> 29;
  }
  return hash;
}

/* Writes all that a call's geometry and kernel follow from; returns -1 if that is too long to be
 * kept. The numbers of epg_call are taken as they lie, so that a new one is in the key too. */
static int write_key(const call_arguments *a, const uint8_t *wanted, memo_key *k) {
  epg_call call = a->call;
  call.num_threads = 0; /* a run's */
  const char *const names[] = {call.op, call.kind, call.backend};
  enum { NUMBERS = offsetof(epg_call, num_parameters), END = offsetof(epg_call, inputs) };
  k->bytes = 0;
  if (append(k, &call.flags, sizeof call.flags) || append(k, (const char *)&call + NUMBERS, END - NUMBERS) || append(k, wanted, MAX_OUTPUTS)) return -1;
  for (int i = 0; i < 3; i++) {
    const uint32_t length = names[i] ? (uint32_t)strlen(names[i]) + 1 : 0;
    if (append(k, &length, sizeof length) || append(k, names[i], length)) return -1;
  }
  /* Parameters are checked once for a geometry, but that a number may stand for an operand. */
  const epg_operation *o = call.num_parameters ? epg_operation_of(call.op) : NULL;
  if (!(o && o->factor) && append(k, a->parameters, (size_t)call.num_parameters * sizeof *a->parameters)) return -1;
  for (int i = 0; i < call.num_inputs + call.num_outputs; i++) {
    const DLTensor *t = i < call.num_inputs ? a->inputs[i] : a->outputs[i - call.num_inputs];
    const int32_t rank = t ? t->ndim : -1;
    if (append(k, &rank, sizeof rank)) return -1;
    if (!t) continue;
    if (!t->strides && rank) return -1;
    const size_t bytes = (size_t)rank * sizeof(int64_t);
    if (append(k, &t->dtype, sizeof t->dtype) || append(k, &t->device, sizeof t->device) || append(k, t->shape, bytes) || append(k, t->strides, bytes))
      return -1;
  }
  k->hash = hash_of(k);
  return 0;
}

/* Copies a geometry, without the room that it does not use. */
static void copy_geometry(geometry *to, const geometry *from) {
  to->workspace_nbytes = from->workspace_nbytes;
  memcpy(to->ranks, from->ranks, sizeof to->ranks);
  for (int i = 0; i < MAX_OUTPUTS; i++)
    if (from->ranks[i] > 0) memcpy(&to->sizes[i * EPG_MAX_RANK], &from->sizes[i * EPG_MAX_RANK], (size_t)from->ranks[i] * sizeof *to->sizes);
}

/* One of the MEMO_PLACES neighbours where a key may be. */
static struct memo_entry *place(const memo_key *k, unsigned i) { return &memo_table[(k->hash + i) % MEMO_ENTRIES]; }

/* What is remembered under a key, or NULL. */
static struct memo_entry *find(const memo_key *k) {
  if (!memo_table || !k->bytes) return NULL;
  for (unsigned i = 0; i < MEMO_PLACES; i++) {
    struct memo_entry *entry = place(k, i);
    if (entry->key.hash == k->hash && entry->key.bytes == k->bytes && !memcmp(entry->key.text, k->text, k->bytes)) return entry;
  }
  return NULL;
}

/* Remembers a key's geometry in its entry, or an empty one, or another key's, each in turn. */
static void remember(const memo_key *k, const geometry *g, held **unheld) {
  if (!memo_table || !k->bytes) return;
  static unsigned turn;
  struct memo_entry *entry = find(k);
  for (unsigned i = 0; i < MEMO_PLACES && !entry; i++)
    if (!place(k, i)->key.bytes) entry = place(k, i);
  if (!entry) entry = place(k, turn++ % MEMO_PLACES);
  let_go(entry->kernel, unheld);
  entry->kernel = NULL;
  entry->asked_at = 0;
  entry->has_run = 0;
  entry->key.hash = k->hash;
  entry->key.bytes = k->bytes;
  memcpy(entry->key.text, k->text, k->bytes);
  copy_geometry(&entry->value, g);
}

void epg_geometry_forget_all(void) {
  held *unheld = NULL;
  pthread_mutex_lock(&lock);
  for (int i = 0; memo_table && i < MEMO_ENTRIES; i++) {
    let_go(memo_table[i].kernel, &unheld);
    memset(&memo_table[i], 0, sizeof memo_table[i]);
  }
  pthread_mutex_unlock(&lock);
  give_back(unheld);
}

int epg_geometry_find(const call_arguments *a, const uint8_t *wanted, memo_key *key, geometry *g) {
  /* In a forked child another thread of the parent's may hold the lock for ever. */
  if (epg_forked() || write_key(a, wanted, key)) {
    key->bytes = 0;
    return 0;
  }
  pthread_mutex_lock(&lock);
  if (!memo_table) memo_table = calloc(MEMO_ENTRIES, sizeof *memo_table);
  const struct memo_entry *entry = find(key);
  if (entry) copy_geometry(g, &entry->value);
  pthread_mutex_unlock(&lock);
  return entry != NULL;
}

int32_t epg_geometry_infer(const call_arguments *a, const uint8_t *wanted, const memo_key *key, geometry *g) {
  inferred++;
  const int32_t status = epg_infer(&a->call, wanted, g->sizes, g->ranks, &g->workspace_nbytes);
  if (status) return status;
  held *unheld = NULL;
  pthread_mutex_lock(&lock);
  remember(key, g, &unheld);
  pthread_mutex_unlock(&lock);
  give_back(unheld);
  return EPG_OK;
}

/* Asks for a kernel to hold, for calls that are made again and again. */
static void prepare(const call_arguments *a, const memo_key *key) {
  epg_prepared prepared;
  held *unheld = NULL, *kernel = NULL;
  /* such a call has run, so this does not fail, but there may be none to hold */
  epg_prepare(&a->call, &prepared);
  pthread_mutex_lock(&lock);
  struct memo_entry *entry = find(key);
  if (entry && prepared.kernel && (kernel = calloc(1, sizeof *kernel))) *kernel = (held){.prepared = prepared, .holders = 1};
  if (entry) {
    entry->asked_at = prepared.generation;
    let_go(entry->kernel, &unheld);
    entry->kernel = kernel;
  }
  pthread_mutex_unlock(&lock);
  if (!kernel) epg_prepared_release(&prepared);
  give_back(unheld);
}

/* Takes hold of the kernel of a geometry; NULL where there is none to run. */
static held *take(const memo_key *key) {
  held *unheld = NULL;
  pthread_mutex_lock(&lock);
  forget_old(&unheld);
  struct memo_entry *entry = key ? find(key) : NULL;
  held *kernel = entry && entry->asked_at == epg_prepared_generation() ? entry->kernel : NULL;
  if (kernel) kernel->holders++;
  pthread_mutex_unlock(&lock);
  give_back(unheld);
  return kernel;
}

/* Notes that Go has run a call of a geometry; returns whether to ask for its kernel now. */
static int has_run(const memo_key *key) {
  pthread_mutex_lock(&lock);
  struct memo_entry *entry = find(key);
  const int again = entry && entry->has_run && entry->asked_at != epg_prepared_generation();
  if (entry) entry->has_run = 1;
  pthread_mutex_unlock(&lock);
  return again;
}

int32_t epg_geometry_run(const call_arguments *a, const memo_key *key) {
  if (epg_forked()) return epg_refuse_forked();
  if (a->call.flags & EPG_ACCUMULATE) key = NULL;
  held *kernel = take(key);
  if (kernel) {
    const int alone = kernel->prepared.program != NULL;
    held *unheld = NULL;
    const int32_t status = epg_prepared_run(&kernel->prepared, &a->call);
    pthread_mutex_lock(&lock);
    let_go(kernel, &unheld);
    pthread_mutex_unlock(&lock);
    give_back(unheld);
    if (status >= 0) {
      runs_prepared++;
      if (alone) runs_alone++;
      return status;
    }
  }
  const int32_t status = epg_run(&a->call);
  if (!status && key && !kernel && has_run(key)) prepare(a, key);
  return status;
}
