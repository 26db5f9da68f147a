#include "vector_avx512.h"
#define ENGINE avx512bf16
#define PAIRS  // products of bfloat16 by AVX512_BF16
#include "engine.h"
