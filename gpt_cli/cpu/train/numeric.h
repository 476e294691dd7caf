/* Numeric types and functions.

   `elem_t` is the operand type of GEMMs: bfloat16 or float, a compile-time choice (-DBF16). Accumulators,
   the residual stream, gradients and statistics are always float. */
#include "../common/prelude.h"
#include "../common/parameters.h"

#define SIMD _Pragma("omp simd")
#define SIMD_SUM(...) _Pragma(TEXT(omp simd reduction(+ : __VA_ARGS__)))
#define TEXT(...) #__VA_ARGS__
#define NOINLINE static __attribute__((noinline)) /* compilers take much longer for one large function than for its parts */

typedef union { float number; uint32_t bits; } f32_bits;

#ifdef BF16
typedef uint16_t elem_t;

INLINE float to_float(elem_t value) { return from_bf16(value); }
INLINE elem_t to_elem(float value) { return to_bf16(value); }

INLINE void to_elems(long n, const float *x, elem_t *y) {
    long i = 0;
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    for (; i + 8 <= n; i += 8) {
        bfloat16x8_t low = vcvtq_low_bf16_f32(vld1q_f32(x + i));
        vst1q_u16(y + i, vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(low, vld1q_f32(x + i + 4))));
    }
#else
    for (; i + 32 <= n; i += 32) {
        __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i));
        memcpy(y + i, &both, sizeof both);
    }
    for (; i + 16 <= n; i += 16) {
        __m256bh some = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + i));
        memcpy(y + i, &some, sizeof some);
    }
#endif
    for (long rest = n - i; rest > 0; rest--, i++) y[i] = to_elem(x[i]);
}
#else
typedef float elem_t;
INLINE float to_float(elem_t value) { return value; }
INLINE elem_t to_elem(float value) { return value; }
INLINE void to_elems(long n, const float *x, elem_t *y) { memcpy(y, x, sizeof *y * (size_t)n); }
#endif

static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int max_int(int a, int b) { return a > b ? a : b; }

/* The largest of (n,). */
INLINE float max_of(long n, const float *x) {
    float maximum = -INFINITY;
#ifdef __clang__ /* which does not vectorise the loop below, because of NaN */
    float each[LANES];
    long i = 0;
    for (int j = 0; j < LANES; j++) each[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) each[j] = x[i + j] > each[j] ? x[i + j] : each[j];
    for (; i < n; i++) maximum = x[i] > maximum ? x[i] : maximum;
    for (int j = 0; j < LANES; j++) maximum = each[j] > maximum ? each[j] : maximum;
#else
    _Pragma("omp simd reduction(max : maximum)")
    for (long i = 0; i < n; i++) maximum = x[i] > maximum ? x[i] : maximum;
#endif
    return maximum;
}

/* e^x to about 2e-7 relative (the polynomial of Moshier's Cephes library); NaN stays NaN. Adding 1.5 * 2^23 leaves the
   nearest whole number in the lowest bits, from where it goes into the exponent. */
INLINE float exponential(float x) {
    x = -87.0f > x ? -87.0f : x;
    x = 88.0f < x ? 88.0f : x;
    f32_bits shifted = {.number = x * 1.44269504f + 12582912.0f};
    float n = shifted.number - 12582912.0f, r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    f32_bits power = {.bits = (shifted.bits << 23) + 0x3f800000u};
    return (p * r * r + r + 1.0f) * power.number;
}

INLINE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }
INLINE float hyperbolic_tangent(float x) { return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f); }
