/* Products of many rows in AMX's tiles: the same sums as those of vectors to the last bit, of int8 since they are of whole
   numbers, of bf16 since they are made in the same order. A tile holds 16 rows of 64 bytes; the processor multiplies two of them in 16 cycles.

   Of 16 rows (a strip) the digits lie as tiles want them: (inputs / 64, 2, 16, 64), high ones before low ones; bf16 as
   (inputs / 32, 16, 32). Weights lie in panels as vectors want them, which tiles can read, too: 16 outputs of four inputs, or of
   two in bf16, are 64 bytes. Past the inputs rows are zero, so that whatever a tile reads there counts for nothing. */

enum { STRIP = 16, DEEP = 64, STRIP_BYTES = STRIP * DEEP };

/* The bytes of a row as part of a strip, in either format; where a row begins. */
INLINE int strip_bytes(int inputs) { return 2 * padded(inputs, DEEP); }
INLINE uint8_t *row_of_strip(uint8_t *digits, int inputs, int row) {
    return digits + (size_t)(row / STRIP * STRIP) * strip_bytes(inputs) + row % STRIP * DEEP;
}

typedef struct { /* where the hidden numbers of an MLP go: activated, and as the next product reads them */
    int mlp, stride;
    const float *gates; /* of SwiGLU, (n, stride) */
    uint8_t *digits;
    int digit_stride;
} Hidden;

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512VNNI__) && defined(__AVX512BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

/* Ask the system for the registers of tiles, which Linux hands out on request. */
static bool request_tiles(void) { return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) == 0; }

/* As quantise: (inputs,) -> one row of a strip. Returns the step. */
static float quantise_into_strip(const float *x, int inputs, uint8_t *digits) {
    int filled = padded(inputs, LANES), deep = padded(inputs, DEEP);
    float top = most_absolute(x, filled), factor = top > 0 ? MOST_STEPS / top : 0;
    const __m512 scale = _mm512_set1_ps(factor), rounder = _mm512_set1_ps(ROUNDER);
    const __m128i offset = _mm_set1_epi8((char)128);
    for (int i = 0; i < filled; i += LANES) {
        /* the whole number of steps is the low half of these bits: see `whole` */
        __m512i bits = _mm512_castps_si512(_mm512_fmadd_ps(_mm512_load_ps(x + i), scale, rounder));
        uint8_t *to = digits + i / DEEP * 2 * STRIP_BYTES + i % DEEP;
        _mm_store_si128((__m128i *)to, _mm_xor_si128(_mm512_cvtepi32_epi8(_mm512_srli_epi32(bits, 8)), offset));
        _mm_store_si128((__m128i *)(to + STRIP_BYTES), _mm512_cvtepi32_epi8(bits));
    }
    if (inputs < deep) {
        uint8_t *to = digits + inputs / DEEP * 2 * STRIP_BYTES;
        memset(to + inputs % DEEP, 0, deep - inputs), memset(to + STRIP_BYTES + inputs % DEEP, 0, deep - inputs);
    }
    return top / MOST_STEPS;
}

static void begin_tiles(void) {
    static const _Alignas(64) uint8_t eight_tiles[64] = { /* of 16 rows of 64 bytes */
        1, [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
        [48] = 16, 16, 16, 16, 16, 16, 16, 16,
    };
    _tile_loadconfig(eight_tiles);
}

/* Weights are read once a pass, from far away, and come only while they are asked for. So some are asked for wherever there is
   something to compute: of the panel at hand one line in eight 8 KB ahead, which sets the processor on the others; of the next
   one those at `ahead`, a few with each step of a product, and more while its sums are put where they belong. Asked for all at
   once, they stand in the way of what is read at the time. (Measured on the machine of docs/sampling_speed.md.) */
enum { AHEAD_OF_STEP = 4, AHEAD_OF_ROW = 5, AHEAD_OF_ACTIVATION = 8 };

INLINE const char *expect_some(const char *ahead, int lines) {
    for (int line = 0; line < lines; line++) _mm_prefetch(ahead + line * 64, _MM_HINT_T0);
    return ahead + lines * 64;
}

INLINE const char *expect_weights(const void *now, const char *ahead) {
    for (int line = 0; line < 2 * STRIP; line += 8) _mm_prefetch((const char *)now + 8 * STRIP_BYTES + line * 64, _MM_HINT_T0);
    return expect_some(ahead, AHEAD_OF_STEP);
}

/* `rows` rows through panels begin ... end - 1. */
static void few_panels_by_tiles(const Matrix *m, int begin, int end, int rows, const Input *in, float *y, int y_stride,
                                bool add) {
    _Alignas(64) int32_t sums[4][STRIP * LANES]; /* of high digits with either half of the panel, of low ones */
    int inputs = m->inputs, deep = padded(inputs, DEEP);
    size_t apart = (size_t)padded(inputs, 4) * PANEL;
    begin_tiles();
    for (int panel = begin; panel < end; panel++) {
        const int32_t *offsets = m->sums + (size_t)panel * PANEL;
        const vec *scale = (const vec *)(m->scale + (size_t)panel * PANEL);
        const vec *bias = (const vec *)(m->bias + (size_t)panel * PANEL);
        const vec first_scale = scale[0], second_scale = scale[1], first_bias = bias[0], second_bias = bias[1];
        const char *ahead = (const char *)m->weights + (panel + 1) * apart;
        for (int row = 0; row < rows; row += STRIP) {
            const uint8_t *a = in->digits + (size_t)row * in->digit_stride;
            const int8_t *b = (const int8_t *)m->weights + panel * apart;
            _tile_loadd(0, offsets, 0); /* the same for all rows */
            _tile_loadd(1, offsets + LANES, 0);
            _tile_zero(2);
            _tile_zero(3);
            for (int i = 0; i < deep; i += DEEP, a += 2 * STRIP_BYTES, b += DEEP * PANEL) {
                if (!row) ahead = expect_weights(b, ahead);
                _tile_loadd(4, a, DEEP);
                _tile_loadd(6, b, 128);
                _tile_dpbusd(0, 4, 6);
                _tile_loadd(7, b + 64, 128);
                _tile_dpbusd(1, 4, 7);
                _tile_loadd(5, a + STRIP_BYTES, DEEP);
                _tile_dpbusd(2, 5, 6);
                _tile_dpbusd(3, 5, 7);
            }
            _tile_stored(0, sums[0], 64);
            _tile_stored(1, sums[1], 64);
            _tile_stored(2, sums[2], 64);
            _tile_stored(3, sums[3], 64);
            int n = rows - row < STRIP ? rows - row : STRIP;
            vec *to = (vec *)(y + (size_t)row * y_stride + (size_t)panel * PANEL);
            for (int r = 0; r < n; r++, to += y_stride / LANES) {
                const ivec *of = (const ivec *)sums + r;
                ahead = expect_some(ahead, AHEAD_OF_ROW);
                float step = in->steps[row + r];
                vec first = 256.0f * __builtin_convertvector(of[0], vec) + __builtin_convertvector(of[2 * STRIP], vec);
                vec second = 256.0f * __builtin_convertvector(of[STRIP], vec) + __builtin_convertvector(of[3 * STRIP], vec);
                first = first * (step * first_scale) + first_bias, second = second * (step * second_scale) + second_bias;
                if (add) first += to[0], second += to[1];
                to[0] = first, to[1] = second;
            }
        }
    }
    _tile_release();
}
/* (inputs,) -> the nearest bf16, as one row of a strip. */
static void round_into_strip(const float *x, int inputs, uint8_t *strip) {
    int filled = padded(inputs, LANES), deep = padded(inputs, PAIRS_DEEP);
    for (int i = 0; i < deep; i += LANES) {
        __m256i rounded = i < filled ? (__m256i)_mm512_cvtneps_pbh(_mm512_load_ps(x + i)) : _mm256_setzero_si256();
        _mm256_store_si256((__m256i *)(strip + i / PAIRS_DEEP * STRIP_BYTES + i % PAIRS_DEEP * 2), rounded);
    }
}

/* (n, 32) sums of a panel, activated -> `to`. Returns how far was asked for. */
INLINE const char *hide_rows(const int MLP, const Hidden *to, int panel, int row, int n, const float (*sums)[PANEL],
                             const vec *bias, const char *ahead) {
    const float *gates = to->gates + (size_t)row * to->stride + (size_t)panel * PANEL;
    uint8_t *strip = to->digits + (size_t)row * to->digit_stride + (size_t)panel * STRIP_BYTES;
    for (int r = 0; r < n; r++, gates += to->stride) {
        const vec *sum = (const vec *)sums[r], *gate = (const vec *)gates;
        vec first = activated(MLP, sum[0] + bias[0], gate[0]), second = activated(MLP, sum[1] + bias[1], gate[1]);
        size_t at = (size_t)(r / STRIP * STRIP) * to->digit_stride + r % STRIP * DEEP;
        _mm512_store_si512(strip + at, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
        ahead = expect_some(ahead, AHEAD_OF_ACTIVATION);
    }
    return ahead;
}

/* `rows` rows through panels begin ... end - 1, into y or where that is not NULL into `hidden`. */
static void few_panels_of_pairs_by_tiles(const Matrix *m, int begin, int end, int rows, const Input *in, float *y,
                                         int y_stride, bool add, const Hidden *hidden) {
    _Alignas(64) float sums[2 * STRIP][PANEL];
    int inputs = m->inputs, deep = padded(inputs, PAIRS_DEEP), strip = STRIP * in->digit_stride;
    size_t apart = (size_t)padded(inputs, 4) * PANEL;
    begin_tiles();
    for (int panel = begin; panel < end; panel++) {
        const vec *bias = (const vec *)(m->bias + (size_t)panel * PANEL);
        const char *ahead = (const char *)((const uint16_t *)m->weights + (panel + 1) * apart);
        for (int row = 0; row < rows; row += 2 * STRIP) { /* two strips */
            const uint8_t *a = in->digits + (size_t)row * in->digit_stride;
            const uint16_t *b = (const uint16_t *)m->weights + panel * apart;
            int n = rows - row < 2 * STRIP ? rows - row : 2 * STRIP;
            bool both = n > STRIP;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int i = 0; i < deep; i += PAIRS_DEEP, a += STRIP_BYTES, b += PAIRS_DEEP * PANEL) {
                if (!row) ahead = expect_weights(b, ahead);
                _tile_loadd(4, a, DEEP);
                _tile_loadd(6, b, 128);
                _tile_dpbf16ps(0, 4, 6);
                _tile_loadd(7, b + 32, 128);
                _tile_dpbf16ps(1, 4, 7);
                if (!both) continue;
                _tile_loadd(5, a + strip, DEEP);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, sums[0], 128);
            _tile_stored(1, sums[0] + LANES, 128);
            _tile_stored(2, sums[STRIP], 128);
            _tile_stored(3, sums[STRIP] + LANES, 128);
            if (hidden) {
                FOR_MLP(hidden->mlp, ahead = hide_rows(MLP, hidden, panel, row, n, sums, bias, ahead))
                continue;
            }
            const vec first_bias = bias[0], second_bias = bias[1];
            vec *to = (vec *)(y + (size_t)row * y_stride + (size_t)panel * PANEL);
            for (int r = 0; r < n; r++, to += y_stride / LANES) {
                vec first = *(vec *)sums[r] + first_bias, second = *(vec *)(sums[r] + LANES) + second_bias;
                if (add) first += to[0], second += to[1];
                to[0] = first, to[1] = second;
                ahead = expect_some(ahead, AHEAD_OF_ROW);
            }
        }
    }
    _tile_release();
}
#else
static void round_into_strip(const float *x, int inputs, uint8_t *strip) { (void)x, (void)inputs, (void)strip; }
static void few_panels_of_pairs_by_tiles(const Matrix *m, int begin, int end, int rows, const Input *in, float *y,
                                         int y_stride, bool add, const Hidden *hidden) {
    (void)m, (void)begin, (void)end, (void)rows, (void)in, (void)y, (void)y_stride, (void)add, (void)hidden;
}
static bool request_tiles(void) { return false; }
static float quantise_into_strip(const float *x, int inputs, uint8_t *digits) {
    (void)x, (void)inputs, (void)digits;
    return 0;
}
static void few_panels_by_tiles(const Matrix *m, int begin, int end, int rows, const Input *in, float *y, int y_stride,
                                bool add) {
    (void)m, (void)begin, (void)end, (void)rows, (void)in, (void)y, (void)y_stride, (void)add;
}
#endif
