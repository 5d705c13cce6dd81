// One token a row from a step's logits: the most likely one, or a draw by temperature, among those that a mask allows.
//
// Shape suffixes:  N rows    V vocabulary    W 32-bit words of a mask

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

#include "exponential.h"

#define BLOCK 64        // weights summed at once: a row is looked through by blocks, then within one
#define FAINTEST -87.0f // a weight of less than e ** this is none
#define ALONE (1 << 18) // logits below which one thread is faster than two that meet

// Row n's mask is line lines[n] of masks, none if that is negative; it is drawn from if temperatures[n] > 0.
typedef struct {
    const float *logits;   // [N, V]
    const uint8_t *masks;  // [lines, 4 W]; bit b of byte i is token 8 i + b
    const int32_t *lines;  // [N]
    const float *temperatures;
    const double *uniform;  // [N], in [0, 1)
    int64_t *tokens;
    float *best;
    int64_t rows, vocabulary, bytes, threads;
} Draw;

typedef struct {
    const float *logits;
    const uint8_t *mask;  // NULL if everything is allowed
    int64_t vocabulary, bytes;
} Row;

// Whether nothing of a block of tokens is allowed: most blocks, where a grammar leaves little choice.
INLINE int barred(const Row *row, int64_t block) {
    if (!row->mask) return 0;
    uint64_t bits = 0;
    const int64_t first = block * (BLOCK / 8), left = row->bytes - first;
    if (left > 0) memcpy(&bits, row->mask + first, left < BLOCK / 8 ? left : BLOCK / 8);
    return !bits;
}

INLINE int64_t end_of(const Row *row, int64_t block) {
    return (block + 1) * BLOCK < row->vocabulary ? (block + 1) * BLOCK : row->vocabulary;
}

// Which of the eight tokens from `first` on exist and are allowed: all bits of a lane, or none.
INLINE __m256i allowed(const Row *row, int64_t first) {
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    int byte = 255;
    if (row->mask) byte = first / 8 < row->bytes ? row->mask[first / 8] : 0;
    if (row->vocabulary - first < 8) byte &= (1 << (row->vocabulary - first)) - 1;
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(byte), bits), bits);
}

INLINE __m256 eight(const Row *row, int64_t first) {
    if (row->vocabulary - first >= 8) return _mm256_loadu_ps(row->logits + first);
    const __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32(row->vocabulary - first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_maskload_ps(row->logits + first, there);
}

// The greatest allowed logit: NaN if any logit is, -infinity if nothing is allowed.
static float greatest(const Row *row) {
    __m256 most = _mm256_set1_ps(-INFINITY), strange = _mm256_setzero_ps();
    for (int64_t block = 0; block * BLOCK < row->vocabulary; block++) {
        const int64_t end = end_of(row, block);
        if (barred(row, block)) {
            for (int64_t i = block * BLOCK; i < end; i += 8) {
                const __m256 part = eight(row, i);
                strange = _mm256_or_ps(strange, _mm256_cmp_ps(part, part, _CMP_UNORD_Q));
            }
            continue;
        }
        for (int64_t i = block * BLOCK; i < end; i += 8) {
            const __m256 part = eight(row, i);
            strange = _mm256_or_ps(strange, _mm256_cmp_ps(part, part, _CMP_UNORD_Q));
            most = _mm256_max_ps(_mm256_blendv_ps(most, part, _mm256_castsi256_ps(allowed(row, i))), most);
        }
    }
    if (_mm256_movemask_ps(strange)) return NAN;
    float parts[8], best = -INFINITY;
    _mm256_storeu_ps(parts, most);
    for (int i = 0; i < 8; i++) best = parts[i] > best ? parts[i] : best;
    return best;
}

static int64_t first_of(const Row *row, float best) {
    for (int64_t i = 0; i < row->vocabulary; i += 8) {
        const __m256 same = _mm256_cmp_ps(eight(row, i), _mm256_set1_ps(best), _CMP_EQ_OQ);
        const int found = _mm256_movemask_ps(_mm256_and_ps(same, _mm256_castsi256_ps(allowed(row, i))));
        if (found) return i + __builtin_ctz(found);
    }
    return 0;
}

// What eight tokens weigh beside the best one, which weighs 1.
INLINE __m256 weigh(const Row *row, int64_t first, float best, float temperature) {
    const __m256 distance = _mm256_div_ps(_mm256_sub_ps(eight(row, first), _mm256_set1_ps(best)), _mm256_set1_ps(temperature));
    const __m256 counts = _mm256_cmp_ps(distance, _mm256_set1_ps(FAINTEST), _CMP_GE_OQ);
    return _mm256_and_ps(exponential(distance), _mm256_and_ps(counts, _mm256_castsi256_ps(allowed(row, first))));
}

// Find the first place whose cumulative weight exceeds *share of the whole, and how far into it that lies.
static int64_t position(const float *weights, int64_t count, double *share) {
    double total = 0.0, walked = 0.0;
    for (int64_t i = 0; i < count; i++) total += weights[i];
    const double wanted = *share * total;
    int64_t place = 0;
    while (place < count - 1 && walked + weights[place] <= wanted) walked += weights[place++];
    const double into = (wanted - walked) / weights[place], most = 1.0 - 0x1p-32;
    *share = into < 0.0 ? 0.0 : into > most ? most : into;
    return place;
}

// The token at a share of the whole weight.  sums: room for a float a block.
static int64_t draw(const Row *row, float best, float temperature, double share, float *sums) {
    const int64_t blocks = (row->vocabulary + BLOCK - 1) / BLOCK;
    for (int64_t block = 0; block < blocks; block++) {
        sums[block] = 0.0f;
        if (barred(row, block)) continue;
        const int64_t end = end_of(row, block);
        __m256 sum = _mm256_setzero_ps();
        for (int64_t i = block * BLOCK; i < end; i += 8) sum = _mm256_add_ps(sum, weigh(row, i, best, temperature));
        float parts[8];
        _mm256_storeu_ps(parts, sum);
        sums[block] = ((parts[0] + parts[4]) + (parts[1] + parts[5])) + ((parts[2] + parts[6]) + (parts[3] + parts[7]));
    }
    const int64_t first = position(sums, blocks, &share) * BLOCK;
    float weights[BLOCK] = {0};
    for (int64_t i = 0; i < BLOCK && first + i < row->vocabulary; i += 8)
        _mm256_storeu_ps(weights + i, weigh(row, first + i, best, temperature));
    return first + position(weights, BLOCK, &share);
}

// A row whose best is not finite has a token that means nothing.
void callboard_draw(const Draw *step) {
    const int64_t blocks = (step->vocabulary + BLOCK - 1) / BLOCK;
    const int threads = step->rows * step->vocabulary < ALONE ? 1 : (int)step->threads;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t n = 0; n < step->rows; n++) {
        const uint8_t *mask = step->lines[n] < 0 ? 0 : step->masks + step->lines[n] * step->bytes;
        const Row row = {step->logits + n * step->vocabulary, mask, step->vocabulary, step->bytes};
        const float best = step->best[n] = greatest(&row);
        float sums[blocks];
        if (!isfinite(best)) step->tokens[n] = 0;
        else if (step->temperatures[n] > 0.0f) step->tokens[n] = draw(&row, best, step->temperatures[n], step->uniform[n], sums);
        else step->tokens[n] = first_of(&row, best);
    }
}
