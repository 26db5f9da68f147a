//go:build emulation

#include "vector_avx512.h"
#define ENGINE amx_emulated
#define TILES
#define EMULATED_TILES
#include "engine.h"
