/* Dropout (Srivastava et al., 2014): which elements are dropped is a hash of the seed, the place in the network, the row and the
   column, so that neither threads nor chunks matter and the backward pass computes it again instead of keeping it. */

typedef struct {
    uint64_t seed;
    uint32_t limit; /* of 2^24: below it an element is dropped; 0: nothing ever is */
    float scale;    /* of what stays: 1 / (1 - rate) */
    long first;     /* the row of the batch that row 0 is */
} Noise;

static inline Noise noise_of(float rate, uint64_t seed, long first) {
    return (Noise){seed, (uint32_t)(rate * 16777216.0f + 0.5f), 1.0f / (1.0f - rate), first};
}

/* Wellons' lowbias32: every bit of x changes half of the bits of the result. */
INLINE uint32_t hash32(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* Of row `row` at place `stream_id` the factors of n columns from `column` on: 0 or `scale`. */
INLINE void dropout_scale(const Noise *noise, int stream_id, long row, int column, int n, float *out) {
    uint32_t key = hash32((uint32_t)noise->seed + 0x9e3779b9u * (uint32_t)stream_id) ^ (uint32_t)(noise->seed >> 32);
    key = hash32(hash32(key) + (uint32_t)(noise->first + row));
    SIMD
    for (int i = 0; i < n; i++)
        out[i] = (hash32(key + 0x9e3779b9u * (uint32_t)(column + i)) >> 8) < noise->limit ? 0.0f : noise->scale;
}
