/* Keys and values in bytes, for models whose weights are in fewer bits: a text then reads a quarter of what it would in fp32, and of many
   texts that is most of what is read at all.

   A key or value is rounded to 127 steps of its own from 0 to its largest; queries and the weights of keys to 2^15 and 2^16,
   as two digits. So scores and sums are of integers, exact in any order. (The blocks of 32 numbers with a scale of their own
   in which llama.cpp keeps a cache, Q8_0, are the same thing.)

   A block of 16 keys and values: their steps in bf16, (G, 2, 16); then of each four tokens, for each head, keys as
   (D / 16, 4, 16), counted from -128, and values as (D, 4), D padded. Fours that have not been begun are the end of the last
   block, and never read; steps are, and keys and values of the last four: they are zero or old, and weigh nothing. */

#define MOST_WEIGHT 65280.0f /* 255 * 256 */

enum { STEPS = 2 * LANES * sizeof(uint16_t) };
static size_t byte_block(const Model *m) { return STEPS + 2 * LANES * m->d; }

/* Where the steps, keys and values of head g begin in a block, and four tokens later. */
INLINE size_t fours_apart(const Model *m) { return m->net.n_kv_head * (size_t)(8 * m->d); }
INLINE size_t steps_at(int g) { return g * STEPS; }
INLINE size_t keys_at(const Model *m, int g) { return steps_at(m->net.n_kv_head) + g * (size_t)(8 * m->d); }
INLINE size_t values_at(const Model *m, int g) { return keys_at(m, g) + 4 * m->d; }

/* The bytes of a layer that a text of so many tokens has written. */
INLINE size_t kv_bytes_used(const Model *m, int tokens) {
    int blocks = (tokens - 1) / LANES, group4 = (tokens - 1) % LANES / 4 + 1;
    return blocks * block_stride(m) + keys_at(m, 0) + group4 * fours_apart(m);
}

/* The step of which what is to be kept is at most 127: the next bf16 up. */
INLINE float step_of(float most, uint16_t *kept) {
    float step = most / 127;
    uint32_t bits;
    memcpy(&bits, &step, sizeof bits);
    bits = (bits + 0xffff) & 0xffff0000, *kept = (uint16_t)(bits >> 16);
    memcpy(&step, &bits, sizeof bits);
    return step;
}

/* As `kv_store`, of key/value head g. */
static void kv_store_int8(const Model *m, const float *key, const float *value, int lane, int g, uint8_t *block) {
    int wide = m->d, shift = lane % 4 * 8;
    uint16_t *steps = (uint16_t *)(block + steps_at(g)) + lane;
    float of_key = step_of(absmax(key, wide), steps), of_value = step_of(absmax(value, wide), steps + LANES);
    float factor = of_key > 0 ? 1 / of_key : 0;
    block += lane / 4 * fours_apart(m);
    uint8_t *keys = block + keys_at(m, g) + lane % 4 * LANES;
    for (int i = 0; i < wide; i += LANES, keys += 4 * LANES) {
        bytes sixteen = __builtin_convertvector(round_to_int(*(const vec *)(key + i) * factor) + 128, bytes);
        memcpy(keys, &sixteen, LANES);
    }
    factor = of_value > 0 ? 1 / of_value : 0;
    const int32_t mask = (int32_t)(255u << shift);
    ivec *words = (ivec *)(block + values_at(m, g));
    for (int i = 0; i < wide; i += LANES, words++)
        *words = (*words & ~mask) | ((round_to_int(*(const vec *)(value + i) * factor) & 255) << shift);
}

/* The whole numbers in `steps` as a high digit with a sign and a low one, 16 of each. */
INLINE void split_signed(ivec steps, int32_t *high, int32_t *low) {
    ivec rest = ((steps + 128) & 255) - 128;
    bytes more = __builtin_convertvector((steps - rest) >> 8, bytes), less = __builtin_convertvector(rest, bytes);
    memcpy(high, &more, LANES), memcpy(low, &less, LANES);
}

typedef struct { /* one query on its way */
    const uint8_t *keys, *steps, *values;
    const char *ahead;   /* the next line to ask for, of what is looked at next */
    vec *scores;         /* (S / 16) */
    int32_t *high, *low; /* digits of the query, then of the weights of its keys, four in a word */
    float step, top, share;
} Query;

/* What is read next comes from far away, and only while it is asked for: some of it with all that is computed, a line of it for
   each line that is read here would leave nothing to do for the memory later on. */
INLINE const char *prefetch_advance(const char *ahead, int lines) {
    for (int line = 0; line < lines; line++, ahead += 64) prefetch_line(ahead, 0);
    return ahead;
}

/* Lines are asked for in proportion to what else there is to do. Of the 33 that a block has where heads are 64 wide it is 22 with
   the products; 2 while a key is kept, 3 while a query is placed, 2 while it is split, 4 while keys are weighed. Of other widths
   as many in proportion. */
INLINE int prefetch_budget(const Model *m, int lines) { return lines * m->d / 64; }

/* 16 bytes, four times. */
INLINE ivec four_times(const int32_t *sixteen) {
#if defined(__AVX512F__)
    return (ivec)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)sixteen));
#else
    ivec all;
    for (int i = 0; i < 4; i++) memcpy((char *)&all + i * LANES, sixteen, LANES);
    return all;
#endif
}

/* Of sums of four tokens each, in four parts one after another: the sums of 16 tokens. */
INLINE ivec totals(const ivec *parts) {
#if defined(__AVX512F__)
    const __m512i *of = (const __m512i *)parts;
    __m512i low = _mm512_add_epi32(_mm512_unpacklo_epi32(of[0], of[1]), _mm512_unpackhi_epi32(of[0], of[1]));
    __m512i high = _mm512_add_epi32(_mm512_unpacklo_epi32(of[2], of[3]), _mm512_unpackhi_epi32(of[2], of[3]));
    return (ivec)_mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
#else
    ivec sums;
    for (int i = 0; i < LANES; i++) {
        const int32_t *four = (const int32_t *)(parts + i % 4) + i / 4 * 4;
        sums[i] = four[0] + four[1] + four[2] + four[3];
    }
    return sums;
#endif
}
INLINE vec in_order(vec sums) {
#if defined(__AVX512F__)
    return (vec)_mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), (__m512)sums);
#else
    vec sorted;
    for (int i = 0; i < LANES; i++) sorted[i] = sums[i % 4 * 4 + i / 4];
    return sorted;
#endif
}

/* Scores of a query with the keys of FOURS times four tokens: of a block or its beginning, or of two. */
INLINE void score_bytes(const int FOURS, Query *of, ivec high_offset, ivec low_offset, const uint8_t *keys,
                        size_t stride, size_t apart, int parts, vec *scores) {
    ivec high[8] = {{0}}, low[8] = {{0}};
#pragma GCC unroll 8
    for (int f = 0; f < FOURS; f++) high[f] = high_offset, low[f] = low_offset;
    for (int i = 0; i < parts; i++, keys += 64) {
        ivec of_high = four_times(of->high + 4 * i), of_low = four_times(of->low + 4 * i);
        of->ahead = prefetch_advance(of->ahead, FOURS * 5 / 8);
#pragma GCC unroll 8
        for (int f = 0; f < FOURS; f++) {
            ivec k = *(const ivec *)(keys + f / 4 * stride + f % 4 * apart);
            high[f] = add_products(high[f], k, of_high), low[f] = add_products(low[f], k, of_low);
        }
    }
#pragma GCC unroll 2
    for (int b = 0; b < (FOURS + 3) / 4; b++) scores[b] = in_order(combine_bytes(totals(high + 4 * b), totals(low + 4 * b)));
}

/* out[0 .. 16 PARTS) of the values `begin` ... end - 1 in fours, of which those of the first block are at `values`. */
INLINE void add_values(const int PARTS, Query *of, const uint8_t *values, size_t stride, size_t apart, int begin, int end,
                       vec *out, float share) {
    ivec high[4] = {{0}}, low[4] = {{0}};
    for (int first = begin; first < end; first += 4, values += stride) {
        const uint8_t *four = values;
        int stop = first + 4 < end ? first + 4 : end;
        for (int j = first; j < stop; j++, four += apart) {
            const ivec *group4 = (const ivec *)four;
            ivec of_high = of->high[j] - (ivec){0}, of_low = of->low[j] - (ivec){0};
#pragma GCC unroll 4
            for (int b = 0; b < PARTS; b++) {
                high[b] = add_products(high[b], of_high, group4[b]), low[b] = add_products(low[b], of_low, group4[b]);
                if (b < 3) of->ahead = prefetch_advance(of->ahead, 1);
            }
        }
    }
#pragma GCC unroll 4
    for (int b = 0; b < PARTS; b++) out[b] = combine_bytes(high[b], low[b]) * share;
}

static void quantize_query(const Model *m, Query *of, const float *q) {
    float top = absmax(q, m->d), factor = top > 0 ? MOST_STEPS / top : 0;
    of->step = top / MOST_STEPS;
    for (int i = 0; i < m->d; i += LANES)
        split_signed(round_to_int(*(const vec *)(q + i) * factor), of->high + i / 4, of->low + i / 4);
}

INLINE vec steps_of(const Model *m, const Query *of, int block, int which) {
    const uint16_t *steps = (const uint16_t *)(of->steps + block * block_stride(m)) + which * LANES;
    return (vec)(__builtin_convertvector(*(const shorts *)steps, uvec) << 16);
}

/* Scores of blocks begin ... end - 1, of which keys first ... last are seen, and the largest. */
static void score_keys(const Model *m, Query *of, int begin, int end, int first, int last) {
    int parts = m->d / LANES, k = begin, group4 = last % LANES / 4 + 1;
    size_t stride = block_stride(m), apart = fours_apart(m);
    const ivec offset = (int32_t)0x80808080 - (ivec){0}; /* what keys are counted from */
    ivec high = {0}, low = {0};
    vec *scores = of->scores;
    for (int i = 0; i < parts; i++) {
        high = add_products(high, offset, four_times(of->high + 4 * i));
        low = add_products(low, offset, four_times(of->low + 4 * i));
    }
#define SCORE(FOURS) score_bytes(FOURS, of, -high, -low, of->keys + k * stride, stride, apart, parts, scores + k)
    for (; k + 2 < end; k += 2) SCORE(8);
    if (k + 2 == end) { SCORE(4); k++; }
    switch (group4) {
    case 4: SCORE(4); break;
    case 3: SCORE(3); break;
    case 2: SCORE(2); break;
    default: SCORE(1);
    }
#undef SCORE
    for (k = begin; k < end; k++) scores[k] *= of->step * steps_of(m, of, k, 0);
    mask_scores((float *)scores, begin * LANES, first, last, end * LANES);
    of->top = most_between((const float *)scores, begin * LANES, end * LANES);
}

/* e^score, times the step of the value; the largest. */
static void softmax_scores(const Model *m, Query *of, int begin, int end) {
    vec total = {0}, most = {0}, *scores = of->scores;
    for (int k = begin; k < end; k++) {
        vec weight = weights_of(scores[k], of->top);
        of->ahead = prefetch_advance(of->ahead, prefetch_budget(m, 4));
        total += weight;
        scores[k] = weight *= steps_of(m, of, k, 1); /* those of what is hidden are zero or old, and finite */
        most = vmax(most, weight);
    }
    of->top = hmax(most), of->share = 1 / hsum(total);
}

/* The sum of the values up to `last`, weighed. */
static void weighted_sum(const Model *m, Query *of, int begin, int end, int last, float *out) {
    float factor = of->top > 0 ? MOST_WEIGHT / of->top : 0, share = of->share * of->top / MOST_WEIGHT;
    for (int k = begin; k < end; k++) {
        ivec steps = round_to_int(of->scores[k] * factor);
        bytes more = __builtin_convertvector(steps >> 8, bytes), less = __builtin_convertvector(steps & 255, bytes);
        memcpy(of->high + k * 4, &more, LANES), memcpy(of->low + k * 4, &less, LANES);
    }
    size_t stride = block_stride(m), apart = fours_apart(m);
    const uint8_t *values = of->values + begin * stride;
    int b = 0, parts = m->d / LANES, first_four = begin * 4, stop = last / 4 + 1;
    vec *to = (vec *)out;
    for (; b + 4 <= parts; b += 4) add_values(4, of, values + b * 64, stride, apart, first_four, stop, to + b, share);
    for (; b + 2 <= parts; b += 2) add_values(2, of, values + b * 64, stride, apart, first_four, stop, to + b, share);
    if (b < parts) add_values(1, of, values + b * 64, stride, apart, first_four, stop, to + b, share);
}

/* Heads begin ... end - 1 of a row look back, and ask for what lies from `ahead` to `stop`. One query waits for itself most of
   the time: some go side by side. */
static void attend_int8(const ForwardContext *p, int row, int begin_head, int end_head, const char *ahead, const char *stop) {
    enum { SOME = 8 };
    const Model *m = p->model;
    const Network *net = &m->net;
    int d = net->head_dim, wide = m->d, group = net->n_head / net->n_kv_head, last = p->rows[row].position;
    int first = window_start(net, last), begin = first / LANES, end = last / LANES + 1, words = (m->s + 3 * wide) / 4;
    int some = end_head - begin_head < SOME ? end_head - begin_head : SOME;
    float q[some * wide] __attribute__((aligned(64))), scores[some * m->s] __attribute__((aligned(64)));
    int32_t limbs[some * 2 * words] __attribute__((aligned(64)));
    Query queries[SOME];
    for (int h = begin_head; h < end_head; h += some) {
        int n = end_head - h < some ? end_head - h : some;
        for (int i = 0; i < n; i++) {
            norm_rope_head(m, qkv_of(p, row) + (h + i) * d, m->packed[p->layer].q_norm, last, 1.0f / sqrtf((float)d), q + i * wide);
            if (ahead < stop) ahead = prefetch_advance(ahead, prefetch_budget(m, 3) * (end - begin));
            int g = (h + i) / group;
            const uint8_t *cache = (const uint8_t *)cache_of(p, row);
            queries[i] = (Query){.keys = cache + keys_at(m, g), .steps = cache + steps_at(g), .values = cache + values_at(m, g),
                                 .scores = (vec *)(scores + i * m->s), .high = limbs + 2 * i * words,
                                 .low = limbs + (2 * i + 1) * words};
        }
        for (int stage = 0; stage < 4; stage++)
            for (int i = 0; i < n; i++) {
                Query *of = &queries[i];
                bool more = ahead < stop;
                of->ahead = more ? ahead : (const char *)of->keys + begin * block_stride(m); /* near: asking costs nothing */
                switch (stage) {
                case 0:
                    quantize_query(m, of, q + i * wide);
                    of->ahead = prefetch_advance(of->ahead, prefetch_budget(m, 2) * (end - begin));
                    break;
                case 1: score_keys(m, of, begin, end, first, last); break;
                case 2: softmax_scores(m, of, begin, end); break;
                case 3: weighted_sum(m, of, begin, end, last, q + i * wide);
                }
                if (more) ahead = of->ahead;
            }
        for (int i = 0; i < n; i++) memcpy(y_of(p, row) + (h + i) * d, q + i * wide, d * sizeof *q);
    }
}
