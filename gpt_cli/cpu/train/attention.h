/* Causal attention over one sequence, in tiles: the scores of a tile fit in the cache, keys that no query of it sees are never
   touched, and the backward pass recomputes the weights from the saved row maxima and sums instead of storing them
   (Dao et al., 2022, "FlashAttention", section 3.1).

   qkv (T, G D): H query heads, then Hkv key heads, then Hkv value heads, each D wide; y (T, H D).

   Dropout acts on the weights after the softmax, so `delta` is the same with it. A mask has a row for each key and a column for each
   query: the forward pass, whose rows are queries, draws a column of it from the hash keys of all its rows. */

enum { ATTN_TILE = 64 }; /* queries in the forward pass, keys in the backward pass; a multiple of TILE */

typedef struct {
    int heads, kv_heads, width, window; /* window: how many keys a query sees, itself included; 0: all */
} AttnShape;

/* The buffers of a thread (see arena.h). `tokens` of the longest sequence and the `width` of a head are rounded up to tiles. */
#define ATTN_BUFFERS(X)                                                                                        \
    X(float, scores, ATTN_TILE * tokens) X(float, d_weights, ATTN_TILE * tokens)                               \
    X(elem_t, weights, ATTN_TILE * tokens) X(elem_t, d_scores, ATTN_TILE * tokens)                             \
    X(float, delta, tokens) /* rowsum(dO * O), the D of FlashAttention */                                      \
    X(uint32_t, dropout_keys, tokens)                                                                          \
    /* Packed operands of one head. The forward pass puts keys and values into the first two. */               \
    X(elem_t, q_columns, tokens * width) X(elem_t, q_rows, tokens * width)                                     \
    X(elem_t, dy_columns, tokens * width) X(elem_t, dy_rows, tokens * width) X(elem_t, k_rows, tokens * width)

typedef struct { ATTN_BUFFERS(BUFFER_FIELD) } AttnBuffers;

static AttnBuffers attn_buffers(Arena *arena, int length, int head_dim) {
    long tokens = round_up_tile(length), width = round_up_tile(head_dim);
    AttnBuffers buffers, *to = &buffers;
    ATTN_BUFFERS(TAKE_BUFFER)
    return buffers;
}

typedef struct { /* of the weights */
    const Dropout *dropout;
    int stream_id; /* of head 0; the other heads have the next ones */
    long row;      /* of the first token of the sequence */
} AttnDropout;

/* y, and the softmax statistics of each row of scores (H, T): its maximum and 1 / sum of exponentials. */
NOINLINE void attention_forward(const GemmContext *gemm_ctx, const AttnShape *shape, int length, const elem_t *qkv, elem_t *y,
                              float *row_max, float *row_inv_sum, AttnDropout drop, const AttnBuffers *buffers) {
    int d = shape->width, row = (shape->heads + 2 * shape->kv_heads) * d, c = shape->heads * d;
    int group = shape->heads / shape->kv_heads;
    PackedB keys = {0}, values = {0};
    for (int head = 0; head < shape->heads; head++) {
        const elem_t *q = qkv + head * d, *k = qkv + (shape->heads + head / group) * d;
        if (head % group == 0) { /* packed once for each group (GQA) */
            keys = pack_bt(d, length, k, row, buffers->q_columns);
            values = pack_b(length, d, k + shape->kv_heads * d, row, buffers->q_rows);
        }
        if (drop.dropout->limit) dropout_keys(drop.dropout, drop.stream_id + head, drop.row, (int)round_up_tile(length), buffers->dropout_keys);
        for (int first = 0; first < length; first += ATTN_TILE) {
            int n = min_int(ATTN_TILE, length - first);
            int key = shape->window ? max_int(0, first - shape->window + 1) / TILE * TILE : 0, n_key = first + n - key;
            int ld = (int)round_up_tile(n_key);
            gemm(gemm_ctx, n, n_key, d, (MatrixA){q + (long)first * row, row, 0}, b_from_column(keys, key), store_f32,
                     &(StoreF32){buffers->scores, ld, 1.0f / sqrtf((float)d), 0.0f});
            for (int i = 0; i < n; i++) {
                int query = first + i, to = query + 1 - key;
                int from = shape->window ? max_int(0, query - shape->window + 1) - key : 0;
                float *score = buffers->scores + (long)i * ld, sum = 0.0f;
                int begin = from / LANES * LANES, end = min_int(ld, (to + LANES - 1) / LANES * LANES);
                for (int j = begin; j < from; j++) score[j] = -INFINITY;
                for (int j = to; j < end; j++) score[j] = -INFINITY;
                float maximum = max_of(end - begin, score + begin);
                SIMD_SUM(sum)
                for (int j = begin; j < end; j++) score[j] = exponential(score[j] - maximum), sum += score[j];
                float inv_sum = 1.0f / sum;
                SIMD
                for (int j = begin; j < end; j++) score[j] *= inv_sum;
                if (drop.dropout->limit) {
                    SIMD
                    for (int j = begin; j < end; j++) score[j] *= dropout_factor(drop.dropout, buffers->dropout_keys[key + j], query);
                }
                SIMD
                for (int j = 0; j < from; j++) score[j] = 0.0f;
                SIMD
                for (int j = to; j < ld; j++) score[j] = 0.0f;
                to_elems(ld, score, buffers->weights + (long)i * ld);
                row_max[(long)head * length + query] = maximum, row_inv_sum[(long)head * length + query] = inv_sum;
            }
            gemm(gemm_ctx, n, d, n_key, (MatrixA){buffers->weights, ld, 0}, b_from_row(values, key), store_elem,
                     &(StoreElem){y + (long)first * c + head * d, c, NULL});
        }
    }
}

/* The gradient of y, dy (T, H D), -> that of qkv, d_qkv (T, G D). Weights and gradients of scores are computed transposed,
   a row for each key: the layout that the GEMMs for dK and dV read. */
NOINLINE void attention_backward(const GemmContext *gemm_ctx, const AttnShape *shape, int length, const elem_t *qkv, const elem_t *y,
                               const float *row_max, const float *row_inv_sum, const elem_t *dy, float *d_qkv, AttnDropout drop,
                               const AttnBuffers *buffers) {
    int d = shape->width, row = (shape->heads + 2 * shape->kv_heads) * d, c = shape->heads * d;
    int group = shape->heads / shape->kv_heads;
    float scale = 1.0f / sqrtf((float)d), *delta = buffers->delta;
    memset(d_qkv, 0, sizeof(float) * (size_t)length * row);
    for (int head = 0; head < shape->heads; head++) {
        long at_k = (shape->heads + head / group) * d, at_v = at_k + shape->kv_heads * d;
        const elem_t *q = qkv + head * d, *upstream = dy + head * d;
        PackedB q_columns = pack_bt(d, length, q, row, buffers->q_columns), q_rows = pack_b(length, d, q, row, buffers->q_rows);
        PackedB dy_columns = pack_bt(d, length, upstream, c, buffers->dy_columns);
        PackedB dy_rows = pack_b(length, d, upstream, c, buffers->dy_rows);
        PackedB k_rows = pack_b(length, d, qkv + at_k, row, buffers->k_rows);
        if (drop.dropout->limit) dropout_keys(drop.dropout, drop.stream_id + head, drop.row, length, buffers->dropout_keys);
        for (int t = 0; t < length; t++) {
            const elem_t *dy_t = upstream + (long)t * c, *y_t = y + head * d + (long)t * c;
            float sum = 0.0f;
            SIMD_SUM(sum)
            for (int i = 0; i < d; i++) sum += to_float(dy_t[i]) * to_float(y_t[i]);
            delta[t] = sum;
        }
        for (int key = 0; key < length; key += ATTN_TILE) { /* attended to by the queries [key, key + n) */
            int keys = min_int(ATTN_TILE, length - key);
            int n = min_int(length - key, shape->window ? keys - 1 + shape->window : length);
            int ld = (int)round_up_tile(n);
            long at = (long)head * length + key;
            const float *maximum = row_max + at, *inv_sum = row_inv_sum + at, *deltas = delta + key;
            gemm(gemm_ctx, keys, n, d, (MatrixA){qkv + at_k + (long)key * row, row, 0}, b_from_column(q_columns, key), store_f32,
                     &(StoreF32){buffers->scores, ld, scale, 0.0f});
            gemm(gemm_ctx, keys, n, d, (MatrixA){qkv + at_v + (long)key * row, row, 0}, b_from_column(dy_columns, key), store_f32,
                     &(StoreF32){buffers->d_weights, ld, 1.0f, 0.0f});
            for (int j = 0; j < keys; j++) {
                float *restrict score = buffers->scores + (long)j * ld, *restrict d_weight = buffers->d_weights + (long)j * ld;
                int to = shape->window ? min_int(n, j + shape->window) : n;
                int begin = j / LANES * LANES, end = min_int(ld, (to + LANES - 1) / LANES * LANES);
                if (drop.dropout->limit) {
                    uint32_t row_key = buffers->dropout_keys[key + j];
                    SIMD
                    for (int i = begin; i < end; i++) {
                        float p = exponential(score[i] - maximum[i]) * inv_sum[i], factor = dropout_factor(drop.dropout, row_key, key + i);
                        score[i] = p * factor;
                        d_weight[i] = p * (d_weight[i] * factor - deltas[i]) * scale;
                    }
                } else {
                    SIMD
                    for (int i = begin; i < end; i++) {
                        float p = exponential(score[i] - maximum[i]) * inv_sum[i];
                        score[i] = p;
                        d_weight[i] = p * (d_weight[i] - deltas[i]) * scale;
                    }
                }
                SIMD
                for (int i = 0; i < j; i++) score[i] = d_weight[i] = 0.0f;
                SIMD
                for (int i = to; i < ld; i++) score[i] = d_weight[i] = 0.0f;
                to_elems(ld, score, buffers->weights + (long)j * ld);
                to_elems(ld, d_weight, buffers->d_scores + (long)j * ld);
            }
            MatrixA d_scores = {buffers->d_scores, ld, 0}, d_scores_t = {buffers->d_scores, ld, 1};
            float *to_keys = d_qkv + (long)key * row;
            gemm(gemm_ctx, keys, d, n, (MatrixA){buffers->weights, ld, 0}, b_from_row(dy_rows, key), store_f32,
                     &(StoreF32){to_keys + at_v, row, 1.0f, 1.0f});
            gemm(gemm_ctx, keys, d, n, d_scores, b_from_row(q_rows, key), store_f32, &(StoreF32){to_keys + at_k, row, 1.0f, 1.0f});
            gemm(gemm_ctx, n, d, keys, d_scores_t, b_from_row(k_rows, key), store_f32,
                     &(StoreF32){to_keys + head * d, row, 1.0f, 1.0f});
        }
    }
}
