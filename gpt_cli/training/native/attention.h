/* Causal attention over one sequence, in blocks of queries: the scores of a block fit in the cache, keys that no query of it
   sees are never touched, and the backward pass computes the weights again from their log-sum-exp instead of keeping
   them (Dao et al., 2022, "FlashAttention", section 3.1).

   qkv (T, G D): H query heads, then Hkv key heads, then Hkv value heads, each D wide; y (T, H D). */

enum { QUERIES = 64 };

typedef struct {
    int heads, kv_heads, width, window; /* window: how many keys a query sees, itself included; 0: all */
} Heads;

typedef struct { /* one block: the queries [first, first + n), the keys [key, key + n_key) */
    int first, n, key, n_key;
} Tile;

static inline Tile tile_at(const Heads *heads, int length, int first) {
    int n = smaller(QUERIES, length - first);
    int key = heads->window ? larger(0, first - heads->window + 1) : 0;
    return (Tile){first, n, key, first + n - key};
}

/* Which of the block's keys query `i` of it sees: [*from, *to). */
static inline void seen(const Heads *heads, Tile tile, int i, int *from, int *to) {
    int query = tile.first + i;
    *from = (heads->window ? larger(0, query - heads->window + 1) : 0) - tile.key;
    *to = query + 1 - tile.key;
}

static void attention_forward(const Blas *blas, const Heads *heads, int length, const real *qkv, real *y,
                              float *log_sums, float *scores, real *weights, float *mixed) {
    int d = heads->width, row = (heads->heads + 2 * heads->kv_heads) * d, c = heads->heads * d;
    for (int head = 0; head < heads->heads; head++) {
        int kv = head / (heads->heads / heads->kv_heads);
        const real *q = qkv + head * d, *k = qkv + (heads->heads + kv) * d, *v = k + heads->kv_heads * d;
        for (int first = 0; first < length; first += QUERIES) {
            Tile tile = tile_at(heads, length, first);
            int n_key = tile.n_key;
            product(blas, PLAIN, TRANSPOSED, tile.n, n_key, d, 1.0f / sqrtf((float)d), q + (long)first * row, row,
                    k + (long)tile.key * row, row, 0.0f, scores, n_key);
            for (int i = 0; i < tile.n; i++) {
                float *score = scores + (long)i * n_key, largest = -INFINITY, sum = 0.0f;
                real *weight = weights + (long)i * n_key;
                int from, to;
                seen(heads, tile, i, &from, &to);
                _Pragma("omp simd reduction(max : largest)")
                for (int j = from; j < to; j++) largest = score[j] > largest ? score[j] : largest;
                SIMD_SUM(sum)
                for (int j = from; j < to; j++) score[j] = exponential(score[j] - largest), sum += score[j];
                float share = 1.0f / sum;
                memset(weight, 0, sizeof(real) * (size_t)n_key);
                SIMD
                for (int j = from; j < to; j++) weight[j] = narrow(score[j] * share);
                log_sums[(long)head * length + first + i] = largest + logf(sum);
            }
            product(blas, PLAIN, PLAIN, tile.n, d, n_key, 1.0f, weights, n_key, v + (long)tile.key * row, row, 0.0f,
                    mixed, d);
            for (int i = 0; i < tile.n; i++) narrow_all(d, mixed + i * d, y + (long)(first + i) * c + head * d);
        }
    }
}

/* dy (T, H D) -> d_qkv (T, G D). */
static void attention_backward(const Blas *blas, const Heads *heads, int length, const real *qkv, const real *y,
                               const float *log_sums, const real *dy, float *d_qkv, float *scores, float *d_weights,
                               real *weights, real *d_scores) {
    int d = heads->width, row = (heads->heads + 2 * heads->kv_heads) * d, c = heads->heads * d;
    float scale = 1.0f / sqrtf((float)d);
    memset(d_qkv, 0, sizeof(float) * (size_t)length * (size_t)row);
    for (int head = 0; head < heads->heads; head++) {
        int kv = head / (heads->heads / heads->kv_heads), at_k = (heads->heads + kv) * d, at_v = at_k + heads->kv_heads * d;
        for (int first = 0; first < length; first += QUERIES) {
            Tile tile = tile_at(heads, length, first);
            int n_key = tile.n_key;
            const real *q = qkv + (long)first * row + head * d, *keys = qkv + (long)tile.key * row;
            const real *upstream = dy + (long)first * c + head * d, *out = y + (long)first * c + head * d;
            product(blas, PLAIN, TRANSPOSED, tile.n, n_key, d, scale, q, row, keys + at_k, row, 0.0f, scores, n_key);
            product(blas, PLAIN, TRANSPOSED, tile.n, n_key, d, 1.0f, upstream, c, keys + at_v, row, 0.0f, d_weights,
                    n_key);
            for (int i = 0; i < tile.n; i++) {
                const float *score = scores + (long)i * n_key, *d_weight = d_weights + (long)i * n_key;
                real *weight = weights + (long)i * n_key, *d_score = d_scores + (long)i * n_key;
                float log_sum = log_sums[(long)head * length + first + i], along = 0.0f;
                int from, to;
                seen(heads, tile, i, &from, &to);
                SIMD_SUM(along)
                for (int j = 0; j < d; j++) along += wide(upstream[i * c + j]) * wide(out[i * c + j]);
                memset(weight, 0, sizeof(real) * (size_t)n_key);
                memset(d_score, 0, sizeof(real) * (size_t)n_key);
                SIMD
                for (int j = from; j < to; j++) {
                    float p = exponential(score[j] - log_sum);
                    weight[j] = narrow(p);
                    d_score[j] = narrow(p * (d_weight[j] - along) * scale);
                }
            }
            float *to_q = d_qkv + (long)first * row + head * d, *to_keys = d_qkv + (long)tile.key * row;
            product(blas, PLAIN, PLAIN, tile.n, d, n_key, 1.0f, d_scores, n_key, keys + at_k, row, 0.0f, to_q, row);
            product(blas, TRANSPOSED, PLAIN, n_key, d, tile.n, 1.0f, d_scores, n_key, q, row, 1.0f, to_keys + at_k, row);
            product(blas, TRANSPOSED, PLAIN, n_key, d, tile.n, 1.0f, weights, n_key, upstream, c, 1.0f, to_keys + at_v,
                    row);
        }
    }
}
