/* A program in C++ that loads this library beside PyTorch has epigrad's operators. */
#include "epigrad.h"

__attribute__((constructor)) static void register_operators(void) { epg_torch_register(); }
