/* Vector types, aligned memory, prefetch, and elementwise math. */

#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "../common/prelude.h"
#include "../common/parameters.h"

#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

typedef float vec __attribute__((vector_size(4 * LANES), may_alias));
typedef float vec8 __attribute__((vector_size(32)));
typedef float vec4 __attribute__((vector_size(16)));
typedef float vec_u __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), may_alias));
typedef uint8_t u8x16 __attribute__((vector_size(LANES)));
typedef uint16_t u16x16 __attribute__((vector_size(2 * LANES), may_alias));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES), may_alias));

INLINE int padded(int n, int to) { return (n + to - 1) / to * to; }

/* Large allocations use transparent huge pages: a core reads 64 MB nearly twice as fast then. */
static void *alloc_zeroed(size_t n_bytes) {
    size_t large = 1 << 21, page = n_bytes < large ? 4096 : large, size = (n_bytes + page - 1) / page * page + 4096;
    if (page == large) size = (size + page - 1) / page * page;
    void *memory = aligned_alloc(page == large ? large : 64, size);
#if defined(__linux__)
    if (memory && page == large) madvise(memory, size, MADV_HUGEPAGE);
#endif
    return memory ? memset(memory, 0, size) : NULL;
}

/* Prefetch into L2. */
INLINE void prefetch(const void *at, size_t size) {
    for (size_t i = 0; i < size; i += 64) __builtin_prefetch((const char *)at + i, 0, 2);
}

/* Prefetch one line `away` bytes from `now`: interleaved with computation this is faster than a burst of prefetches. */
INLINE void prefetch_line(const void *now, ptrdiff_t away) { __builtin_prefetch((const char *)now + away, 0, 2); }

INLINE vec splat(float x) { return x - (vec){0}; }
INLINE vec blend(ivec mask, vec a, vec b) { return (vec)(((ivec)a & mask) | ((ivec)b & ~mask)); }
#if defined(__AVX512F__)
INLINE vec vmax(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vec vmin(vec a, vec b) { return (vec)_mm512_min_ps((__m512)a, (__m512)b); }
/* 1 / x to about 1 ulp, by a Newton step from 14 bits: a division takes five times as long. */
INLINE vec reciprocal(vec x) {
    vec y = (vec)_mm512_rcp14_ps((__m512)x);
    return y + y * (1.0f - x * y);
}
#else
INLINE vec vmax(vec a, vec b) { return blend(a > b, a, b); }
INLINE vec vmin(vec a, vec b) { return blend(a < b, a, b); }
INLINE vec reciprocal(vec x) { return 1.0f / x; }
#endif

/* The register of the processor's int8 dot product; DOT_VECS of them are a vector. `dot_add`: in each 32-bit word, sum += dot of
   a's four unsigned and b's four signed bytes. */
#if defined(__AVX512VNNI__)
typedef ivec dot_vec; /* not __m512i: gcc 12 copies an accumulator of 64-bit words before and after each product */
enum { DOT_VECS = 1, INT8_DOT = 1 };
INLINE dot_vec dot_add(dot_vec sum, dot_vec a, dot_vec b) { return (ivec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b); }
INLINE dot_vec dot_broadcast(int32_t word) { return (ivec)_mm512_set1_epi32(word); }
INLINE dot_vec dot_load(const int8_t *at) { return *(const ivec *)at; }
#elif defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)
typedef int32x4_t dot_vec;
enum { DOT_VECS = 4, INT8_DOT = 1 };
INLINE dot_vec dot_add(dot_vec sum, dot_vec a, dot_vec b) {
    int8x16_t with_sign = vreinterpretq_s8_s32(b);
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return vusdotq_s32(sum, vreinterpretq_u8_s32(a), with_sign);
#else /* a - 128 has a sign, too; what it lacks is b times 64, twice */
    const int8x16_t lacked = vdupq_n_s8(64);
    sum = vdotq_s32(sum, veorq_s8(vreinterpretq_s8_s32(a), vdupq_n_s8(-128)), with_sign);
    return vdotq_s32(vdotq_s32(sum, lacked, with_sign), lacked, with_sign);
#endif
}
INLINE dot_vec dot_broadcast(int32_t word) { return vdupq_n_s32(word); }
INLINE dot_vec dot_load(const int8_t *at) { return vreinterpretq_s32_s8(vld1q_s8(at)); }
#else
enum { INT8_DOT = 0 };
#endif

/* The same for a whole vector, with or without such instructions. */
INLINE ivec dot4(ivec sum, ivec a, ivec b) {
#if defined(__AVX512VNNI__)
    return dot_add(sum, a, b);
#elif defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_DOTPROD)
    dot_vec parts[3][DOT_VECS];
    memcpy(parts[0], &sum, sizeof sum), memcpy(parts[1], &a, sizeof a), memcpy(parts[2], &b, sizeof b);
#pragma GCC unroll 4
    for (int i = 0; i < DOT_VECS; i++) parts[0][i] = dot_add(parts[0][i], parts[1][i], parts[2][i]);
    memcpy(&sum, parts[0], sizeof sum);
    return sum;
#else
    for (int shift = 0; shift < 32; shift += 8) sum += ((a >> shift) & 255) * (b << (24 - shift) >> 24);
    return sum;
#endif
}

/* Dot products of bf16 pairs, in an order of their own: where there are AMX tiles, too, the order of sums is theirs. */
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) || (defined(__AVX512BF16__) && !defined(__AMX_BF16__))
enum { BF16_DOT = 1 };
#else
enum { BF16_DOT = 0 };
#endif

/* 256 high + low */
INLINE vec combine_bytes(ivec high, ivec low) {
    return 256.0f * __builtin_convertvector(high, vec) + __builtin_convertvector(low, vec);
}

/* Adding this to a float rounds it to an integer, which is then in the lowest bits. */
static const float ROUNDER = 12582912.0f; /* 1.5 * 2^23 */
INLINE ivec round_to_int(vec x) { return (ivec)(x + ROUNDER) - 0x4b400000; }

#if defined(__AVX512F__)
INLINE float hsum(vec v) { return _mm512_reduce_add_ps((__m512)v); }
INLINE float hmax(vec v) { return _mm512_reduce_max_ps((__m512)v); }
#else
/* Tree reduction of the lanes of a vector. */
#define FOLD(v, OP)                                                                                                  \
    vec8 eight, other_eight;                                                                                         \
    memcpy(&eight, &v, 32), memcpy(&other_eight, (const char *)&v + 32, 32);                                         \
    eight = OP(eight, other_eight);                                                                                  \
    vec4 four, other_four;                                                                                        \
    memcpy(&four, &eight, 16), memcpy(&other_four, (const char *)&eight + 16, 16);                                   \
    four = OP(four, other_four);
#define ADD(a, b) ((a) + (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MAX_EACH(a, b) ((__typeof__(a))((((a) > (b)) & (__typeof__((a) > (b)))(a)) | (~((a) > (b)) & (__typeof__((a) > (b)))(b))))

INLINE float hsum(vec v) {
    FOLD(v, ADD)
    return (four[0] + four[1]) + (four[2] + four[3]);
}

INLINE float hmax(vec v) {
    FOLD(v, MAX_EACH)
    float a = MAX(four[0], four[1]), b = MAX(four[2], four[3]);
    return MAX(a, b);
}
#endif

INLINE vec absolute(vec x) { return (vec)((ivec)x & 0x7fffffff); }

/* max |x| of (n,), a multiple of 16: in four accumulators, to hide latency. */
INLINE float absmax(const float *x, int n) {
    vec maxima[4] = {{0}};
    int i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) maxima[j] = vmax(maxima[j], absolute(*(const vec *)(x + i + j * LANES)));
    for (; i < n; i += LANES) maxima[0] = vmax(maxima[0], absolute(*(const vec *)(x + i)));
    return hmax(vmax(vmax(maxima[0], maxima[1]), vmax(maxima[2], maxima[3])));
}

/* 2^x: 2^n 2^r with |r| <= 1/2, 2^r by the polynomial of degree 5 that is 1 at 0 and furthest off by least, by 9.1e-8 of it. */
INLINE vec exp2_approx(vec x) {
    x = vmin(vmax(x, splat(-126.0f)), splat(126.0f));
    vec shifted = x + ROUNDER, r = x - (shifted - ROUNDER);
    vec power = splat(0.0013264727f);
    power = power * r + 0.0096715130f;
    power = power * r + 0.0555073358f;
    power = power * r + 0.2402224243f;
    power = power * r + 0.6931470037f;
    power = power * r + 1.0f;
    return (vec)((ivec)power + ((ivec)shifted << 23));
}

/* e^x. The further x is from zero, the further off by rounding is what it is multiplied by: e^-20 by 1e-6 of it, which beside the
   e^0 of a softmax is nothing. */
INLINE vec exponential(vec x) { return exp2_approx(1.44269504f * x); }

INLINE vec sigmoid(vec x) { return reciprocal(1.0f + exp2_approx(-1.44269504f * x)); }

enum { NONE = -1 }; /* no MLP */

/* The activation of an MLP: a constant once inlined. `gate` is SwiGLU's. */
INLINE vec activate(const int MLP, vec x, vec gate) {
    switch (MLP) {
    case SWIGLU: return gate * sigmoid(gate) * x;
    case GELU: /* the approximation by tanh, of which x sigmoid(1.5957691 x + 0.0713548 x^3) is another spelling */
        return x * reciprocal(1.0f + exp2_approx(x * (-2.30220820f - 0.10294324f * x * x)));
    case RELU2: return vmax(x, (vec){0}) * vmax(x, (vec){0});
    default: return vmax(x, (vec){0});
    }
}

/* What MLP is as a constant, in `what`. */
#define FOR_MLP(mlp, what)                                                                                           \
    switch (mlp) {                                                                                                   \
    case SWIGLU: { enum { MLP = SWIGLU }; what; break; }                                                             \
    case GELU: { enum { MLP = GELU }; what; break; }                                                                 \
    case RELU2: { enum { MLP = RELU2 }; what; break; }                                                               \
    default: { enum { MLP = RELU }; what; }                                                                          \
    }

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
