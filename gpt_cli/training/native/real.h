/* Numbers and products.

   `real` is what matrix products read: bfloat16 or float, chosen when this is compiled (-DBF16 or not). Sums,
   the residual stream, gradients and statistics are always float. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SIMD _Pragma("omp simd")
#define SIMD_SUM(...) _Pragma(TEXT(omp simd reduction(+ : __VA_ARGS__)))
#define TEXT(...) #__VA_ARGS__

typedef union { float number; uint32_t bits; } Word;

#ifdef BF16
typedef uint16_t real;

static inline float wide(real value) { return ((Word){.bits = (uint32_t)value << 16}).number; }

static inline real narrow(float value) { /* to nearest, ties to even */
    uint32_t bits = ((Word){.number = value}).bits;
    return (real)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#else
typedef float real;
static inline float wide(real value) { return value; }
static inline real narrow(float value) { return value; }
#endif

static void narrow_all(long n, const float *x, real *y) {
    SIMD
    for (long i = 0; i < n; i++) y[i] = narrow(x[i]);
}

static inline int smaller(int a, int b) { return a < b ? a : b; }
static inline int larger(int a, int b) { return a > b ? a : b; }

/* e^x to about 2e-7 relative (the polynomial of Moshier's Cephes library); NaN stays NaN. */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = floorf(x * 1.44269504f + 0.5f), r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    Word power = {.bits = (uint32_t)((int)n + 127) << 23};
    return (p * r * r + r + 1.0f) * power.number;
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }
static inline float hyperbolic_tangent(float x) { return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f); }

/* The BLAS that torch brings, found by the caller: row-major gemm on bfloat16, or Fortran's on float. */
#ifdef BF16
typedef void (*Gemm)(int, int, int, int, int, int, float, const real *, int, const real *, int, float, float *, int);
#else
typedef void (*Gemm)(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                     const int *, const float *, const int *, const float *, float *, const int *);
#endif

typedef struct {
    Gemm gemm;
    int (*set_threads)(int); /* of the BLAS, for the calling thread; gives the number before */
} Blas;

enum { PLAIN = 111, TRANSPOSED = 112 };

/* c (m, n) <- alpha op(a) op(b) + beta c, with op(a) (m, k) and op(b) (k, n); `ld` is the length of a stored row. */
static void product(const Blas *blas, int op_a, int op_b, int m, int n, int k, float alpha, const real *a, int lda,
                    const real *b, int ldb, float beta, float *c, int ldc) {
#ifdef BF16
    blas->gemm(101, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
#else /* a stored row is Fortran's column: c^T = op(b)^T op(a)^T */
    blas->gemm(op_b == PLAIN ? "N" : "T", op_a == PLAIN ? "N" : "T", &n, &m, &k, &alpha, b, &ldb, a, &lda, &beta, c,
               &ldc);
#endif
}
