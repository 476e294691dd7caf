/* Matrices in panels, and what they are multiplied by.

   A matrix is stored in panels of 32 outputs, so that a product is nothing but multiply-adds on registers, and up to 8 rows
   share each weight that is read. Weights may be stored as bf16 or int8, and are widened on the way, or multiplied as
   integers where the processor can. Many rows go through int8 weights in AMX's tiles, see gemm_amx.h. */

#define PANEL 32       /* outputs that are computed together: two vectors */

enum { FP32, BF16, INT8 };

typedef struct {
    int outputs, inputs, panels; /* inputs are padded to a multiple of 4 */
    void *weights;               /* [panel][input][32] in the format */
    float *bias, *scale;         /* [panel][32]; scale for int8 */
    int32_t *sums;               /* [panel][32]: -128 times the sum of an output's int8 weights */
} Matrix;

typedef struct { /* rows that a matrix is multiplied by */
    const float *x;
    int stride;
    const uint8_t *limbs; /* for int8, see quantise */
    const float *steps;
    int digit_stride;
    bool strips; /* digits as AMX's tiles want them, see gemm_amx.h */
} GemmInput;

/* y[at + half] (+)= sum + bias, of one row y: how the product of every format ends. */
INLINE void store_output(const Matrix *m, size_t at, int half, vec sum, float *y, bool add) {
    vec *to = (vec *)(y + at) + half;
    sum += ((const vec *)(m->bias + at))[half];
    if (add) sum += *to;
    *to = sum;
}

/* The sums of ROWS rows with PANELS panels -> y, scaled where they are of int8 weights. */
INLINE void store_sums(const int ROWS, const int PANELS, const int FORMAT, const Matrix *m, int panel, const vec (*sums)[2],
                       float *y, int y_stride, bool add) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                size_t at = (size_t)(panel + p) * PANEL;
                vec sum = sums[r * PANELS + p][half];
                if (FORMAT == INT8) sum *= ((const vec *)(m->scale + at))[half];
                store_output(m, at, half, sum, y + (size_t)r * y_stride, add);
            }
}

/* y[row][0..31] (+)= panel of W x[row] + bias, for ROWS rows and PANELS panels: constants once inlined, of which the
   product is at most 8, or the sums would not stay in registers. Each output is one sum in the order of the inputs,
   whatever is computed beside it: a token's logits do not depend on the rows that share the pass, to the last bit.

   8 rows ask for LINES lines of the cache (at most 8) with each four inputs, from `ahead` on. */
INLINE void gemm_panel(const int ROWS, const int PANELS, const int FORMAT, const Matrix *m, int panel, const float *x,
                         int x_stride, float *y, int y_stride, bool add, const int LINES, const char *ahead) {
    const int inputs = padded(m->inputs, 4);
    const size_t apart = (size_t)inputs * PANEL, start = panel * apart;
    vec sums[8][2];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS * PANELS; i++) sums[i][0] = sums[i][1] = (vec){0};
    for (int i = 0; i < inputs; i += 4) {
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
            const size_t at = start + p * apart + (size_t)i * PANEL;
            vec first[4], second[4]; /* outputs 0 ... 15 and 16 ... 31 of inputs i ... i + 3 */
            if (FORMAT == FP32) {
                const vec *w = (const vec *)((const float *)m->weights + at);
#pragma GCC unroll 4
                for (int c = 0; c < 4; c++) {
                    first[c] = w[2 * c], second[c] = w[2 * c + 1];
                    if (ROWS == 8 && c < LINES) prefetch_line(ahead, (i / 4 * LINES + c) * 64);
                    if (ROWS == 8 && c + 4 < LINES) prefetch_line(ahead, (i / 4 * LINES + c + 4) * 64);
                }
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
    store_sums(ROWS, PANELS, FORMAT, m, panel, sums, y, y_stride, add);
}

#if defined(__ARM_NEON)
enum { QUARTERS = PANEL / 4 };

/* As `store_sums`, of one panel in vectors of four. */
INLINE void store_quarters(const int ROWS, const int FORMAT, const Matrix *m, int panel, const quarter (*sums)[QUARTERS],
                           float *y, int y_stride, bool add) {
    vec whole[2][2];
    memcpy(whole, sums, (size_t)ROWS * sizeof whole[0]);
    store_sums(ROWS, 1, FORMAT, m, panel, whole, y, y_stride, add);
}

/* TIMES(ROWS), of `row` and `panel`, for any number of rows. */
#define BY_TWO_ROWS(TIMES)                                                                                           \
    for (int panel = begin; panel < end; panel++) {                                                                  \
        int row = 0;                                                                                                 \
        for (; row + 2 <= rows; row += 2) TIMES(2);                                                                  \
        if (row < rows) TIMES(1);                                                                                    \
    }

/* The same for one or two rows and a panel, in vectors of four: all their sums stay in NEON's registers. */
INLINE void panel_by_quarters(const int ROWS, const int FORMAT, const Matrix *m, int panel, const float *x, int x_stride,
                              float *y, int y_stride, bool add) {
    const int inputs = padded(m->inputs, 4);
    const size_t start = (size_t)panel * inputs * PANEL;
    quarter sums[2][QUARTERS] = {{{0}}};
    for (int i = 0; i < inputs; i += 4) {
        const size_t at = start + (size_t)i * PANEL;
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++)
#pragma GCC unroll 8
            for (int j = 0; j < QUARTERS; j++) {
                quarter weight;
                if (FORMAT == FP32) {
                    weight = vld1q_f32((const float *)m->weights + at + c * PANEL + 4 * j);
                } else { /* words: of one output inputs i ... i + 3 */
                    int32x4_t words = vld1q_s32((const int32_t *)((const int8_t *)m->weights + at) + 4 * j);
                    weight = vcvtq_f32_s32(vshrq_n_s32(vshlq_s32(words, vdupq_n_s32(24 - 8 * c)), 24));
                }
#pragma GCC unroll 2
                for (int r = 0; r < ROWS; r++) sums[r][j] += x[(size_t)r * x_stride + i + c] * weight;
            }
    }
    store_quarters(ROWS, FORMAT, m, panel, sums, y, y_stride, add);
}

INLINE void few_panels_by_quarters(const int FORMAT, const Matrix *m, int begin, int end, int rows, const GemmInput *in, float *y,
                                   int y_stride, bool add) {
#define QUARTERS_TIMES(ROWS)                                                                                         \
    panel_by_quarters(ROWS, FORMAT, m, panel, in->x + row * (size_t)in->stride, in->stride, y + row * (size_t)y_stride,\
                      y_stride, add)
    BY_TWO_ROWS(QUARTERS_TIMES)
#undef QUARTERS_TIMES
}
#endif

#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)
/* The same for int8 weights, in integers: x in two digits, and so sums without rounding, see quantise. */
INLINE void panels_times_digits(const int ROWS, const int PANELS, const Matrix *m, int panel, const uint8_t *limbs,
                                int digit_stride, const float *steps, float *y, int y_stride, bool add) {
    const int inputs = padded(m->inputs, 4);
    const size_t apart = (size_t)inputs * PANEL, start = panel * apart;
    Part high[4][2 * PARTS], low[4][2 * PARTS];
#pragma GCC unroll 4
    for (int i = 0; i < ROWS * PANELS; i++)
#pragma GCC unroll 8
        for (int h = 0; h < 2 * PARTS; h++) high[i][h] = low[i][h] = part_of(0);
    for (int i = 0; i < inputs; i += 4) {
        Part of_high[4], of_low[4];
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            int32_t words[2];
            memcpy(words, limbs + (size_t)r * digit_stride + 2 * i, sizeof words);
            of_high[r] = part_of(words[0]), of_low[r] = part_of(words[1]);
        }
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
            const int8_t *at_weights = (const int8_t *)m->weights + start + p * apart + (size_t)i * PANEL;
            Part w[2 * PARTS];
#pragma GCC unroll 8
            for (int h = 0; h < 2 * PARTS; h++) w[h] = part_at(at_weights + h * (int)sizeof(Part));
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) {
                int at = r * PANELS + p;
#pragma GCC unroll 8
                for (int h = 0; h < 2 * PARTS; h++) {
                    high[at][h] = add_to_part(high[at][h], of_high[r], w[h]);
                    low[at][h] = add_to_part(low[at][h], of_low[r], w[h]);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                size_t at = (size_t)(panel + p) * PANEL;
                ivec more, less;
                memcpy(&more, &high[r * PANELS + p][half * PARTS], sizeof more);
                memcpy(&less, &low[r * PANELS + p][half * PARTS], sizeof less);
                vec sum = combine_bytes(more + ((const ivec *)(m->sums + at))[half], less);
                sum *= steps[r] * ((const vec *)(m->scale + at))[half];
                store_output(m, at, half, sum, y + (size_t)r * y_stride, add);
            }
}

#define TIMES_DIGITS(ROWS, PANELS)                                                                                   \
    panels_times_digits(ROWS, PANELS, m, panel, in->limbs + row * (size_t)in->digit_stride, in->digit_stride,       \
                        in->steps + row, y + row * (size_t)y_stride, y_stride, add)

static void few_panels_of_integers(const Matrix *m, int begin, int end, int rows, const GemmInput *in, float *y,
                                   int y_stride, bool add) {
    int row = 0, panel;
    if (PARTS > 1) { /* the sums of a row fill the registers */
        for (panel = begin; panel < end; panel++)
            for (row = 0; row < rows; row++) TIMES_DIGITS(1, 1);
        return;
    }
    for (panel = begin; panel < end; panel++)
        for (row = 0; row + 4 <= rows; row += 4) TIMES_DIGITS(4, 1);
    for (row = rows / 4 * 4; row < rows; row++) {
        panel = begin;
        for (; panel + 2 <= end; panel += 2) TIMES_DIGITS(1, 2);
        if (panel < end) TIMES_DIGITS(1, 1);
    }
}
#else
static void few_panels_of_integers(const Matrix *m, int begin, int end, int rows, const GemmInput *in, float *y,
                                   int y_stride, bool add) {
    (void)m, (void)begin, (void)end, (void)rows, (void)in, (void)y, (void)y_stride, (void)add;
}
#endif

#define MOST_STEPS 32512.0f /* 127 * 256 */

#include "gemm_bf16.h"
#include "gemm_amx.h"

/* (inputs,) -> whole numbers of steps, 65,025 of them from the largest to its negative: for each four inputs their high
   bytes, counted from -128, then their low ones. Where there are no products of bytes, the rounded floats. Returns the
   step. A step is to the largest what 2^-15 is to 1: far less than what the weights lost. */
static float quantize_rows(const float *x, int inputs, uint8_t *limbs) {
    float top = absmax(x, inputs), factor = top > 0 ? MOST_STEPS / top : 0, step = top / MOST_STEPS;
    for (int i = 0; i < inputs; i += LANES) {
        ivec steps = round_to_int(*(const vec *)(x + i) * factor);
        if (!INTEGERS) {
            *(vec *)(limbs + 4 * i) = __builtin_convertvector(steps, vec) * step;
            continue;
        }
        bytes high = __builtin_convertvector((steps >> 8) + 128, bytes), low = __builtin_convertvector(steps & 255, bytes);
        for (int four = 0; four < 4; four++) {
            memcpy(limbs + 2 * i + 8 * four, (const char *)&high + 4 * four, 4);
            memcpy(limbs + 2 * i + 8 * four + 4, (const char *)&low + 4 * four, 4);
        }
    }
    return step;
}

#define TIMES_ASKING(ROWS, PANELS, FORMAT, LINES, ahead)                                                             \
    gemm_panel(ROWS, PANELS, FORMAT, m, panel, in->x + row * (size_t)in->stride, in->stride,                       \
                 y + row * (size_t)y_stride, y_stride, add, LINES, ahead)
#define TIMES(ROWS, PANELS, FORMAT) TIMES_ASKING(ROWS, PANELS, FORMAT, 0, NULL)

/* Rows through panels begin ... end - 1, 8 at a time. Each 8 ask for about their share of the next panel: all of it asked for by the
   first of them would be more than far memory gives in that time, and leave it idle later. */
INLINE void gemm_rows8(const int FORMAT, const int LINES, const Matrix *m, int begin, int end, int rows, const GemmInput *in, float *y,
                      int y_stride, bool add) {
    const size_t deep = padded(m->inputs, 4);
    for (int panel = begin; panel < end; panel++) {
        const char *ahead = (const char *)((const float *)m->weights + (panel + 1) * deep * PANEL);
        for (int row = 0; row + 8 <= rows; row += 8, ahead += deep / 4 * LINES * 64) TIMES_ASKING(8, 1, FORMAT, LINES, ahead);
    }
}

/* Any number of rows through 1 ... 4 panels, whose weights stay in a near cache meanwhile. */
INLINE void gemm_panels(const int FORMAT, const Matrix *m, int begin, int end, int rows, const GemmInput *in, float *y,
                       int y_stride, bool add) {
#if defined(__ARM_NEON)
    few_panels_by_quarters(FORMAT, m, begin, end, rows, in, y, y_stride, add);
#else
    int row = rows / 8 * 8, panel;
    if (FORMAT != FP32) gemm_rows8(FORMAT, 0, m, begin, end, rows, in, y, y_stride, add);
    else if (row > 32) gemm_rows8(FORMAT, 1, m, begin, end, rows, in, y, y_stride, add);
    else if (row > 16) gemm_rows8(FORMAT, 2, m, begin, end, rows, in, y, y_stride, add);
    else if (row > 8) gemm_rows8(FORMAT, 4, m, begin, end, rows, in, y, y_stride, add);
    else if (row) gemm_rows8(FORMAT, 8, m, begin, end, rows, in, y, y_stride, add);
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
#endif
}

static void gemm(const Matrix *m, int format, int begin, int end, int rows, const GemmInput *in, float *y, int y_stride,
                     bool add) {
    if (in->strips) {
        gemm_amx(m, format, begin, end, rows, in, (GemmOutput){.y = y, .stride = y_stride, .add = add});
        return;
    }
    for (int next; begin < end; begin = next) {
        next = begin + 4 < end ? begin + 4 : end;
        if (format == FP32) gemm_panels(FP32, m, begin, next, rows, in, y, y_stride, add);
        else if (format == BF16) few_panels_of_pairs(m, begin, next, rows, in, y, y_stride, add);
        else if (INTEGERS) few_panels_of_integers(m, begin, next, rows, in, y, y_stride, add);
        else gemm_panels(INT8, m, begin, next, rows, in, y, y_stride, add);
    }
}

/* The bytes that weights take, in whole lines of the cache. */
static size_t weight_bytes(int format, int outputs, int inputs) {
    static const int width[] = {4, 2, 1};
    return (size_t)padded(outputs, PANEL) * padded(inputs, 4) * width[format];
}

/* (outputs, inputs) row by row -> panels, at `*room`, which moves on. int8: each output has its own scale, largest weight / 127. */
static bool pack(Matrix *m, char **room, int format, int outputs, int inputs, const float *w, const float *bias) {
    int deep = padded(inputs, 4);
    m->outputs = outputs, m->inputs = inputs, m->panels = padded(outputs, PANEL) / PANEL;
    m->weights = *room, *room += weight_bytes(format, outputs, inputs);
    m->bias = alloc_zeroed((size_t)m->panels * PANEL * 4), m->scale = alloc_zeroed((size_t)m->panels * PANEL * 4);
    m->sums = alloc_zeroed((size_t)m->panels * PANEL * 4);
    if (!m->bias || !m->scale || !m->sums) return false;
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
            if (format == BF16) ((uint16_t *)m->weights)[to + i / 2 * 2 * PANEL + lane * 2 + i % 2] = to_bf16(row[i]);
            if (format == INT8) {
                int8_t rounded = (int8_t)lrintf(most ? row[i] * (127 / most) : 0);
                ((int8_t *)m->weights)[to + i / 4 * 4 * PANEL + lane / 16 * 64 + lane % 16 * 4 + i % 4] = rounded;
                m->sums[o] -= 128 * rounded;
            }
        }
    }
    return true;
}

static void free_matrix(Matrix *m) { free(m->bias), free(m->scale), free(m->sums); }
