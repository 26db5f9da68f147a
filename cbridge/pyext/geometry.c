//go:build pyext

/* The memo of geometries: the outputs of calls of one geometry, and the prepared call that they
 * share. The GIL guards it. */
#include "geometry.h"

#include <string.h>

/* A prepared kernel that entries and running threads hold. It is given back when the last of them
 * lets it go. */
typedef struct {
  epg_prepared prepared;
  int holders;
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

/* Calls that a held kernel has run, those of them that C has run alone, and those whose outputs Go
 * was asked for. */
static uint64_t runs_prepared, runs_alone, inferred;

uint64_t epg_py_runs_prepared(void) { return runs_prepared; }
uint64_t epg_py_runs_alone(void) { return runs_alone; }
uint64_t epg_py_inferred(void) { return inferred; }

/* Lets a kernel go, of which no entry may have it still: other threads run meanwhile. */
static void let_go(held *h) {
  if (!h || --h->holders) return;
  Py_BEGIN_ALLOW_THREADS;
  epg_prepared_release(&h->prepared);
  Py_END_ALLOW_THREADS;
  PyMem_Free(h);
}

/* Gives an entry another kernel, or none. */
static void give(struct memo_entry *entry, held *kernel) {
  held *old = entry->kernel;
  entry->kernel = kernel;
  let_go(old);
}

/* Forgets the kernels that would not be chosen any more. */
static void forget_old(void) {
  static uint64_t seen;
  if (seen == epg_prepared_generation()) return;
  seen = epg_prepared_generation();
  for (int i = 0; memo_table && i < MEMO_ENTRIES; i++) give(&memo_table[i], NULL);
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
  /* A kind's parameters are checked once for a geometry. Any number may be lerp's weight, which has
   * no kind. */
  if (names[1] && append(k, a->parameters, (size_t)call.num_parameters * sizeof *a->parameters)) return -1;
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
static void remember(const memo_key *k, const geometry *g) {
  if (!memo_table || !k->bytes) return;
  static unsigned turn;
  struct memo_entry *entry = find(k);
  for (unsigned i = 0; i < MEMO_PLACES && !entry; i++)
    if (!place(k, i)->key.bytes) entry = place(k, i);
  if (!entry) entry = place(k, turn++ % MEMO_PLACES);
  held *old = entry->kernel;
  entry->kernel = NULL;
  entry->asked_at = 0;
  entry->has_run = 0;
  entry->key.hash = k->hash;
  entry->key.bytes = k->bytes;
  memcpy(entry->key.text, k->text, k->bytes);
  copy_geometry(&entry->value, g);
  let_go(old);
}

void epg_py_forget_geometries(void) {
  for (int i = 0; memo_table && i < MEMO_ENTRIES; i++) {
    held *old = memo_table[i].kernel;
    memset(&memo_table[i], 0, sizeof memo_table[i]);
    let_go(old);
  }
}

int epg_py_infer_geometry(call_arguments *a, PyObject *needs, memo_key *key, geometry *g) {
  uint8_t wanted[MAX_OUTPUTS] = {0};
  const Py_ssize_t places = PyTuple_Check(needs) ? PyTuple_Size(needs) : -1;
  if (places < 0 || places > MAX_OUTPUTS) {
    PyErr_Format(PyExc_TypeError, "needs must be a tuple of at most %d bools", MAX_OUTPUTS);
    return -1;
  }
  for (Py_ssize_t i = 0; i < places; i++) {
    const int need = PyObject_IsTrue(PyTuple_GetItem(needs, i));
    if (need < 0) return -1;
    wanted[i] = (uint8_t)need;
  }
  if (!memo_table) memo_table = PyMem_Calloc(MEMO_ENTRIES, sizeof *memo_table);
  if (epg_forked() || write_key(a, wanted, key)) key->bytes = 0;
  const struct memo_entry *entry = find(key);
  if (entry) {
    copy_geometry(g, &entry->value);
    return (int)places;
  }
  inferred++;
  int32_t status;
  Py_BEGIN_ALLOW_THREADS;
  status = epg_infer(&a->call, wanted, g->sizes, g->ranks, &g->workspace_nbytes);
  Py_END_ALLOW_THREADS;
  if (!status) {
    remember(key, g);
    return (int)places;
  }
  epg_py_raise_last(status);
  return -1;
}

/* Asks for a kernel to hold, for calls that are made again and again. */
static void prepare(const call_arguments *a, const memo_key *key) {
  epg_prepared prepared;
  Py_BEGIN_ALLOW_THREADS;
  /* such a call has run, so this does not fail, but there may be none to hold */
  epg_prepare(&a->call, &prepared);
  Py_END_ALLOW_THREADS;
  struct memo_entry *entry = find(key); /* again: other threads ran meanwhile */
  held *kernel = entry && prepared.kernel ? PyMem_Calloc(1, sizeof *kernel) : NULL;
  if (kernel) *kernel = (held){prepared, 1};
  if (entry) {
    entry->asked_at = prepared.generation;
    give(entry, kernel);
  }
  if (!kernel) epg_prepared_release(&prepared);
}

int32_t epg_py_run_remembered(call_arguments *a, const memo_key *key) {
  forget_old();
  if (a->call.flags & EPG_ACCUMULATE) key = NULL;
  struct memo_entry *entry = key ? find(key) : NULL;
  held *kernel = entry && entry->asked_at == epg_prepared_generation() ? entry->kernel : NULL;
  int32_t status = -1;
  if (kernel) {
    const int alone = kernel->prepared.program != NULL;
    kernel->holders++;
    Py_BEGIN_ALLOW_THREADS;
    status = epg_prepared_run(&kernel->prepared, &a->call);
    Py_END_ALLOW_THREADS;
    let_go(kernel);
    if (status >= 0) {
      runs_prepared++;
      runs_alone += alone;
      return status;
    }
  }
  Py_BEGIN_ALLOW_THREADS;
  status = epg_run(&a->call);
  Py_END_ALLOW_THREADS;
  if (status || !key || kernel || !(entry = find(key))) return status;
  if (entry->has_run && entry->asked_at != epg_prepared_generation()) prepare(a, key);
  if ((entry = find(key))) entry->has_run = 1;
  return status;
}
