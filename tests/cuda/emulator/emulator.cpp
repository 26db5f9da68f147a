// Runs the CUDA kernels on a CPU, for tests on machines without a GPU: a slow GPU of one thread.
// With EPIGRAD_LIBRARY the kernels are those of the library (libraries.cpp), and are compiled once.
#ifdef EPIGRAD_LIBRARY
extern "C" void epigrad_run_jobs();
#else
#include "jobs.h"
#endif

int main() { epigrad_run_jobs(); }
