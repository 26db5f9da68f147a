// The kernels, compiled for the CPU, and what runs one: a slow GPU of one thread.
//
// Threads of a block run in turn from one __syncthreads to the next; a block in which they do not
// all meet there is an error. Compilers other than nvcc have to be told not to mind its pragmas:
// -Wno-unknown-pragmas.
#pragma once

#undef _FORTIFY_SOURCE  // its longjmp takes a change of stacks for a defect
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <mutex>
#include <string>
#include <vector>

#include "activation.cu"
#undef FORMULA
#include "activation_backward.cu"
#undef FORMULA
#include "curvature.cu"
#undef FORMULA
#include "gated.cu"
#undef FORMULA
#include "gemm_epilogue.cu"
#undef FORMULA
#include "gemm_epilogue_small.cu"
#include "grouped_products.cu"
#include "grouped_rows.cu"
#include "learnable.cu"
#include "lerp.cu"
#include "product_sm80_bf16.cu"
#include "product_sm80_f16.cu"
#include "product_sm80_f32.cu"

dim3 threadIdx, blockIdx, gridDim;
epigrad::Registration *epigrad::Registration::first;

namespace {

[[noreturn]] void fail(const std::string &text) {
  fprintf(stderr, "emulator: %s\n", text.c_str());
  exit(1);
}

// A fiber is a thread of a block where a kernel synchronizes; it goes on to be the same thread of
// the next block. Fibers are begun with ucontext, and changed with setjmp, which leaves the signal
// mask alone and so needs no system call.
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

void run_block(unsigned threads) {
  for (Fiber &fiber : fibers) fiber.done = false;
  for (;;) {
    for (current = 0; current < threads; current++) {
      threadIdx = {current, 0, 0};
      resume(fibers[current]);
    }
    unsigned done = 0;
    for (unsigned i = 0; i < threads; i++) done += fibers[i].done;
    if (done == threads) return;
    if (done != 0) fail(std::string(kernel->name) + ": some threads of a block synchronize and some have returned");
  }
}

// find_kernel returns a kernel by its name, or null.
[[maybe_unused]] const epigrad::Registration *find_kernel(const std::string &name) {
  for (const epigrad::Registration *r = epigrad::Registration::first; r != nullptr; r = r->next) {
    if (name == r->name) return r;
  }
  return nullptr;
}

// Only those that sum across threads, or share what they read, synchronize.
bool synchronizes(const std::string &name) {
  return name.find("columns") != std::string::npos || name.find("rows") != std::string::npos || name.find("small") != std::string::npos ||
         name.find("grouped_") == 0 || name.find("_sm80_") != std::string::npos;
}

// threads_of are how many threads a kernel's blocks have: all are of block_threads but those of
// product_sm80.cuh and of the elementwise kernels' vector form.
[[maybe_unused]] unsigned threads_of(const std::string &name) {
  if (name.find("_sm80_") != std::string::npos) return epigrad::sm80::threads;
  return synchronizes(name) || name.find("_strided") != std::string::npos ? epigrad::block_threads : epigrad::vector_threads;
}

// run_kernel runs a grid of blocks. There is one GPU: who comes second waits.
[[maybe_unused]] void run_kernel(const epigrad::Registration *launched, unsigned grid, unsigned block, const void *launch_parameters) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  kernel = launched;
  parameters = launch_parameters;
  if (block != threads_of(kernel->name)) fail(std::string(kernel->name) + " takes blocks of another size");
  bool fibered = synchronizes(kernel->name);
  gridDim = {grid, 1, 1};
  for (blockIdx = {0, 0, 0}; blockIdx.x < grid; blockIdx.x++) {
    if (fibered) {
      run_block(block);
    } else {
      for (threadIdx = {0, 0, 0}; threadIdx.x < block; threadIdx.x++) kernel->call(kernel->kernel, parameters);
    }
  }
}

}  // namespace

void __syncthreads() { pause(); }
