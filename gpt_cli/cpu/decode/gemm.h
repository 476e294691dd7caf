/* GEMM with packed weights: y (rows, outputs) = x (rows, inputs) W^T + bias.

   W is packed in panels of 32 outputs; up to 8 rows share each weight that is loaded. Weights in bf16 or int8 are widened to fp32 in
   registers, or multiplied as integers where the processor can (VNNI, DOTPROD, I8MM). Many rows go through AMX, see gemm_amx.h. */

#define PANEL 32       /* outputs of a panel: two vectors */

enum { FP32, BF16, INT8 };

typedef struct {
    int outputs, inputs, panels; /* inputs are padded to a multiple of 4 */
    void *weights;               /* [panel][input][32] of the format */
    float *bias, *scale;         /* [panel][32]; scale for int8 */
    int32_t *sums;               /* [panel][32]: -128 times the sum of an output's int8 weights */
} Matrix;

typedef struct { /* operand A */
    const float *x;
    int stride;
    const uint8_t *packed_rows; /* int8: limbs (high and low bytes), see quantize_rows; bf16: rounded rows */
    const float *row_scales;
    int packed_stride; /* bytes of a row */
    bool in_tiles;     /* `packed_rows` are in AMX's layout, see gemm_amx.h */
} GemmInput;

/* y[at + half] (+)= sum + bias: the epilogue of every format. */
INLINE void store_output(const Matrix *m, size_t at, int half, vec sum, float *y, bool add) {
    vec *to = (vec *)(y + at) + half;
    sum += ((const vec *)(m->bias + at))[half];
    if (add) sum += *to;
    *to = sum;
}

/* Store accumulators of ROWS rows by PANELS panels, dequantized for int8. */
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

/* y[row][0..31] (+)= panel of W x[row] + bias, for ROWS rows and PANELS panels: compile-time constants, of which the
   product is at most 8, or accumulators would spill. Each output is one sum in the order of the inputs, whatever is computed
   beside it: logits are batch-invariant, to the last bit.

   8 rows prefetch LINES cache lines (at most 8) for each four inputs, from `prefetch_at` on. */
INLINE void gemm_panel(const int ROWS, const int PANELS, const int FORMAT, const Matrix *m, int panel, const float *x,
                         int x_stride, float *y, int y_stride, bool add, const int LINES, const char *prefetch_at) {
    const int inputs = padded(m->inputs, 4);
    const size_t panel_stride = (size_t)inputs * PANEL, start = panel * panel_stride;
    vec sums[8][2];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS * PANELS; i++) sums[i][0] = sums[i][1] = (vec){0};
    for (int i = 0; i < inputs; i += 4) {
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
            const size_t at = start + p * panel_stride + (size_t)i * PANEL;
            vec first[4], second[4]; /* outputs 0 ... 15 and 16 ... 31 of inputs i ... i + 3 */
            if (FORMAT == FP32) {
                const vec *w = (const vec *)((const float *)m->weights + at);
#pragma GCC unroll 4
                for (int c = 0; c < 4; c++) {
                    first[c] = w[2 * c], second[c] = w[2 * c + 1];
                    if (ROWS == 8 && c < LINES) prefetch_line(prefetch_at, (i / 4 * LINES + c) * 64);
                    if (ROWS == 8 && c + 4 < LINES) prefetch_line(prefetch_at, (i / 4 * LINES + c + 4) * 64);
                }
            } else { /* a word: inputs i ... i + 3 of one output */
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
enum { N_VEC4 = PANEL / 4 };

/* As `store_sums`, of one panel in vectors of four. */
INLINE void store_vec4s(const int ROWS, const int FORMAT, const Matrix *m, int panel, const vec4 (*sums)[N_VEC4],
                           float *y, int y_stride, bool add) {
    vec whole[2][2];
    memcpy(whole, sums, (size_t)ROWS * sizeof whole[0]);
    store_sums(ROWS, 1, FORMAT, m, panel, whole, y, y_stride, add);
}

/* GEMM_PANEL(ROWS), of `row` and `panel`, for any number of rows. */
#define FOR_ROW_PAIRS(GEMM_PANEL)                                                                                           \
    for (int panel = begin; panel < end; panel++) {                                                                  \
        int row = 0;                                                                                                 \
        for (; row + 2 <= rows; row += 2) GEMM_PANEL(2);                                                                  \
        if (row < rows) GEMM_PANEL(1);                                                                                    \
    }

/* `gemm_panel` for one or two rows and a panel: all accumulators stay in NEON's registers. */
INLINE void gemm_panel_neon(const int ROWS, const int FORMAT, const Matrix *m, int panel, const float *x, int x_stride,
                              float *y, int y_stride, bool add) {
    const int inputs = padded(m->inputs, 4);
    const size_t start = (size_t)panel * inputs * PANEL;
    vec4 sums[2][N_VEC4] = {{{0}}};
    for (int i = 0; i < inputs; i += 4) {
        const size_t at = start + (size_t)i * PANEL;
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++)
#pragma GCC unroll 8
            for (int j = 0; j < N_VEC4; j++) {
                vec4 weight;
                if (FORMAT == FP32) {
                    weight = vld1q_f32((const float *)m->weights + at + c * PANEL + 4 * j);
                } else { /* words: inputs i ... i + 3 of one output */
                    int32x4_t words = vld1q_s32((const int32_t *)((const int8_t *)m->weights + at) + 4 * j);
                    weight = vcvtq_f32_s32(vshrq_n_s32(vshlq_s32(words, vdupq_n_s32(24 - 8 * c)), 24));
                }
#pragma GCC unroll 2
                for (int r = 0; r < ROWS; r++) sums[r][j] += x[(size_t)r * x_stride + i + c] * weight;
            }
    }
    store_vec4s(ROWS, FORMAT, m, panel, sums, y, y_stride, add);
}

INLINE void gemm_panels_neon(const int FORMAT, const Matrix *m, int begin, int end, int rows, const GemmInput *in, float *y,
                                   int y_stride, bool add) {
#define GEMM_PANEL_NEON(ROWS)                                                                                         \
    gemm_panel_neon(ROWS, FORMAT, m, panel, in->x + row * (size_t)in->stride, in->stride, y + row * (size_t)y_stride,\
                      y_stride, add)
    FOR_ROW_PAIRS(GEMM_PANEL_NEON)
#undef GEMM_PANEL_NEON
}
#endif

#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)
/* Int8 weights by integer dot products: x in high and low bytes, and so no rounding, see quantize_rows. */
INLINE void gemm_panel_int8(const int ROWS, const int PANELS, const Matrix *m, int panel, const uint8_t *limbs,
                                int limb_stride, const float *row_scales, float *y, int y_stride, bool add) {
    const int inputs = padded(m->inputs, 4);
    const size_t panel_stride = (size_t)inputs * PANEL, start = panel * panel_stride;
    dot_vec high[4][2 * DOT_VECS], low[4][2 * DOT_VECS];
#pragma GCC unroll 4
    for (int i = 0; i < ROWS * PANELS; i++)
#pragma GCC unroll 8
        for (int h = 0; h < 2 * DOT_VECS; h++) high[i][h] = low[i][h] = dot_broadcast(0);
    for (int i = 0; i < inputs; i += 4) {
        dot_vec of_high[4], of_low[4];
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            int32_t high_word, low_word; /* read apart, each is broadcast as it is loaded */
            memcpy(&high_word, limbs + (size_t)r * limb_stride + 2 * i, sizeof high_word);
            memcpy(&low_word, limbs + (size_t)r * limb_stride + 2 * i + 4, sizeof low_word);
            of_high[r] = dot_broadcast(high_word), of_low[r] = dot_broadcast(low_word);
        }
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
            const int8_t *at_weights = (const int8_t *)m->weights + start + p * panel_stride + (size_t)i * PANEL;
            dot_vec w[2 * DOT_VECS];
#pragma GCC unroll 8
            for (int h = 0; h < 2 * DOT_VECS; h++) w[h] = dot_load(at_weights + h * (int)sizeof(dot_vec));
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) {
                int at = r * PANELS + p;
#pragma GCC unroll 8
                for (int h = 0; h < 2 * DOT_VECS; h++) {
                    high[at][h] = dot_add(high[at][h], of_high[r], w[h]);
                    low[at][h] = dot_add(low[at][h], of_low[r], w[h]);
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
                ivec high_sum, low_sum;
                memcpy(&high_sum, &high[r * PANELS + p][half * DOT_VECS], sizeof high_sum);
                memcpy(&low_sum, &low[r * PANELS + p][half * DOT_VECS], sizeof low_sum);
                vec sum = combine_bytes(high_sum + ((const ivec *)(m->sums + at))[half], low_sum);
                sum *= row_scales[r] * ((const vec *)(m->scale + at))[half];
                store_output(m, at, half, sum, y + (size_t)r * y_stride, add);
            }
}

#define GEMM_PANEL_INT8(ROWS, PANELS)                                                                                   \
    gemm_panel_int8(ROWS, PANELS, m, panel, in->packed_rows + row * (size_t)in->packed_stride, in->packed_stride,       \
                        in->row_scales + row, y + row * (size_t)y_stride, y_stride, add)

static void gemm_panels_int8(const Matrix *m, int begin, int end, int rows, const GemmInput *in, float *y,
                                   int y_stride, bool add) {
    int row = 0, panel;
    if (DOT_VECS > 1) { /* the accumulators of one row fill the registers */
        for (panel = begin; panel < end; panel++)
            for (row = 0; row < rows; row++) GEMM_PANEL_INT8(1, 1);
        return;
    }
    for (panel = begin; panel < end; panel++)
        for (row = 0; row + 4 <= rows; row += 4) GEMM_PANEL_INT8(4, 1);
    for (row = rows / 4 * 4; row < rows; row++) {
        panel = begin;
        for (; panel + 2 <= end; panel += 2) GEMM_PANEL_INT8(1, 2);
        if (panel < end) GEMM_PANEL_INT8(1, 1);
    }
}
#else
static void gemm_panels_int8(const Matrix *m, int begin, int end, int rows, const GemmInput *in, float *y,
                                   int y_stride, bool add) {
    (void)m, (void)begin, (void)end, (void)rows, (void)in, (void)y, (void)y_stride, (void)add;
}
#endif

#define ACTIVATION_QMAX 32512.0f /* 127 * 256 */

#include "gemm_bf16.h"
#include "gemm_amx.h"

/* Quantize a row (inputs,) symmetrically to +-ACTIVATION_QMAX, 16 bits: for each four inputs their high bytes, with zero point 128,
   then their low bytes; without integer dot products, fake-quantized floats. Returns the scale. The error, 2^-16 of absmax, is
   far less than that of the weights. */
static float quantize_rows(const float *x, int inputs, uint8_t *limbs) {
    float magnitude = absmax(x, inputs), factor = magnitude > 0 ? ACTIVATION_QMAX / magnitude : 0, scale = magnitude / ACTIVATION_QMAX;
    for (int i = 0; i < inputs; i += LANES) {
        ivec q = round_to_int(*(const vec *)(x + i) * factor);
        if (!INT8_DOT) {
            *(vec *)(limbs + 4 * i) = __builtin_convertvector(q, vec) * scale;
            continue;
        }
        u8x16 high = __builtin_convertvector((q >> 8) + 128, u8x16), low = __builtin_convertvector(q & 255, u8x16);
        for (int four = 0; four < 4; four++) {
            memcpy(limbs + 2 * i + 8 * four, (const char *)&high + 4 * four, 4);
            memcpy(limbs + 2 * i + 8 * four + 4, (const char *)&low + 4 * four, 4);
        }
    }
    return scale;
}

#define GEMM_PANEL_PREFETCH(ROWS, PANELS, FORMAT, LINES, prefetch_at)                                                             \
    gemm_panel(ROWS, PANELS, FORMAT, m, panel, in->x + row * (size_t)in->stride, in->stride,                       \
                 y + row * (size_t)y_stride, y_stride, add, LINES, prefetch_at)
#define GEMM_PANEL(ROWS, PANELS, FORMAT) GEMM_PANEL_PREFETCH(ROWS, PANELS, FORMAT, 0, NULL)

/* Rows through panels begin ... end - 1, 8 at a time. Each 8 prefetch their share of the next panel: all of it at once would exceed
   memory bandwidth, and leave it idle later. */
INLINE void gemm_rows8(const int FORMAT, const int LINES, const Matrix *m, int begin, int end, int rows, const GemmInput *in, float *y,
                      int y_stride, bool add) {
    const size_t deep = padded(m->inputs, 4);
    for (int panel = begin; panel < end; panel++) {
        const char *prefetch_at = (const char *)((const float *)m->weights + (panel + 1) * deep * PANEL);
        for (int row = 0; row + 8 <= rows; row += 8, prefetch_at += deep / 4 * LINES * 64) GEMM_PANEL_PREFETCH(8, 1, FORMAT, LINES, prefetch_at);
    }
}

/* Any number of rows through 1 ... 4 panels, whose weights stay in L1 or L2 meanwhile. */
INLINE void gemm_panels(const int FORMAT, const Matrix *m, int begin, int end, int rows, const GemmInput *in, float *y,
                       int y_stride, bool add) {
#if defined(__ARM_NEON)
    gemm_panels_neon(FORMAT, m, begin, end, rows, in, y, y_stride, add);
#else
    int row = rows / 8 * 8, panel;
    if (FORMAT != FP32) gemm_rows8(FORMAT, 0, m, begin, end, rows, in, y, y_stride, add);
    else if (row > 32) gemm_rows8(FORMAT, 1, m, begin, end, rows, in, y, y_stride, add);
    else if (row > 16) gemm_rows8(FORMAT, 2, m, begin, end, rows, in, y, y_stride, add);
    else if (row > 8) gemm_rows8(FORMAT, 4, m, begin, end, rows, in, y, y_stride, add);
    else if (row) gemm_rows8(FORMAT, 8, m, begin, end, rows, in, y, y_stride, add);
    if (rows & 4) {
        for (panel = begin; panel + 2 <= end; panel += 2) GEMM_PANEL(4, 2, FORMAT);
        if (panel < end) GEMM_PANEL(4, 1, FORMAT);
        row += 4;
    }
    if (rows & 2) {
        for (panel = begin; panel + 2 <= end; panel += 2) GEMM_PANEL(2, 2, FORMAT);
        if (panel < end) GEMM_PANEL(2, 1, FORMAT);
        row += 2;
    }
    if (rows & 1) {
        panel = begin;
        if (end - begin == 4) GEMM_PANEL(1, 4, FORMAT);
        else
            for (; panel < end; panel++) GEMM_PANEL(1, 1, FORMAT);
    }
#endif
}

static void gemm(const Matrix *m, int format, int begin, int end, int rows, const GemmInput *in, float *y, int y_stride,
                     bool add) {
    if (in->in_tiles) {
        gemm_amx(m, format, begin, end, rows, in, (GemmOutput){.y = y, .stride = y_stride, .add = add});
        return;
    }
    for (int next; begin < end; begin = next) {
        next = begin + 4 < end ? begin + 4 : end;
        if (format == FP32) gemm_panels(FP32, m, begin, next, rows, in, y, y_stride, add);
        else if (format == BF16) gemm_panels_bf16(m, begin, next, rows, in, y, y_stride, add);
        else if (INT8_DOT) gemm_panels_int8(m, begin, next, rows, in, y, y_stride, add);
        else gemm_panels(INT8, m, begin, next, rows, in, y, y_stride, add);
    }
}

/* Bytes of packed weights, in whole cache lines. */
static size_t weight_bytes(int format, int outputs, int inputs) {
    static const int width[] = {4, 2, 1};
    return (size_t)padded(outputs, PANEL) * padded(inputs, 4) * width[format];
}

/* Pack W (outputs, inputs), row-major, into panels in `arena`. Int8: a scale for each output, absmax / 127. */
static bool pack_weight(Matrix *m, Arena *arena, int format, int outputs, int inputs, const float *w, const float *bias) {
    int deep = padded(inputs, 4);
    m->outputs = outputs, m->inputs = inputs, m->panels = padded(outputs, PANEL) / PANEL;
    m->weights = arena_alloc(arena, weight_bytes(format, outputs, inputs));
    m->bias = alloc_zeroed((size_t)m->panels * PANEL * 4), m->scale = alloc_zeroed((size_t)m->panels * PANEL * 4);
    m->sums = alloc_zeroed((size_t)m->panels * PANEL * 4);
    if (!m->bias || !m->scale || !m->sums) return false;
    for (int o = 0; o < outputs; o++) {
        const float *row = w + (size_t)o * inputs;
        size_t to = (size_t)(o / PANEL) * deep * PANEL;
        int lane = o % PANEL;
        float magnitude = 0;
        if (bias) m->bias[o] = bias[o];
        if (format == INT8) {
            for (int i = 0; i < inputs; i++) magnitude = fmaxf(magnitude, fabsf(row[i]));
            m->scale[o] = magnitude / 127;
        }
        for (int i = 0; i < inputs; i++) {
            size_t at = to + (size_t)i * PANEL;
            if (format == FP32) ((float *)m->weights)[at + lane] = row[i];
            if (format == BF16) ((uint16_t *)m->weights)[to + i / 2 * 2 * PANEL + lane * 2 + i % 2] = to_bf16(row[i]);
            if (format == INT8) {
                int8_t rounded = (int8_t)lrintf(magnitude ? row[i] * (127 / magnitude) : 0);
                ((int8_t *)m->weights)[to + i / 4 * 4 * PANEL + lane / 16 * 64 + lane % 16 * 4 + i % 4] = rounded;
                m->sums[o] -= 128 * rounded;
            }
        }
    }
    return true;
}

static void free_matrix(Matrix *m) { free(m->bias), free(m->scale), free(m->sums); }
