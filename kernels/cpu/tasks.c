//go:build amd64 || arm64

// How a crew's threads share the tasks of a call, and what a task is in each of the calls of
// tasks.h.
#include "tasks.h"

#define AT ((char *const[]){out0, out1, out2, in0, in1, in2, in3})

// A shared job: what is done for each of its tasks, by a member of the crew.
typedef void job_task(const void *job, int64_t task, int64_t member);
typedef struct {
  epg_crew *crew;
  int64_t tasks;
  job_task *run;
  const void *job;
} shared;

static void join(void *data) {
  const shared *s = data;
  const int64_t member = __atomic_fetch_add(&s->crew->joined, 1, __ATOMIC_RELAXED);
  if (member >= s->crew->members) return;
  for (int64_t task; (task = __atomic_fetch_add(&s->crew->next, 1, __ATOMIC_RELAXED)) < s->tasks;) s->run(s->job, task, member);
}

static void share(epg_crew *crew, int64_t tasks, job_task *run, const void *job) {
  shared s = {crew, tasks, run, job};
  if (crew->parallel)
    crew->parallel(join, &s, (unsigned)crew->team, 0);
  else
    join(&s);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

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
  (void)member;
  j->e->elementwise(j->k, j->l, j->first + done, least(j->each, j->count - done), j->parameters, j->at);
}

void epg_elementwise(const epg_engine *e, epg_crew *crew, epg_kernel *k, const epg_loops *l, int64_t first, int64_t count, int64_t each,
                     const double *parameters, EPG_ADDRESSES) {
  const elementwise_job job = {e, k, l, first, count, each, parameters, AT};
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

void epg_sum(const epg_engine *e, epg_crew *crew, epg_kernel *k, const epg_sums *q, int64_t columns, const double *parameters, EPG_ADDRESSES, char *to0,
             char *to1, char *to2, double *totals, int32_t *done) {
  // Neighbours among many columns are one thread's: their results share cache lines.
  enum { most_together = 64, turns = 16 };
  char *const to[EPG_OPERANDS] = {to0, to1, to2};
  sum_job job = {e, k, q, parameters, AT, to, totals, 0, done, columns, 1};
  for (int i = 0; i < EPG_OUTPUTS; i++) job.each += q->summed[i] * 2 * q->width;
  if (q->chunks == 1 && columns > turns * crew->members) job.together = least(columns / (turns * crew->members), most_together);
  share(crew, divide_up(columns * q->chunks, job.together), sum_task, &job);
}

typedef struct {
  const epg_operand *operand;
  const char *from;
  char *to;
  int16_t *smallest;
  int64_t panels, together, tasks;
} packing;

typedef struct {
  const epg_engine *e;
  packing side[2];
} pack_job;

static packing packing_of(const epg_operand *o, const char *from, char *to, int16_t *smallest) {
  enum { rows = 192 };  // of a task, of which threads have enough to end together
  if (!o) return (packing){0};
  const int64_t panels = divide_up(o->count, o->width), together = least(EPG_PANELS, rows / o->width);
  return (packing){o, from, to, smallest, panels, together, divide_up(panels, together)};
}

static void pack_task(const void *job, int64_t task, int64_t member) {
  const pack_job *j = job;
  const int second = task >= j->side[0].tasks;
  const packing *p = &j->side[second];
  const int64_t panel = (second ? task - j->side[0].tasks : task) * p->together;
  (void)member;
  j->e->pack(p->operand, panel, least(p->together, p->panels - panel), p->from, p->to, p->smallest);
}

void epg_pack(const epg_engine *e, epg_crew *crew, const epg_operand *left, const char *left_from, char *left_to, int16_t *left_smallest,
              const epg_operand *right, const char *right_from, char *right_to, int16_t *right_smallest) {
  const pack_job job = {e, {packing_of(left, left_from, left_to, left_smallest), packing_of(right, right_from, right_to, right_smallest)}};
  share(crew, job.side[0].tasks + job.side[1].tasks, pack_task, &job);
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
  (void)member;
  for (int64_t row = task * j->together; row < least((task + 1) * j->together, j->rows); row++) {
    const int64_t found = j->e->largest(j->form, j->from + row * j->stride, j->bytes);
    most = found > most ? found : most;
  }
  for (int64_t seen = *j->largest; most > seen && !__atomic_compare_exchange_n(j->largest, &seen, most, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);) continue;
}

static void lift_task(const void *job, int64_t task, int64_t member) {
  const row_job *j = job;
  (void)member;
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
  const epg_engine *e;
  const epg_tile *block;
  const epg_cut *cut;
  const char *left, *right;
  const int16_t *left_smallest, *right_smallest;
  char *sums, *out, *pre;
  const char *bias;
} multiply_job;

static void multiply_task(const void *job, int64_t task, int64_t member) {
  const multiply_job *j = job;
  const epg_cut *c = j->cut;
  const int cut = task >= c->uncut;
  const int64_t pieces = c->down * c->across, after = task - c->uncut, number = cut ? c->uncut + after / pieces : task, piece = cut ? after % pieces : 0;
  const int64_t height = cut ? c->height / c->down : c->height, width = cut ? c->width / c->across : c->width;
  const int64_t tiles_down = divide_up(j->block->rows, c->height);
  const int64_t row = number % tiles_down * c->height + piece % c->down * height, column = number / tiles_down * c->width + piece / c->down * width;
  if (row >= j->block->rows || column >= j->block->columns) return;
  epg_tile t = *j->block;
  t.row += row;
  t.column += column;
  t.rows = least(height, t.rows - row);
  t.columns = least(width, t.columns - column);
  char *sums = j->sums + (c->scratch ? member * c->scratch : (row * t.stride + column) * t.sum_size);
  j->e->multiply(&t, j->left + row * t.units * t.sum_size, j->right + column * t.units * t.sum_size, j->left_smallest + row / j->e->left_width[t.form],
                 j->right_smallest + column / j->e->right_width[t.form], sums, j->out, j->pre, j->bias);
}

void epg_multiply(const epg_engine *e, epg_crew *crew, const epg_tile *block, const epg_cut *cut, const char *left, const char *right,
                  const int16_t *left_smallest, const int16_t *right_smallest, char *sums, char *out, char *pre, const char *bias) {
  const multiply_job job = {e, block, cut, left, right, left_smallest, right_smallest, sums, out, pre, bias};
  share(crew, cut->tasks, multiply_task, &job);
}
