/* GEMM of many rows in AMX tiles: the same bits as on vectors, in int8 since sums are of integers, in bf16 since they are made in the
   same order. A tile register holds 16 rows of 64 bytes; a tile product takes 16 cycles.

   Rows are packed in tiles of 16: limbs as (inputs / 64, 2, 16, 64), high bytes before low ones; bf16 as (inputs / 32, 16, 32).
   Weights are in the panels of the vector kernels, which are AMX's VNNI layout: 16 outputs of four inputs, or two in bf16, are 64
   bytes. Rows are zero-padded past the inputs, so whatever a tile of weights has there does not count. */

enum { TILE_ROWS = 16, TILE_K = 64, TILE_BYTES = TILE_ROWS * TILE_K };

/* Bytes of a packed row, in either format; where a row begins. */
INLINE int tile_row_stride(int inputs) { return 2 * padded(inputs, TILE_K); }
INLINE uint8_t *row_of_tile(uint8_t *packed_rows, int inputs, int row) {
    return packed_rows + (size_t)(row / TILE_ROWS * TILE_ROWS) * tile_row_stride(inputs) + row % TILE_ROWS * TILE_K;
}

typedef struct { /* applies the activation of an MLP */
    int mlp, stride;
    const float *gates; /* of SwiGLU, (n, stride) */
    uint8_t *packed_rows; /* bf16: the output, packed for the next GEMM */
    int packed_stride;
} ActivationEpilogue;

typedef struct { /* operand C */
    float *y;
    int stride;
    bool add;
    const ActivationEpilogue *hidden; /* NULL: no activation */
} GemmOutput;

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512VNNI__) && defined(__AVX512BF16__) \
    && defined(__AVX512VBMI__) && defined(__linux__)
#include "../common/amx.h"

/* As `quantize_rows`, into one row of a tile. Returns the scale. */
static float quantize_into_tile(const float *x, int inputs, uint8_t *limbs) {
    static const _Alignas(64) uint8_t lowest_then_next[64] = { /* bytes of the words of two vectors */
        0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60,
        64, 68, 72, 76, 80, 84, 88, 92, 96, 100, 104, 108, 112, 116, 120, 124,
        1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 61,
        65, 69, 73, 77, 81, 85, 89, 93, 97, 101, 105, 109, 113, 117, 121, 125,
    };
    const int filled = padded(inputs, LANES);
    const float top = absmax(x, filled), factor = top > 0 ? ACTIVATION_QMAX / top : 0;
    const __m512i chosen = _mm512_load_si512(lowest_then_next), offset = _mm512_set1_epi8((char)128);
    for (int i = 0; i < inputs; i += TILE_K, limbs += 2 * TILE_BYTES) {
        __m512i q[4]; /* whose low halves are the integers, see `round_to_int` */
        for (int j = 0; j < 4; j++) {
            vec part = i + j * LANES < filled ? *(const vec *)(x + i + j * LANES) : (vec){0};
            q[j] = (__m512i)(part * factor + ROUNDER);
        }
        __m512i a = _mm512_permutex2var_epi8(q[0], chosen, q[1]), b = _mm512_permutex2var_epi8(q[2], chosen, q[3]);
        __mmask64 mask = inputs - i < TILE_K ? (1ull << (inputs - i)) - 1 : ~0ull;
        __m512i low = _mm512_shuffle_i64x2(a, b, 0x44), high = _mm512_xor_si512(_mm512_shuffle_i64x2(a, b, 0xee), offset);
        _mm512_store_si512(limbs, _mm512_maskz_mov_epi8(mask, high));
        _mm512_store_si512(limbs + TILE_BYTES, _mm512_maskz_mov_epi8(mask, low));
    }
    return top / ACTIVATION_QMAX;
}

/* (inputs,) rounded to bf16, into one row of a tile. */
static void round_into_tile(const float *x, int inputs, uint8_t *row_tile) {
    int filled = padded(inputs, LANES), deep = padded(inputs, TILE_K_BF16);
    for (int i = 0; i < deep; i += LANES) {
        __m256i rounded = i < filled ? (__m256i)_mm512_cvtneps_pbh(_mm512_load_ps(x + i)) : _mm256_setzero_si256();
        _mm256_store_si256((__m256i *)(row_tile + i / TILE_K_BF16 * TILE_BYTES + i % TILE_K_BF16 * 2), rounded);
    }
}

/* Accumulators by halves of a panel: in bf16 of two tiles of rows, in int8 of high and of low bytes. */
typedef struct {
    _Alignas(64) ivec of[4 * TILE_ROWS];
} TileSums;

/* Bias, dequantization and activation (unless NONE) of rows `from` ... `until` - 1 after `row`. */
INLINE void epilogue(const int FORMAT, const int MLP, const Matrix *m, int panel, const TileSums *sums, int row, int from, int until,
                   const float *row_scales, const GemmOutput out) {
    const size_t at = (size_t)panel * PANEL;
    const vec *bias = (const vec *)(m->bias + at), *scale = (const vec *)(m->scale + at);
    const vec biases[2] = {bias[0], bias[1]}, scales[2] = {scale[0], scale[1]};
    for (int r = from; r < until; r++) {
        const ivec *sum = sums->of + (FORMAT == BF16 ? r / TILE_ROWS * 2 * TILE_ROWS : 0) + r % TILE_ROWS;
        vec first, second;
        if (FORMAT == BF16) {
            first = (vec)sum[0] + biases[0], second = (vec)sum[TILE_ROWS] + biases[1];
        } else {
            float row_scale = row_scales[row + r];
            first = combine_bytes(sum[0], sum[2 * TILE_ROWS]) * (row_scale * scales[0]) + biases[0];
            second = combine_bytes(sum[TILE_ROWS], sum[3 * TILE_ROWS]) * (row_scale * scales[1]) + biases[1];
        }
        if (MLP != NONE) {
            const vec *gate = (const vec *)(out.hidden->gates + (size_t)(row + r) * out.hidden->stride + at);
            first = activate(MLP, first, gate[0]), second = activate(MLP, second, gate[1]);
        }
        if (MLP != NONE && FORMAT == BF16) {
            uint8_t *row_tile = out.hidden->packed_rows + (size_t)((row + r) / TILE_ROWS * TILE_ROWS) * out.hidden->packed_stride;
            _mm512_store_si512(row_tile + panel * TILE_BYTES + r % TILE_ROWS * TILE_K,
                               (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
        } else {
            vec *to = (vec *)(out.y + (size_t)(row + r) * out.stride + at);
            if (out.add) first += to[0], second += to[1];
            to[0] = first, to[1] = second;
        }
    }
}

#define TILE_DP(SUM, ROWS, WEIGHTS)                                                                                 \
    if (FORMAT == BF16) _tile_dpbf16ps(SUM, ROWS, WEIGHTS);                                                          \
    else _tile_dpbusd(SUM, ROWS, WEIGHTS)

#define LOAD_WEIGHTS(TILE, FROM)                                                                                     \
    if (passes == 1) _tile_stream_loadd(TILE, FROM, 128);                                                            \
    else _tile_loadd(TILE, FROM, 128)

/* `rows` rows through panels begin ... end - 1.

   Weights are streamed once a pass. One line in eight is prefetched some steps ahead, which triggers the hardware prefetcher; into
   L2 only, since L1 holds the rows; with a single pass weights bypass the cache. The epilogue of the previous tile runs a few rows
   with each step, so that AMX and vector units overlap; not where steps are so few that each would take more than
   MAX_EPILOGUE_ROWS rows. (Measured on the machine of docs/sampling_speed.md.) */
INLINE void gemm_amx_kernel(const int FORMAT, const int MLP, const Matrix *m, int begin, int end, int rows, const GemmInput *in,
                              const GemmOutput out) {
    enum { STEP_BYTES = 2 * TILE_BYTES, PREFETCH_DISTANCE = 12 * STEP_BYTES, PREFETCH_STRIDE = 8 * 64, MAX_EPILOGUE_ROWS = 4 };
    const int bf16 = FORMAT == BF16, rows_per_pass = bf16 ? 2 * TILE_ROWS : TILE_ROWS, passes = (rows + rows_per_pass - 1) / rows_per_pass;
    const int steps = (m->inputs - 1) / (bf16 ? TILE_K_BF16 : TILE_K) + 1, a_stride = bf16 ? TILE_BYTES : 2 * TILE_BYTES;
    const int tile5 = bf16 ? TILE_ROWS * in->packed_stride : TILE_BYTES; /* from tile register 4 to 5: the next 16 rows, or low bytes */
    const size_t panel_stride = (size_t)padded(m->inputs, 4) * PANEL * (bf16 ? 2 : 1);
    const int prefetch_per_step = STEP_BYTES / passes;
    const char *prefetched = (const char *)m->weights + begin * panel_stride;
    const float *row_scales = in->row_scales;
    TileSums sums[2];
    int which = 0, last_panel = begin, last_row = 0, last_n = 0;
    amx_configure();
    for (int panel = begin; panel < end; panel++) {
        const char *panel_weights = (const char *)m->weights + panel * panel_stride, *prefetch_end = panel_weights + PREFETCH_DISTANCE;
        for (int row = 0; row < rows; row += rows_per_pass, which = !which) {
            const uint8_t *a = in->packed_rows + (size_t)row * in->packed_stride;
            const char *b = panel_weights;
            int n = rows - row < rows_per_pass ? rows - row : rows_per_pass, rows_per_step = (last_n + steps - 1) / steps, finished = 0;
            if (bf16) {
                _tile_zero(0);
                _tile_zero(1);
            } else { /* the same for all rows */
                _tile_loadd(0, m->sums + (size_t)panel * PANEL, 0);
                _tile_loadd(1, m->sums + (size_t)panel * PANEL + LANES, 0);
            }
            _tile_zero(2);
            _tile_zero(3);
            for (int i = 0; i < steps; i++, a += a_stride, b += STEP_BYTES) {
                for (prefetch_end += prefetch_per_step; prefetched < prefetch_end; prefetched += PREFETCH_STRIDE) _mm_prefetch(prefetched, _MM_HINT_T1);
                _tile_loadd(4, a, TILE_K);
                LOAD_WEIGHTS(6, b);
                TILE_DP(0, 4, 6);
                LOAD_WEIGHTS(7, b + 64);
                TILE_DP(1, 4, 7);
                if (!bf16 || n > TILE_ROWS) {
                    _tile_loadd(5, a + tile5, TILE_K);
                    TILE_DP(2, 5, 6);
                    TILE_DP(3, 5, 7);
                }
                int until = finished + rows_per_step < last_n ? finished + rows_per_step : last_n;
                epilogue(FORMAT, MLP, m, last_panel, &sums[!which], last_row, finished, until, row_scales, out);
                finished = until;
            }
            _tile_stored(0, sums[which].of, 64);
            _tile_stored(1, sums[which].of + TILE_ROWS, 64);
            _tile_stored(2, sums[which].of + 2 * TILE_ROWS, 64);
            _tile_stored(3, sums[which].of + 3 * TILE_ROWS, 64);
            last_panel = panel, last_row = row, last_n = n;
            if (rows_per_pass > MAX_EPILOGUE_ROWS * steps) {
                epilogue(FORMAT, MLP, m, panel, &sums[which], row, 0, n, row_scales, out);
                last_n = 0;
            }
        }
    }
    epilogue(FORMAT, MLP, m, last_panel, &sums[!which], last_row, 0, last_n, row_scales, out);
    _tile_release();
}

static void gemm_amx(const Matrix *m, int format, int begin, int end, int rows, const GemmInput *in, GemmOutput out) {
    if (format == INT8 && !out.hidden) gemm_amx_kernel(INT8, NONE, m, begin, end, rows, in, out);
    else if (format == INT8) FOR_MLP(out.hidden->mlp, gemm_amx_kernel(INT8, MLP, m, begin, end, rows, in, out))
    else if (!out.hidden) gemm_amx_kernel(BF16, NONE, m, begin, end, rows, in, out);
    else FOR_MLP(out.hidden->mlp, gemm_amx_kernel(BF16, MLP, m, begin, end, rows, in, out))
}
#else
static void round_into_tile(const float *x, int inputs, uint8_t *row_tile) { (void)x, (void)inputs, (void)row_tile; }
static bool amx_request(void) { return false; }
static float quantize_into_tile(const float *x, int inputs, uint8_t *limbs) {
    (void)x, (void)inputs, (void)limbs;
    return 0;
}
static void gemm_amx(const Matrix *m, int format, int begin, int end, int rows, const GemmInput *in, GemmOutput out) {
    (void)m, (void)format, (void)begin, (void)end, (void)rows, (void)in, (void)out;
}
#endif
