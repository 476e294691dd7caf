/* Keys and values in bytes, for models whose weights are in fewer bits: a text then reads a quarter of what it would in fp32, and of many
   texts that is most of what is read at all.

   A key or value is rounded to 127 steps of its own from 0 to its largest; queries and the weights of keys to 2^15 and 2^16,
   as two digits. So scores and sums are of integers, exact in any order. (The blocks of 32 numbers with a scale of their own
   in which llama.cpp keeps a cache, Q8_0, are the same thing.)

   A block of 16 keys and values: keys as (D / 4, 16, 4), counted from -128; the steps of the keys and of the values; values as
   (4, D padded, 4). */

#define MOST_WEIGHT 65280.0f /* 255 * 256 */

INLINE int key_width(const Model *m) { return padded(m->net.head_dim, 4); }
INLINE size_t steps_at(const Model *m) { return LANES * key_width(m); }
INLINE size_t values_at(const Model *m) { return steps_at(m) + 2 * sizeof(vec); }
static size_t byte_block(const Model *m) { return values_at(m) + LANES * m->d; }

/* As `keep`. */
static void keep_bytes(const Model *m, const float *key, const float *value, int lane, uint8_t *block) {
    int wide = m->d, deep = key_width(m), shift = lane % 4 * 8;
    float *steps = (float *)(block + steps_at(m)) + lane;
    float of_key = most_absolute(key, wide), of_value = most_absolute(value, wide);
    float factor = of_key > 0 ? 127 / of_key : 0;
    steps[0] = of_key / 127, steps[LANES] = of_value / 127;
    for (int i = 0; i < wide; i += LANES) {
        bytes four = __builtin_convertvector(whole(*(const vec *)(key + i) * factor) + 128, bytes);
        for (int j = 0; j < LANES && i + j < deep; j += 4)
            memcpy(block + (i + j) * LANES + lane * 4, (const char *)&four + j, 4);
    }
    factor = of_value > 0 ? 127 / of_value : 0;
    ivec *words = (ivec *)(block + values_at(m) + lane / 4 * 4 * wide);
    for (int i = 0; i < wide; i += LANES, words++)
        *words = (*words & ~(255 << shift)) | ((whole(*(const vec *)(value + i) * factor) & 255) << shift);
}

/* The whole numbers in `steps` as a high digit with a sign and a low one, 16 of each. */
INLINE void split_signed(ivec steps, int32_t *high, int32_t *low) {
    ivec rest = ((steps + 128) & 255) - 128;
    bytes more = __builtin_convertvector((steps - rest) >> 8, bytes), less = __builtin_convertvector(rest, bytes);
    memcpy(high, &more, LANES), memcpy(low, &less, LANES);
}

INLINE vec joined(ivec high, ivec low) {
    return 256.0f * __builtin_convertvector(high, vec) + __builtin_convertvector(low, vec);
}

typedef struct { /* one query on its way */
    const uint8_t *cache;
    const char *ahead;   /* the next line to ask for, of what is looked at next */
    vec *scores;         /* (S / 16) */
    int32_t *high, *low; /* digits of the query, then of the weights of its keys, four in a word */
    float step, top, share;
} Query;

/* What is read next comes from far away, and only while it is asked for: some of it with all that is computed, a line of it for
   each line that is read here would leave nothing to do for the memory later on. */
INLINE const char *expect_next(const char *ahead, int lines) {
    for (int line = 0; line < lines; line++, ahead += 64) expect_line(ahead, 0);
    return ahead;
}

/* Half of the lines of a block are asked for with the products, a sixth each with the weights, while a query is made ready and
   while a key is kept: so many of each block. */
INLINE int share_of_lines(const Model *m) { return ((int)m->block_bytes / 64 / 2 + 1) / 3; }

/* Products of a query's digits with BLOCKS blocks of keys. */
INLINE void score_bytes(const int BLOCKS, Query *of, ivec high_offset, ivec low_offset, const uint8_t *block,
                        size_t stride, int fours, vec *scores) {
    ivec high[4], low[4];
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; b++) high[b] = high_offset, low[b] = low_offset;
    for (int i = 0; i < fours; i++) {
        ivec of_high = of->high[i] - (ivec){0}, of_low = of->low[i] - (ivec){0};
        if (BLOCKS == 2 || i % 2) of->ahead = expect_next(of->ahead, 1);
#pragma GCC unroll 4
        for (int b = 0; b < BLOCKS; b++) {
            const ivec *four = (const ivec *)(block + b * stride) + i;
            ivec k = *four;
            high[b] = add_products(high[b], k, of_high), low[b] = add_products(low[b], k, of_low);
        }
    }
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; b++) scores[b] = joined(high[b], low[b]);
}

/* out[0 .. 16 PARTS) of the values in blocks begin ... end - 1, the first of which is at `values`. */
INLINE void add_values(const int PARTS, Query *of, const uint8_t *values, size_t stride, int parts, int begin, int end,
                       vec *out, float share) {
    ivec high[4] = {{0}}, low[4] = {{0}};
    for (int k = begin; k < end; k++, values += stride) {
        const ivec *fours = (const ivec *)values;
        for (int j = 4 * k; j < 4 * k + 4; j++, fours += parts) {
            ivec of_high = of->high[j] - (ivec){0}, of_low = of->low[j] - (ivec){0};
#pragma GCC unroll 4
            for (int b = 0; b < PARTS; b++) {
                high[b] = add_products(high[b], of_high, fours[b]), low[b] = add_products(low[b], of_low, fours[b]);
                if (b % 2 == 0) of->ahead = expect_next(of->ahead, 1);
            }
        }
    }
#pragma GCC unroll 4
    for (int b = 0; b < PARTS; b++) out[b] = joined(high[b], low[b]) * share;
}

static void take_query(const Model *m, Query *of, const float *q) {
    float top = most_absolute(q, m->d), factor = top > 0 ? MOST_STEPS / top : 0;
    of->step = top / MOST_STEPS;
    for (int i = 0; i < m->d; i += LANES)
        split_signed(whole(*(const vec *)(q + i) * factor), of->high + i / 4, of->low + i / 4);
}

INLINE vec steps_of(const Model *m, const Query *of, int block, int which) {
    return ((const vec *)(of->cache + block * block_stride(m) + steps_at(m)))[which];
}

/* Scores of blocks begin ... end - 1, of which keys first ... last are seen, and the largest. */
static void score_keys(const Model *m, Query *of, int begin, int end, int first, int last) {
    int fours = key_width(m) / 4, k = begin;
    size_t stride = block_stride(m);
    const ivec offset = (int32_t)0x80808080 - (ivec){0}; /* what keys are counted from */
    ivec high = {0}, low = {0};
    vec *scores = of->scores;
    for (int i = 0; i < fours; i++) {
        high = add_products(high, offset, of->high[i] - (ivec){0});
        low = add_products(low, offset, of->low[i] - (ivec){0});
    }
    for (; k + 2 <= end; k += 2) score_bytes(2, of, -high, -low, of->cache + k * stride, stride, fours, scores + k);
    if (k < end) score_bytes(1, of, -high, -low, of->cache + k * stride, stride, fours, scores + k);
    for (k = begin; k < end; k++) scores[k] *= of->step * steps_of(m, of, k, 0);
    hide((float *)scores, begin * LANES, first, last, end * LANES);
    of->top = most_between((const float *)scores, begin * LANES, end * LANES);
}

/* e^score, times the step of the value; the largest. */
static void weigh(const Model *m, Query *of, int begin, int end) {
    vec total = {0}, most = {0}, *scores = of->scores;
    for (int k = begin; k < end; k++) {
        vec weight = weights_of(scores[k], of->top);
        of->ahead = expect_next(of->ahead, share_of_lines(m));
        total += weight;
        scores[k] = weight *= steps_of(m, of, k, 1); /* those of what is hidden are zero or old, and finite */
        most = larger(most, weight);
    }
    of->top = most_of(most), of->share = 1 / sum_of(total);
}

/* The sum of values, weighed. */
static void gather(const Model *m, Query *of, int begin, int end, float *out) {
    float factor = of->top > 0 ? MOST_WEIGHT / of->top : 0, share = of->share * of->top / MOST_WEIGHT;
    for (int k = begin; k < end; k++) {
        ivec steps = whole(of->scores[k] * factor);
        bytes more = __builtin_convertvector(steps >> 8, bytes), less = __builtin_convertvector(steps & 255, bytes);
        memcpy(of->high + k * 4, &more, LANES), memcpy(of->low + k * 4, &less, LANES);
    }
    size_t stride = block_stride(m);
    const uint8_t *values = of->cache + begin * stride + values_at(m);
    int b = 0, parts = m->d / LANES;
    vec *to = (vec *)out;
    for (; b + 4 <= parts; b += 4) add_values(4, of, values + b * 64, stride, parts, begin, end, to + b, share);
    for (; b + 2 <= parts; b += 2) add_values(2, of, values + b * 64, stride, parts, begin, end, to + b, share);
    if (b < parts) add_values(1, of, values + b * 64, stride, parts, begin, end, to + b, share);
}

/* Heads begin ... end - 1 of a row look back, and ask for what lies from `ahead` to `stop`. One query waits for itself most of
   the time: some go side by side. */
static void look_at_bytes(const Pass *p, int row, int begin_head, int end_head, const char *ahead, const char *stop) {
    enum { SOME = 8 };
    const Model *m = p->model;
    const Network *net = &m->net;
    int d = net->head_dim, wide = m->d, group = net->n_head / net->n_kv_head, last = p->rows[row].position;
    int first = first_seen(net, last), begin = first / LANES, end = last / LANES + 1, words = (m->s + 3 * wide) / 4;
    int some = end_head - begin_head < SOME ? end_head - begin_head : SOME;
    float q[some * wide] __attribute__((aligned(64))), scores[some * m->s] __attribute__((aligned(64)));
    int32_t digits[some * 2 * words] __attribute__((aligned(64)));
    Query queries[SOME];
    for (int h = begin_head; h < end_head; h += some) {
        int n = end_head - h < some ? end_head - h : some;
        for (int i = 0; i < n; i++) {
            place_head(m, qkv_of(p, row) + (h + i) * d, m->packed[p->layer].q_norm, last, 1.0f / sqrtf((float)d), q + i * wide);
            queries[i] = (Query){.cache = (const uint8_t *)cache_of(p, row, (h + i) / group),
                                 .scores = (vec *)(scores + i * m->s), .high = digits + 2 * i * words,
                                 .low = digits + (2 * i + 1) * words};
        }
        for (int stage = 0; stage < 4; stage++)
            for (int i = 0; i < n; i++) {
                Query *of = &queries[i];
                bool more = ahead < stop;
                of->ahead = more ? ahead : (const char *)of->cache; /* that is near: asking for it costs nothing */
                switch (stage) {
                case 0:
                    take_query(m, of, q + i * wide);
                    of->ahead = expect_next(of->ahead, share_of_lines(m) * (end - begin));
                    break;
                case 1: score_keys(m, of, begin, end, first, last); break;
                case 2: weigh(m, of, begin, end); break;
                case 3: gather(m, of, begin, end, q + i * wide);
                }
                if (more) ahead = of->ahead;
            }
        for (int i = 0; i < n; i++) memcpy(p->room->y + (size_t)row * m->c + (h + i) * d, q + i * wide, d * sizeof *q);
    }
}
