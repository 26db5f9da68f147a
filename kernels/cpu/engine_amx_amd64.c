#include "vector_avx512.h"
#define ENGINE amx
#define AMX  // products of half types by AMX
#include "engine.h"
