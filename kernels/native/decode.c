// A decode step of a Llama: one new token a row, all layers in one call, one parallel region.
//
// Shape suffixes as in models/llama.py:  R rows    C hidden    H query heads    K key heads    G = H / K
//                                        D head_dim    F intermediate
// Weights are panels of 16 outputs, [outputs / 16, inputs, 16], as float16 or float32; products and sums are float32.
// Rows never mix, so a NaN stays in its row.  decode.py beside it mirrors the structs.

#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define WIDTH 16  // outputs of a panel
#define TILE 6    // rows multiplied at once: 12 sums, two weights and a broadcast fill the 16 registers
#define BLOCK 64  // values weighted at once: they stay in the first cache while every head of the group reads them

typedef struct {
    const void *panels;
    int64_t inputs, outputs, half;
} Matrix;

typedef struct {
    const float *attention_norm, *mlp_norm;
    Matrix qkv, output, gate, up, down;
} Layer;

typedef struct {
    const Layer *layers;
    const float *norm;
    int64_t count, hidden, heads, kv_heads, head_dim, intermediate;
    float epsilon;
} Model;

typedef struct {
    float *x;                // [R, C], the embedded tokens; becomes the normed hidden states
    float *const *entries;   // a layer's [slots + 1, K, 2, D]
    const float *rotations;  // [positions, D / 2, 2]
    const int64_t *positions, *slots;
    const int32_t *table, *lengths;
    float *scratch;
    int64_t table_stride, rows, longest, threads, pool_slots, known_positions;
    float scale;
} Step;

// --- scratch ---------------------------------------------------------------------------------------------------------

static int64_t pad(int64_t size) { return (size + 15) / 16 * 16; }

typedef struct {
    float *normed, *qkv, *attended, *gated, *threads;
    int64_t a_thread;
} Scratch;

// A thread's: queries [G, D], sums [G, D], scores [G, longest], gate and up of a panel.
static int64_t thread_floats(const Model *model, int64_t longest, int64_t rows) {
    const int64_t group = model->heads / model->kv_heads;
    return 2 * pad(group * model->head_dim) + group * pad(longest) + 2 * rows * WIDTH;
}

static Scratch divide(const Model *model, const Step *step) {
    const int64_t rows = step->rows, width = (model->heads + 2 * model->kv_heads) * model->head_dim;
    Scratch scratch;
    scratch.normed = step->scratch;
    scratch.qkv = scratch.normed + pad(rows * model->hidden);
    scratch.attended = scratch.qkv + pad(rows * width);
    scratch.gated = scratch.attended + pad(rows * model->heads * model->head_dim);
    scratch.threads = scratch.gated + pad(rows * model->intermediate);
    scratch.a_thread = thread_floats(model, step->longest, rows);
    return scratch;
}

int64_t callboard_scratch_floats(const Model *model, int64_t rows, int64_t longest, int64_t threads) {
    const int64_t width = (model->heads + 2 * model->kv_heads) * model->head_dim;
    return pad(rows * model->hidden) + pad(rows * width) + pad(rows * model->heads * model->head_dim) +
           pad(rows * model->intermediate) + threads * thread_floats(model, longest, rows);
}

// --- products --------------------------------------------------------------------------------------------------------

INLINE __m256 weights(const void *panel, int64_t index, const int half) {
    if (half) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)panel + index)));
    return _mm256_loadu_ps((const float *)panel + index);
}

// Multiply `rows` rows by a panel.  `chains` sums an output hide the latency of few rows.
INLINE void tile(const int rows, const int chains, const int half, const float *x, int64_t stride, const void *panel,
                 int64_t inputs, float *out) {
    __m256 sums[4][TILE][2];
#pragma GCC unroll 8
    for (int c = 0; c < chains; c++)
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) sums[c][r][0] = sums[c][r][1] = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + chains <= inputs; i += chains)
#pragma GCC unroll 8
        for (int c = 0; c < chains; c++) {
            const __m256 low = weights(panel, (i + c) * WIDTH, half), high = weights(panel, (i + c) * WIDTH + 8, half);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const __m256 value = _mm256_broadcast_ss(x + r * stride + i + c);
                sums[c][r][0] = _mm256_fmadd_ps(value, low, sums[c][r][0]);
                sums[c][r][1] = _mm256_fmadd_ps(value, high, sums[c][r][1]);
            }
        }
    for (; i < inputs; i++) {
        const __m256 low = weights(panel, i * WIDTH, half), high = weights(panel, i * WIDTH + 8, half);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const __m256 value = _mm256_broadcast_ss(x + r * stride + i);
            sums[0][r][0] = _mm256_fmadd_ps(value, low, sums[0][r][0]);
            sums[0][r][1] = _mm256_fmadd_ps(value, high, sums[0][r][1]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int side = 0; side < 2; side++) {
            __m256 sum = sums[0][r][side];
#pragma GCC unroll 8
            for (int c = 1; c < chains; c++) sum = _mm256_add_ps(sum, sums[c][r][side]);
            _mm256_storeu_ps(out + r * WIDTH + 8 * side, sum);
        }
}

INLINE void tiles(int rows, const int half, const float *x, int64_t stride, const void *panel, int64_t inputs,
                  float *out) {
    switch (rows) {
        case 1: tile(1, 4, half, x, stride, panel, inputs, out); break;
        case 2: tile(2, 2, half, x, stride, panel, inputs, out); break;
        case 3: tile(3, 2, half, x, stride, panel, inputs, out); break;
        case 4: tile(4, 1, half, x, stride, panel, inputs, out); break;
        case 5: tile(5, 1, half, x, stride, panel, inputs, out); break;
        default: tile(6, 1, half, x, stride, panel, inputs, out);
    }
}

// Multiply all rows by one panel into out [R, 16].  Tiles are of even height: none is left with a single row.
static void multiply_panel(const Matrix *matrix, int64_t number, const float *x, int64_t rows, float *out) {
    const int64_t offset = number * matrix->inputs * WIDTH, count = (rows + TILE - 1) / TILE;
    for (int64_t t = 0, first = 0; t < count; t++) {
        const int64_t height = (rows - first + count - t - 1) / (count - t);
        const float *from = x + first * matrix->inputs;
        if (matrix->half)
            tiles(height, 1, from, matrix->inputs, (const uint16_t *)matrix->panels + offset, matrix->inputs,
                  out + first * WIDTH);
        else
            tiles(height, 0, from, matrix->inputs, (const float *)matrix->panels + offset, matrix->inputs,
                  out + first * WIDTH);
        first += height;
    }
}

// How many panels a thread takes at once: one if each is much work, so that a thread held up elsewhere takes fewer.
static int chunk(int64_t panels, int64_t rows) { return rows >= 4 ? 1 : (int)(panels / (2 * omp_get_num_threads())) + 1; }

// out = x @ matrix, or out += x @ matrix.
static void multiply(const Matrix *matrix, const float *x, int64_t rows, float *out, const int add, float *buffer) {
    const int64_t panels = (matrix->outputs + WIDTH - 1) / WIDTH;
    const int at_once = chunk(panels, rows);
#pragma omp for schedule(dynamic, at_once) nowait
    for (int64_t p = 0; p < panels; p++) {
        multiply_panel(matrix, p, x, rows, buffer);
        const int64_t columns = matrix->outputs - p * WIDTH < WIDTH ? matrix->outputs - p * WIDTH : WIDTH;
        for (int64_t r = 0; r < rows; r++) {
            float *to = out + r * matrix->outputs + p * WIDTH;
            const float *from = buffer + r * WIDTH;
            if (add)
                for (int64_t c = 0; c < columns; c++) to[c] += from[c];
            else
                memcpy(to, from, columns * sizeof(float));
        }
    }
}

// --- elementwise -----------------------------------------------------------------------------------------------------

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

// Root-mean-square norm of every row.
static void normalise(const float *x, const float *weight, int64_t rows, int64_t width, float epsilon, float *out) {
#pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < rows; r++) {
        const float *from = x + r * width;
        float square = 0.0f;
#pragma omp simd reduction(+ : square)
        for (int64_t c = 0; c < width; c++) square += from[c] * from[c];
        const float factor = 1.0f / sqrtf(square / width + epsilon);
        for (int64_t c = 0; c < width; c++) out[r * width + c] = from[c] * factor * weight[c];
    }
}

// out = silu(x @ gate) * (x @ up).
static void gate(const Layer *layer, const float *x, int64_t rows, float *out, float *buffer) {
    const int64_t width = layer->gate.outputs, panels = (width + WIDTH - 1) / WIDTH;
    const int at_once = chunk(panels, rows);
    float *gates = buffer, *ups = buffer + rows * WIDTH;
#pragma omp for schedule(dynamic, at_once) nowait
    for (int64_t p = 0; p < panels; p++) {
        multiply_panel(&layer->gate, p, x, rows, gates);
        multiply_panel(&layer->up, p, x, rows, ups);
        for (int64_t i = 0; i < rows * WIDTH; i += 8) {
            const __m256 value = _mm256_loadu_ps(gates + i), one = _mm256_set1_ps(1.0f);
            const __m256 divisor = _mm256_add_ps(one, exponential(_mm256_sub_ps(_mm256_setzero_ps(), value)));
            _mm256_storeu_ps(gates + i, _mm256_mul_ps(_mm256_div_ps(value, divisor), _mm256_loadu_ps(ups + i)));
        }
        const int64_t columns = width - p * WIDTH < WIDTH ? width - p * WIDTH : WIDTH;
        for (int64_t r = 0; r < rows; r++) memcpy(out + r * width + p * WIDTH, gates + r * WIDTH, columns * sizeof(float));
    }
}

// --- attention -------------------------------------------------------------------------------------------------------

INLINE void rotate(const float *from, const float *rotation, int64_t size, float scale, float *to) {
    for (int64_t i = 0; i < size; i += 2) {
        const float real = from[i], imaginary = from[i + 1], cosine = rotation[i], sine = rotation[i + 1];
        to[i] = (real * cosine - imaginary * sine) * scale;
        to[i + 1] = (real * sine + imaginary * cosine) * scale;
    }
}

// The products of a query with four keys.
INLINE __m128 four_products(const float *query, const float *const keys[4], int64_t size) {
    __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t d = 0; d < size; d += 8) {
        const __m256 part = _mm256_loadu_ps(query + d);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sums[i] = _mm256_fmadd_ps(part, _mm256_loadu_ps(keys[i] + d), sums[i]);
    }
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(sums[0], sums[1]), _mm256_hadd_ps(sums[2], sums[3]));
    return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

// scores[g, i] = queries[g] . key i, for the `count` keys of a table; [G, stride].
static void score(const float *queries, int64_t group, int64_t size, const float *keys, int64_t entry,
                  const int32_t *table, int64_t count, float *scores, int64_t stride) {
    for (int64_t i = 0; i < count; i += 4) {
        const float *four[4];
        // Past the end the last key stands in; softmax drops what comes of it.
        for (int j = 0; j < 4; j++) four[j] = keys + (int64_t)table[i + j < count ? i + j : count - 1] * entry;
        for (int64_t g = 0; g < group; g++) _mm_storeu_ps(scores + g * stride + i, four_products(queries + g * size, four, size));
    }
}

// Exponentiate scores less their maximum, in place; returns 1 / their sum.  There is room up to a multiple of 16.
static float soften(float *scores, int64_t count) {
    const int64_t padded = pad(count);
    for (int64_t i = count; i < padded; i++) scores[i] = -INFINITY;
    float maximum = scores[0];
#pragma omp simd reduction(max : maximum)
    for (int64_t i = 0; i < padded; i++) maximum = scores[i] > maximum ? scores[i] : maximum;
    __m256 sums = _mm256_setzero_ps();
    for (int64_t i = 0; i < padded; i += 8) {
        const __m256 part = exponential(_mm256_sub_ps(_mm256_loadu_ps(scores + i), _mm256_set1_ps(maximum)));
        _mm256_storeu_ps(scores + i, part);
        sums = _mm256_add_ps(sums, part);
    }
    float parts[8], sum = 0.0f;
    _mm256_storeu_ps(parts, sums);
    for (int i = 0; i < 8; i++) sum += parts[i];
    return 1.0f / sum;
}

// Add the weighted values of a block to the sums of `heads` heads, `chunks` times 8 columns.
INLINE void weigh(const int heads, const int chunks, const float *values, int64_t entry, const int32_t *table,
                  int64_t count, const float *weight, int64_t stride, float *sums, int64_t size) {
    __m256 kept[2][4];
#pragma GCC unroll 2
    for (int h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (int c = 0; c < chunks; c++) kept[h][c] = _mm256_loadu_ps(sums + h * size + 8 * c);
    for (int64_t i = 0; i < count; i++) {
        const float *value = values + (int64_t)table[i] * entry;
        __m256 factors[2];
#pragma GCC unroll 2
        for (int h = 0; h < heads; h++) factors[h] = _mm256_broadcast_ss(weight + h * stride + i);
#pragma GCC unroll 4
        for (int c = 0; c < chunks; c++) {
            const __m256 part = _mm256_loadu_ps(value + 8 * c);
#pragma GCC unroll 2
            for (int h = 0; h < heads; h++) kept[h][c] = _mm256_fmadd_ps(factors[h], part, kept[h][c]);
        }
    }
#pragma GCC unroll 2
    for (int h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (int c = 0; c < chunks; c++) _mm256_storeu_ps(sums + h * size + 8 * c, kept[h][c]);
}

static void weigh_all(const float *values, int64_t entry, const int32_t *table, int64_t count, int64_t group,
                      const float *weight, int64_t stride, float *sums, int64_t size) {
    for (int64_t first = 0; first < count; first += BLOCK) {
        const int64_t block = count - first < BLOCK ? count - first : BLOCK;
        for (int64_t g = 0; g < group; g += 2) {
            const float *from = weight + g * stride + first;
            for (int64_t d = 0, step; d < size; d += step) {
                step = size - d >= 32 ? 32 : 8;
                float *to = sums + g * size + d;
                const int both = g + 1 < group;
                if (step == 32 && both) weigh(2, 4, values + d, entry, table + first, block, from, stride, to, size);
                else if (step == 32) weigh(1, 4, values + d, entry, table + first, block, from, stride, to, size);
                else if (both) weigh(2, 1, values + d, entry, table + first, block, from, stride, to, size);
                else weigh(1, 1, values + d, entry, table + first, block, from, stride, to, size);
            }
        }
    }
}

// Rotate, store the new key and value, attend: one task a row and key head.  A row's new slot is its own, so no other
// task reads it.
static void attend(const Model *model, const Step *step, float *entries, const Scratch *scratch, float *mine) {
    const int64_t K = model->kv_heads, D = model->head_dim, G = model->heads / K, H = model->heads;
    const int64_t entry = K * 2 * D, stride = pad(step->longest);
    float *queries = mine, *sums = queries + pad(G * D), *scores = sums + pad(G * D);
#pragma omp for schedule(dynamic) nowait
    for (int64_t task = 0; task < step->rows * K; task++) {
        const int64_t r = task / K, k = task % K, count = step->lengths[r];
        const float *qkv = scratch->qkv + r * (H + 2 * K) * D, *rotation = step->rotations + step->positions[r] * D;
        const int32_t *table = step->table + r * step->table_stride;
        float *pool = entries + k * 2 * D, *new = pool + step->slots[r] * entry;
        rotate(qkv + (H + k) * D, rotation, D, 1.0f, new);
        memcpy(new + D, qkv + (H + K + k) * D, D * sizeof(float));
        for (int64_t g = 0; g < G; g++) rotate(qkv + (k * G + g) * D, rotation, D, step->scale, queries + g * D);
        score(queries, G, D, pool, entry, table, count, scores, stride);
        float factors[G];
        for (int64_t g = 0; g < G; g++) factors[g] = soften(scores + g * stride, count);
        memset(sums, 0, G * D * sizeof(float));
        weigh_all(pool + D, entry, table, count, G, scores, stride, sums, D);
        float *out = scratch->attended + (r * H + k * G) * D;
        for (int64_t g = 0; g < G; g++)
            for (int64_t d = 0; d < D; d++) out[g * D + d] = sums[g * D + d] * factors[g];
    }
}

// --- threads ---------------------------------------------------------------------------------------------------------

typedef struct {
    int32_t arrived, round;
} Barrier;

// Wait for the other threads.  OpenMP's own barrier spins for milliseconds: where another process holds a core, threads
// that share the other one would spin away the time of whom they wait for.  This one soon yields.
static void meet(Barrier *barrier) {
    const int32_t round = __atomic_load_n(&barrier->round, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&barrier->arrived, 1, __ATOMIC_ACQ_REL) == omp_get_num_threads()) {
        __atomic_store_n(&barrier->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&barrier->round, round + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int spins = 0; __atomic_load_n(&barrier->round, __ATOMIC_ACQUIRE) == round; spins++) {
        if (spins < 1000) _mm_pause();
        else sched_yield();
    }
}

// --- what Python calls -----------------------------------------------------------------------------------------------

// Tell whether every slot and position of a step exists.
static int is_sound(const Step *step) {
    for (int64_t r = 0; r < step->rows; r++) {
        if (step->slots[r] < 0 || step->slots[r] >= step->pool_slots) return 0;
        if (step->positions[r] < 0 || step->positions[r] >= step->known_positions) return 0;
        int wrong = 0;
        for (int64_t i = 0; i < step->lengths[r]; i++) {
            const int32_t slot = step->table[r * step->table_stride + i];
            wrong |= slot < 0 || slot >= step->pool_slots;
        }
        if (wrong) return 0;
    }
    return 1;
}

// Returns 0 and does nothing if a slot or position does not exist.
int callboard_decode(const Model *model, const Step *step) {
    if (!is_sound(step)) return 0;
    const Scratch scratch = divide(model, step);
    const int64_t rows = step->rows;
    Barrier barrier = {0, 0};
#pragma omp parallel num_threads(step->threads)
    {
        float *mine = scratch.threads + omp_get_thread_num() * scratch.a_thread;
        for (int64_t number = 0; number < model->count; number++) {
            const Layer *layer = model->layers + number;
            normalise(step->x, layer->attention_norm, rows, model->hidden, model->epsilon, scratch.normed);
            meet(&barrier);
            multiply(&layer->qkv, scratch.normed, rows, scratch.qkv, 0, mine);
            meet(&barrier);
            attend(model, step, step->entries[number], &scratch, mine);
            meet(&barrier);
            multiply(&layer->output, scratch.attended, rows, step->x, 1, mine);
            meet(&barrier);
            normalise(step->x, layer->mlp_norm, rows, model->hidden, model->epsilon, scratch.normed);
            meet(&barrier);
            gate(layer, scratch.normed, rows, scratch.gated, mine);
            meet(&barrier);
            multiply(&layer->down, scratch.gated, rows, step->x, 1, mine);
            meet(&barrier);
        }
        normalise(step->x, model->norm, rows, model->hidden, model->epsilon, step->x);
    }
    return 1;
}

// out [rows, outputs] = x [rows, inputs] @ matrix.  scratch: float32 [threads, rows, 16].
void callboard_multiply(const Matrix *matrix, const float *x, int64_t rows, float *out, float *scratch, int64_t threads) {
#pragma omp parallel num_threads(threads)
    multiply(matrix, x, rows, out, 0, scratch + omp_get_thread_num() * rows * WIDTH);
}
