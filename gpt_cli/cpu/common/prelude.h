/* What both engines begin with: the system's headers, inlining, and bf16. Each header is included once. */

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))
enum { LANES = 16 }; /* floats of the longest vector */

/* The bits of fp32, of one or of a vector -> those whose upper half is the nearest bf16, ties to even. */
#define ROUND_BF16(bits) ((bits) + 0x7fff + (((bits) >> 16) & 1))

INLINE uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(ROUND_BF16(bits) >> 16);
}

INLINE float from_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}
