#define _GNU_SOURCE  // for syscall
#include <errno.h>

#include "calls.h"
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define AT ((char *const[]){out0, out1, out2, in0, in1, in2, in3})
#define SUMS ((double *const[]){sum0, sum1, sum2})

void epg_elementwise(const epg_engine *e, epg_kernel *k, const epg_loops *l, int64_t first, int64_t count, const double *numbers, EPG_ADDRESSES) {
  e->elementwise(k, l, first, count, numbers, AT);
}

void epg_sum_rows(const epg_engine *e, epg_kernel *k, const epg_loops *rows, const epg_run *r, int64_t first, int64_t count, const double *numbers,
                  EPG_ADDRESSES, double *sum0, double *sum1, double *sum2) {
  e->sum_rows(k, rows, r, first, count, numbers, AT, SUMS);
}

void epg_sum_all(const epg_engine *e, epg_kernel *k, const epg_loops *l, int64_t first, int64_t count, const double *numbers, EPG_ADDRESSES, double *sum0,
                 double *sum1, double *sum2) {
  e->sum_all(k, l, first, count, numbers, AT, SUMS);
}

void epg_pack(const epg_engine *e, const epg_operand *p, int64_t panel, int64_t count, const void *from, void *to, int16_t *smallest) {
  e->pack(p, panel, count, from, to, smallest);
}

void epg_multiply(const epg_engine *e, const epg_tile *t, const void *left, const void *right, const int16_t *left_smallest, const int16_t *right_smallest,
                  void *sums, void *out, void *pre, const void *bias) {
  e->multiply(t, left, right, left_smallest, right_smallest, sums, out, pre, bias);
}

int epg_ask_for_tiles(void) {
#ifdef __linux__
  enum { request_permission = 0x1023, tile_data = 18 };  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) ? errno : 0;
#else
  return ENOSYS;
#endif
}
