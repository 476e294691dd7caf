/* Dropout (Srivastava et al., 2014): counter-based random bits, a hash of the seed, the stream (which dropout of the network), the row
   and the column. So masks do not depend on threads or chunks, and the backward pass recomputes them instead of saving them. */

typedef struct {
    uint64_t seed;
    uint32_t limit; /* of 2^24: elements whose hash is below it are dropped; 0: no dropout */
    float scale;    /* of the kept elements: 1 / (1 - rate) */
    long first;     /* index in the batch of row 0 */
} Dropout;

static inline Dropout dropout_begin(float rate, uint64_t seed, long first) {
    return (Dropout){seed, (uint32_t)(rate * 16777216.0f + 0.5f), 1.0f / (1.0f - rate), first};
}

/* Wellons' lowbias32: every bit of x changes half of the bits of the result. */
INLINE uint32_t hash32(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* The hash keys of n rows of stream `stream_id`, from `row` on. */
INLINE void dropout_keys(const Dropout *dropout, int stream_id, long row, int n, uint32_t *keys) {
    uint32_t key = hash32((uint32_t)dropout->seed + 0x9e3779b9u * (uint32_t)stream_id) ^ (uint32_t)(dropout->seed >> 32);
    key = hash32(key);
    SIMD
    for (int i = 0; i < n; i++) keys[i] = hash32(key + (uint32_t)(dropout->first + row + i));
}

/* The mask of a column of the row with this key: 0 or `scale`. */
INLINE float dropout_factor(const Dropout *dropout, uint32_t key, int column) {
    return (hash32(key + 0x9e3779b9u * (uint32_t)column) >> 8) < dropout->limit ? 0.0f : dropout->scale;
}

/* The mask of n columns of row `row`, from `column` on, in stream `stream_id`. */
INLINE void dropout_scale(const Dropout *dropout, int stream_id, long row, int column, int n, float *out) {
    uint32_t key;
    dropout_keys(dropout, stream_id, row, 1, &key);
    SIMD
    for (int i = 0; i < n; i++) out[i] = dropout_factor(dropout, key, column + i);
}
