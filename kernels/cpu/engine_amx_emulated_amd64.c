//go:build emulation

#include "vector_avx512.h"
#define ENGINE amx_emulated
#define AMX
#define EMULATED_AMX
#include "engine.h"
