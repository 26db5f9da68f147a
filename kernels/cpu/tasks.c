//go:build amd64 || arm64

// How a crew's threads share the tasks of a call, and what a task is in each of the calls of
// tasks.h.
#include "tasks.h"

#include <sched.h>

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A list of tasks is cut into stretches, one for each member of a crew, so that a member's tasks
// are neighbours: it finds in its caches what it wrote there. `next` counts the tasks of each
// stretch that are taken.
typedef struct {
  int64_t *next, tasks, stretches;
} list;

static list list_of(epg_crew *crew, int number, int64_t tasks) { return (list){crew->next[number], tasks, least(crew->members, EPG_STRETCHES)}; }

// take returns a task that nobody has taken, of the member's own stretch first, then of the others,
// which it helps; -1 when there is none. `behind` counts the stretches that the member has found
// empty.
static int64_t take(const list *l, int64_t member, int64_t *behind) {
  for (; *behind < l->stretches; ++*behind) {
    const int64_t stretch = (member + *behind) % l->stretches;
    const int64_t first = stretch * l->tasks / l->stretches, end = (stretch + 1) * l->tasks / l->stretches;
    const int64_t task = first + __atomic_fetch_add(l->next + stretch, 1, __ATOMIC_RELAXED);
    if (task < end) return task;
  }
  return -1;
}

#define EACH_TASK(task, l, member) for (int64_t behind = 0, task; (task = take(l, member, &behind)) >= 0;)

// start calls a function on the crew's threads.
static void start(epg_crew *crew, void (*member)(void *), void *data) {
  if (crew->parallel)
    crew->parallel(member, data, (unsigned)crew->team, 0);
  else
    member(data);
}

// join returns the number of a thread in the crew, -1 if it has members enough.
static int64_t join(epg_crew *crew) {
  const int64_t member = __atomic_fetch_add(&crew->joined, 1, __ATOMIC_RELAXED);
  return member < crew->members ? member : -1;
}

// A shared job: what is done for each of its tasks, by a member of the crew.
typedef void job_task(const void *job, int64_t task, int64_t member);
typedef struct {
  epg_crew *crew;
  int64_t tasks;
  job_task *run;
  const void *job;
} shared;

static void shared_member(void *data) {
  const shared *s = data;
  const int64_t member = join(s->crew);
  if (member < 0) return;
  const list tasks = list_of(s->crew, 0, s->tasks);
  EACH_TASK(task, &tasks, member) s->run(s->job, task, member);
}

static void share(epg_crew *crew, int64_t tasks, job_task *run, const void *job) {
  shared s = {crew, tasks, run, job};
  start(crew, shared_member, &s);
}

typedef struct {
  const epg_engine *e;
  epg_kernel *k;
  const epg_loops *l;
  int64_t first, count, each;
  const double *parameters;
  char *const *at;
} elementwise_job;

static void elementwise_task(const void *job, int64_t task, int64_t member) {
  const elementwise_job *j = job;
  const int64_t done = task * j->each;
  j->e->elementwise(j->k, j->l, j->first + done, least(j->each, j->count - done), j->parameters, j->at);
}

void epg_elementwise(const epg_engine *e, epg_crew *crew, epg_kernel *k, const epg_loops *l, int64_t first, int64_t count, int64_t each,
                     const double *parameters, epg_addresses a) {
  const elementwise_job job = {e, k, l, first, count, each, parameters, a.at};
  share(crew, divide_up(count, each), elementwise_task, &job);
}

typedef struct {
  const epg_engine *e;
  epg_kernel *k;
  const epg_sums *sums;
  const double *parameters;
  char *const *at, *const *to;
  double *totals;
  int64_t each;  // doubles of a task's totals
  int32_t *done;
  int64_t columns, together;
} sum_job;

static void sum_one(const sum_job *j, int64_t task, int64_t member) {
  const int64_t chunks = j->sums->chunks, column = task / chunks;
  const int64_t first = chunks > 1 ? column * chunks : member, own = chunks > 1 ? task : member;
  j->e->sum(j->k, j->sums, task, j->parameters, j->at, j->totals + own * j->each);
  // Who ends a column's last chunk sees the others'.
  if (chunks > 1 && __atomic_add_fetch(j->done + column, 1, __ATOMIC_ACQ_REL) < chunks) return;
  j->e->finish_sums(j->sums, column, j->totals + first * j->each, j->to);
}

static void sum_task(const void *job, int64_t task, int64_t member) {
  const sum_job *j = job;
  const int64_t all = j->columns * j->sums->chunks, end = least((task + 1) * j->together, all);
  for (int64_t one = task * j->together; one < end; one++) sum_one(j, one, member);
}

void epg_sum(const epg_engine *e, epg_crew *crew, epg_kernel *k, const epg_sums *q, int64_t columns, const double *parameters, epg_addresses a, epg_targets to,
             double *totals, int32_t *done) {
  // Neighbours among many columns are one thread's: their results share cache lines.
  enum { most_together = 64, turns = 16 };
  sum_job job = {e, k, q, parameters, a.at, to.at, totals, 0, done, columns, 1};
  for (int i = 0; i < EPG_OUTPUTS; i++) job.each += q->summed[i] * 2 * q->width;
  if (q->chunks == 1 && columns > turns * crew->members) job.together = least(columns / (turns * crew->members), most_together);
  share(crew, divide_up(columns * q->chunks, job.together), sum_task, &job);
}

typedef struct {
  const epg_engine *e;
  int64_t form, rows, bytes, stride, together, powers;
  const char *from;
  char *at;
  int64_t *largest;
} row_job;

enum { bytes_of_task = 256 << 10 };

static row_job rows_job(const epg_engine *e, int64_t form, int64_t rows, int64_t bytes, int64_t stride) {
  const int64_t together = bytes_of_task / (bytes ? bytes : 1);
  return (row_job){.e = e, .form = form, .rows = rows, .bytes = bytes, .stride = stride, .together = together ? together : 1};
}

static void largest_task(const void *job, int64_t task, int64_t member) {
  const row_job *j = job;
  int64_t most = 0;
  for (int64_t row = task * j->together; row < least((task + 1) * j->together, j->rows); row++) {
    const int64_t found = j->e->largest(j->form, j->from + row * j->stride, j->bytes);
    most = found > most ? found : most;
  }
  for (int64_t seen = *j->largest; most > seen && !__atomic_compare_exchange_n(j->largest, &seen, most, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);) continue;
}

static void lift_task(const void *job, int64_t task, int64_t member) {
  const row_job *j = job;
  for (int64_t row = task * j->together; row < least((task + 1) * j->together, j->rows); row++)
    j->e->lift(j->form, j->at + row * j->stride, j->bytes, j->powers);
}

int64_t epg_largest(const epg_engine *e, epg_crew *crew, int64_t form, const char *from, int64_t rows, int64_t bytes, int64_t stride) {
  int64_t largest = 0;
  row_job job = rows_job(e, form, rows, bytes, stride);
  job.from = from;
  job.largest = &largest;
  share(crew, divide_up(rows, job.together), largest_task, &job);
  return largest;
}

void epg_lift(const epg_engine *e, epg_crew *crew, int64_t form, char *at, int64_t rows, int64_t bytes, int64_t stride, int64_t powers) {
  row_job job = rows_job(e, form, rows, bytes, stride);
  job.at = at;
  job.powers = powers;
  share(crew, divide_up(rows, job.together), lift_task, &job);
}

typedef struct {
  int64_t first, count;
} range;

typedef struct {
  epg_packing of;
  int64_t panels, together, tasks;
} packing;

// There are no tasks where an operand has been packed before, or where strips pack it.
static packing packing_of(epg_packing of, int by_strips, int64_t members) {
  // of a task at most; tasks of each thread, so that they end together
  enum { most_rows = 192, turns = 4 };
  const epg_operand *const o = of.operand[0];
  if (!o || by_strips) return (packing){.of = of};
  const int64_t width = o->width, panels = divide_up(o->count, width);
  const int64_t together = least(least(EPG_PANELS, divide_up(most_rows, width)), divide_up(panels, turns * members));
  return (packing){of, panels, together, divide_up(panels, together)};
}

// pack packs panels of an operand's rows: the parts of all pairs, in their order.
static void pack(const epg_engine *e, const epg_packing *p, range rows, int64_t panel, int64_t count) {
  for (int i = 0; i < EPG_PAIRS && p->operand[i]; i++) {
    epg_operand o = *p->operand[i];
    o.row += rows.first;
    o.count = rows.count;
    e->pack(&o, panel, count, p->from[i], p->to, p->smallest);
  }
}

static void pack_task(const epg_engine *e, const packing *p, int64_t task) {
  const int64_t panel = task * p->together;
  pack(e, &p->of, (range){0, p->of.operand[0]->count}, panel, least(p->together, p->panels - panel));
}

typedef struct {
  const epg_engine *e;
  epg_crew *crew;
  packing side[2];
  const epg_tile *block;
  const epg_cut *cut;
  epg_memory memory;
} product_job;

// part is one of so many parts of n, as even as whole units are.
static range part(int64_t n, int64_t unit, int64_t parts, int64_t number) {
  const int64_t units = divide_up(n, unit), first = number * units / parts * unit;
  return (range){first, least((number + 1) * units / parts * unit, n) - first};
}

// pause_thread leaves a core's units to its other thread for a moment.
static void pause_thread(void) {
#ifdef __x86_64__
  __builtin_ia32_pause();
#else
  __asm__ volatile("yield");
#endif
}

// wait_for_packing returns when all panels are packed. Whoever packs runs, so the wait is short.
static void wait_for_packing(const epg_crew *crew, int64_t tasks) {
  enum { patience = 1 << 12 };
  for (int64_t spins = 0; __atomic_load_n(&crew->packed, __ATOMIC_ACQUIRE) < tasks; spins++) {
    if (spins < patience)
      pause_thread();
    else
      sched_yield();
  }
}

static int16_t smallest_of(const int16_t *panels, int64_t count) {
  int16_t least = INT16_MAX;
  for (int64_t i = 0; i < count; i++) least = panels[i] < least ? panels[i] : least;
  return least;
}

// want_lift tells that numbers are so small that the product had better be lifted (denormals.h), by
// what is known of `count` panels of the right operand.
static int want_lift(const product_job *j, const epg_tile *t, const epg_panels *p, int64_t count) {
  const int16_t left = smallest_of(p->left_smallest, divide_up(t->rows, j->e->left_width[t->form])), right = smallest_of(p->right_smallest, count);
  return !left || !right || (j->cut->pairs && left + right < EPG_LEAST_EXPONENTS);
}
static int64_t right_panels(const product_job *j, const epg_tile *t) { return divide_up(t->columns, j->e->right_width[t->form]); }

// panels_of are a job's packed operands.
static epg_panels panels_of(const product_job *j) {
  const epg_packing *left = &j->side[0].of, *right = &j->side[1].of;
  return (epg_panels){left->to, right->to, left->smallest, right->smallest};
}

static void refuse(epg_crew *crew) { __atomic_store_n(&crew->refused, 1, __ATOMIC_RELAXED); }

// multiply_few computes a strip of columns that are read where they lie.
static void multiply_few(const product_job *j, const epg_tile *t, epg_panels *p, const epg_memory *memory, range columns) {
  const epg_packing *const right = &j->side[1].of;
  epg_operand o = *right->operand[0];
  o.row += columns.first;
  o.count = columns.count;
  const int16_t smallest = j->e->multiply_few(t, &o, right->from[0], p->left, memory->sums, j->cut->round);
  p->right_smallest = &smallest;
  if (j->cut->refuse && want_lift(j, t, p, 1)) return refuse(j->crew);
  j->e->finish(t, memory);
}

static void multiply_task(const product_job *j, int64_t task, int64_t member) {
  const epg_cut *c = j->cut;
  const range rows = part(j->block->rows, c->row_unit, c->down, c->row_by_row ? task / c->across : task % c->down);
  const range columns = part(j->block->columns, c->column_unit, c->across, c->row_by_row ? task % c->across : task / c->down);
  epg_tile t = *j->block;
  t.row += rows.first;
  t.column += columns.first;
  t.rows = rows.count;
  t.columns = columns.count;
  epg_memory memory = j->memory;
  memory.sums += (c->scratch ? member * c->scratch : (rows.first * t.stride + columns.first) * t.sum_size);
  epg_panels p = panels_of(j);
  p.left += rows.first * t.units * t.sum_size;
  p.right += columns.first * t.units * t.sum_size;
  p.left_smallest += rows.first / j->e->left_width[t.form];
  p.right_smallest += columns.first / j->e->right_width[t.form];
  int16_t smallest[EPG_PANELS];
  if (c->panels) {
    const range strip = c->row_by_row ? rows : columns;
    epg_packing own = j->side[!c->row_by_row].of;
    own.to = memory.sums + c->panels;
    own.smallest = smallest;
    pack(j->e, &own, strip, 0, divide_up(strip.count, own.operand[0]->width));
    if (c->row_by_row)
      p.left = own.to, p.left_smallest = smallest;
    else
      p.right = own.to, p.right_smallest = smallest;
    if (c->refuse && want_lift(j, &t, &p, right_panels(j, &t))) return refuse(j->crew);
  }
  if (c->round) return multiply_few(j, &t, &p, &memory, columns);
  j->e->multiply(&t, &p, &memory);
}

// A member packs, waits until all is packed, and multiplies.
static void product_member(void *data) {
  const product_job *j = data;
  epg_crew *const crew = j->crew;
  const int64_t member = join(crew);
  if (member < 0) return;
  for (int i = 0; i < 2; i++) {
    const list panels = list_of(crew, i, j->side[i].tasks);
    EACH_TASK(task, &panels, member) {
      pack_task(j->e, &j->side[i], task);
      __atomic_fetch_add(&crew->packed, 1, __ATOMIC_RELEASE);
    }
  }
  wait_for_packing(crew, j->side[0].tasks + j->side[1].tasks);
  if (j->cut->refuse == EPG_ALWAYS) return refuse(crew);
  const epg_panels all = panels_of(j);
  const int whole = !j->cut->panels && !j->cut->round;
  if (j->cut->refuse && whole && want_lift(j, j->block, &all, right_panels(j, j->block))) return refuse(crew);
  const list tiles = list_of(crew, 2, j->cut->down * j->cut->across);
  EACH_TASK(task, &tiles, member) {
    if (__atomic_load_n(&crew->refused, __ATOMIC_RELAXED)) return;
    multiply_task(j, task, member);
  }
}

void epg_product(const epg_engine *e, epg_crew *crew, epg_packing left, epg_packing right, const epg_tile *block, const epg_cut *cut, epg_memory memory) {
  product_job job = {
      .e = e,
      .crew = crew,
      .side = {packing_of(left, cut->panels && cut->row_by_row, crew->members),
               packing_of(right, cut->round || (cut->panels && !cut->row_by_row), crew->members)},
      .block = block,
      .cut = cut,
      .memory = memory,
  };
  start(crew, product_member, &job);
}
