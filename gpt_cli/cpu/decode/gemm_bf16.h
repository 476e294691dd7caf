/* Products with bf16 weights, of what is rounded to bf16, too: each product is exact in fp32, and sums are made as AMX's tiles
   make them (TDPBF16PS in Intel's manual), so that rows come out the same to the last bit by tiles and by vectors. Of 32
   inputs the even ones and the odd ones make a sum each, and both together are added to what was there. (Numbers below
   1e-38, which tiles take for zero, are less than any sum here could show.)

   A word of a panel: of one output two inputs, the even one in the low half. */

enum { PAIRS_DEEP = 32 };

INLINE vec to_nearest_bf16(vec x) { /* ties to even */
    uvec bits = (uvec)x;
    return (vec)(ROUND_BF16(bits) & 0xffff0000u);
}

/* (inputs,) -> the nearest bf16, as floats. */
static void round_to_bf16(const float *x, int inputs, float *y) {
    for (int i = 0; i < inputs; i += LANES) *(vec *)(y + i) = to_nearest_bf16(*(const vec *)(x + i));
}

INLINE void panels_of_pairs(const int ROWS, const int PANELS, const Matrix *m, int panel, const float *x, int x_stride,
                            float *y, int y_stride, bool add) {
    const int inputs = padded(m->inputs, 4);
    const size_t apart = (size_t)inputs * PANEL;
    const uint16_t *weights = (const uint16_t *)m->weights + panel * apart;
    vec sums[4][2];
#pragma GCC unroll 4
    for (int i = 0; i < ROWS * PANELS; i++) sums[i][0] = sums[i][1] = (vec){0};
    for (int block = 0; block < inputs; block += PAIRS_DEEP) {
        int end = block + PAIRS_DEEP < inputs ? block + PAIRS_DEEP : inputs;
        vec even[4][2], odd[4][2];
#pragma GCC unroll 4
        for (int i = 0; i < ROWS * PANELS; i++) even[i][0] = even[i][1] = odd[i][0] = odd[i][1] = (vec){0};
        for (int i = block; i < end; i += 2) {
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; p++) {
                const uvec *w = (const uvec *)(weights + p * apart + (size_t)i * PANEL);
                vec first_even = (vec)(w[0] << 16), first_odd = (vec)(w[0] & 0xffff0000u);
                vec second_even = (vec)(w[1] << 16), second_odd = (vec)(w[1] & 0xffff0000u);
#pragma GCC unroll 4
                for (int r = 0; r < ROWS; r++) {
                    float a = x[(size_t)r * x_stride + i], b = x[(size_t)r * x_stride + i + 1];
                    int at = r * PANELS + p;
                    even[at][0] += a * first_even, odd[at][0] += b * first_odd;
                    even[at][1] += a * second_even, odd[at][1] += b * second_odd;
                }
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < ROWS * PANELS; i++) sums[i][0] += even[i][0] + odd[i][0], sums[i][1] += even[i][1] + odd[i][1];
    }
    store_sums(ROWS, PANELS, BF16, m, panel, sums, y, y_stride, add);
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
/* One or two rows and a panel by BFDOT, which adds an even and an odd product to a sum at once, in an order of its own. */
INLINE void panel_by_dots(const int ROWS, const Matrix *m, int panel, const float *x, int x_stride, float *y, int y_stride,
                          bool add) {
    const int inputs = padded(m->inputs, 4);
    const uint16_t *weights = (const uint16_t *)m->weights + (size_t)panel * inputs * PANEL;
    quarter sums[2][QUARTERS];
#pragma GCC unroll 2
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int j = 0; j < QUARTERS; j++) sums[r][j] = vdupq_n_f32(0);
    for (int i = 0; i < inputs; i += 2, weights += 2 * PANEL) {
        bfloat16x8_t pairs[2];
#pragma GCC unroll 2
        for (int r = 0; r < ROWS; r++) { /* of numbers that are bf16: their upper halves */
            uint32_t both[2];
            memcpy(both, x + (size_t)r * x_stride + i, sizeof both);
            pairs[r] = vreinterpretq_bf16_u32(vdupq_n_u32(both[0] >> 16 | both[1]));
        }
#pragma GCC unroll 8
        for (int j = 0; j < QUARTERS; j++) {
            bfloat16x8_t weight = vreinterpretq_bf16_u16(vld1q_u16(weights + 8 * j));
#pragma GCC unroll 2
            for (int r = 0; r < ROWS; r++) sums[r][j] = vbfdotq_f32(sums[r][j], weight, pairs[r]);
        }
    }
    store_quarters(ROWS, BF16, m, panel, sums, y, y_stride, add);
}

static void few_panels_of_pairs(const Matrix *m, int begin, int end, int rows, const GemmInput *in, float *y, int y_stride,
                                bool add) {
#define TIMES_DOTS(ROWS)                                                                                             \
    panel_by_dots(ROWS, m, panel, in->x + row * (size_t)in->stride, in->stride, y + row * (size_t)y_stride, y_stride, add)
    BY_TWO_ROWS(TIMES_DOTS)
#undef TIMES_DOTS
}
#else
/* Any number of rows through 1 ... 4 panels. */
static void few_panels_of_pairs(const Matrix *m, int begin, int end, int rows, const GemmInput *in, float *y, int y_stride,
                                bool add) {
#define TIMES_PAIRS(ROWS, PANELS)                                                                                    \
    panels_of_pairs(ROWS, PANELS, m, panel, in->x + row * (size_t)in->stride, in->stride, y + row * (size_t)y_stride, \
                    y_stride, add)
    int row = 0, panel;
    for (; row + 4 <= rows; row += 4)
        for (panel = begin; panel < end; panel++) TIMES_PAIRS(4, 1);
    for (; row < rows; row++) {
        panel = begin;
        if (end - begin == 4) TIMES_PAIRS(1, 4);
        else
            for (; panel < end; panel++) TIMES_PAIRS(1, 1);
    }
#undef TIMES_PAIRS
}
#endif
