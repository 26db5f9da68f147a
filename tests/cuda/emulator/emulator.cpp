// Runs the CUDA kernels on a CPU, for tests on machines without a GPU: a slow GPU of one thread.
// With an argument it lists them. With EPIGRAD_LIBRARY the kernels are those of the library
// (libraries.cpp), and are compiled once.
#ifdef EPIGRAD_LIBRARY
extern "C" void epigrad_list_kernels();
extern "C" void epigrad_run_jobs();
#else
#include "jobs.h"
#endif

int main(int count, char **) { count > 1 ? epigrad_list_kernels() : epigrad_run_jobs(); }
