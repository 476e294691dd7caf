/* Products of many rows in AMX's tiles: the same sums as those of vectors to the last bit, of int8 since they are of whole
   numbers, of bf16 since they are made in the same order. A tile holds 16 rows of 64 bytes; the processor multiplies two of them in 16 cycles.

   Of 16 rows (a strip) the digits lie as tiles want them: (inputs / 64, 2, 16, 64), high ones before low ones; bf16 as
   (inputs / 32, 16, 32). Weights lie in panels as vectors want them, which tiles can read, too: 16 outputs of four inputs, or of
   two in bf16, are 64 bytes. Past the inputs rows are zero, so that whatever a tile reads there counts for nothing. */

enum { STRIP = 16, DEEP = 64, STRIP_BYTES = STRIP * DEEP };

/* The bytes of a row as part of a strip, in either format; where a row begins. */
INLINE int strip_bytes(int inputs) { return 2 * padded(inputs, DEEP); }
INLINE uint8_t *row_of_strip(uint8_t *limbs, int inputs, int row) {
    return limbs + (size_t)(row / STRIP * STRIP) * strip_bytes(inputs) + row % STRIP * DEEP;
}

typedef struct { /* how the hidden numbers of an MLP are activated */
    int mlp, stride;
    const float *gates; /* of SwiGLU, (n, stride) */
    uint8_t *limbs;    /* of bf16: where they go then, as the next product reads them */
    int digit_stride;
} ActivationEpilogue;

typedef struct { /* where sums go */
    float *y;
    int stride;
    bool add;
    const ActivationEpilogue *hidden; /* NULL: they are none */
} GemmOutput;

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512VNNI__) && defined(__AVX512BF16__) \
    && defined(__AVX512VBMI__) && defined(__linux__)
#include "../common/amx.h"

/* As quantise: (inputs,) -> one row of a strip. Returns the step. */
static float quantise_into_strip(const float *x, int inputs, uint8_t *limbs) {
    static const _Alignas(64) uint8_t lowest_then_next[64] = { /* bytes of the words of two vectors */
        0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60,
        64, 68, 72, 76, 80, 84, 88, 92, 96, 100, 104, 108, 112, 116, 120, 124,
        1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 61,
        65, 69, 73, 77, 81, 85, 89, 93, 97, 101, 105, 109, 113, 117, 121, 125,
    };
    const int filled = padded(inputs, LANES);
    const float top = absmax(x, filled), factor = top > 0 ? MOST_STEPS / top : 0;
    const __m512i chosen = _mm512_load_si512(lowest_then_next), offset = _mm512_set1_epi8((char)128);
    for (int i = 0; i < inputs; i += DEEP, limbs += 2 * STRIP_BYTES) {
        __m512i steps[4]; /* of which the whole numbers are the low halves: see `round_to_int` */
        for (int j = 0; j < 4; j++) {
            vec part = i + j * LANES < filled ? *(const vec *)(x + i + j * LANES) : (vec){0};
            steps[j] = (__m512i)(part * factor + ROUNDER);
        }
        __m512i a = _mm512_permutex2var_epi8(steps[0], chosen, steps[1]), b = _mm512_permutex2var_epi8(steps[2], chosen, steps[3]);
        __mmask64 of_row = inputs - i < DEEP ? (1ull << (inputs - i)) - 1 : ~0ull;
        __m512i low = _mm512_shuffle_i64x2(a, b, 0x44), high = _mm512_xor_si512(_mm512_shuffle_i64x2(a, b, 0xee), offset);
        _mm512_store_si512(limbs, _mm512_maskz_mov_epi8(of_row, high));
        _mm512_store_si512(limbs + STRIP_BYTES, _mm512_maskz_mov_epi8(of_row, low));
    }
    return top / MOST_STEPS;
}

/* (inputs,) -> the nearest bf16, as one row of a strip. */
static void round_into_strip(const float *x, int inputs, uint8_t *row_tile) {
    int filled = padded(inputs, LANES), deep = padded(inputs, PAIRS_DEEP);
    for (int i = 0; i < deep; i += LANES) {
        __m256i rounded = i < filled ? (__m256i)_mm512_cvtneps_pbh(_mm512_load_ps(x + i)) : _mm256_setzero_si256();
        _mm256_store_si256((__m256i *)(row_tile + i / PAIRS_DEEP * STRIP_BYTES + i % PAIRS_DEEP * 2), rounded);
    }
}

/* Sums with either half of a panel: bf16 of two strips, int8 of high digits and of low ones. */
typedef struct {
    _Alignas(64) ivec of[4 * STRIP];
} Sums;

/* Sums of rows `from` ... `until` - 1 after `row` go where they go: with their bias, and activated where MLP is one. */
INLINE void epilogue(const int FORMAT, const int MLP, const Matrix *m, int panel, const Sums *sums, int row, int from, int until,
                   const float *steps, const GemmOutput goal) {
    const size_t at = (size_t)panel * PANEL;
    const vec *bias = (const vec *)(m->bias + at), *scale = (const vec *)(m->scale + at);
    const vec biases[2] = {bias[0], bias[1]}, scales[2] = {scale[0], scale[1]};
    for (int r = from; r < until; r++) {
        const ivec *sum = sums->of + (FORMAT == BF16 ? r / STRIP * 2 * STRIP : 0) + r % STRIP;
        vec first, second;
        if (FORMAT == BF16) {
            first = (vec)sum[0] + biases[0], second = (vec)sum[STRIP] + biases[1];
        } else {
            float step = steps[row + r];
            first = combine_bytes(sum[0], sum[2 * STRIP]) * (step * scales[0]) + biases[0];
            second = combine_bytes(sum[STRIP], sum[3 * STRIP]) * (step * scales[1]) + biases[1];
        }
        if (MLP != NONE) {
            const vec *gate = (const vec *)(goal.hidden->gates + (size_t)(row + r) * goal.hidden->stride + at);
            first = activate(MLP, first, gate[0]), second = activate(MLP, second, gate[1]);
        }
        if (MLP != NONE && FORMAT == BF16) {
            uint8_t *row_tile = goal.hidden->limbs + (size_t)((row + r) / STRIP * STRIP) * goal.hidden->digit_stride;
            _mm512_store_si512(row_tile + panel * STRIP_BYTES + r % STRIP * DEEP,
                               (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
        } else {
            vec *to = (vec *)(goal.y + (size_t)(row + r) * goal.stride + at);
            if (goal.add) first += to[0], second += to[1];
            to[0] = first, to[1] = second;
        }
    }
}

#define MULTIPLY(SUM, ROWS, WEIGHTS)                                                                                 \
    if (FORMAT == BF16) _tile_dpbf16ps(SUM, ROWS, WEIGHTS);                                                          \
    else _tile_dpbusd(SUM, ROWS, WEIGHTS)

#define LOAD_WEIGHTS(TILE, FROM)                                                                                     \
    if (passes == 1) _tile_stream_loadd(TILE, FROM, 128);                                                            \
    else _tile_loadd(TILE, FROM, 128)

/* `rows` rows through panels begin ... end - 1.

   Weights are read once a pass, from far away. One line in eight is asked for some steps ahead, which sets the processor on the
   others; into the second cache only, since the first holds the rows; weights that are wanted once go past it. While some rows
   are multiplied the sums that were made before are settled, a few with each step, so that tiles and vectors work side by side; not
   where steps are so few that each would settle more than MOST_SETTLED rows. (Measured on the machine of docs/sampling_speed.md.) */
INLINE void multiply_by_tiles(const int FORMAT, const int MLP, const Matrix *m, int begin, int end, int rows, const GemmInput *in,
                              const GemmOutput goal) {
    enum { OF_STEP = 2 * STRIP_BYTES, AHEAD = 12 * OF_STEP, EIGHTH = 8 * 64, MOST_SETTLED = 4 };
    const int bf16 = FORMAT == BF16, at_once = bf16 ? 2 * STRIP : STRIP, passes = (rows + at_once - 1) / at_once;
    const int steps = (m->inputs - 1) / (bf16 ? PAIRS_DEEP : DEEP) + 1, a_step = bf16 ? STRIP_BYTES : 2 * STRIP_BYTES;
    const int below = bf16 ? STRIP * in->digit_stride : STRIP_BYTES; /* from tile 4 to tile 5: the next strip, or low digits */
    const size_t apart = (size_t)padded(m->inputs, 4) * PANEL * (bf16 ? 2 : 1);
    const int each_step = OF_STEP / passes;
    const char *asked = (const char *)m->weights + begin * apart;
    const float *of_rows = in->steps;
    Sums sums[2];
    int which = 0, last_panel = begin, last_row = 0, last_n = 0;
    amx_configure();
    for (int panel = begin; panel < end; panel++) {
        const char *panel_weights = (const char *)m->weights + panel * apart, *ahead = panel_weights + AHEAD;
        for (int row = 0; row < rows; row += at_once, which = !which) {
            const uint8_t *a = in->limbs + (size_t)row * in->digit_stride;
            const char *b = panel_weights;
            int n = rows - row < at_once ? rows - row : at_once, each = (last_n + steps - 1) / steps, settled = 0;
            if (bf16) {
                _tile_zero(0);
                _tile_zero(1);
            } else { /* the same for all rows */
                _tile_loadd(0, m->sums + (size_t)panel * PANEL, 0);
                _tile_loadd(1, m->sums + (size_t)panel * PANEL + LANES, 0);
            }
            _tile_zero(2);
            _tile_zero(3);
            for (int i = 0; i < steps; i++, a += a_step, b += OF_STEP) {
                for (ahead += each_step; asked < ahead; asked += EIGHTH) _mm_prefetch(asked, _MM_HINT_T1);
                _tile_loadd(4, a, DEEP);
                LOAD_WEIGHTS(6, b);
                MULTIPLY(0, 4, 6);
                LOAD_WEIGHTS(7, b + 64);
                MULTIPLY(1, 4, 7);
                if (!bf16 || n > STRIP) {
                    _tile_loadd(5, a + below, DEEP);
                    MULTIPLY(2, 5, 6);
                    MULTIPLY(3, 5, 7);
                }
                int until = settled + each < last_n ? settled + each : last_n;
                epilogue(FORMAT, MLP, m, last_panel, &sums[!which], last_row, settled, until, of_rows, goal);
                settled = until;
            }
            _tile_stored(0, sums[which].of, 64);
            _tile_stored(1, sums[which].of + STRIP, 64);
            _tile_stored(2, sums[which].of + 2 * STRIP, 64);
            _tile_stored(3, sums[which].of + 3 * STRIP, 64);
            last_panel = panel, last_row = row, last_n = n;
            if (at_once > MOST_SETTLED * steps) {
                epilogue(FORMAT, MLP, m, panel, &sums[which], row, 0, n, of_rows, goal);
                last_n = 0;
            }
        }
    }
    epilogue(FORMAT, MLP, m, last_panel, &sums[!which], last_row, 0, last_n, of_rows, goal);
    _tile_release();
}

static void gemm_amx(const Matrix *m, int format, int begin, int end, int rows, const GemmInput *in, GemmOutput goal) {
    if (format == INT8 && !goal.hidden) multiply_by_tiles(INT8, NONE, m, begin, end, rows, in, goal);
    else if (format == INT8) FOR_MLP(goal.hidden->mlp, multiply_by_tiles(INT8, MLP, m, begin, end, rows, in, goal))
    else if (!goal.hidden) multiply_by_tiles(BF16, NONE, m, begin, end, rows, in, goal);
    else FOR_MLP(goal.hidden->mlp, multiply_by_tiles(BF16, MLP, m, begin, end, rows, in, goal))
}
#else
static void round_into_strip(const float *x, int inputs, uint8_t *row_tile) { (void)x, (void)inputs, (void)row_tile; }
static bool amx_request(void) { return false; }
static float quantise_into_strip(const float *x, int inputs, uint8_t *limbs) {
    (void)x, (void)inputs, (void)limbs;
    return 0;
}
static void gemm_amx(const Matrix *m, int format, int begin, int end, int rows, const GemmInput *in, GemmOutput goal) {
    (void)m, (void)format, (void)begin, (void)end, (void)rows, (void)in, (void)goal;
}
#endif
