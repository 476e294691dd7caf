/* Attention over the KV cache: in fp32 here, in int8 in kv_int8.h.

   The cache of a layer is an array of blocks of 16 tokens with all KV heads. In fp32 a head's part of a block is the keys as (D, 16),
   so that a vector holds 16 keys, then the values as (16, D padded), so that a vector holds 16 dimensions. */

INLINE size_t cache_bytes(const Model *m) {
    return (size_t)m->net.n_layer * (m->s / LANES) * m->net.n_kv_head * m->block_bytes;
}

/* The bytes of a block of all heads. */
INLINE size_t block_stride(const Model *m) { return m->net.n_kv_head * m->block_bytes; }

/* One head, (D,) -> (D padded,). */
INLINE void copy_head(const Model *m, const float *x, float *to) {
    int d = m->net.head_dim;
    if (d % LANES) *(vec *)(to + d / LANES * LANES) = (vec){0}, memcpy(to, x, d * sizeof *to);
    else
        for (int i = 0; i < d; i += LANES) *(vec *)(to + i) = *(const vec_u *)(x + i);
}

/* The same with QK norm and RoPE, times `factor`. */
static void norm_rope_head(const Model *m, const float *x, const float *gain, int position, float factor, float *to) {
    int d = m->net.head_dim, half = d / 2;
    copy_head(m, x, to);
    if (gain) {
        vec squares = {0};
        for (int i = 0; i < d; i += LANES) squares += *(const vec *)(to + i) * *(const vec *)(to + i);
        factor /= sqrtf(hsum(squares) / d + m->net.norm_eps);
        for (int i = 0; i < d; i += LANES) *(vec *)(to + i) *= factor * *(const vec *)(gain + i);
    } else if (factor != 1.0f) {
        for (int i = 0; i < d; i += LANES) *(vec *)(to + i) *= factor;
    }
    if (!m->net.cosines) return;
    const float *cosine = m->net.cosines + (size_t)position * half, *sine = m->net.sines + (size_t)position * half;
    if (half % LANES == 0) {
        for (int i = 0; i < half; i += LANES) {
            vec a = *(const vec *)(to + i), b = *(const vec *)(to + half + i);
            vec c = *(const vec_u *)(cosine + i), s = *(const vec_u *)(sine + i);
            *(vec *)(to + i) = a * c - b * s, *(vec *)(to + half + i) = b * c + a * s;
        }
        return;
    }
    for (int i = 0; i < half; i++) {
        float a = to[i], b = to[half + i];
        to[i] = a * cosine[i] - b * sine[i];
        to[half + i] = b * cosine[i] + a * sine[i];
    }
}

/* scores[0..16 BLOCKS) of one query for BLOCKS blocks of keys. `prefetch_offset`, here and below: from what is read to what is read next. */
INLINE void score(const int BLOCKS, const float *q, int d, const char *keys, size_t stride, float *scores,
                  ptrdiff_t prefetch_offset) {
    vec sums[4] = {{0}};
    for (int i = 0; i < d; i++)
#pragma GCC unroll 4
        for (int b = 0; b < BLOCKS; b++) {
            const vec *key = (const vec *)(keys + b * stride) + i;
            sums[b] += q[i] * *key;
            prefetch_line(key, prefetch_offset);
        }
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; b++) ((vec *)scores)[b] = sums[b];
}

/* Mask the keys outside of first ... last in the vectors begin ... end - 1 around them. */
INLINE void mask_scores(float *scores, int begin, int first, int last, int end) {
    const ivec count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vec nothing = splat(-INFINITY);
    vec *of_first = (vec *)(scores + begin), *of_last = (vec *)(scores + end - LANES);
    *of_first = blend(count < first - begin, nothing, *of_first);
    *of_last = blend(count > last - (end - LANES), nothing, *of_last);
}

INLINE float max_between(const float *scores, int begin, int end) {
    vec maxima = *(const vec *)(scores + begin);
    for (int k = begin + LANES; k < end; k += LANES) maxima = vmax(maxima, *(const vec *)(scores + k));
    return hmax(maxima);
}

/* e^(score - maximum), 0 where masked. */
INLINE vec exp_scores(vec score, float maximum) {
    return blend(score == splat(-INFINITY), (vec){0}, exponential(score - maximum));
}

/* out[0 .. 16 N_VECS) = weights @ values of keys begin ... end - 1. Masked keys have weight 0, or were never stored and are 0. */
INLINE void accumulate_values(const int N_VECS, const float *weights, const float *values, size_t stride, int d_padded, int begin, int end,
                   float inv_sum, float *out, ptrdiff_t prefetch_offset) {
    vec sums[4][4] = {{{0}}};
    for (int k = begin; k < end; k += LANES) {
        const float *block = values + k / LANES * (stride / sizeof *values);
#pragma GCC unroll 4
        for (int j = 0; j < LANES; j += 4)
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++)
#pragma GCC unroll 4
                for (int i = 0; i < N_VECS; i++) {
                    const vec *value = (const vec *)(block + (j + c) * d_padded) + i;
                    sums[i][c] += weights[k + j + c] * *value;
                    prefetch_line(value, prefetch_offset);
                }
    }
#pragma GCC unroll 4
    for (int i = 0; i < N_VECS; i++) ((vec *)out)[i] = ((sums[i][0] + sums[i][1]) + (sums[i][2] + sums[i][3])) * inv_sum;
}

/* One query over keys first ... last -> (D,). `scores`: (S padded,) scratch. */
static void attend_head(const Model *m, const float *q, const char *cache, int first, int last, float *scores, float *out,
                   ptrdiff_t prefetch_offset) {
    int begin = first / LANES * LANES, end = padded(last + 1, LANES), d_padded = m->d, d = m->net.head_dim;
    size_t stride = block_stride(m);
    int k = begin;
    for (; k + 4 * LANES <= end; k += 4 * LANES) score(4, q, d, cache + k / LANES * stride, stride, scores + k, prefetch_offset);
    for (; k < end; k += LANES) score(1, q, d, cache + k / LANES * stride, stride, scores + k, prefetch_offset);
    mask_scores(scores, begin, first, last, end);
    float maximum = max_between(scores, begin, end);
    vec total = {0};
    for (k = begin; k < end; k += LANES) {
        vec weight = exp_scores(*(vec *)(scores + k), maximum);
        *(vec *)(scores + k) = weight;
        total += weight;
    }
    float inv_sum = 1.0f / hsum(total);
    int i = 0;
    const float *values = (const float *)cache + LANES * d;
    for (; i + 4 * LANES <= d_padded; i += 4 * LANES) accumulate_values(4, scores, values + i, stride, d_padded, begin, end, inv_sum, out + i, prefetch_offset);
    for (; i < d_padded; i += LANES) accumulate_values(1, scores, values + i, stride, d_padded, begin, end, inv_sum, out + i, prefetch_offset);
}

/* Store a key and a value (D padded) into a block. */
static void kv_store(const Model *m, const float *key, const float *value, int lane, float *block) {
    int d = m->net.head_dim;
    for (int i = 0; i < d; i++) block[i * LANES + lane] = key[i];
    for (int i = 0; i < m->d; i += LANES) *(vec *)(block + LANES * d + lane * m->d + i) = *(const vec *)(value + i);
}

INLINE int window_start(const Network *net, int position) {
    return net->window && position >= net->window ? position - net->window + 1 : 0;
}

/* The blocks of a layer. */
INLINE char *cache_of(const ForwardContext *p, int row) {
    const Model *m = p->model;
    return p->rows[row].sequence->cache + p->layer * (m->s / LANES) * block_stride(m);
}

INLINE const float *qkv_of(const ForwardContext *p, int row) {
    return p->ws->qkv + (size_t)row * p->ws->qkv_stride;
}

INLINE float *y_of(const ForwardContext *p, int row) { return p->ws->y + (size_t)row * p->ws->y_stride; }

#include "kv_int8.h"

/* Prefetch the block that a row stores into. */
INLINE void prefetch_kv(const ForwardContext *p, int row) {
    const Model *m = p->model;
    int position = p->rows[row].position;
    size_t stride = block_stride(m);
    prefetch(cache_of(p, row) + position / LANES * stride, m->kv_int8 ? kv_bytes_used(m, position % LANES + 1) : stride);
}

/* Attention of row `row`, the query heads of KV head g. */
static void attend_row(const ForwardContext *p, int row, int g, ptrdiff_t prefetch_offset) {
    const Model *m = p->model;
    const Network *net = &m->net;
    int d = net->head_dim, group = net->n_head / net->n_kv_head, last = p->rows[row].position;
    int first = window_start(net, last);
    if (m->kv_int8) {
        attend_int8(p, row, g * group, (g + 1) * group, NULL, NULL);
        return;
    }
    float q[m->d] __attribute__((aligned(64))), out[m->d] __attribute__((aligned(64)));
    float scores[m->s] __attribute__((aligned(64)));
    const char *cache = cache_of(p, row) + g * m->block_bytes;
    for (int h = g * group; h < (g + 1) * group; h++) {
        norm_rope_head(m, qkv_of(p, row) + h * d, m->packed[p->layer].q_norm, last, 1.0f / sqrtf((float)d), q);
        attend_head(m, q, cache, first, last, scores, out, prefetch_offset);
        memcpy(y_of(p, row) + h * d, out, d * sizeof *out);
    }
}

static void kv_store_row(const ForwardContext *p, int row, int g) {
    const Model *m = p->model;
    const Network *net = &m->net;
    int d = net->head_dim, position = p->rows[row].position;
    float key[m->d] __attribute__((aligned(64))), value[m->d] __attribute__((aligned(64)));
    norm_rope_head(m, qkv_of(p, row) + (net->n_head + g) * d, m->packed[p->layer].k_norm, position, 1.0f, key);
    copy_head(m, qkv_of(p, row) + (net->n_head + net->n_kv_head + g) * d, value);
    char *block = cache_of(p, row) + position / LANES * block_stride(m);
    if (m->kv_int8) kv_store_int8(m, key, value, position % LANES, g, (uint8_t *)block);
    else kv_store(m, key, value, position % LANES, (float *)(block + g * m->block_bytes));
}

/* Store keys and values of all rows, KV heads begin ... end - 1. */
static void kv_store_rows(void *context, int begin, int end) {
    ForwardContext *p = context;
    for (int r = 0; r < p->n; r++) {
        if (r + 1 < p->n) prefetch_kv(p, r + 1);
        for (int g = begin; g < end; g++) kv_store_row(p, r, g);
    }
}

INLINE bool is_serial(const ForwardContext *p) { return !p->ws->pool || !p->ws->pool->n_workers; }

/* Attention of rows begin ... end - 1; in the last layer only of those whose logits are wanted. Each row prefetches the next one's
   cache (int8), or the next head's (fp32, where a core's cache would not hold all heads of both), and the last row the next weights. */
static void attend_rows(void *context, int begin, int end) {
    ForwardContext *p = context;
    const Model *m = p->model;
    int heads = m->net.n_kv_head;
    for (int r = begin; r < end; r++) {
        bool more = r + 1 < end;
        int position = p->rows[more ? r + 1 : r].position;
        size_t first_block = window_start(&m->net, position) / LANES, blocks = position / LANES + 1 - first_block;
        const char *next = more ? cache_of(p, r + 1) : m->packed[p->layer].out.weights;
        const char *prefetched = more ? next + first_block * block_stride(m) : next;
        const char *stop = next + (more ? kv_bytes_used(m, position + 1) : blocks * block_stride(m));
        for (int g = 0; is_serial(p) && g < heads; g++) {
            kv_store_row(p, r, g);
            if (m->kv_int8) prefetched = prefetch_advance(prefetched, prefetch_budget(m, PREFETCH_IN_STORE) * (int)blocks);
        }
        if (p->last && !p->rows[r].logits) continue;
        if (m->kv_int8) attend_int8(p, r, 0, m->net.n_head, prefetched, stop);
        else
            for (ptrdiff_t g = 0, head_stride = m->block_bytes; g < heads; g++)
                attend_row(p, r, (int)g, g + 1 < heads ? head_stride : next - (cache_of(p, r) + g * head_stride));
    }
}

static void attend_heads(void *context, int begin, int end) {
    ForwardContext *p = context;
    kv_store_rows(p, begin, end);
    for (int r = 0; r < p->n; r++)
        for (int g = begin; g < end; g++)
            if (!p->last || p->rows[r].logits) attend_row(p, r, g, 0);
}

/* Store keys and values of all rows, then attention. Threads split heads where rows are few, else rows; a single thread stores
   each row just before its attention. */
static void attend_all(ForwardContext *p) {
    int heads = p->model->net.n_kv_head;
    if (p->n < MIN_AMX_ROWS) {
        parallel_for(p->ws->pool, heads, attend_heads, p);
        return;
    }
    if (!is_serial(p)) parallel_for(p->ws->pool, heads, kv_store_rows, p);
    parallel_for(p->ws->pool, p->n, attend_rows, p);
}
