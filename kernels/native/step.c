// A step of a Llama on a CPU: any rows with any number of new tokens, all layers in one call, one parallel region.
//
// Shape suffixes:  T new tokens    R rows    C hidden    H query heads    K key heads    G = H / K    D head_dim
//                  F intermediate
// Weights are panels of 16 outputs, [outputs / 16, inputs, 16], as float16 or float32; products and sums are float32.
// Tokens meet in attention only, so a NaN stays in its row.  step.py beside it mirrors the structs.

#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

#include "exponential.h"

#define WIDTH 16  // outputs of a panel
#define TILE 6    // tokens multiplied at once: 12 sums, two weights and a broadcast fill the 16 registers
#define TOKENS 48 // tokens multiplied by a panel at once: so many tokens' inputs stay in the second cache
#define AHEAD 16  // keys fetched ahead
#define LINE 16   // floats of a cache line
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

// Token t belongs to row owners[t] and sees the first visible[t] slots of that row's table, its own the last of them.
typedef struct {
    float *x;                // [T, C], the embedded tokens; becomes the normed hidden states of the N wanted ones
    float *const *entries;   // a layer's [slots + 1, K, 2, D]
    const float *rotations;  // [positions, D / 2, 2]
    const int64_t *positions, *slots;  // [T]
    const int32_t *table;              // [R, table_stride]
    const int32_t *owners, *visible;   // [T]
    const int64_t *wanted;             // [N] tokens, ascending; NULL for all
    float *scratch;
    int64_t table_stride, rows, tokens, longest, threads, pool_slots, known_positions, wanted_count;
    float scale;
} Step;

// --- scratch ---------------------------------------------------------------------------------------------------------

static int64_t pad(int64_t size) { return (size + 15) / 16 * 16; }

typedef struct {
    float *normed, *qkv, *attended, *gated, *threads;
    int64_t a_thread;
} Scratch;

// A thread's while it multiplies: two products of a panel and a block of tokens.
#define PRODUCT_FLOATS (2 * TOKENS * WIDTH)

// A thread's: what it multiplies in, or sums [G, D] and scores [G, longest].
static int64_t thread_floats(const Model *model, int64_t longest) {
    const int64_t group = model->heads / model->kv_heads;
    const int64_t attention = pad(group * model->head_dim) + group * pad(longest);
    return attention > PRODUCT_FLOATS ? attention : PRODUCT_FLOATS;
}

static Scratch divide(const Model *model, const Step *step) {
    const int64_t tokens = step->tokens, width = (model->heads + 2 * model->kv_heads) * model->head_dim;
    Scratch scratch;
    scratch.normed = step->scratch;
    scratch.qkv = scratch.normed + pad(tokens * model->hidden);
    scratch.attended = scratch.qkv + pad(tokens * width);
    scratch.gated = scratch.attended + pad(tokens * model->heads * model->head_dim);
    scratch.threads = scratch.gated + pad(tokens * model->intermediate);
    scratch.a_thread = thread_floats(model, step->longest);
    return scratch;
}

int64_t callboard_step_floats(const Model *model, int64_t tokens, int64_t longest, int64_t threads) {
    const int64_t width = (model->heads + 2 * model->kv_heads) * model->head_dim;
    return pad(tokens * model->hidden) + pad(tokens * width) + pad(tokens * model->heads * model->head_dim) +
           pad(tokens * model->intermediate) + threads * thread_floats(model, longest);
}

int64_t callboard_product_floats(int64_t threads) { return threads * PRODUCT_FLOATS; }

// --- products --------------------------------------------------------------------------------------------------------

INLINE __m256 weights(const void *panel, int64_t index, const int half) {
    if (half) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)panel + index)));
    return _mm256_loadu_ps((const float *)panel + index);
}

// out [rows, 16] = x [rows, inputs] @ panel, or out += it.  `chains` sums an output hide the latency of few rows.
INLINE void tile(const int rows, const int chains, const int half, const float *x, int64_t x_stride, const void *panel,
                 int64_t inputs, float *out, int64_t out_stride, int add) {
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
                const __m256 value = _mm256_broadcast_ss(x + r * x_stride + i + c);
                sums[c][r][0] = _mm256_fmadd_ps(value, low, sums[c][r][0]);
                sums[c][r][1] = _mm256_fmadd_ps(value, high, sums[c][r][1]);
            }
        }
    for (; i < inputs; i++) {
        const __m256 low = weights(panel, i * WIDTH, half), high = weights(panel, i * WIDTH + 8, half);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const __m256 value = _mm256_broadcast_ss(x + r * x_stride + i);
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
            float *to = out + r * out_stride + 8 * side;
            _mm256_storeu_ps(to, add ? _mm256_add_ps(_mm256_loadu_ps(to), sum) : sum);
        }
}

INLINE void tile_of(int rows, const int half, const float *x, int64_t x_stride, const void *panel, int64_t inputs,
                    float *out, int64_t out_stride, int add) {
    switch (rows) {
        case 1: tile(1, 4, half, x, x_stride, panel, inputs, out, out_stride, add); break;
        case 2: tile(2, 2, half, x, x_stride, panel, inputs, out, out_stride, add); break;
        case 3: tile(3, 2, half, x, x_stride, panel, inputs, out, out_stride, add); break;
        case 4: tile(4, 1, half, x, x_stride, panel, inputs, out, out_stride, add); break;
        case 5: tile(5, 1, half, x, x_stride, panel, inputs, out, out_stride, add); break;
        default: tile(6, 1, half, x, x_stride, panel, inputs, out, out_stride, add);
    }
}

// out [tokens, 16] = x @ panel, or out += it.  Tiles are of even height: none is left with a single token.
static void multiply_panel(const Matrix *matrix, int64_t number, const float *x, int64_t tokens, float *out,
                           int64_t stride, int add) {
    const int64_t inputs = matrix->inputs, offset = number * inputs * WIDTH, count = (tokens + TILE - 1) / TILE;
    for (int64_t t = 0, first = 0; t < count; t++) {
        const int64_t height = (tokens - first + count - t - 1) / (count - t);
        const float *from = x + first * inputs;
        float *to = out + first * stride;
        if (matrix->half)
            tile_of(height, 1, from, inputs, (const uint16_t *)matrix->panels + offset, inputs, to, stride, add);
        else
            tile_of(height, 0, from, inputs, (const float *)matrix->panels + offset, inputs, to, stride, add);
        first += height;
    }
}

// Tokens are taken in blocks; a block of a panel is a task.
typedef struct {
    int64_t count, panels, tokens;
} Tasks;

typedef struct {
    int64_t panel, columns, first, tokens;
} Task;

static Tasks tasks_of(const Matrix *matrix, int64_t tokens) {
    const int64_t panels = (matrix->outputs + WIDTH - 1) / WIDTH;
    return (Tasks){panels * ((tokens + TOKENS - 1) / TOKENS), panels, tokens};
}

static Task task_of(const Tasks *tasks, const Matrix *matrix, int64_t number) {
    const int64_t blocks = tasks->count / tasks->panels, block = number / tasks->panels, panel = number % tasks->panels;
    const int64_t first = block * tasks->tokens / blocks, left = matrix->outputs - panel * WIDTH;
    return (Task){panel, left < WIDTH ? left : WIDTH, first, (block + 1) * tasks->tokens / blocks - first};
}

// How many tasks a thread takes at once: one if each is much work, so that a thread held up elsewhere takes fewer.
static int at_once(const Tasks *tasks) {
    return tasks->tokens >= 4 ? 1 : (int)(tasks->count / (2 * omp_get_num_threads())) + 1;
}

// out = x @ matrix, or out += x @ matrix.
static void multiply(const Matrix *matrix, const float *x, int64_t tokens, float *out, int add, float *buffer) {
    const Tasks tasks = tasks_of(matrix, tokens);
    const int chunk = at_once(&tasks);
#pragma omp for schedule(dynamic, chunk) nowait
    for (int64_t number = 0; number < tasks.count; number++) {
        const Task task = task_of(&tasks, matrix, number);
        const float *from = x + task.first * matrix->inputs;
        float *to = out + task.first * matrix->outputs + task.panel * WIDTH;
        if (task.columns == WIDTH) {
            multiply_panel(matrix, task.panel, from, task.tokens, to, matrix->outputs, add);
            continue;
        }
        multiply_panel(matrix, task.panel, from, task.tokens, buffer, WIDTH, 0);
        for (int64_t t = 0; t < task.tokens; t++)
            for (int64_t c = 0; c < task.columns; c++) {
                float *one = to + t * matrix->outputs + c;
                *one = buffer[t * WIDTH + c] + (add ? *one : 0.0f);
            }
    }
}

// --- elementwise -----------------------------------------------------------------------------------------------------

// Root-mean-square norm of every token.
static void normalise(const float *x, const float *weight, int64_t tokens, int64_t width, float epsilon, float *out) {
#pragma omp for schedule(static) nowait
    for (int64_t t = 0; t < tokens; t++) {
        const float *from = x + t * width;
        float square = 0.0f;
#pragma omp simd reduction(+ : square)
        for (int64_t c = 0; c < width; c++) square += from[c] * from[c];
        const float factor = 1.0f / sqrtf(square / width + epsilon);
        for (int64_t c = 0; c < width; c++) out[t * width + c] = from[c] * factor * weight[c];
    }
}

// out = silu(x @ gate) * (x @ up).
static void gate(const Layer *layer, const float *x, int64_t tokens, float *out, float *buffer) {
    const int64_t width = layer->gate.outputs;
    const Tasks tasks = tasks_of(&layer->gate, tokens);
    const int chunk = at_once(&tasks);
    float *gates = buffer, *ups = gates + TOKENS * WIDTH;
#pragma omp for schedule(dynamic, chunk) nowait
    for (int64_t number = 0; number < tasks.count; number++) {
        const Task task = task_of(&tasks, &layer->gate, number);
        const float *from = x + task.first * layer->gate.inputs;
        multiply_panel(&layer->gate, task.panel, from, task.tokens, gates, WIDTH, 0);
        multiply_panel(&layer->up, task.panel, from, task.tokens, ups, WIDTH, 0);
        for (int64_t i = 0; i < task.tokens * WIDTH; i += 8) {
            const __m256 value = _mm256_loadu_ps(gates + i), one = _mm256_set1_ps(1.0f);
            const __m256 divisor = _mm256_add_ps(one, exponential(_mm256_sub_ps(_mm256_setzero_ps(), value)));
            _mm256_storeu_ps(gates + i, _mm256_mul_ps(_mm256_div_ps(value, divisor), _mm256_loadu_ps(ups + i)));
        }
        float *to = out + task.first * width + task.panel * WIDTH;
        for (int64_t t = 0; t < task.tokens; t++) memcpy(to + t * width, gates + t * WIDTH, task.columns * sizeof(float));
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

// Rotate and scale the queries in place, rotate the keys and store them with the values.
static void store(const Model *model, const Step *step, float *entries, const Scratch *scratch) {
    const int64_t K = model->kv_heads, D = model->head_dim, H = model->heads;
#pragma omp for schedule(static) nowait
    for (int64_t t = 0; t < step->tokens; t++) {
        float *qkv = scratch->qkv + t * (H + 2 * K) * D, *entry = entries + step->slots[t] * K * 2 * D;
        const float *rotation = step->rotations + step->positions[t] * D;
        for (int64_t h = 0; h < H; h++) rotate(qkv + h * D, rotation, D, step->scale, qkv + h * D);
        for (int64_t k = 0; k < K; k++) {
            rotate(qkv + (H + k) * D, rotation, D, 1.0f, entry + k * 2 * D);
            memcpy(entry + (k * 2 + 1) * D, qkv + (H + K + k) * D, D * sizeof(float));
        }
    }
}

// The products of a query with four keys.
INLINE __m128 four_products(const float *query, const float *const keys[4], const int64_t size) {
    __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
#pragma GCC unroll 16
    for (int64_t d = 0; d < size; d += 8) {
        const __m256 part = _mm256_loadu_ps(query + d);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sums[i] = _mm256_fmadd_ps(part, _mm256_loadu_ps(keys[i] + d), sums[i]);
    }
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(sums[0], sums[1]), _mm256_hadd_ps(sums[2], sums[3]));
    return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

// scores[g, i] = queries[g] . key i, for the `count` keys of a table; [G, stride].  Slots lie anywhere, so keys are
// fetched ahead, and the values behind them, which are read next.
INLINE void score_of(const int64_t size, const float *queries, int64_t group, const float *keys, int64_t entry,
                     const int32_t *table, int64_t count, float *scores, int64_t stride) {
    for (int64_t i = 0; i < count; i += 4) {
        const float *four[4];
        // Past the end the last key stands in; softmax drops what comes of it.
        for (int j = 0; j < 4; j++) four[j] = keys + (int64_t)table[i + j < count ? i + j : count - 1] * entry;
        for (int64_t j = i + AHEAD; j < i + AHEAD + 4 && j < count; j++)
            for (int64_t d = 0; d < 2 * size; d += LINE) _mm_prefetch((const char *)(keys + table[j] * entry + d), _MM_HINT_T0);
        for (int64_t g = 0; g < group; g++)
            _mm_storeu_ps(scores + g * stride + i, four_products(queries + g * size, four, size));
    }
}

static void score(const float *queries, int64_t group, int64_t size, const float *keys, int64_t entry,
                  const int32_t *table, int64_t count, float *scores, int64_t stride) {
    switch (size) {  // the usual sizes are unrolled
        case 32: score_of(32, queries, group, keys, entry, table, count, scores, stride); break;
        case 64: score_of(64, queries, group, keys, entry, table, count, scores, stride); break;
        case 128: score_of(128, queries, group, keys, entry, table, count, scores, stride); break;
        default: score_of(size, queries, group, keys, entry, table, count, scores, stride);
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

// One task a token and key head: of all tokens, or of the `count` wanted ones, written one behind the other.
static void attend(const Model *model, const Step *step, const float *entries, const Scratch *scratch, float *mine,
                   const int64_t *wanted, int64_t tokens) {
    const int64_t K = model->kv_heads, D = model->head_dim, G = model->heads / K, H = model->heads;
    const int64_t entry = K * 2 * D, stride = pad(step->longest);
    float *sums = mine, *scores = sums + pad(G * D);
#pragma omp for schedule(dynamic) nowait
    for (int64_t task = 0; task < tokens * K; task++) {
        const int64_t n = task / K, k = task % K, t = wanted ? wanted[n] : n, count = step->visible[t];
        const float *queries = scratch->qkv + (t * (H + 2 * K) + k * G) * D, *pool = entries + k * 2 * D;
        const int32_t *table = step->table + step->owners[t] * step->table_stride;
        score(queries, G, D, pool, entry, table, count, scores, stride);
        float factors[G];
        for (int64_t g = 0; g < G; g++) factors[g] = soften(scores + g * stride, count);
        memset(sums, 0, G * D * sizeof(float));
        weigh_all(pool + D, entry, table, count, G, scores, stride, sums, D);
        float *out = scratch->attended + (n * H + k * G) * D;
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

// Tell whether every row, slot and position of a step exists, and every token that is wanted, in order.
static int is_sound(const Step *step) {
    for (int64_t n = 0, next = 0; step->wanted && n < step->wanted_count; next = step->wanted[n++] + 1)
        if (step->wanted[n] < next || step->wanted[n] >= step->tokens) return 0;
    for (int64_t t = 0, seen = 0; t < step->tokens; t++) {
        const int32_t owner = step->owners[t], visible = step->visible[t];
        if (step->slots[t] < 0 || step->slots[t] >= step->pool_slots) return 0;
        if (step->positions[t] < 0 || step->positions[t] >= step->known_positions) return 0;
        if (owner < 0 || owner >= step->rows || visible < 1 || visible > step->longest) return 0;
        // What the token before of the same row sees was looked at with it.
        if (t == 0 || step->owners[t - 1] != owner || visible < seen) seen = 0;
        int wrong = 0;
        for (const int32_t *table = step->table + owner * step->table_stride; seen < visible; seen++)
            wrong |= table[seen] < 0 || table[seen] >= step->pool_slots;
        if (wrong) return 0;
    }
    return 1;
}

// Keep only the wanted tokens of x, one behind the other: whatever else is to come is for them.
static void pick(const Step *step, int64_t width) {
    for (int64_t n = 0; n < step->wanted_count; n++)
        memmove(step->x + n * width, step->x + step->wanted[n] * width, width * sizeof(float));
}

// Returns 0 and does nothing if a row, slot, position or wanted token does not exist.
int callboard_step(const Model *model, const Step *step) {
    if (!is_sound(step)) return 0;
    const Scratch scratch = divide(model, step);
    Barrier barrier = {0, 0};
#pragma omp parallel num_threads(step->threads)
    {
        float *mine = scratch.threads + omp_get_thread_num() * scratch.a_thread;
        const int64_t *wanted = NULL;
        int64_t tokens = step->tokens;
        for (int64_t number = 0; number < model->count; number++) {
            const Layer *layer = model->layers + number;
            normalise(step->x, layer->attention_norm, tokens, model->hidden, model->epsilon, scratch.normed);
            meet(&barrier);
            multiply(&layer->qkv, scratch.normed, tokens, scratch.qkv, 0, mine);
            meet(&barrier);
            store(model, step, step->entries[number], &scratch);
            meet(&barrier);
            if (step->wanted && number == model->count - 1) {  // what the others are for is in the pool
                wanted = step->wanted, tokens = step->wanted_count;
                if (omp_get_thread_num() == 0) pick(step, model->hidden);  // attention does not look at x
            }
            attend(model, step, step->entries[number], &scratch, mine, wanted, tokens);
            meet(&barrier);
            multiply(&layer->output, scratch.attended, tokens, step->x, 1, mine);
            meet(&barrier);
            normalise(step->x, layer->mlp_norm, tokens, model->hidden, model->epsilon, scratch.normed);
            meet(&barrier);
            gate(layer, scratch.normed, tokens, scratch.gated, mine);
            meet(&barrier);
            multiply(&layer->down, scratch.gated, tokens, step->x, 1, mine);
            meet(&barrier);
        }
        normalise(step->x, model->norm, tokens, model->hidden, model->epsilon, step->x);
    }
    return 1;
}

// out [tokens, outputs] = x [tokens, inputs] @ matrix.
void callboard_multiply(const Matrix *matrix, const float *x, int64_t tokens, float *out, float *scratch, int64_t threads) {
#pragma omp parallel num_threads(threads)
    multiply(matrix, x, tokens, out, 0, scratch + omp_get_thread_num() * PRODUCT_FLOATS);
}
