// Jobs for the kernels, which a program reads from its input; it writes the memory of each to its
// output.
//
// A job, little-endian: u64 bytes of memory, the memory, u64 launches, and for each
//
//   u32 length and the kernel's name, u32 grid, u32 block, u32 bytes of parameters and the
//   parameters, u32 pointers and for each u32 place in the parameters and i64 place in the memory
//
// Memory starts at a multiple of 256 bytes. A name that no kernel has is an error.
#pragma once

#include "emulator.h"

namespace {

template <class T>
T read() {
  T value;
  if (fread(&value, sizeof value, 1, stdin) != 1) fail("the job ends early");
  return value;
}

void read(void *to, size_t bytes) {
  if (bytes > 0 && fread(to, bytes, 1, stdin) != 1) fail("the job ends early");
}

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
    const epigrad::Registration *launched = find_kernel(name);
    if (launched == nullptr) fail("no kernel has the name " + name);
    if (launched->size != buffer.size()) fail(name + " takes " + std::to_string(launched->size) + " bytes of parameters, not " + std::to_string(buffer.size()));
    run_kernel(launched, grid, block, buffer.data());
  }
  if (fwrite(memory, 1, bytes, stdout) != bytes || fflush(stdout) != 0) fail("the memory could not be written");
  free(memory);
  return true;
}

}  // namespace

// Lists the kernels, a line each.
extern "C" __attribute__((visibility("default"))) void epigrad_list_kernels() {
  for (const epigrad::Registration *r = epigrad::Registration::first; r != nullptr; r = r->next) puts(r->name);
}

extern "C" __attribute__((visibility("default"))) void epigrad_run_jobs() {
  while (run_job()) {
  }
}
