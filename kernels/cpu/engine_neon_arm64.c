#include "vector_neon.h"
#define ENGINE neon
#include "engine.h"
