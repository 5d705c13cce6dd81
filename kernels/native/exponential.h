// What more than one source needs; included, so that it is inlined.

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

// e ** x for x in [-87, 88]; beyond that, what it is at the bound.  NaN stays NaN: min and max return their second
// operand then.  Degree 7 of the series leaves 5e-9 where |rest| <= log(2) / 2.
INLINE __m256 exponential(__m256 x) {
    x = _mm256_max_ps(_mm256_set1_ps(-87.0f), _mm256_min_ps(_mm256_set1_ps(88.0f), x));
    const __m256 power = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    // log(2) in two parts: the first has few bits, so that its product with a small integer is exact.
    __m256 rest = _mm256_fnmadd_ps(power, _mm256_set1_ps(0.693359375f), x);
    rest = _mm256_fnmadd_ps(power, _mm256_set1_ps(-2.12194440e-4f), rest);
    __m256 sum = _mm256_set1_ps(1.0f / 5040);
    const float factors[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
#pragma GCC unroll 8
    for (int i = 0; i < 7; i++) sum = _mm256_fmadd_ps(sum, rest, _mm256_set1_ps(factors[i]));
    const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(sum, _mm256_castsi256_ps(exponent));
}
