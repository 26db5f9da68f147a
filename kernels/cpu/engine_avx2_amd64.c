#include "vector_avx2.h"
#define ENGINE avx2
#include "engine.h"
