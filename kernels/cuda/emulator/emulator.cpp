// Runs the CUDA kernels on a CPU, for tests on machines without a GPU: a slow GPU of one thread, which reads jobs from its input, and writes the memory
// of each to its output.
//
// A job, little-endian: u64 bytes of memory, the memory, u64 launches, and for each
//
//   u32 length and the kernel's name, u32 grid, u32 block, u32 bytes of parameters and the parameters, u32 pointers and for each u32 place in the
//   parameters and i64 place in the memory
//
// Memory starts at a multiple of 256 bytes. Threads of a block run in turn from one __syncthreads to the next; a block in which they do not all meet
// there is an error, as is a name that no kernel has.
#undef _FORTIFY_SOURCE  // its longjmp takes a change of stacks for a defect
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <string>
#include <vector>

#include "../activation.cu"
#undef FORMULA
#include "../gated.cu"
#undef FORMULA
#include "../gemm_epilogue.cu"
#include "../lerp.cu"

thread_local dim3 threadIdx, blockIdx;
epigrad::Registration *epigrad::Registration::first;

namespace {

[[noreturn]] void fail(const std::string &text) {
  fprintf(stderr, "emulator: %s\n", text.c_str());
  exit(1);
}

template <class T>
T read() {
  T value;
  if (fread(&value, sizeof value, 1, stdin) != 1) fail("the job ends early");
  return value;
}

void read(void *to, size_t bytes) {
  if (bytes > 0 && fread(to, bytes, 1, stdin) != 1) fail("the job ends early");
}

// A fiber is a thread of a block where a kernel synchronizes; it goes on to be the same thread of the next block. Fibers are begun with ucontext, and changed with
// setjmp, which leaves the signal mask alone and so needs no system call.
struct Fiber {
  ucontext_t context;
  jmp_buf place;
  std::vector<char> stack = std::vector<char>(1 << 16);
  bool begun = false, done = false;
};

std::vector<Fiber> fibers(epigrad::block_threads);
jmp_buf scheduler;
unsigned current;
const epigrad::Registration *kernel;
const void *parameters;

// pause goes back to the scheduler, and returns when that resumes the fiber.
void pause() {
  if (_setjmp(fibers[current].place) == 0) _longjmp(scheduler, 1);
}

void be_thread() {
  for (;;) {
    kernel->call(kernel->kernel, parameters);
    fibers[current].done = true;
    pause();
  }
}

void resume(Fiber &fiber) {
  if (_setjmp(scheduler) != 0) return;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  makecontext(&fiber.context, be_thread, 0);
  setcontext(&fiber.context);
}

void run_block() {
  for (Fiber &fiber : fibers) fiber.done = false;
  for (;;) {
    for (current = 0; current < fibers.size(); current++) {
      threadIdx = {current, 0, 0};
      resume(fibers[current]);
    }
    size_t done = 0;
    for (const Fiber &fiber : fibers) done += fiber.done;
    if (done == fibers.size()) return;
    if (done != 0) fail(std::string(kernel->name) + ": some threads of a block synchronize and some have returned");
  }
}

const epigrad::Registration *find(const std::string &name) {
  for (const epigrad::Registration *r = epigrad::Registration::first; r != nullptr; r = r->next) {
    if (name == r->name) return r;
  }
  fail("no kernel has the name " + name);
}

// Only those that sum across threads synchronize.
bool synchronizes(const std::string &name) { return name.find("columns") != std::string::npos || name.find("rows") != std::string::npos; }

// run_job reports whether there was one.
bool run_job() {
  uint64_t bytes = 0;
  if (fread(&bytes, sizeof bytes, 1, stdin) != 1) return false;
  char *memory = static_cast<char *>(aligned_alloc(256, (bytes + 255) / 256 * 256));
  read(memory, bytes);
  for (uint64_t launches = read<uint64_t>(); launches > 0; launches--) {
    std::string name(read<uint32_t>(), ' ');
    read(name.data(), name.size());
    uint32_t grid = read<uint32_t>(), block = read<uint32_t>();
    std::vector<char> buffer(read<uint32_t>());
    read(buffer.data(), buffer.size());
    for (uint32_t pointers = read<uint32_t>(); pointers > 0; pointers--) {
      uint32_t at = read<uint32_t>();
      char *address = memory + read<int64_t>();
      memcpy(buffer.data() + at, &address, sizeof address);
    }
    kernel = find(name);
    parameters = buffer.data();
    if (kernel->size != buffer.size()) fail(name + " takes " + std::to_string(kernel->size) + " bytes of parameters, not " + std::to_string(buffer.size()));
    if (block != epigrad::block_threads) fail(name + " takes blocks of another size");
    for (blockIdx = {0, 0, 0}; blockIdx.x < grid; blockIdx.x++) {
      if (synchronizes(name)) {
        run_block();
      } else {
        for (threadIdx = {0, 0, 0}; threadIdx.x < block; threadIdx.x++) kernel->call(kernel->kernel, parameters);
      }
    }
  }
  if (fwrite(memory, 1, bytes, stdout) != bytes || fflush(stdout) != 0) fail("the memory could not be written");
  free(memory);
  return true;
}

}  // namespace

void __syncthreads() { pause(); }

int main() {
  while (run_job()) {
  }
}
