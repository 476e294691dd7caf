/* Attention over the keys and values that each text keeps: in fp32 here, in bytes in kv_int8.h.

   A text keeps, of each layer, blocks of 16 keys and values of all heads: what a step reads lies in one piece. In fp32 each head
   has its own: keys as (D, 16), so that a vector holds 16 keys, then values as (16, D padded), so that one holds 16 dimensions. */

INLINE size_t cache_bytes(const Model *m) {
    return (size_t)m->net.n_layer * (m->s / LANES) * m->net.n_kv_head * m->block_bytes;
}

/* The bytes of a block of all heads. */
INLINE size_t block_stride(const Model *m) { return m->net.n_kv_head * m->block_bytes; }

/* One head, from (D,) to the padded (D,). */
INLINE void copy_head(const Model *m, const float *x, float *to) {
    int d = m->net.head_dim;
    if (d % LANES) *(vec *)(to + d / LANES * LANES) = (vec){0}, memcpy(to, x, d * sizeof *to);
    else
        for (int i = 0; i < d; i += LANES) *(vec *)(to + i) = *(const vec_u *)(x + i);
}

/* The same, normalised and rotated, times `factor`. */
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

/* scores[0..16 BLOCKS) of one query for BLOCKS blocks of keys. Here as below `next` is how far away lies what is read next. */
INLINE void score(const int BLOCKS, const float *q, int d, const char *keys, size_t stride, float *scores,
                  ptrdiff_t next) {
    vec sums[4] = {{0}};
    for (int i = 0; i < d; i++)
#pragma GCC unroll 4
        for (int b = 0; b < BLOCKS; b++) {
            const vec *key = (const vec *)(keys + b * stride) + i;
            sums[b] += q[i] * *key;
            prefetch_line(key, next);
        }
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; b++) ((vec *)scores)[b] = sums[b];
}

/* Keys outside of first ... last weigh nothing: begin and end are the whole vectors around them. */
INLINE void mask_scores(float *scores, int begin, int first, int last, int end) {
    const ivec count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vec nothing = splat(-INFINITY);
    vec *of_first = (vec *)(scores + begin), *of_last = (vec *)(scores + end - LANES);
    *of_first = blend(count < first - begin, nothing, *of_first);
    *of_last = blend(count > last - (end - LANES), nothing, *of_last);
}

INLINE float most_between(const float *scores, int begin, int end) {
    vec most = *(const vec *)(scores + begin);
    for (int k = begin + LANES; k < end; k += LANES) most = vmax(most, *(const vec *)(scores + k));
    return hmax(most);
}

/* e^(score - top), and 0 for what is hidden. */
INLINE vec weights_of(vec score, float top) {
    return blend(score == splat(-INFINITY), (vec){0}, exponential(score - top));
}

/* out[0 .. 16 PARTS) of the values of keys begin ... end - 1, weighed. What is hidden weighs nothing, or was never kept and
   is zero. */
INLINE void accumulate_values(const int PARTS, const float *weights, const float *values, size_t stride, int wide, int begin, int end,
                   float share, float *out, ptrdiff_t next) {
    vec sums[4][4] = {{{0}}};
    for (int k = begin; k < end; k += LANES) {
        const float *block = values + k / LANES * (stride / sizeof *values);
#pragma GCC unroll 4
        for (int j = 0; j < LANES; j += 4)
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++)
#pragma GCC unroll 4
                for (int i = 0; i < PARTS; i++) {
                    const vec *value = (const vec *)(block + (j + c) * wide) + i;
                    sums[i][c] += weights[k + j + c] * *value;
                    prefetch_line(value, next);
                }
    }
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++) ((vec *)out)[i] = ((sums[i][0] + sums[i][1]) + (sums[i][2] + sums[i][3])) * share;
}

/* One query over keys first ... last -> (D,). `scores` has room for S padded. */
static void attend(const Model *m, const float *q, const char *cache, int first, int last, float *scores, float *out,
                   ptrdiff_t next) {
    int begin = first / LANES * LANES, end = padded(last + 1, LANES), wide = m->d, d = m->net.head_dim;
    size_t stride = block_stride(m);
    int k = begin;
    for (; k + 4 * LANES <= end; k += 4 * LANES) score(4, q, d, cache + k / LANES * stride, stride, scores + k, next);
    for (; k < end; k += LANES) score(1, q, d, cache + k / LANES * stride, stride, scores + k, next);
    mask_scores(scores, begin, first, last, end);
    float top = most_between(scores, begin, end);
    vec total = {0};
    for (k = begin; k < end; k += LANES) {
        vec weight = weights_of(*(vec *)(scores + k), top);
        *(vec *)(scores + k) = weight;
        total += weight;
    }
    float share = 1.0f / hsum(total);
    int i = 0;
    const float *values = (const float *)cache + LANES * d;
    for (; i + 4 * LANES <= wide; i += 4 * LANES) accumulate_values(4, scores, values + i, stride, wide, begin, end, share, out + i, next);
    for (; i < wide; i += LANES) accumulate_values(1, scores, values + i, stride, wide, begin, end, share, out + i, next);
}

/* A key and a value (D padded) take their places in a block. */
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
    return p->rows[row].stream->cache + p->layer * (m->s / LANES) * block_stride(m);
}

INLINE const float *qkv_of(const ForwardContext *p, int row) {
    return p->room->qkv + (size_t)row * p->room->qkv_stride;
}

INLINE float *y_of(const ForwardContext *p, int row) { return p->room->y + (size_t)row * p->room->y_stride; }

#include "kv_int8.h"

/* What a row will write to, and look at. */
INLINE void expect_to_keep(const ForwardContext *p, int row) {
    const Model *m = p->model;
    int position = p->rows[row].position;
    size_t stride = block_stride(m);
    prefetch(cache_of(p, row) + position / LANES * stride, m->bytes ? kv_bytes_used(m, position % LANES + 1) : stride);
}

/* Row `row` looks back from its position with the queries of key/value head g. */
static void attend_row(const ForwardContext *p, int row, int g, ptrdiff_t next) {
    const Model *m = p->model;
    const Network *net = &m->net;
    int d = net->head_dim, group = net->n_head / net->n_kv_head, last = p->rows[row].position;
    int first = window_start(net, last);
    if (m->bytes) {
        attend_int8(p, row, g * group, (g + 1) * group, NULL, NULL);
        return;
    }
    float q[m->d] __attribute__((aligned(64))), out[m->d] __attribute__((aligned(64)));
    float scores[m->s] __attribute__((aligned(64)));
    const char *cache = cache_of(p, row) + g * m->block_bytes;
    for (int h = g * group; h < (g + 1) * group; h++) {
        norm_rope_head(m, qkv_of(p, row) + h * d, m->packed[p->layer].q_norm, last, 1.0f / sqrtf((float)d), q);
        attend(m, q, cache, first, last, scores, out, next);
        memcpy(y_of(p, row) + h * d, out, d * sizeof *out);
    }
}

static void keep_row(const ForwardContext *p, int row, int g) {
    const Model *m = p->model;
    const Network *net = &m->net;
    int d = net->head_dim, position = p->rows[row].position;
    float key[m->d] __attribute__((aligned(64))), value[m->d] __attribute__((aligned(64)));
    norm_rope_head(m, qkv_of(p, row) + (net->n_head + g) * d, m->packed[p->layer].k_norm, position, 1.0f, key);
    copy_head(m, qkv_of(p, row) + (net->n_head + net->n_kv_head + g) * d, value);
    char *block = cache_of(p, row) + position / LANES * block_stride(m);
    if (m->bytes) kv_store_int8(m, key, value, position % LANES, g, (uint8_t *)block);
    else kv_store(m, key, value, position % LANES, (float *)(block + g * m->block_bytes));
}

/* Of key/value heads begin ... end - 1: keys and values of all rows are kept. */
static void keep_rows(void *context, int begin, int end) {
    ForwardContext *p = context;
    for (int r = 0; r < p->n; r++) {
        if (r + 1 < p->n) expect_to_keep(p, r + 1);
        for (int g = begin; g < end; g++) keep_row(p, r, g);
    }
}

INLINE bool is_serial(const ForwardContext *p) { return !p->room->pool || !p->room->pool->helpers; }

/* In the last layer only the rows whose logits are wanted look. While one in bytes looks, the next one's keys and values come near;
   of floats those of the next head: a core's cache would not hold all heads of both. While the last row looks, the weights come
   that are wanted then. */
static void attend_rows(void *context, int begin, int end) {
    ForwardContext *p = context;
    const Model *m = p->model;
    int heads = m->net.n_kv_head;
    for (int r = begin; r < end; r++) {
        bool more = r + 1 < end;
        int position = p->rows[more ? r + 1 : r].position;
        size_t unseen = window_start(&m->net, position) / LANES, blocks = position / LANES + 1 - unseen;
        const char *next = more ? cache_of(p, r + 1) : m->packed[p->layer].out.weights;
        const char *ahead = more ? next + unseen * block_stride(m) : next;
        const char *stop = next + (more ? kv_bytes_used(m, position + 1) : blocks * block_stride(m));
        for (int g = 0; is_serial(p) && g < heads; g++) {
            keep_row(p, r, g);
            if (m->bytes) ahead = prefetch_advance(ahead, prefetch_budget(m, 2) * (int)blocks);
        }
        if (p->last && !p->rows[r].logits) continue;
        if (m->bytes) attend_int8(p, r, 0, m->net.n_head, ahead, stop);
        else
            for (ptrdiff_t g = 0, apart = m->block_bytes; g < heads; g++)
                attend_row(p, r, (int)g, g + 1 < heads ? apart : next - (cache_of(p, r) + g * apart));
    }
}

static void attend_heads(void *context, int begin, int end) {
    ForwardContext *p = context;
    keep_rows(p, begin, end);
    for (int r = 0; r < p->n; r++)
        for (int g = begin; g < end; g++)
            if (!p->last || p->rows[r].logits) attend_row(p, r, g, 0);
}

/* Keys and values of all rows are kept, and each row looks back from its position. Threads share the heads of few rows,
   and many rows; one alone keeps what a row needs when it comes to it. */
static void attend_all(ForwardContext *p) {
    int heads = p->model->net.n_kv_head;
    if (p->n < MIN_AMX_ROWS) {
        parallel_for(p->room->pool, heads, attend_heads, p);
        return;
    }
    if (!is_serial(p)) parallel_for(p->room->pool, heads, keep_rows, p);
    parallel_for(p->room->pool, p->n, attend_rows, p);
}
