/* Int8 KV cache, for models whose weights are quantized: a quarter of the traffic of fp32, which is most of it for large batches.

   Each key and value of a head is quantized symmetrically to +-127 with a scale of its own (llama.cpp's Q8_0 has one for every 32
   numbers); queries to 16 bits and softmax weights to 16 bits, each as a high and a low byte (limbs). So scores and weighted sums
   are integer dot products (VNNI, I8MM), exact in any order.

   A block of 16 tokens: scales in bf16, (G, 2, 16); then for each group of 4 tokens and each head keys as (D / 16, 4, 16), unsigned
   with zero point 128, and values as (D, 4), D padded. Groups that are still empty are the end of the last block, and never read;
   its scales, and the whole of its last group, are: there they are zero or stale, and masked. */

#define WEIGHT_QMAX 65280.0f /* 255 * 256 */

enum { SCALES_BYTES = 2 * LANES * sizeof(uint16_t) };
#define KV_INT8_BLOCK_BYTES(D_PADDED) (SCALES_BYTES + 2 * LANES * (size_t)(D_PADDED)) /* of one head */

/* Offsets in a block of the scales, keys and values of head g, and from a group of 4 tokens to the next. */
INLINE size_t group4_stride(const Model *m) { return m->net.n_kv_head * (size_t)(8 * m->d); }
INLINE size_t scales_at(int g) { return g * SCALES_BYTES; }
INLINE size_t keys_at(const Model *m, int g) { return scales_at(m->net.n_kv_head) + g * (size_t)(8 * m->d); }
INLINE size_t values_at(const Model *m, int g) { return keys_at(m, g) + 4 * m->d; }

/* Bytes of a layer's cache that `tokens` tokens use. */
INLINE size_t kv_bytes_used(const Model *m, int tokens) {
    int blocks = (tokens - 1) / LANES, groups = (tokens - 1) % LANES / 4 + 1;
    return blocks * block_stride(m) + keys_at(m, 0) + groups * group4_stride(m);
}

/* magnitude / 127, rounded up to bf16, so that no quantized number exceeds 127. */
INLINE float kv_scale(float magnitude, uint16_t *bf16) {
    float scale = magnitude / 127;
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    bits = (bits + 0xffff) & 0xffff0000, *bf16 = (uint16_t)(bits >> 16);
    memcpy(&scale, &bits, sizeof bits);
    return scale;
}

/* As `kv_store`, of KV head g. */
static void kv_store_int8(const Model *m, const float *key, const float *value, int lane, int g, uint8_t *block) {
    int d_padded = m->d, shift = lane % 4 * 8;
    uint16_t *scales = (uint16_t *)(block + scales_at(g)) + lane;
    float key_scale = kv_scale(absmax(key, d_padded), scales), value_scale = kv_scale(absmax(value, d_padded), scales + LANES);
    float factor = key_scale > 0 ? 1 / key_scale : 0;
    block += lane / 4 * group4_stride(m);
    uint8_t *keys = block + keys_at(m, g) + lane % 4 * LANES;
    for (int i = 0; i < d_padded; i += LANES, keys += 4 * LANES) {
        u8x16 sixteen = __builtin_convertvector(round_to_int(*(const vec *)(key + i) * factor) + 128, u8x16);
        memcpy(keys, &sixteen, LANES);
    }
    factor = value_scale > 0 ? 1 / value_scale : 0;
    const int32_t mask = (int32_t)(255u << shift);
    ivec *words = (ivec *)(block + values_at(m, g));
    for (int i = 0; i < d_padded; i += LANES, words++)
        *words = (*words & ~mask) | ((round_to_int(*(const vec *)(value + i) * factor) & 255) << shift);
}

/* 16 integers as signed high and low bytes. */
INLINE void split_signed(ivec q, int32_t *high, int32_t *low) {
    ivec signed_low = ((q + 128) & 255) - 128;
    u8x16 high_bytes = __builtin_convertvector((q - signed_low) >> 8, u8x16), low_bytes = __builtin_convertvector(signed_low, u8x16);
    memcpy(high, &high_bytes, LANES), memcpy(low, &low_bytes, LANES);
}

typedef struct { /* of one head */
    const uint8_t *keys, *scales, *values;
    const char *prefetched;   /* cursor: the next line of what is read next */
    vec *scores;         /* (S / 16) */
    int32_t *high, *low; /* limbs of the query, then of its softmax weights, four in a word */
    float scale, maximum, inv_sum;
} Query;

/* Software prefetch of what is read next, spread evenly over all stages of the computation: the memory then never idles. The cache
   lines of a block of one head, with a head_dim of 64, are divided among the stages in proportion to their time. */
enum {
    PREFETCH_IN_STORE = 2,    /* of a key and a value */
    PREFETCH_IN_ROPE = 3,     /* and QK norm, of a query */
    PREFETCH_IN_QUANTIZE = 2, /* of a query */
    PREFETCH_IN_SCORE = 10,   /* its dot products with 16 keys */
    PREFETCH_IN_SOFTMAX = 4,
    PREFETCH_IN_SUM = 12,     /* of 16 values, weighted */
    PREFETCH_HEAD_DIM = 64, PREFETCH_VECS = PREFETCH_HEAD_DIM / LANES, GROUPS_OF_BLOCK = LANES / 4,
};
_Static_assert((PREFETCH_IN_STORE + PREFETCH_IN_ROPE + PREFETCH_IN_QUANTIZE + PREFETCH_IN_SCORE + PREFETCH_IN_SOFTMAX
                + PREFETCH_IN_SUM) * 64 == KV_INT8_BLOCK_BYTES(PREFETCH_HEAD_DIM), "the stages together prefetch one block");
_Static_assert(PREFETCH_IN_SUM % GROUPS_OF_BLOCK == 0 && PREFETCH_IN_SUM / GROUPS_OF_BLOCK <= PREFETCH_VECS,
               "weighted_sum prefetches at most one line after each vector of values");

/* The lines for each block of a stage that goes through all of head_dim at once. */
INLINE int prefetch_budget(const Model *m, int lines) { return lines * m->d / PREFETCH_HEAD_DIM; }

INLINE const char *prefetch_advance(const char *prefetched, int lines) {
    for (int line = 0; line < lines; line++, prefetched += 64) prefetch_line(prefetched, 0);
    return prefetched;
}

/* A 128-bit lane, four times. */
INLINE ivec broadcast_lane(const int32_t *sixteen) {
#if defined(__AVX512F__)
    return (ivec)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)sixteen));
#else
    ivec all;
    for (int i = 0; i < 4; i++) memcpy((char *)&all + i * LANES, sixteen, LANES);
    return all;
#endif
}

/* Partial sums of four groups of tokens -> the sums of 16 tokens, in an order that `unshuffle_tokens` undoes. */
INLINE ivec sum_groups4(const ivec *groups) {
#if defined(__AVX512F__)
    const __m512i *g = (const __m512i *)groups;
    __m512i low = _mm512_add_epi32(_mm512_unpacklo_epi32(g[0], g[1]), _mm512_unpackhi_epi32(g[0], g[1]));
    __m512i high = _mm512_add_epi32(_mm512_unpacklo_epi32(g[2], g[3]), _mm512_unpackhi_epi32(g[2], g[3]));
    return (ivec)_mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
#else
    ivec sums;
    for (int i = 0; i < LANES; i++) {
        const int32_t *group = (const int32_t *)(groups + i % 4) + i / 4 * 4;
        sums[i] = group[0] + group[1] + group[2] + group[3];
    }
    return sums;
#endif
}
INLINE vec unshuffle_tokens(vec sums) {
#if defined(__AVX512F__)
    return (vec)_mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), (__m512)sums);
#else
    vec sorted;
    for (int i = 0; i < LANES; i++) sorted[i] = sums[i % 4 * 4 + i / 4];
    return sorted;
#endif
}

/* Scores of a query with the keys of GROUPS groups of 4 tokens: of a block or its beginning, or of two. */
INLINE void score_int8(const int GROUPS, Query *query, ivec high_offset, ivec low_offset, const uint8_t *keys,
                        size_t stride, size_t group_stride, int n_vecs, vec *scores) {
    ivec high[8] = {{0}}, low[8] = {{0}};
#pragma GCC unroll 8
    for (int f = 0; f < GROUPS; f++) high[f] = high_offset, low[f] = low_offset;
    for (int i = 0; i < n_vecs; i++, keys += 64) {
        ivec high_limb = broadcast_lane(query->high + 4 * i), low_limb = broadcast_lane(query->low + 4 * i);
        query->prefetched = prefetch_advance(query->prefetched, GROUPS * PREFETCH_IN_SCORE / (GROUPS_OF_BLOCK * PREFETCH_VECS));
#pragma GCC unroll 8
        for (int f = 0; f < GROUPS; f++) {
            ivec k = *(const ivec *)(keys + f / 4 * stride + f % 4 * group_stride);
            high[f] = dot4(high[f], k, high_limb), low[f] = dot4(low[f], k, low_limb);
        }
    }
#pragma GCC unroll 2
    for (int b = 0; b < (GROUPS + 3) / 4; b++) scores[b] = unshuffle_tokens(combine_bytes(sum_groups4(high + 4 * b), sum_groups4(low + 4 * b)));
}

/* out[0 .. 16 N_VECS) = weights @ values of the groups begin ... end - 1; `values`: of the first block. */
INLINE void accumulate_values_int8(const int N_VECS, Query *query, const uint8_t *values, size_t stride, size_t group_stride, int begin, int end,
                       vec *out, float scale) {
    ivec high[4] = {{0}}, low[4] = {{0}};
    for (int first = begin; first < end; first += 4, values += stride) {
        const uint8_t *group = values;
        int stop = first + 4 < end ? first + 4 : end;
        for (int j = first; j < stop; j++, group += group_stride) {
            const ivec *groups = (const ivec *)group;
            ivec high_limb = query->high[j] - (ivec){0}, low_limb = query->low[j] - (ivec){0};
#pragma GCC unroll 4
            for (int b = 0; b < N_VECS; b++) {
                high[b] = dot4(high[b], high_limb, groups[b]), low[b] = dot4(low[b], low_limb, groups[b]);
                if (b < PREFETCH_IN_SUM / GROUPS_OF_BLOCK) query->prefetched = prefetch_advance(query->prefetched, 1);
            }
        }
    }
#pragma GCC unroll 4
    for (int b = 0; b < N_VECS; b++) out[b] = combine_bytes(high[b], low[b]) * scale;
}

static void quantize_query(const Model *m, Query *query, const float *q) {
    float magnitude = absmax(q, m->d), factor = magnitude > 0 ? ACTIVATION_QMAX / magnitude : 0;
    query->scale = magnitude / ACTIVATION_QMAX;
    for (int i = 0; i < m->d; i += LANES)
        split_signed(round_to_int(*(const vec *)(q + i) * factor), query->high + i / 4, query->low + i / 4);
}

enum { OF_KEYS, OF_VALUES };
INLINE vec kv_scales(const Model *m, const Query *query, int block, int kind) {
    const uint16_t *scales = (const uint16_t *)(query->scales + block * block_stride(m)) + kind * LANES;
    return (vec)(__builtin_convertvector(*(const u16x16 *)scales, uvec) << 16);
}

/* Scores of blocks begin ... end - 1, masked to keys first ... last, and their maximum. */
static void score_keys(const Model *m, Query *query, int begin, int end, int first, int last) {
    int n_vecs = m->d / LANES, k = begin, groups = last % LANES / 4 + 1;
    size_t stride = block_stride(m), group_stride = group4_stride(m);
    const ivec offset = (int32_t)0x80808080 - (ivec){0}; /* their zero point */
    ivec high = {0}, low = {0};
    vec *scores = query->scores;
    for (int i = 0; i < n_vecs; i++) {
        high = dot4(high, offset, broadcast_lane(query->high + 4 * i));
        low = dot4(low, offset, broadcast_lane(query->low + 4 * i));
    }
#define SCORE(GROUPS) score_int8(GROUPS, query, -high, -low, query->keys + k * stride, stride, group_stride, n_vecs, scores + k)
    for (; k + 2 < end; k += 2) SCORE(8);
    if (k + 2 == end) { SCORE(4); k++; }
    switch (groups) {
    case 4: SCORE(4); break;
    case 3: SCORE(3); break;
    case 2: SCORE(2); break;
    default: SCORE(1);
    }
#undef SCORE
    for (k = begin; k < end; k++) scores[k] *= query->scale * kv_scales(m, query, k, OF_KEYS);
    mask_scores((float *)scores, begin * LANES, first, last, end * LANES);
    query->maximum = max_between((const float *)scores, begin * LANES, end * LANES);
}

/* exp(score - maximum) times the scale of the value; the maximum of these, and 1 / the sum of the former. */
static void softmax_scores(const Model *m, Query *query, int begin, int end) {
    vec total = {0}, maxima = {0}, *scores = query->scores;
    for (int k = begin; k < end; k++) {
        vec weight = exp_scores(scores[k], query->maximum);
        query->prefetched = prefetch_advance(query->prefetched, prefetch_budget(m, PREFETCH_IN_SOFTMAX));
        total += weight;
        scores[k] = weight *= kv_scales(m, query, k, OF_VALUES); /* masked tokens have zero or stale scales, which are finite */
        maxima = vmax(maxima, weight);
    }
    query->maximum = hmax(maxima), query->inv_sum = 1 / hsum(total);
}

/* Softmax weights, quantized, @ values up to `last`. */
static void weighted_sum(const Model *m, Query *query, int begin, int end, int last, float *out) {
    float factor = query->maximum > 0 ? WEIGHT_QMAX / query->maximum : 0, scale = query->inv_sum * query->maximum / WEIGHT_QMAX;
    for (int k = begin; k < end; k++) {
        ivec q = round_to_int(query->scores[k] * factor);
        u8x16 high_bytes = __builtin_convertvector(q >> 8, u8x16), low_bytes = __builtin_convertvector(q & 255, u8x16);
        memcpy(query->high + k * 4, &high_bytes, LANES), memcpy(query->low + k * 4, &low_bytes, LANES);
    }
    size_t stride = block_stride(m), group_stride = group4_stride(m);
    const uint8_t *values = query->values + begin * stride;
    int b = 0, n_vecs = m->d / LANES, first_group = begin * 4, stop = last / 4 + 1;
#define ACCUMULATE(N_VECS)                                                                                                   \
    accumulate_values_int8(N_VECS, query, values + b * 64, stride, group_stride, first_group, stop, (vec *)out + b, scale)
    for (; b + 4 <= n_vecs; b += 4) ACCUMULATE(4);
    for (; b + 2 <= n_vecs; b += 2) ACCUMULATE(2);
    if (b < n_vecs) ACCUMULATE(1);
#undef ACCUMULATE
}

/* Attention of query heads begin_head ... end_head - 1 of a row, prefetching from `prefetched` to `stop`. Several heads go through
   each stage together: a single one is bound by latency. */
static void attend_int8(const ForwardContext *p, int row, int begin_head, int end_head, const char *prefetched, const char *stop) {
    enum { MAX_BATCH = 8 };
    enum { QUANTIZE, SCORE, SOFTMAX, SUM, N_STAGES };
    const Model *m = p->model;
    const Network *net = &m->net;
    int d = net->head_dim, d_padded = m->d, group = net->n_head / net->n_kv_head, last = p->rows[row].position;
    int first = window_start(net, last), begin = first / LANES, end = last / LANES + 1, limb_words = (m->s + 3 * d_padded) / 4;
    int batch = end_head - begin_head < MAX_BATCH ? end_head - begin_head : MAX_BATCH;
    float q[batch * d_padded] __attribute__((aligned(64))), scores[batch * m->s] __attribute__((aligned(64)));
    int32_t limbs[batch * 2 * limb_words] __attribute__((aligned(64)));
    Query queries[MAX_BATCH];
    for (int h = begin_head; h < end_head; h += batch) {
        int n = end_head - h < batch ? end_head - h : batch;
        for (int i = 0; i < n; i++) {
            norm_rope_head(m, qkv_of(p, row) + (h + i) * d, m->packed[p->layer].q_norm, last, 1.0f / sqrtf((float)d), q + i * d_padded);
            if (prefetched < stop) prefetched = prefetch_advance(prefetched, prefetch_budget(m, PREFETCH_IN_ROPE) * (end - begin));
            int g = (h + i) / group;
            const uint8_t *cache = (const uint8_t *)cache_of(p, row);
            queries[i] = (Query){.keys = cache + keys_at(m, g), .scales = cache + scales_at(g), .values = cache + values_at(m, g),
                                 .scores = (vec *)(scores + i * m->s), .high = limbs + 2 * i * limb_words,
                                 .low = limbs + (2 * i + 1) * limb_words};
        }
        for (int stage = QUANTIZE; stage < N_STAGES; stage++)
            for (int i = 0; i < n; i++) {
                Query *query = &queries[i];
                bool prefetching = prefetched < stop;
                /* Keys are in the cache already: their prefetch costs nothing. */
                query->prefetched = prefetching ? prefetched : (const char *)query->keys + begin * block_stride(m);
                switch (stage) {
                case QUANTIZE:
                    quantize_query(m, query, q + i * d_padded);
                    query->prefetched = prefetch_advance(query->prefetched, prefetch_budget(m, PREFETCH_IN_QUANTIZE) * (end - begin));
                    break;
                case SCORE: score_keys(m, query, begin, end, first, last); break;
                case SOFTMAX: softmax_scores(m, query, begin, end); break;
                case SUM: weighted_sum(m, query, begin, end, last, q + i * d_padded);
                }
                if (prefetching) prefetched = query->prefetched;
            }
        for (int i = 0; i < n; i++) memcpy(y_of(p, row) + (h + i) * d, q + i * d_padded, d * sizeof *q);
    }
}
