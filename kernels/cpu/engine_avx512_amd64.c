#include "vector_avx512.h"
#define ENGINE avx512
#include "engine.h"
