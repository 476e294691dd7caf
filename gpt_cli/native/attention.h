/* Attention over the keys and values that each text keeps. */

/* Normalise and rotate one head, from (D,) to the padded (D,). */
static void place_head(const Model *m, const float *x, const float *gain, int position, float *to) {
    int d = m->net.head_dim, half = d / 2;
    float factor = 1;
    if (gain) {
        vec squares = {0};
        float square = 0;
        int i = 0;
        for (; i + LANES <= d; i += LANES) squares += *(const loose *)(x + i) * *(const loose *)(x + i);
        for (; i < d; i++) square += x[i] * x[i];
        factor = 1.0f / sqrtf((square + sum_of(squares)) / d + m->net.norm_eps);
        for (int i = 0; i < d; i++) to[i] = x[i] * factor * gain[i];
    } else {
        memcpy(to, x, d * sizeof *to);
    }
    if (m->net.cosines) {
        const float *cosine = m->net.cosines + (size_t)position * half, *sine = m->net.sines + (size_t)position * half;
        for (int i = 0; i < half; i++) {
            float a = to[i], b = to[half + i];
            to[i] = a * cosine[i] - b * sine[i];
            to[half + i] = b * cosine[i] + a * sine[i];
        }
    }
}

/* scores[0..16 BLOCKS) of one query for BLOCKS vectors of keys. */
INLINE void score(const int BLOCKS, const float *q, int d, const float *keys, int stride, float *scores) {
    vec sums[4] = {{0}};
    for (int i = 0; i < d; i++)
#pragma GCC unroll 4
        for (int b = 0; b < BLOCKS; b++) sums[b] += q[i] * ((const vec *)(keys + (size_t)i * stride))[b];
    for (int b = 0; b < BLOCKS; b++) ((vec *)scores)[b] = sums[b];
}

/* One query over keys first ... last -> (D,). `scores` has room for S padded. */
static void attend(const Model *m, const float *q, const float *keys, const float *values, int first, int last,
                   float *scores, float *out) {
    int begin = first / LANES * LANES, end = padded(last + 1, LANES), d = m->d;
    int k = begin;
    for (; k + 4 * LANES <= end; k += 4 * LANES) score(4, q, m->net.head_dim, keys + k, m->s, scores + k);
    for (; k < end; k += LANES) score(1, q, m->net.head_dim, keys + k, m->s, scores + k);
    for (int i = begin; i < first; i++) scores[i] = -INFINITY;
    for (int i = last + 1; i < end; i++) scores[i] = -INFINITY;
    vec most = *(vec *)(scores + begin), total = {0};
    for (k = begin + LANES; k < end; k += LANES) most = larger(most, *(vec *)(scores + k));
    float top = most_of(most);
    for (k = begin; k < end; k += LANES) {
        vec weight = exponential(*(vec *)(scores + k) - top);
        *(vec *)(scores + k) = weight = pick(*(vec *)(scores + k) == splat(-INFINITY), (vec){0}, weight);
        total += weight;
    }
    float share = 1.0f / sum_of(total);
    for (int block = 0; block < d; block += LANES) {
        vec sums[4] = {{0}};
        for (k = first; k + 4 <= last + 1; k += 4)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) sums[j] += scores[k + j] * *(const vec *)(values + (size_t)(k + j) * d + block);
        for (; k <= last; k++) sums[0] += scores[k] * *(const vec *)(values + (size_t)k * d + block);
        *(vec *)(out + block) = ((sums[0] + sums[1]) + (sums[2] + sums[3])) * share;
    }
}

/* Attention of key/value heads begin ... end - 1: keys and values of all rows are kept, in their order, and each row
   looks back from its position. In the last layer only the rows whose logits are wanted look. */
static void attention(void *context, int begin, int end) {
    Pass *p = context;
    const Model *m = p->model;
    const Network *net = &m->net;
    const Layer *layer = &m->layers[p->layer];
    int d = net->head_dim, group = net->n_head / net->n_kv_head;
    int stride = padded((net->n_head + 2 * net->n_kv_head) * d, PANEL);
    float q[m->d] __attribute__((aligned(64))), key[m->d] __attribute__((aligned(64)));
    float out[m->d] __attribute__((aligned(64))), scores[m->s] __attribute__((aligned(64)));
    for (int g = begin; g < end; g++)
        for (int r = 0; r < p->n; r++) {
            const Row *row = &p->rows[r];
            size_t at = ((size_t)p->layer * net->n_kv_head + g) * m->s * m->d;
            float *keys = row->stream->keys + at, *values = row->stream->values + at;
            const float *of_row = p->qkv + (size_t)r * stride;
            place_head(m, of_row + (net->n_head + g) * d, layer->k_norm, row->position, key);
            for (int i = 0; i < d; i++) keys[(size_t)i * m->s + row->position] = key[i];
            const float *value = of_row + (net->n_head + net->n_kv_head + g) * d;
            memcpy(values + (size_t)row->position * m->d, value, d * sizeof *value);
            if (p->last && !row->logits) continue;
            int first = net->window && row->position >= net->window ? row->position - net->window + 1 : 0;
            for (int h = g * group; h < (g + 1) * group; h++) {
                place_head(m, of_row + h * d, layer->q_norm, row->position, q);
                float shrink = 1.0f / sqrtf((float)d);
                for (int i = 0; i < d; i++) q[i] *= shrink;
                attend(m, q, keys, values, first, row->position, scores, out);
                memcpy(p->y + (size_t)r * m->c + h * d, out, d * sizeof *out);
            }
        }
}
