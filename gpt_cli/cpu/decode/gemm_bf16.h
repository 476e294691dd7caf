/* GEMM in bf16: weights and rounded activations, products exact in fp32.

   Where the processor has dot products of bf16 pairs (VDPBF16PS, BFDOT), they accumulate. Elsewhere the order of sums is that of
   AMX's TDPBF16PS, so that tiles and vectors give the same bits: of 32 inputs the even and the odd ones are summed separately, and
   both sums added to the accumulator. (AMX flushes denormals to zero: too small to change any sum here.)

   A word of a panel: two inputs of one output, the even one in the low half. */

enum { TILE_K_BF16 = 32 };

INLINE vec to_nearest_bf16(vec x) { /* ties to even */
    uvec bits = (uvec)x;
    return (vec)(ROUND_BF16(bits) & 0xffff0000u);
}

/* (inputs,) -> the nearest bf16: packed for dot products, else as floats. */
static void round_to_bf16(const float *x, int inputs, uint8_t *row) {
    for (int i = 0; i < inputs; i += LANES) {
        vec rounded = to_nearest_bf16(*(const vec *)(x + i));
        if (BF16_DOT) {
            u16x16 upper = __builtin_convertvector((uvec)rounded >> 16, u16x16);
            memcpy(row + 2 * i, &upper, sizeof upper);
        } else {
            *(vec *)(row + 4 * i) = rounded;
        }
    }
}

/* Inputs i and i + 1 of a packed row. */
INLINE uint32_t bf16_pair(const uint8_t *row, int i) {
    uint32_t pair;
    memcpy(&pair, row + 2 * i, sizeof pair);
    return pair;
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
/* One or two rows and a panel. */
INLINE void gemm_panel_bfdot(const int ROWS, const Matrix *m, int panel, const uint8_t *rows, int row_stride, float *y,
                             int y_stride, bool add) {
    const int inputs = padded(m->inputs, 4);
    const uint16_t *weights = (const uint16_t *)m->weights + (size_t)panel * inputs * PANEL;
    vec4 sums[2][N_VEC4];
#pragma GCC unroll 2
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int j = 0; j < N_VEC4; j++) sums[r][j] = vdupq_n_f32(0);
    for (int i = 0; i < inputs; i += 2, weights += 2 * PANEL) {
        bfloat16x8_t pairs[2];
#pragma GCC unroll 2
        for (int r = 0; r < ROWS; r++)
            pairs[r] = vreinterpretq_bf16_u32(vdupq_n_u32(bf16_pair(rows + (size_t)r * row_stride, i)));
#pragma GCC unroll 8
        for (int j = 0; j < N_VEC4; j++) {
            bfloat16x8_t weight = vreinterpretq_bf16_u16(vld1q_u16(weights + 8 * j));
#pragma GCC unroll 2
            for (int r = 0; r < ROWS; r++) sums[r][j] = vbfdotq_f32(sums[r][j], weight, pairs[r]);
        }
    }
    store_vec4s(ROWS, BF16, m, panel, sums, y, y_stride, add);
}

static void gemm_panels_bf16(const Matrix *m, int begin, int end, int rows, const GemmInput *in, float *y, int y_stride,
                             bool add) {
#define GEMM_PANEL_BFDOT(ROWS)                                                                                             \
    gemm_panel_bfdot(ROWS, m, panel, in->packed_rows + row * (size_t)in->packed_stride, in->packed_stride,                 \
                     y + row * (size_t)y_stride, y_stride, add)
    FOR_ROW_PAIRS(GEMM_PANEL_BFDOT)
#undef GEMM_PANEL_BFDOT
}
#else
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
INLINE void gemm_panel_bf16(const int ROWS, const int PANELS, const Matrix *m, int panel, const GemmInput *in, int row,
                            float *y, int y_stride, bool add) {
    const int inputs = padded(m->inputs, 4);
    const size_t panel_stride = (size_t)inputs * PANEL, row_stride = (size_t)in->packed_stride;
    const uint16_t *weights = (const uint16_t *)m->weights + panel * panel_stride;
    const uint8_t *rows = in->packed_rows + row * row_stride;
    vec sums[8][2];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS * PANELS; i++) sums[i][0] = sums[i][1] = (vec){0};
    for (int i = 0; i < inputs; i += 2)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
            const __m512i *w = (const __m512i *)(weights + p * panel_stride + (size_t)i * PANEL);
            __m512bh first = (__m512bh)w[0], second = (__m512bh)w[1];
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                __m512bh pair = (__m512bh)_mm512_set1_epi32((int)bf16_pair(rows + r * row_stride, i));
                vec *sum = sums[r * PANELS + p];
                sum[0] = (vec)_mm512_dpbf16_ps((__m512)sum[0], first, pair);
                sum[1] = (vec)_mm512_dpbf16_ps((__m512)sum[1], second, pair);
            }
        }
    store_sums(ROWS, PANELS, BF16, m, panel, sums, y + row * (size_t)y_stride, y_stride, add);
}
enum { ROWS_BF16 = 8 };
#else
INLINE void gemm_panel_bf16(const int ROWS, const int PANELS, const Matrix *m, int panel, const GemmInput *in, int row,
                            float *y, int y_stride, bool add) {
    const float *x = in->x + row * (size_t)in->stride;
    const int inputs = padded(m->inputs, 4);
    const size_t panel_stride = (size_t)inputs * PANEL;
    const uint16_t *weights = (const uint16_t *)m->weights + panel * panel_stride;
    vec sums[4][2];
#pragma GCC unroll 4
    for (int i = 0; i < ROWS * PANELS; i++) sums[i][0] = sums[i][1] = (vec){0};
    for (int block = 0; block < inputs; block += TILE_K_BF16) {
        int end = block + TILE_K_BF16 < inputs ? block + TILE_K_BF16 : inputs;
        vec even[4][2], odd[4][2];
#pragma GCC unroll 4
        for (int i = 0; i < ROWS * PANELS; i++) even[i][0] = even[i][1] = odd[i][0] = odd[i][1] = (vec){0};
        for (int i = block; i < end; i += 2) {
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; p++) {
                const uvec *w = (const uvec *)(weights + p * panel_stride + (size_t)i * PANEL);
                vec first_even = (vec)(w[0] << 16), first_odd = (vec)(w[0] & 0xffff0000u);
                vec second_even = (vec)(w[1] << 16), second_odd = (vec)(w[1] & 0xffff0000u);
#pragma GCC unroll 4
                for (int r = 0; r < ROWS; r++) {
                    float a = x[(size_t)r * in->stride + i], b = x[(size_t)r * in->stride + i + 1];
                    int at = r * PANELS + p;
                    even[at][0] += a * first_even, odd[at][0] += b * first_odd;
                    even[at][1] += a * second_even, odd[at][1] += b * second_odd;
                }
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < ROWS * PANELS; i++) sums[i][0] += even[i][0] + odd[i][0], sums[i][1] += even[i][1] + odd[i][1];
    }
    store_sums(ROWS, PANELS, BF16, m, panel, sums, y + row * (size_t)y_stride, y_stride, add);
}
enum { ROWS_BF16 = 4 };
#endif

/* Any number of rows through 1 ... 4 panels. */
static void gemm_panels_bf16(const Matrix *m, int begin, int end, int rows, const GemmInput *in, float *y, int y_stride,
                             bool add) {
#define GEMM_PANEL_BF16(ROWS, PANELS) gemm_panel_bf16(ROWS, PANELS, m, panel, in, row, y, y_stride, add)
    int row = 0, panel;
    for (; row + ROWS_BF16 <= rows; row += ROWS_BF16)
        for (panel = begin; panel < end; panel++) GEMM_PANEL_BF16(ROWS_BF16, 1);
    if (row + 4 <= rows) {
        for (panel = begin; panel < end; panel++) GEMM_PANEL_BF16(4, 1);
        row += 4;
    }
    for (; row < rows; row++) {
        panel = begin;
        if (end - begin == 4) GEMM_PANEL_BF16(1, 4);
        else
            for (; panel < end; panel++) GEMM_PANEL_BF16(1, 1);
    }
#undef GEMM_PANEL_BF16
}
#endif
