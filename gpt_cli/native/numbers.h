/* Vectors, memory, and functions of numbers. */

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

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), may_alias));
typedef float half __attribute__((vector_size(32)));
typedef float quarter __attribute__((vector_size(16)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), may_alias));
typedef uint8_t bytes __attribute__((vector_size(LANES)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES), may_alias));

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
