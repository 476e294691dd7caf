/* Causal attention over one sequence, in tiles: the scores of a tile fit in the cache, keys that no query of it sees are never
   touched, and the backward pass computes the weights again from their rows' sums instead of keeping them
   (Dao et al., 2022, "FlashAttention", section 3.1).

   qkv (T, G D): H query heads, then Hkv key heads, then Hkv value heads, each D wide; y (T, H D). */

enum { TILE = 64 }; /* queries in the forward pass, keys in the backward pass; whole strips */

typedef struct {
    int heads, kv_heads, width, window; /* window: how many keys a query sees, itself included; 0: all */
} AttnShape;

typedef struct { /* of one thread, for sequences of at most T */
    float *scores, *d_weights;                /* (TILE, T) */
    elem_t *weights, *d_scores;                 /* (TILE, T) */
    float *delta;                             /* (T,) */
    elem_t *q_columns, *q_rows, *dy_columns, *dy_rows, *k_rows; /* panels of a head; forward: keys and values in the first two */
} AttnBuffers;

/* y, and of each row of scores (H, T) its largest element and the reciprocal of its sum of exponentials. */
NOINLINE void attention_forward(const Products *products, const AttnShape *heads, int length, const elem_t *qkv, elem_t *y,
                              float *row_max, float *row_inv_sum, const AttnBuffers *tiles) {
    int d = heads->width, row = (heads->heads + 2 * heads->kv_heads) * d, c = heads->heads * d;
    int group = heads->heads / heads->kv_heads;
    PackedB keys = {0}, values = {0};
    for (int head = 0; head < heads->heads; head++) {
        const elem_t *q = qkv + head * d, *k = qkv + (heads->heads + head / group) * d;
        if (head % group == 0) { /* its group shares them */
            keys = pack_bt(d, length, k, row, tiles->q_columns);
            values = pack_b(length, d, k + heads->kv_heads * d, row, tiles->q_rows);
        }
        for (int first = 0; first < length; first += TILE) {
            int n = smaller(TILE, length - first);
            int key = heads->window ? larger(0, first - heads->window + 1) / STRIP * STRIP : 0, n_key = first + n - key;
            int ld = (int)round_up_tile(n_key);
            multiply(products, n, n_key, d, (MatrixA){q + (long)first * row, row, 0}, from_column(keys, key), put,
                     &(StoreF32){tiles->scores, ld, 1.0f / sqrtf((float)d), 0.0f});
            for (int i = 0; i < n; i++) {
                int query = first + i, to = query + 1 - key;
                int from = heads->window ? larger(0, query - heads->window + 1) - key : 0;
                float *score = tiles->scores + (long)i * ld, sum = 0.0f;
                int begin = from / LANES * LANES, end = smaller(ld, (to + LANES - 1) / LANES * LANES);
                for (int j = begin; j < from; j++) score[j] = -INFINITY;
                for (int j = to; j < end; j++) score[j] = -INFINITY;
                float largest = most_of(end - begin, score + begin);
                SIMD_SUM(sum)
                for (int j = begin; j < end; j++) score[j] = exponential(score[j] - largest), sum += score[j];
                float share = 1.0f / sum;
                SIMD
                for (int j = begin; j < end; j++) score[j] *= share;
                SIMD
                for (int j = 0; j < from; j++) score[j] = 0.0f;
                SIMD
                for (int j = to; j < ld; j++) score[j] = 0.0f;
                narrow_all(ld, score, tiles->weights + (long)i * ld);
                row_max[(long)head * length + query] = largest, row_inv_sum[(long)head * length + query] = share;
            }
            multiply(products, n, d, n_key, (MatrixA){tiles->weights, ld, 0}, from_row(values, key), put_narrowed,
                     &(StoreBf16){y + (long)first * c + head * d, c, NULL});
        }
    }
}

/* The gradient of y, dy (T, H D), -> that of qkv, d_qkv (T, G D). Weights are computed key by key: a row of theirs, and of the
   gradients of the scores, is then what the products that lead to keys and values read. */
NOINLINE void attention_backward(const Products *products, const AttnShape *heads, int length, const elem_t *qkv, const elem_t *y,
                               const float *row_max, const float *row_inv_sum, const elem_t *dy, float *d_qkv, const AttnBuffers *tiles) {
    int d = heads->width, row = (heads->heads + 2 * heads->kv_heads) * d, c = heads->heads * d;
    int group = heads->heads / heads->kv_heads;
    float scale = 1.0f / sqrtf((float)d), *delta = tiles->delta;
    memset(d_qkv, 0, sizeof(float) * (size_t)length * row);
    for (int head = 0; head < heads->heads; head++) {
        long at_k = (heads->heads + head / group) * d, at_v = at_k + heads->kv_heads * d;
        const elem_t *q = qkv + head * d, *upstream = dy + head * d;
        PackedB q_columns = pack_bt(d, length, q, row, tiles->q_columns), q_rows = pack_b(length, d, q, row, tiles->q_rows);
        PackedB dy_columns = pack_bt(d, length, upstream, c, tiles->dy_columns);
        PackedB dy_rows = pack_b(length, d, upstream, c, tiles->dy_rows);
        PackedB k_rows = pack_b(length, d, qkv + at_k, row, tiles->k_rows);
        for (int t = 0; t < length; t++) {
            const elem_t *dy_t = upstream + (long)t * c, *y_t = y + head * d + (long)t * c;
            float sum = 0.0f;
            SIMD_SUM(sum)
            for (int i = 0; i < d; i++) sum += to_float(dy_t[i]) * to_float(y_t[i]);
            delta[t] = sum;
        }
        for (int key = 0; key < length; key += TILE) { /* seen by the queries [key, key + n) */
            int keys = smaller(TILE, length - key);
            int n = smaller(length - key, heads->window ? keys - 1 + heads->window : length);
            int ld = (int)round_up_tile(n);
            long at = (long)head * length + key;
            const float *largest = row_max + at, *share = row_inv_sum + at, *deltas = delta + key;
            multiply(products, keys, n, d, (MatrixA){qkv + at_k + (long)key * row, row, 0}, from_column(q_columns, key), put,
                     &(StoreF32){tiles->scores, ld, scale, 0.0f});
            multiply(products, keys, n, d, (MatrixA){qkv + at_v + (long)key * row, row, 0}, from_column(dy_columns, key), put,
                     &(StoreF32){tiles->d_weights, ld, 1.0f, 0.0f});
            for (int j = 0; j < keys; j++) {
                float *restrict score = tiles->scores + (long)j * ld, *restrict d_weight = tiles->d_weights + (long)j * ld;
                int to = heads->window ? smaller(n, j + heads->window) : n;
                int begin = j / LANES * LANES, end = smaller(ld, (to + LANES - 1) / LANES * LANES);
                SIMD
                for (int i = begin; i < end; i++) {
                    float p = exponential(score[i] - largest[i]) * share[i];
                    score[i] = p;
                    d_weight[i] = p * (d_weight[i] - deltas[i]) * scale;
                }
                SIMD
                for (int i = 0; i < j; i++) score[i] = d_weight[i] = 0.0f;
                SIMD
                for (int i = to; i < ld; i++) score[i] = d_weight[i] = 0.0f;
                narrow_all(ld, score, tiles->weights + (long)j * ld);
                narrow_all(ld, d_weight, tiles->d_scores + (long)j * ld);
            }
            MatrixA d_scores = {tiles->d_scores, ld, 0}, d_scores_t = {tiles->d_scores, ld, 1};
            float *to_keys = d_qkv + (long)key * row;
            multiply(products, keys, d, n, (MatrixA){tiles->weights, ld, 0}, from_row(dy_rows, key), put,
                     &(StoreF32){to_keys + at_v, row, 1.0f, 1.0f});
            multiply(products, keys, d, n, d_scores, from_row(q_rows, key), put, &(StoreF32){to_keys + at_k, row, 1.0f, 1.0f});
            multiply(products, n, d, keys, d_scores_t, from_row(k_rows, key), put,
                     &(StoreF32){to_keys + head * d, row, 1.0f, 1.0f});
        }
    }
}
