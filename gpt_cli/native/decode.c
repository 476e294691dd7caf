/* A GPT that writes, in C: tokens in, tokens out, one call for many of them.

   It computes what gpt_cli/model computes (reference.py beside this file says the same in NumPy, and is what this is
   checked against whenever a model is opened), and draws as gpt_cli/sampling draws: the same noise, the same filters.
   kernel.py compiles it, decoder.py calls it.

   Shapes: R rows (a row is one token of one stream), C n_embd, H query heads, G key/value heads, D head width,
   F hidden width of the MLP, V vocabulary, S keys. Rows of floats are padded to whole panels with zeros.

   Speed comes from three things. A matrix is stored in panels of 32 outputs, so that a product is nothing but
   multiply-adds on registers, and up to 8 rows share each weight that is read, without a bit of difference to any. Weights may be stored as bf16 or int8,
   and are widened on the way, or multiplied as integers where the processor can. Helper threads wait spinning for the next few microseconds of work; one that the
   system has put aside is not waited for: its share is done by who would wait. */

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

#include "draft.h"

#define LANES 16
#define PANEL 32       /* outputs that are computed together: two vectors */
#define MAX_ROWS 64    /* rows in one pass through the layers */
#define MAX_HELPERS 31
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), may_alias));
typedef float half __attribute__((vector_size(32)));
typedef float quarter __attribute__((vector_size(16)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), may_alias));
typedef uint8_t bytes __attribute__((vector_size(LANES)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES), may_alias));

enum { FP32, BF16, INT8 };
enum { RELU, GELU, SWIGLU, RELU2 };

/* The network. decoder.py fills it in, in this order; a pointer is NULL where the model has no such part. */
typedef struct {
    int32_t n_layer, n_head, n_kv_head, head_dim, n_embd, mlp_hidden, vocab_size, context_length;
    int32_t layernorm, post_norm, mlp, window; /* window: 0 is all */
    int32_t format, threads;
    float norm_eps, softcap, embedding_scale; /* softcap: 0 is off */
    const float *tokens;    /* (V, C) */
    const float *positions; /* (context, C): learned or sinusoids, added to the stream */
    const float *cosines, *sines; /* (context, D / 2): rotary */
    const float *norm, *norm_bias, *head;
} Network;

typedef struct { /* of one layer, as gpt_cli/model names them */
    const float *norm1, *norm1_bias, *qkv, *qkv_bias, *q_norm, *k_norm, *out, *out_bias;
    const float *norm2, *norm2_bias, *up, *up_bias, *down, *down_bias; /* up: of SwiGLU gate and up, 2F */
} Layer;

typedef struct {
    int outputs, inputs, panels; /* inputs are padded to a multiple of 4 */
    void *weights;               /* [panel][input][32] in the format */
    float *bias, *scale;         /* [panel][32]; scale for int8 */
    int32_t *sums;               /* [panel][32]: 128 times the sum of an output's int8 weights */
} Matrix;

typedef struct { /* rows that a matrix is multiplied by */
    const float *x;
    int stride;
    const uint8_t *digits; /* for int8, see quantise */
    const float *steps;
    int digit_stride;
} Input;

typedef struct {
    Matrix qkv, out, gate, up, down;
} Packed;

/* ------------------------------------------------------------------------------------------ memory and numbers */

INLINE int padded(int n, int to) { return (n + to - 1) / to * to; }

static void *zeros(size_t bytes_) {
    size_t size = (bytes_ + 4095) / 4096 * 4096 + 4096;
    void *memory = aligned_alloc(64, size);
    return memory ? memset(memory, 0, size) : NULL;
}

INLINE vec splat(float x) { return x - (vec){0}; }
INLINE vec pick(ivec mask, vec a, vec b) { return (vec)(((ivec)a & mask) | ((ivec)b & ~mask)); }
INLINE vec larger(vec a, vec b) { return pick(a > b, a, b); }

/* The lanes of a vector halved until one is left, rather than one after another, each waiting for the one before. */
#define FOLD(v, OP)                                                                                                  \
    half eight, other_eight;                                                                                         \
    memcpy(&eight, &v, 32), memcpy(&other_eight, (const char *)&v + 32, 32);                                         \
    eight = OP(eight, other_eight);                                                                                  \
    quarter four, other_four;                                                                                        \
    memcpy(&four, &eight, 16), memcpy(&other_four, (const char *)&eight + 16, 16);                                   \
    four = OP(four, other_four);
#define PLUS(a, b) ((a) + (b))
#define MOST(a, b) ((a) > (b) ? (a) : (b))
#define MOST_EACH(a, b) ((__typeof__(a))((((a) > (b)) & (__typeof__((a) > (b)))(a)) | (~((a) > (b)) & (__typeof__((a) > (b)))(b))))

INLINE float sum_of(vec v) {
    FOLD(v, PLUS)
    return (four[0] + four[1]) + (four[2] + four[3]);
}

INLINE float most_of(vec v) {
    FOLD(v, MOST_EACH)
    float a = MOST(four[0], four[1]), b = MOST(four[2], four[3]);
    return MOST(a, b);
}

/* e^x to about one unit in the last place: 2^n e^r with |r| <= ln 2 / 2, e^r by Taylor. */
INLINE vec exponential(vec x) {
    x = pick(x < splat(-87.0f), splat(-87.0f), pick(x > splat(88.0f), splat(88.0f), x));
    const vec rounder = splat(12582912.0f); /* 1.5 * 2^23: adding it leaves no fraction */
    vec n = (x * 1.44269504f + rounder) - rounder;
    vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec e = splat(1.0f / 5040);
    e = e * r + 1.0f / 720;
    e = e * r + 1.0f / 120;
    e = e * r + 1.0f / 24;
    e = e * r + 1.0f / 6;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    return (vec)((ivec)e + (__builtin_convertvector(n, ivec) << 23));
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

/* ln x for normal x > 0: x = 2^n m with m in [0.7, 1.4], ln m = 2 artanh((m - 1) / (m + 1)). */
INLINE vec logarithm(vec x) {
    ivec n = ((ivec)x - 0x3f330000) >> 23;
    vec m = (vec)((ivec)x - (n << 23));
    vec s = (m - 1.0f) / (m + 1.0f), q = s * s;
    vec p = splat(2.0f / 11);
    p = p * q + 2.0f / 9;
    p = p * q + 2.0f / 7;
    p = p * q + 2.0f / 5;
    p = p * q + 2.0f / 3;
    vec e = __builtin_convertvector(n, vec);
    return e * 0.693359375f + (s * q * p - e * 2.12194440e-4f + 2.0f * s);
}

/* -------------------------------------------------------------------------------------------------- products */

/* y[row][0..31] (+)= panel of W x[row] + bias, for ROWS rows and PANELS panels: constants once inlined, of which the
   product is at most 8, or the sums would not stay in registers. Each output is one sum in the order of the inputs,
   whatever is computed beside it: a token's logits do not depend on the rows that share the pass, to the last bit. */
INLINE void panels_times(const int ROWS, const int PANELS, const int FORMAT, const Matrix *m, int panel, const float *x,
                         int x_stride, float *y, int y_stride, bool add) {
    const int inputs = padded(m->inputs, 4);
    const size_t apart = (size_t)inputs * PANEL, start = panel * apart;
    vec sums[8][2];
    for (int i = 0; i < ROWS * PANELS; i++) sums[i][0] = sums[i][1] = (vec){0};
    for (int i = 0; i < inputs; i += 4) {
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
            const size_t at = start + p * apart + (size_t)i * PANEL;
            vec first[4], second[4]; /* outputs 0 ... 15 and 16 ... 31 of inputs i ... i + 3 */
            if (FORMAT == FP32) {
                const vec *w = (const vec *)((const float *)m->weights + at);
                for (int c = 0; c < 4; c++) first[c] = w[2 * c], second[c] = w[2 * c + 1];
            } else if (FORMAT == BF16) { /* a word: of one input outputs j (low half) and j + 16 */
                const uvec *w = (const uvec *)((const uint16_t *)m->weights + at);
                for (int c = 0; c < 4; c++) first[c] = (vec)(w[c] << 16), second[c] = (vec)(w[c] & 0xffff0000u);
            } else { /* a word: of one output inputs i ... i + 3 */
                const ivec *w = (const ivec *)((const int8_t *)m->weights + at);
#pragma GCC unroll 4
                for (int c = 0; c < 4; c++) {
                    first[c] = __builtin_convertvector(w[0] << (24 - 8 * c) >> 24, vec);
                    second[c] = __builtin_convertvector(w[1] << (24 - 8 * c) >> 24, vec);
                }
            }
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++)
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++) {
                    float factor = x[(size_t)r * x_stride + i + c];
                    sums[r * PANELS + p][0] += factor * first[c];
                    sums[r * PANELS + p][1] += factor * second[c];
                }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++)
            for (int half = 0; half < 2; half++) {
                size_t at = (size_t)(panel + p) * PANEL;
                vec sum = sums[r * PANELS + p][half], *to = (vec *)(y + (size_t)r * y_stride + at) + half;
                if (FORMAT == INT8) sum *= ((const vec *)(m->scale + at))[half];
                sum += ((const vec *)(m->bias + at))[half];
                if (add) sum += *to;
                *to = sum;
            }
}

#if defined(__AVX512VNNI__)
enum { INTEGERS = 1 };

/* The same for int8 weights, in integers: x in two digits, and so sums without rounding, see quantise. */
INLINE void panels_times_digits(const int ROWS, const int PANELS, const Matrix *m, int panel, const uint8_t *digits,
                                int digit_stride, const float *steps, float *y, int y_stride, bool add) {
    const int inputs = padded(m->inputs, 4);
    const size_t apart = (size_t)inputs * PANEL, start = panel * apart;
    __m512i high[4][2], low[4][2];
    for (int i = 0; i < ROWS * PANELS; i++)
        high[i][0] = high[i][1] = low[i][0] = low[i][1] = _mm512_setzero_si512();
    for (int i = 0; i < inputs; i += 4) {
        __m512i of_high[4], of_low[4];
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            int32_t words[2];
            memcpy(words, digits + (size_t)r * digit_stride + 2 * i, sizeof words);
            of_high[r] = _mm512_set1_epi32(words[0]), of_low[r] = _mm512_set1_epi32(words[1]);
        }
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
            const __m512i *w = (const __m512i *)((const int8_t *)m->weights + start + p * apart + (size_t)i * PANEL);
            __m512i first = w[0], second = w[1];
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) {
                int at = r * PANELS + p;
                high[at][0] = _mm512_dpbusd_epi32(high[at][0], of_high[r], first);
                low[at][0] = _mm512_dpbusd_epi32(low[at][0], of_low[r], first);
                high[at][1] = _mm512_dpbusd_epi32(high[at][1], of_high[r], second);
                low[at][1] = _mm512_dpbusd_epi32(low[at][1], of_low[r], second);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++)
            for (int half = 0; half < 2; half++) {
                size_t at = (size_t)(panel + p) * PANEL;
                vec *to = (vec *)(y + (size_t)r * y_stride + at) + half;
                ivec more = (ivec)high[r * PANELS + p][half] - ((const ivec *)(m->sums + at))[half];
                vec sum = 256.0f * __builtin_convertvector(more, vec)
                    + __builtin_convertvector((ivec)low[r * PANELS + p][half], vec);
                sum = sum * (steps[r] * ((const vec *)(m->scale + at))[half]) + ((const vec *)(m->bias + at))[half];
                if (add) sum += *to;
                *to = sum;
            }
}

#define TIMES_DIGITS(ROWS, PANELS)                                                                                   \
    panels_times_digits(ROWS, PANELS, m, panel, in->digits + row * (size_t)in->digit_stride, in->digit_stride,       \
                        in->steps + row, y + row * (size_t)y_stride, y_stride, add)

static void few_panels_of_integers(const Matrix *m, int begin, int end, int rows, const Input *in, float *y,
                                   int y_stride, bool add) {
    int row = 0, panel;
    for (panel = begin; panel < end; panel++)
        for (row = 0; row + 4 <= rows; row += 4) TIMES_DIGITS(4, 1);
    for (row = rows / 4 * 4; row < rows; row++) {
        panel = begin;
        for (; panel + 2 <= end; panel += 2) TIMES_DIGITS(1, 2);
        if (panel < end) TIMES_DIGITS(1, 1);
    }
}
#else
enum { INTEGERS = 0 };
static void few_panels_of_integers(const Matrix *m, int begin, int end, int rows, const Input *in, float *y,
                                   int y_stride, bool add) {
    (void)m, (void)begin, (void)end, (void)rows, (void)in, (void)y, (void)y_stride, (void)add;
}
#endif

/* (inputs,) -> whole numbers of steps, 65,025 of them from the largest to its negative: for each four inputs their high
   bytes, counted from -128, then their low ones. Where there are no products of bytes, the rounded floats. Returns the
   step. A step is to the largest what 2^-15 is to 1: far less than what the weights lost. */
static float quantise(const float *x, int inputs, uint8_t *digits) {
    vec most = {0};
    for (int i = 0; i < inputs; i += LANES) {
        vec v = *(const vec *)(x + i);
        most = larger(most, larger(v, -v));
    }
    float top = most_of(most);
    float factor = top > 0 ? 32512 / top : 0, step = top / 32512;
    const vec rounder = splat(12582912.0f);
    for (int i = 0; i < inputs; i += LANES) {
        vec whole = (*(const vec *)(x + i) * factor + rounder) - rounder;
        if (!INTEGERS) {
            *(vec *)(digits + 4 * i) = whole * step;
            continue;
        }
        ivec steps = __builtin_convertvector(whole, ivec);
        bytes high = __builtin_convertvector((steps >> 8) + 128, bytes), low = __builtin_convertvector(steps & 255, bytes);
        for (int four = 0; four < 4; four++) {
            memcpy(digits + 2 * i + 8 * four, (const char *)&high + 4 * four, 4);
            memcpy(digits + 2 * i + 8 * four + 4, (const char *)&low + 4 * four, 4);
        }
    }
    return step;
}

#define TIMES(ROWS, PANELS, FORMAT)                                                                                  \
    panels_times(ROWS, PANELS, FORMAT, m, panel, in->x + row * (size_t)in->stride, in->stride,                       \
                 y + row * (size_t)y_stride, y_stride, add)

/* Any number of rows through 1 ... 4 panels, whose weights stay in a near cache meanwhile. */
INLINE void few_panels(const int FORMAT, const Matrix *m, int begin, int end, int rows, const Input *in, float *y,
                       int y_stride, bool add) {
    int row = 0, panel;
    for (panel = begin; panel < end; panel++)
        for (row = 0; row + 8 <= rows; row += 8) TIMES(8, 1, FORMAT);
    row = rows / 8 * 8;
    if (rows & 4) {
        for (panel = begin; panel + 2 <= end; panel += 2) TIMES(4, 2, FORMAT);
        if (panel < end) TIMES(4, 1, FORMAT);
        row += 4;
    }
    if (rows & 2) {
        for (panel = begin; panel + 2 <= end; panel += 2) TIMES(2, 2, FORMAT);
        if (panel < end) TIMES(2, 1, FORMAT);
        row += 2;
    }
    if (rows & 1) {
        panel = begin;
        if (end - begin == 4) TIMES(1, 4, FORMAT);
        else
            for (; panel < end; panel++) TIMES(1, 1, FORMAT);
    }
}

static void multiply(const Matrix *m, int format, int begin, int end, int rows, const Input *in, float *y, int y_stride,
                     bool add) {
    for (int next; begin < end; begin = next) {
        next = begin + 4 < end ? begin + 4 : end;
        if (format == FP32) few_panels(FP32, m, begin, next, rows, in, y, y_stride, add);
        else if (format == BF16) few_panels(BF16, m, begin, next, rows, in, y, y_stride, add);
        else if (INTEGERS) few_panels_of_integers(m, begin, next, rows, in, y, y_stride, add);
        else few_panels(INT8, m, begin, next, rows, in, y, y_stride, add);
    }
}

static uint16_t to_bf16(float x) { /* to the nearest, ties to even */
    uint32_t word;
    memcpy(&word, &x, 4);
    return (uint16_t)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

/* (outputs, inputs) row by row -> panels. int8: each output has its own scale, largest weight / 127. */
static bool pack(Matrix *m, int format, int outputs, int inputs, const float *w, const float *bias) {
    static const int width[] = {4, 2, 1};
    int deep = padded(inputs, 4);
    m->outputs = outputs, m->inputs = inputs, m->panels = padded(outputs, PANEL) / PANEL;
    m->weights = zeros((size_t)m->panels * deep * PANEL * width[format]);
    m->bias = zeros((size_t)m->panels * PANEL * 4), m->scale = zeros((size_t)m->panels * PANEL * 4);
    m->sums = zeros((size_t)m->panels * PANEL * 4);
    if (!m->weights || !m->bias || !m->scale || !m->sums) return false;
    for (int o = 0; o < outputs; o++) {
        const float *row = w + (size_t)o * inputs;
        size_t to = (size_t)(o / PANEL) * deep * PANEL;
        int lane = o % PANEL;
        float most = 0;
        if (bias) m->bias[o] = bias[o];
        if (format == INT8) {
            for (int i = 0; i < inputs; i++) most = fmaxf(most, fabsf(row[i]));
            m->scale[o] = most / 127;
        }
        for (int i = 0; i < inputs; i++) {
            size_t at = to + (size_t)i * PANEL;
            if (format == FP32) ((float *)m->weights)[at + lane] = row[i];
            if (format == BF16) ((uint16_t *)m->weights)[at + lane % 16 * 2 + lane / 16] = to_bf16(row[i]);
            if (format == INT8) {
                int8_t whole = (int8_t)lrintf(most ? row[i] * (127 / most) : 0);
                ((int8_t *)m->weights)[to + i / 4 * 4 * PANEL + lane / 16 * 64 + lane % 16 * 4 + i % 4] = whole;
                m->sums[o] += 128 * whole;
            }
        }
    }
    return true;
}

static void free_matrix(Matrix *m) { free(m->weights), free(m->bias), free(m->scale), free(m->sums); }

/* --------------------------------------------------------------------------------------------------- threads */

typedef void (*Work)(void *context, int begin, int end);

/* A share is offered to a helper under a number that grows; it is taken by the helper, or back by who offered it. */
enum { OFFERED, TAKEN, DONE };
typedef struct { /* in one line of the cache, which is what it costs to hand it over */
    _Alignas(128) _Atomic uint64_t state; /* number * 4 + what became of it */
    Work work;
    void *context;
    int begin, end;
} Share;

typedef struct Pool {
    int helpers, begun; /* begun: threads that have been created */
    pthread_t threads[MAX_HELPERS];
    Share shares[MAX_HELPERS];
    uint64_t number;
    _Alignas(128) _Atomic bool ending;
    _Atomic int sleeping, patience; /* patience: pauses before a helper falls asleep */
    _Atomic uint64_t alarm;
    double woken_at;
    pthread_mutex_t mutex;
    pthread_cond_t woken;
} Pool;

typedef struct {
    Pool *pool;
    int index;
} Place;

INLINE void pause_a_moment(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

INLINE void do_share(const Share *share) {
    if (share->begin < share->end) share->work(share->context, share->begin, share->end);
}

static void *help(void *argument) {
    Place *place = argument;
    Pool *pool = place->pool;
    int index = place->index;
    Share *share = &pool->shares[index];
    _Atomic uint64_t *state = &share->state;
    free(place);
    int idle = 0;
    while (!atomic_load_explicit(&pool->ending, memory_order_relaxed)) {
        uint64_t seen = atomic_load_explicit(state, memory_order_acquire);
        if (seen && seen % 4 == OFFERED) {
            if (atomic_compare_exchange_strong(state, &seen, seen - OFFERED + TAKEN)) {
                do_share(share);
                atomic_store_explicit(state, seen - OFFERED + DONE, memory_order_release);
            }
            idle = 0;
        } else if (++idle < atomic_load_explicit(&pool->patience, memory_order_relaxed)) {
            pause_a_moment();
        } else {
            pthread_mutex_lock(&pool->mutex);
            uint64_t alarm = pool->alarm;
            pool->sleeping++;
            while (pool->alarm == alarm && !pool->ending) pthread_cond_wait(&pool->woken, &pool->mutex);
            pool->sleeping--;
            pthread_mutex_unlock(&pool->mutex);
            idle = 0;
        }
    }
    return NULL;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Have the helpers awake for what comes now, but on a busy machine, where they lose their turn and fall asleep, not
   all the time. They are created here, at the first use. */
static void wake(Pool *pool) {
    for (; pool->begun < pool->helpers; pool->begun++) {
        Place *place = malloc(sizeof *place);
        if (place) *place = (Place){pool, pool->begun};
        if (!place || pthread_create(&pool->threads[pool->begun], NULL, help, place)) {
            free(place);
            pool->helpers = pool->begun;
        }
    }
    if (atomic_load(&pool->sleeping) && seconds() - pool->woken_at > 2e-3) {
        pool->woken_at = seconds();
        pthread_mutex_lock(&pool->mutex);
        pool->alarm++;
        pthread_cond_broadcast(&pool->woken);
        pthread_mutex_unlock(&pool->mutex);
    }
}

/* Do jobs 0 ... n - 1, `work(context, begin, end)` by `work(context, begin, end)`, and return when all are done. */
static void share_out(Pool *pool, int jobs, Work work, void *context) {
    if (!pool->helpers || jobs < 2) {
        work(context, 0, jobs);
        return;
    }
    int parts = pool->helpers + 1;
    uint64_t number = ++pool->number;
    for (int i = 0; i < pool->helpers; i++) {
        Share *share = &pool->shares[i];
        share->work = work, share->context = context;
        share->begin = (int)((int64_t)jobs * (i + 1) / parts), share->end = (int)((int64_t)jobs * (i + 2) / parts);
        atomic_store_explicit(&share->state, number * 4 + OFFERED, memory_order_release);
    }
    work(context, 0, jobs / parts);
    for (int i = 0; i < pool->helpers; i++) {
        Share *share = &pool->shares[i];
        uint64_t offered = number * 4 + OFFERED;
        if (atomic_compare_exchange_strong(&share->state, &offered, number * 4 + DONE)) {
            do_share(share);
        } else {
            int spins = 0;
            while (atomic_load_explicit(&share->state, memory_order_acquire) != number * 4 + DONE) {
                pause_a_moment();
                if (++spins > 20000) sched_yield(), spins = 0; /* the helper was put aside: let it have this core */
            }
        }
    }
}

/* ----------------------------------------------------------------------------------------------- the network */

typedef struct {
    Network net;
    Layer *layers; /* their norms; the matrices are in `packed` */
    Packed *packed;
    Matrix head;
    int c, f, d, s; /* C, F, D, S padded */
    Pool pool;
} Model;

typedef struct { /* one text */
    int32_t *window; /* the tokens that the model sees: at most a context */
    int length, cached;
    bool active;
    float *keys, *values; /* [layer][G][D][S] and [layer][G][S][D], padded: a vector holds 16 keys, or 16 dimensions */
    uint32_t twister[624];
    int drawn;
    float *noise; /* (ahead, V padded): of the coming steps */
    int ahead;
} Stream;

typedef struct {
    Stream *stream;
    int position, token;
    float *logits; /* where they go, NULL if nobody asks */
} Row;

typedef struct {
    Model *model;
    const Row *rows;
    int n, layer;
    bool last;
    float *x, *h, *qkv, *y, *hidden, *gates;
    uint8_t *digits; /* room for those of all rows, and for their steps */
    float *steps;
    const Matrix *matrix;
    Input in;
    float *out;
    int out_stride;
    bool add;
} Pass;

/* (n, C) -> (n, C): over the mean square (Zhang and Sennrich, 2019) or the variance (Ba et al., 2016). */
static void normalise(const Model *m, const float *gain, const float *bias, const float *x, float *y, int n) {
    int width = m->net.n_embd;
    for (int r = 0; r < n; r++, x += m->c, y += m->c) {
        float mean = 0;
        if (m->net.layernorm) {
            vec total = {0};
            for (int i = 0; i < m->c; i += LANES) total += *(const vec *)(x + i);
            mean = sum_of(total) / width;
        }
        vec square = {0};
        int i = 0;
        for (; i + LANES <= width; i += LANES) {
            vec centred = *(const vec *)(x + i) - mean;
            square += centred * centred;
        }
        float rest = sum_of(square);
        for (; i < width; i++) rest += (x[i] - mean) * (x[i] - mean);
        float factor = 1.0f / sqrtf(rest / width + m->net.norm_eps);
        if (bias)
            for (int j = 0; j < width; j++) y[j] = (x[j] - mean) * factor * gain[j] + bias[j];
        else
            for (int j = 0; j < width; j++) y[j] = (x[j] - mean) * factor * gain[j];
    }
}

static Input input(Pass *p, const Matrix *matrix, const float *x, int stride) {
    if (p->model->net.format != INT8) return (Input){.x = x, .stride = stride};
    int inputs = padded(matrix->inputs, LANES), size = INTEGERS ? 2 : 4;
    for (int r = 0; r < p->n; r++)
        p->steps[r] = quantise(x + (size_t)r * stride, inputs, p->digits + (size_t)r * size * inputs);
    return (Input){.x = (const float *)p->digits, .stride = inputs, .digits = p->digits, .steps = p->steps,
                   .digit_stride = size * inputs};
}

static void product(void *context, int begin, int end) {
    Pass *p = context;
    multiply(p->matrix, p->model->net.format, begin, end, p->n, &p->in, p->out, p->out_stride, p->add);
}

static void linear(Pass *p, const Matrix *matrix, const float *in, int in_stride, float *out, int out_stride, bool add) {
    p->matrix = matrix, p->in = input(p, matrix, in, in_stride), p->out = out, p->out_stride = out_stride, p->add = add;
    share_out(&p->model->pool, matrix->panels, product, p);
}

/* The widened half of the MLP: up, gate and activation of some panels. */
static void widen(void *context, int begin, int end) {
    Pass *p = context;
    const Model *m = p->model;
    const Packed *layer = &m->packed[p->layer];
    multiply(&layer->up, m->net.format, begin, end, p->n, &p->in, p->hidden, m->f, false);
    if (m->net.mlp == SWIGLU) multiply(&layer->gate, m->net.format, begin, end, p->n, &p->in, p->gates, m->f, false);
    for (int r = 0; r < p->n; r++)
        for (int i = begin * PANEL; i < end * PANEL; i += LANES) {
            vec *at = (vec *)(p->hidden + (size_t)r * m->f + i);
            vec x = *at;
            switch (m->net.mlp) {
            case SWIGLU: {
                vec gate = *(vec *)(p->gates + (size_t)r * m->f + i);
                *at = gate * sigmoid(gate) * x;
                break;
            }
            case GELU: /* the approximation by tanh, of which this is another spelling */
                *at = x * sigmoid(x * (1.5957691216f + 0.0713548163f * x * x));
                break;
            case RELU: *at = larger(x, (vec){0}); break;
            case RELU2: *at = larger(x, (vec){0}) * larger(x, (vec){0}); break;
            }
        }
}

/* Normalise and rotate one head, from (D,) to the padded (D,). */
static void place_head(const Model *m, const float *x, const float *gain, int position, float *to) {
    int d = m->net.head_dim, half = d / 2;
    float factor = 1;
    if (gain) {
        vec squares = {0};
        float square = 0;
        int i = 0;
        for (; i + LANES <= d; i += LANES) squares += *(const loose *)(x + i) * *(const loose *)(x + i);
        for (; i < d; i++) square += x[i] * x[i];
        factor = 1.0f / sqrtf((square + sum_of(squares)) / d + m->net.norm_eps);
        for (int i = 0; i < d; i++) to[i] = x[i] * factor * gain[i];
    } else {
        memcpy(to, x, d * sizeof *to);
    }
    if (m->net.cosines) {
        const float *cosine = m->net.cosines + (size_t)position * half, *sine = m->net.sines + (size_t)position * half;
        for (int i = 0; i < half; i++) {
            float a = to[i], b = to[half + i];
            to[i] = a * cosine[i] - b * sine[i];
            to[half + i] = b * cosine[i] + a * sine[i];
        }
    }
}

/* scores[0..16 BLOCKS) of one query for BLOCKS vectors of keys. */
INLINE void score(const int BLOCKS, const float *q, int d, const float *keys, int stride, float *scores) {
    vec sums[4] = {{0}};
    for (int i = 0; i < d; i++)
#pragma GCC unroll 4
        for (int b = 0; b < BLOCKS; b++) sums[b] += q[i] * ((const vec *)(keys + (size_t)i * stride))[b];
    for (int b = 0; b < BLOCKS; b++) ((vec *)scores)[b] = sums[b];
}

/* One query over keys first ... last -> (D,). `scores` has room for S padded. */
static void attend(const Model *m, const float *q, const float *keys, const float *values, int first, int last,
                   float *scores, float *out) {
    int begin = first / LANES * LANES, end = padded(last + 1, LANES), d = m->d;
    int k = begin;
    for (; k + 4 * LANES <= end; k += 4 * LANES) score(4, q, m->net.head_dim, keys + k, m->s, scores + k);
    for (; k < end; k += LANES) score(1, q, m->net.head_dim, keys + k, m->s, scores + k);
    for (int i = begin; i < first; i++) scores[i] = -INFINITY;
    for (int i = last + 1; i < end; i++) scores[i] = -INFINITY;
    vec most = *(vec *)(scores + begin), total = {0};
    for (k = begin + LANES; k < end; k += LANES) most = larger(most, *(vec *)(scores + k));
    float top = most_of(most);
    for (k = begin; k < end; k += LANES) {
        vec weight = exponential(*(vec *)(scores + k) - top);
        *(vec *)(scores + k) = weight = pick(*(vec *)(scores + k) == splat(-INFINITY), (vec){0}, weight);
        total += weight;
    }
    float share = 1.0f / sum_of(total);
    for (int block = 0; block < d; block += LANES) {
        vec sums[4] = {{0}};
        for (k = first; k + 4 <= last + 1; k += 4)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) sums[j] += scores[k + j] * *(const vec *)(values + (size_t)(k + j) * d + block);
        for (; k <= last; k++) sums[0] += scores[k] * *(const vec *)(values + (size_t)k * d + block);
        *(vec *)(out + block) = ((sums[0] + sums[1]) + (sums[2] + sums[3])) * share;
    }
}

/* Attention of key/value heads begin ... end - 1: keys and values of all rows are kept, in their order, and each row
   looks back from its position. In the last layer only the rows whose logits are wanted look. */
static void attention(void *context, int begin, int end) {
    Pass *p = context;
    const Model *m = p->model;
    const Network *net = &m->net;
    const Layer *layer = &m->layers[p->layer];
    int d = net->head_dim, group = net->n_head / net->n_kv_head;
    int stride = padded((net->n_head + 2 * net->n_kv_head) * d, PANEL);
    float q[m->d] __attribute__((aligned(64))), key[m->d] __attribute__((aligned(64)));
    float out[m->d] __attribute__((aligned(64))), scores[m->s] __attribute__((aligned(64)));
    for (int g = begin; g < end; g++)
        for (int r = 0; r < p->n; r++) {
            const Row *row = &p->rows[r];
            size_t at = ((size_t)p->layer * net->n_kv_head + g) * m->s * m->d;
            float *keys = row->stream->keys + at, *values = row->stream->values + at;
            const float *of_row = p->qkv + (size_t)r * stride;
            place_head(m, of_row + (net->n_head + g) * d, layer->k_norm, row->position, key);
            for (int i = 0; i < d; i++) keys[(size_t)i * m->s + row->position] = key[i];
            const float *value = of_row + (net->n_head + net->n_kv_head + g) * d;
            memcpy(values + (size_t)row->position * m->d, value, d * sizeof *value);
            if (p->last && !row->logits) continue;
            int first = net->window && row->position >= net->window ? row->position - net->window + 1 : 0;
            for (int h = g * group; h < (g + 1) * group; h++) {
                place_head(m, of_row + h * d, layer->q_norm, row->position, q);
                float shrink = 1.0f / sqrtf((float)d);
                for (int i = 0; i < d; i++) q[i] *= shrink;
                attend(m, q, keys, values, first, row->position, scores, out);
                memcpy(p->y + (size_t)r * m->c + h * d, out, d * sizeof *out);
            }
        }
}

typedef struct { /* room for one pass, and who writes */
    Model *model;
    float *x, *h, *qkv, *y, *hidden, *gates, *logits, *steps;
    uint8_t *digits;
} Room;

/* The logits of those of up to MAX_ROWS rows that ask for them. Rows of one stream stand in the order of positions,
   and continue what its cache holds. */
static void forward(Room *room, const Row *rows, int n) {
    Model *m = room->model;
    const Network *net = &m->net;
    Row kept[MAX_ROWS];
    Pass pass = {.model = m, .rows = rows, .n = n, .x = room->x, .h = room->h, .qkv = room->qkv, .y = room->y,
                 .hidden = room->hidden, .gates = room->gates,
                 .digits = room->digits, .steps = room->steps};
    Pass *p = &pass;
    for (int r = 0; r < n; r++) {
        const float *token = net->tokens + (size_t)rows[r].token * net->n_embd;
        const float *place = net->positions ? net->positions + (size_t)rows[r].position * net->n_embd : NULL;
        for (int i = 0; i < net->n_embd; i++)
            p->x[(size_t)r * m->c + i] = token[i] * net->embedding_scale + (place ? place[i] : 0);
    }
    int qkv_stride = padded((net->n_head + 2 * net->n_kv_head) * net->head_dim, PANEL);
    for (int l = 0; l < net->n_layer; l++) {
        const Layer *layer = &m->layers[l];
        const Packed *packed = &m->packed[l];
        p->layer = l, p->last = l == net->n_layer - 1;
        if (!net->post_norm) normalise(m, layer->norm1, layer->norm1_bias, p->x, p->h, p->n);
        linear(p, &packed->qkv, net->post_norm ? p->x : p->h, m->c, p->qkv, qkv_stride, false);
        share_out(&m->pool, net->n_kv_head, attention, p);
        if (p->last) { /* what nobody asks for needs no more than its keys and values */
            int wanted = 0;
            for (int r = 0; r < n; r++)
                if (rows[r].logits) {
                    memmove(p->x + (size_t)wanted * m->c, p->x + (size_t)r * m->c, m->c * sizeof *p->x);
                    memmove(p->y + (size_t)wanted * m->c, p->y + (size_t)r * m->c, m->c * sizeof *p->y);
                    kept[wanted++] = rows[r];
                }
            p->n = wanted;
            if (!wanted) return;
        }
        linear(p, &packed->out, p->y, m->c, p->x, m->c, true);
        if (net->post_norm) normalise(m, layer->norm1, layer->norm1_bias, p->x, p->x, p->n);
        if (net->post_norm) memcpy(p->h, p->x, (size_t)p->n * m->c * sizeof *p->x);
        else normalise(m, layer->norm2, layer->norm2_bias, p->x, p->h, p->n);
        p->in = input(p, &packed->up, p->h, m->c);
        share_out(&m->pool, packed->up.panels, widen, p);
        linear(p, &packed->down, p->hidden, m->f, p->x, m->c, true);
        if (net->post_norm) normalise(m, layer->norm2, layer->norm2_bias, p->x, p->x, p->n);
    }
    if (!net->post_norm) normalise(m, net->norm, net->norm_bias, p->x, p->x, p->n);
    int stride = m->head.panels * PANEL;
    linear(p, &m->head, p->x, m->c, room->logits, stride, false);
    for (int r = 0; r < p->n; r++) {
        float *from = room->logits + (size_t)r * stride;
        if (net->softcap > 0)
            for (int i = 0; i < stride; i += LANES) {
                vec x = *(vec *)(from + i) / net->softcap; /* tanh x = 2 sigmoid(2x) - 1 */
                *(vec *)(from + i) = net->softcap * (2.0f * sigmoid(2.0f * x) - 1.0f);
            }
        memcpy(kept[r].logits, from, net->vocab_size * sizeof *from);
    }
}

/* -------------------------------------------------------------------------------------------------- sampling */

typedef struct { /* as gpt_cli/sampling has it; 0 is off */
    float temperature; /* 0: greedy */
    int32_t top_k;
    double top_p;
    float log_min_p; /* 0 is off: ln 1 keeps all that are as likely as the likeliest, and says nothing */
    int32_t use_min_p, n_never;
    const int32_t *never; /* tokens that are not written */
} Sampling;

/* The Mersenne Twister (Matsumoto and Nishimura, 1998), torch's generator on a CPU. */
static void seed_twister(Stream *s, uint32_t seed) {
    s->twister[0] = seed;
    for (uint32_t i = 1; i < 624; i++)
        s->twister[i] = 1812433253u * (s->twister[i - 1] ^ (s->twister[i - 1] >> 30)) + i;
    s->drawn = 624;
}

static void twist(uint32_t *t) {
    for (int i = 0; i < 624; i++) {
        uint32_t y = (t[i] & 0x80000000u) | (t[i + 1 < 624 ? i + 1 : 0] & 0x7fffffffu);
        t[i] = t[i + 397 < 624 ? i + 397 : i - 227] ^ (y >> 1) ^ (-(y & 1) & 0x9908b0dfu);
    }
}

/* (V,) standard Gumbel noise: -ln(-ln(1 - u)), u uniform in steps of 2^-24, as gpt_cli/sampling/noise.py has it. */
static void draw(Stream *s, int n, float *noise) {
    for (int i = 0; i < n; i++) {
        if (s->drawn == 624) twist(s->twister), s->drawn = 0;
        uint32_t y = s->twister[s->drawn++];
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c5680u;
        y ^= (y << 15) & 0xefc60000u;
        y ^= y >> 18;
        noise[i] = (float)(y & 0xffffff) * 0x1p-24f;
    }
    for (int i = 0; i < n; i += LANES) {
        vec exponential_ = -logarithm(1.0f - *(loose *)(noise + i));
        *(loose *)(noise + i) = -logarithm(larger(exponential_, splat(0x1p-25f)));
    }
}

static void sift(float *heap, int n, int i) {
    float x = heap[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= x) break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

static void cut(float *logits, int n, float threshold) {
    for (int i = 0; i < n; i++) logits[i] = logits[i] < threshold ? -INFINITY : logits[i];
}

/* (V,) logits -> a token; `heap` has room for V. See gpt_cli/sampling/filters.py, which is the definition. */
static int choose(float *logits, int n, const Sampling *how, const float *noise, float *heap) {
    for (int i = 0; i < how->n_never; i++) logits[how->never[i]] = -INFINITY;
    if (how->temperature > 0) {
        for (int i = 0; i < n; i++) logits[i] /= how->temperature;
        if (how->top_k > 0 || (how->top_p > 0 && how->top_p < 1)) {
            memcpy(heap, logits, n * sizeof *heap);
            for (int i = n / 2; i >= 0; i--) sift(heap, n, i);
            float threshold = -INFINITY, top = heap[0];
            int left = n; /* the likeliest of the rest stands first */
            if (how->top_k > 0) {
                int k = how->top_k < n ? how->top_k : n;
                for (int i = 1; i < k; i++) heap[0] = heap[--left], sift(heap, left, 0);
                cut(logits, n, heap[0]);
            }
            if (how->top_p > 0 && how->top_p < 1) {
                double total = 0;
                for (int i = 0; i < n; i++) total += expf(logits[i] - top);
                memcpy(heap, logits, n * sizeof *heap);
                for (int i = n / 2; i >= 0; i--) sift(heap, n, i);
                double limit = how->top_p * 0x1p40;
                int64_t likelier = 0;
                for (left = n; left > 0 && likelier < limit && heap[0] > -INFINITY;) {
                    threshold = heap[0];
                    likelier += (int64_t)((float)(expf(heap[0] - top) / total) * 0x1p40f);
                    heap[0] = heap[--left], sift(heap, left, 0);
                }
                cut(logits, n, threshold);
            }
        }
        if (how->use_min_p) {
            float top = logits[0];
            for (int i = 1; i < n; i++) top = logits[i] > top ? logits[i] : top;
            cut(logits, n, top + how->log_min_p);
        }
        for (int i = 0; i < n; i++) logits[i] += noise[i];
    }
    int best = 0;
    for (int i = 1; i < n; i++) best = logits[i] > logits[best] ? i : best;
    return best;
}

/* -------------------------------------------------------------------------------------------------- texts */

typedef struct Session {
    Room room;
    Model *model;
    Sampling sampling;
    int n; /* texts written together */
    Stream *streams;
    float *logits, *heaps; /* (n, V) each; with a drafter and its one text, the logits of all rows of a pass */
    bool alike;            /* one prompt for all: it is read once */
    Drafter *drafter;      /* NULL: nothing is guessed */
    struct Session *small; /* the model that guesses, NULL: none */
} Session;

/* A token more. Where it would not fit, the older half of the window goes first, and what is left is read anew, at
   its new positions (window_start in gpt_cli/sampling/generate.py is the definition). */
static void push(const Model *m, Stream *s, int32_t token) {
    int context = m->net.context_length, half = context / 2;
    if (s->length == context) {
        memmove(s->window, s->window + half, (size_t)(context - half) * sizeof *s->window);
        s->length -= half, s->cached = 0;
    }
    s->window[s->length++] = token;
}

/* Read what the caches of the streams lack; their next logits. */
static void read_pending(Session *session, int streams) {
    Row rows[MAX_ROWS];
    int n = 0, v = session->model->net.vocab_size;
    for (int i = 0; i < streams; i++) {
        Stream *s = &session->streams[i];
        if (!s->active) continue;
        for (; s->cached < s->length; s->cached++) {
            bool newest = s->cached == s->length - 1;
            rows[n++] = (Row){s, s->cached, s->window[s->cached], newest ? session->logits + (size_t)i * v : NULL};
            if (n == MAX_ROWS) forward(&session->room, rows, n), n = 0;
        }
    }
    if (n) forward(&session->room, rows, n);
}

static void copy_first(Session *session) {
    const Model *m = session->model;
    size_t size = (size_t)m->net.n_layer * m->net.n_kv_head * m->s * m->d * sizeof(float);
    for (int i = 1; i < session->n; i++) {
        Stream *s = &session->streams[i];
        memcpy(s->keys, session->streams->keys, size), memcpy(s->values, session->streams->values, size);
        memcpy(session->logits + (size_t)i * m->net.vocab_size, session->logits, m->net.vocab_size * sizeof(float));
        s->cached = session->streams->cached;
    }
}

static void choose_tokens(void *context, int begin, int end) {
    Session *session = context;
    int v = session->model->net.vocab_size;
    for (int i = begin; i < end; i++) {
        Stream *s = &session->streams[i];
        if (session->sampling.temperature > 0) draw(s, v, s->noise);
        if (!s->active) continue;
        int token = choose(session->logits + (size_t)i * v, v, &session->sampling, s->noise, session->heaps + (size_t)i * v);
        push(session->model, s, token);
    }
}

/* ------------------------------------------------------------------------------------------ several tokens a pass */

/* The noise of the step after `step` coming ones, drawn once whoever asks first. */
static const float *noise_ahead(Session *session, int step) {
    Stream *s = session->streams;
    int v = session->model->net.vocab_size, stride = padded(v, PANEL);
    if (!(session->sampling.temperature > 0)) return NULL;
    for (; s->ahead <= step; s->ahead++) draw(s, v, s->noise + (size_t)s->ahead * stride);
    return s->noise + (size_t)step * stride;
}

static void forget_noise(Session *session, int steps) {
    Stream *s = session->streams;
    size_t stride = padded(session->model->net.vocab_size, PANEL);
    if (!s->ahead) return;
    s->ahead -= steps;
    memmove(s->noise, s->noise + steps * stride, s->ahead * stride * sizeof *s->noise);
}

/* Up to n tokens as the smaller model would write them: with the noise that the larger one will meet, so that the two
   mostly agree where their distributions do (Daliri et al., 2024, arXiv 2408.07978). */
static int guess(Session *session, int n, Guess *guesses) {
    Session *small = session->small;
    Drafter *d = session->drafter;
    Stream *t = small->streams;
    int v = small->model->net.vocab_size, context = small->model->net.context_length;
    double each = d->one_guess + d->more_rows, whole = 1, tokens = 1, best = 1 / d->one_row;
    int most = 0;
    if (n > context / 4) n = context / 4;
    if (d->always) most = d->always < n ? d->always : n;
    for (int k = 1; k <= n && !d->always; k++) {
        tokens += whole *= chance(&d->of_model);
        if (tokens / (d->one_row + k * each) > best) best = tokens / (d->one_row + k * each), most = k;
    }
    if (t->length + most > context) { /* now, since what is dropped does not come back */
        memmove(t->window, t->window + context / 2, (size_t)(t->length - context / 2) * sizeof *t->window);
        t->length -= context / 2, t->cached = 0;
    }
    double started = seconds();
    bool fresh = t->length - t->cached == 1;
    for (int k = 0; k < most; k++) {
        read_pending(small, 1);
        int32_t token = choose(small->logits, v, &session->sampling, noise_ahead(session, k), small->heaps);
        guesses[k] = (Guess){token, &d->of_model};
        t->window[t->length++] = token;
    }
    if (most && fresh) {
        double each_ = (seconds() - started) / most;
        if (!d->one_guess) d->one_guess = each_;
        d->one_guess += (fmin(each_, 4 * d->one_guess) - d->one_guess) / 16;
    }
    return most;
}

/* What has been written takes the place of what the smaller model guessed. */
static void correct(Session *small, const Guess *guesses, int n_guess, const int32_t *tokens, int n) {
    Stream *t = small->streams;
    int agreed = 0;
    while (agreed < n && agreed < n_guess && guesses[agreed].token == tokens[agreed]) agreed++;
    t->length -= n_guess - agreed;
    if (t->cached > t->length) t->cached = t->length;
    for (int i = agreed; i < n; i++) push(small->model, t, tokens[i]);
}

/* Write the one text of the session on by at least one token and at most `most`: those that the network writes by
   itself, from however many rows at once. Returns how many; their logits go to `logits` where it is not NULL. */
static int write_ahead(Session *session, int most, int32_t end_of_text, int32_t *tokens, float *logits) {
    const Model *m = session->model;
    Drafter *d = session->drafter;
    Stream *s = session->streams;
    int v = m->net.vocab_size, context = m->net.context_length, n = 0;
    Guess guesses[MOST_GUESSES];
    if (s->length - s->cached > 1) { /* a prompt, or a window that moved */
        int32_t newest = s->window[--s->length];
        read_pending(session, 1);
        s->window[s->length++] = newest;
    }
    int room = most - 1 < context - s->length ? most - 1 : context - s->length;
    if (room > MOST_GUESSES) room = MOST_GUESSES;
    if (d->measured < 3 && !d->always) { /* see what a row costs, and what some do */
        room = d->measured && d->measured < 2 ? (room < 3 ? room : 3) : 0;
        for (; n < room; n++) guesses[n] = (Guess){s->window[s->length - 1], NULL};
    } else if (session->small) {
        n = guess(session, room, guesses);
    } else {
        int32_t text[LONGEST + MOST_GUESSES];
        memcpy(text, d->recent, sizeof d->recent);
        for (; n < room && look_up(d, text + LONGEST + n, d->known + n, &guesses[n]); n++) text[LONGEST + n] = guesses[n].token;
        n = worth(d, guesses, n);
    }
    Row rows[MOST_GUESSES + 1];
    for (int r = 0; r <= n; r++)
        rows[r] = (Row){s, s->length - 1 + r, r ? guesses[r - 1].token : s->window[s->length - 1], session->logits + (size_t)r * v};
    double started = seconds();
    forward(&session->room, rows, n + 1);
    time_pass(d, n + 1, seconds() - started);
    int made = 0;
    for (bool right = true; right; made++) {
        if (logits) memcpy(logits + (size_t)made * v, rows[made].logits, v * sizeof *logits);
        int32_t token = choose(rows[made].logits, v, &session->sampling, noise_ahead(session, made), session->heaps);
        s->cached = s->length;
        push(m, s, token);
        learn(d, token);
        tokens[made] = token;
        right = made < n && guesses[made].token == token && token != end_of_text;
        if (made < n && guesses[made].record) {
            judge(guesses[made].record, guesses[made].token == token);
            d->right += guesses[made].token == token;
        }
    }
    forget_noise(session, made);
    if (n && !guesses[0].record) n = 0;
    if (session->small) correct(session->small, guesses, n, tokens, made);
    d->passes++, d->guessed += n;
    return made;
}

void gpt_close(Model *m) {
    if (!m) return;
    atomic_store(&m->pool.ending, true);
    pthread_mutex_lock(&m->pool.mutex);
    m->pool.alarm++;
    pthread_cond_broadcast(&m->pool.woken);
    pthread_mutex_unlock(&m->pool.mutex);
    for (int i = 0; i < m->pool.begun; i++) pthread_join(m->pool.threads[i], NULL);
    for (int l = 0; m->packed && l < m->net.n_layer; l++) {
        Matrix *each[] = {&m->packed[l].qkv, &m->packed[l].out, &m->packed[l].gate, &m->packed[l].up, &m->packed[l].down};
        for (int i = 0; i < 5; i++) free_matrix(each[i]);
    }
    free_matrix(&m->head);
    free(m->packed), free(m->layers), free(m);
}

/* The model, its matrices copied into panels; what else `net` and `layers` point to must stay. NULL: out of memory. */
Model *gpt_open(const Network *net, const Layer *layers) {
    Model *m = zeros(sizeof *m);
    if (!m) return NULL;
    pthread_mutex_init(&m->pool.mutex, NULL);
    pthread_cond_init(&m->pool.woken, NULL);
    m->net = *net;
    m->layers = zeros(net->n_layer * sizeof *layers), m->packed = zeros(net->n_layer * sizeof *m->packed);
    m->c = padded(net->n_embd, PANEL), m->f = padded(net->mlp_hidden, PANEL);
    m->d = padded(net->head_dim, LANES), m->s = padded(net->context_length, LANES);
    m->pool.patience = 4000; /* some 50 to 150 microseconds */
    m->pool.helpers = net->threads - 1 < MAX_HELPERS ? net->threads - 1 : MAX_HELPERS;
    bool fits = m->layers && m->packed;
    int c = net->n_embd, f = net->mlp_hidden, kv = net->n_kv_head * net->head_dim;
    for (int l = 0; fits && l < net->n_layer; l++) {
        const Layer *layer = &layers[l];
        Packed *packed = &m->packed[l];
        m->layers[l] = *layer;
        fits = pack(&packed->qkv, net->format, c + 2 * kv, c, layer->qkv, layer->qkv_bias)
            && pack(&packed->out, net->format, c, c, layer->out, layer->out_bias)
            && pack(&packed->down, net->format, c, f, layer->down, layer->down_bias);
        size_t gate = net->mlp == SWIGLU ? f : 0; /* gate and up are halves of one matrix */
        if (fits && gate) fits = pack(&packed->gate, net->format, f, c, layer->up, layer->up_bias);
        fits = fits && pack(&packed->up, net->format, f, c, layer->up + gate * c, layer->up_bias ? layer->up_bias + gate : NULL);
    }
    fits = fits && pack(&m->head, net->format, net->vocab_size, c, net->head, NULL);
    if (!fits) gpt_close(m), m = NULL;
    return m;
}

void gpt_end(Session *session) {
    if (!session) return;
    for (int o = 0; session->drafter && o < ORDERS; o++) free(session->drafter->slots[o]);
    free(session->drafter);
    for (int i = 0; session->streams && i < session->n; i++) {
        Stream *s = &session->streams[i];
        free(s->window), free(s->keys), free(s->values), free(s->noise);
    }
    free(session->room.x), free(session->room.h), free(session->room.qkv), free(session->room.y);
    free(session->room.hidden), free(session->room.gates), free(session->room.logits);
    free(session->room.steps), free(session->room.digits);
    free(session->streams), free(session->logits), free(session->heaps), free((void *)session->sampling.never);
    free(session);
}

/* Begin `n` texts with prompts of lengths[i] tokens (1 to a context), one after another in `prompts`. NULL: out of
   memory. */
Session *gpt_begin(Model *m, int32_t n, const int32_t *prompts, const int32_t *lengths, const uint32_t *seeds,
                   const Sampling *sampling) {
    const Network *net = &m->net;
    Session *session = zeros(sizeof *session);
    if (!session) return NULL;
    session->model = session->room.model = m, session->sampling = *sampling, session->n = n;
    int32_t *never = zeros((size_t)sampling->n_never * sizeof *never);
    session->sampling.never = never;
    size_t v = padded(net->vocab_size, PANEL), rows = MAX_ROWS * sizeof(float);
    size_t cache = (size_t)net->n_layer * net->n_kv_head * m->s * m->d * sizeof(float);
    Room *room = &session->room;
    room->x = zeros(rows * m->c), room->h = zeros(rows * m->c), room->y = zeros(rows * m->c);
    room->qkv = zeros(rows * padded((net->n_head + 2 * net->n_kv_head) * net->head_dim, PANEL));
    room->hidden = zeros(rows * m->f), room->gates = zeros(rows * m->f), room->logits = zeros(rows * v);
    room->steps = zeros(rows), room->digits = zeros((size_t)MAX_ROWS * 4 * (m->c > m->f ? m->c : m->f));
    session->streams = zeros(n * sizeof *session->streams);
    session->logits = zeros(n * v * sizeof(float)), session->heaps = zeros(n * v * sizeof(float));
    bool fits = never && room->x && room->h && room->y && room->qkv && room->hidden && room->gates && room->logits
        && room->steps && room->digits
        && session->streams && session->logits && session->heaps;
    if (fits) memcpy(never, sampling->never, (size_t)sampling->n_never * sizeof *never);
    session->alike = n > 1;
    const int32_t *prompt = prompts;
    for (int i = 0; fits && i < n; i++, prompt += lengths[i - 1]) {
        Stream *s = &session->streams[i];
        s->active = true;
        s->window = zeros(net->context_length * sizeof *s->window);
        s->keys = zeros(cache), s->values = zeros(cache), s->noise = zeros(v * sizeof *s->noise);
        fits = s->window && s->keys && s->values && s->noise;
        if (!fits) break;
        memcpy(s->window, prompt, lengths[i] * sizeof *s->window);
        s->length = lengths[i];
        seed_twister(s, seeds[i]);
        session->alike = session->alike && lengths[i] == lengths[0]
            && !memcmp(prompt, prompts, lengths[0] * sizeof *prompt);
    }
    if (!fits) gpt_end(session), session = NULL;
    return session;
}

/* Write `steps` tokens of each text into `tokens` (steps, n), and where it is not NULL the logits that they were
   chosen from into `logits` (steps, n, V). A text ends with `end_of_text` (-1: never); with all of them ended this
   returns early. Returns the steps made. */
int32_t gpt_write(Session *session, int32_t steps, int32_t end_of_text, int32_t *tokens, float *logits) {
    Model *m = session->model;
    size_t v = m->net.vocab_size;
    if (session->drafter) {
        int32_t made = 0;
        while (made < steps && session->streams->active) {
            wake(&m->pool);
            made += write_ahead(session, steps - made, end_of_text, tokens + made, logits ? logits + made * v : NULL);
            session->streams->active = tokens[made - 1] != end_of_text;
        }
        return made;
    }
    for (int32_t step = 0; step < steps; step++) {
        bool any = false;
        for (int i = 0; i < session->n; i++) any = any || session->streams[i].active;
        if (!any) return step;
        wake(&m->pool);
        read_pending(session, session->alike ? 1 : session->n);
        if (session->alike) copy_first(session), session->alike = false;
        if (logits) memcpy(logits + step * session->n * v, session->logits, session->n * v * sizeof *logits);
        share_out(&m->pool, session->n, choose_tokens, session);
        for (int i = 0; i < session->n; i++) {
            Stream *s = &session->streams[i];
            int32_t token = tokens[(size_t)step * session->n + i] = s->window[s->length - 1];
            if (token == end_of_text) s->active = false;
        }
    }
    return steps;
}

/* Text `i` has ended: nothing more is computed for it, and what is written for it means nothing. */
void gpt_stop(Session *session, int32_t i) { session->streams[i].active = false; }

/* Have several tokens of the one text of a session that has not begun written by one pass, where they can be guessed:
   by `small`, a session of another model with the same vocabulary and the same prompt, which must stay, or where that is
   NULL from the n-grams of the `n` tokens of `text` (of other texts, and at its end the prompt) and of what is written.
   `always` of them are looked at in a pass, where there are so many; 0: as many as pay. Returns 0 when out of memory, and then nothing is guessed. */
int32_t gpt_draft(Session *session, Session *small, const int32_t *text, int32_t n, int32_t always) {
    size_t v = padded(session->model->net.vocab_size, PANEL) * sizeof(float);
    Drafter *d = zeros(sizeof *d);
    float *logits = zeros((MOST_GUESSES + 1) * v), *noise = zeros((MOST_GUESSES + 1) * v);
    bool fits = d && logits && noise;
    if (fits) {
        d->ngrams = !small, d->bits = 12, d->always = always;
        while (d->bits < 22 && (1 << d->bits) < 2 * n) d->bits++;
        for (int o = 0; d->ngrams && o < ORDERS; o++) fits = (d->slots[o] = zeros(sizeof(Slot) << d->bits)) && fits;
    }
    if (!fits) {
        for (int o = 0; d && o < ORDERS; o++) free(d->slots[o]);
        free(d), free(logits), free(noise);
        return 0;
    }
    for (int32_t i = 0; i < n; i++) learn(d, text[i]);
    if (small) session->model->pool.patience = 40000; /* the smaller model has no work for the helpers meanwhile */
    free(session->logits), free(session->streams->noise);
    session->logits = logits, session->streams->noise = noise, session->drafter = d, session->small = small;
    return 1;
}

/* Of a session with a drafter: passes over the weights, tokens that were guessed, and those of them that were right. */
void gpt_drafted(const Session *session, int64_t *numbers) {
    numbers[0] = session->drafter->passes, numbers[1] = session->drafter->guessed, numbers[2] = session->drafter->right;
}

/* The text of stream `i` goes on with these tokens, whatever the model would have written. */
void gpt_push(Session *session, int32_t i, const int32_t *tokens, int32_t n) {
    for (int t = 0; t < n; t++) {
        push(session->model, &session->streams[i], tokens[t]);
        if (session->drafter) learn(session->drafter, tokens[t]);
        if (session->small) push(session->small->model, session->small->streams, tokens[t]);
    }
}

/* (n,) tokens, at most a context -> (n, V) logits: of what follows each. */
void gpt_score(Session *session, const int32_t *tokens, int32_t n, float *logits) {
    Row rows[MAX_ROWS];
    wake(&session->model->pool);
    for (int i = 0, k = 0; i < n; i++) {
        rows[k++] = (Row){session->streams, i, tokens[i], logits + (size_t)i * session->model->net.vocab_size};
        if (k == MAX_ROWS || i == n - 1) forward(&session->room, rows, k), k = 0;
    }
    session->streams->cached = 0;
}
