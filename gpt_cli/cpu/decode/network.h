/* Sequences, a batch of their tokens, and the operations of its forward pass: norms, matrix products and the MLP. */

enum { MIN_AMX_ROWS = 8 };  /* from this many rows on threads split rows, and AMX pays */

typedef struct { /* one text */
    int32_t *tokens; /* in the context window, at most context_length */
    int length, cached; /* of them; those whose keys and values are in the cache */
    bool active;
    char *cache; /* KV cache: (layer, S / 16) blocks of all heads, see attention.h and kv_int8.h */
    uint32_t mt[624]; /* Mersenne Twister */
    int mt_index;
    float *noise; /* (V padded,): Gumbel noise of the step */
} Sequence;

typedef struct {
    Sequence *sequence;
    int position, token;
    float *logits; /* output, NULL if not wanted */
} BatchToken;

typedef struct {
    const Workspace *ws;
    const Model *model;
    const BatchToken *rows;
    int n, layer;
    bool last;
    const float *gain, *gain_bias, *from; /* input of `prepare_rows`, and its norm */
    int from_stride;
    const Matrix *matrix;
    GemmInput in;
    float *out;
    int out_stride;
    bool add;
} ForwardContext;

/* Row-wise stages: few rows are not worth a parallel loop. */
static void for_rows(ForwardContext *p, Work work) { parallel_for(p->n < MIN_AMX_ROWS ? NULL : p->ws->pool, p->n, work, p); }

INLINE vec power(const int POWER, vec x) {
    if (POWER == 2) x *= x;
    return x;
}

/* sum (x - mean)^POWER of (n,): in four accumulators, to hide the latency of additions. */
INLINE float sum_deviations(const int POWER, const float *x, float mean, int n) {
    vec sums[4] = {{0}};
    int i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) sums[j] += power(POWER, *(const vec *)(x + i + j * LANES) - mean);
    for (; i + LANES <= n; i += LANES) sums[0] += power(POWER, *(const vec *)(x + i) - mean);
    float sum = hsum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < n; i++) sum += POWER == 2 ? (x[i] - mean) * (x[i] - mean) : x[i] - mean;
    return sum;
}

/* (n, C) -> (n, C): RMSNorm (Zhang and Sennrich, 2019) or LayerNorm (Ba et al., 2016). */
static void norm_rows(const Model *m, const float *gain, const float *bias, const float *x, float *y, int n) {
    int width = m->net.n_embd;
    for (int r = 0; r < n; r++, x += m->c, y += m->c) {
        float mean = m->net.layernorm ? sum_deviations(1, x, 0, width) / width : 0;
        float factor = 1.0f / sqrtf(sum_deviations(2, x, mean, width) / width + m->net.norm_eps);
        for (int i = 0; i < m->c; i += LANES) { /* the padding of the gain is zero */
            vec scaled = (*(const vec *)(x + i) - mean) * factor * *(const vec *)(gain + i);
            if (bias) scaled += *(const vec *)(bias + i);
            *(vec *)(y + i) = scaled;
        }
    }
}

/* Rows as GEMM reads them: normalised if there is a gain, quantized for int8, rounded for bf16. */
static void prepare_rows(void *context, int begin, int end) {
    ForwardContext *p = context;
    const Model *m = p->model;
    const float *from = p->from + (size_t)begin * p->from_stride;
    float *h = (float *)p->in.x + (size_t)begin * m->c;
    if (m->net.format == FP32) {
        if (p->gain) norm_rows(m, p->gain, p->gain_bias, from, h, end - begin);
        return;
    }
    int inputs = p->matrix->inputs, filled = padded(inputs, LANES);
    for (int r = begin; r < end; r++, from += p->from_stride) {
        uint8_t *row_tile = row_of_tile(p->ws->packed_rows, inputs, r);
        uint8_t *to = p->ws->packed_rows + (size_t)r * p->in.packed_stride;
        const float *x = from;
        if (p->gain) norm_rows(m, p->gain, p->gain_bias, from, h, 1), x = h; /* stays in L1 */
        if (m->net.format == BF16 && p->in.in_tiles) round_into_tile(x, inputs, row_tile);
        else if (m->net.format == BF16) round_to_bf16(x, filled, to);
        else p->ws->row_scales[r] = p->in.in_tiles ? quantize_into_tile(x, inputs, row_tile) : quantize_rows(x, filled, to);
    }
}

/* The input of the next `linear`: `from`, normalised into h if there is a gain, in the format of `matrix`. */
static void prepare_input(ForwardContext *p, const Matrix *matrix, const float *from, int stride, const float *gain, const float *gain_bias) {
    const Model *m = p->model;
    bool in_tiles = m->use_amx && p->n >= MIN_AMX_ROWS;
    p->matrix = matrix, p->from = from, p->from_stride = stride, p->gain = gain, p->gain_bias = gain_bias;
    p->in = (GemmInput){.x = gain ? p->ws->h : from, .stride = stride};
    bool floats = m->net.format == BF16 ? !in_tiles && !BF16_DOT : m->net.format == INT8 && !INT8_DOT;
    if (m->net.format != FP32) {
        int wide = padded(matrix->inputs, LANES);
        p->in.packed_rows = p->ws->packed_rows, p->in.row_scales = p->ws->row_scales, p->in.in_tiles = in_tiles;
        p->in.packed_stride = in_tiles ? tile_row_stride(matrix->inputs) : (floats ? 4 : 2) * wide;
    }
    if (gain || m->net.format != FP32) for_rows(p, prepare_rows);
    if (floats) p->in.x = (const float *)p->ws->packed_rows, p->in.stride = p->in.packed_stride / 4;
}

/* True if `mlp_up` writes its output in the tile layout that the down projection reads. */
INLINE bool hidden_in_tiles(const ForwardContext *p) { return p->model->net.format == BF16 && p->in.in_tiles; }

/* Where: over qkv, aligned to its end, so that rows are overwritten after they were read. */
INLINE uint8_t *hidden_tiles(const ForwardContext *p) {
    size_t n_bytes = (size_t)padded(p->n, TILE_ROWS) * tile_row_stride(p->model->net.mlp_hidden);
    size_t done = (size_t)p->n * p->ws->qkv_stride * sizeof(float);
    return (uint8_t *)p->ws->qkv + (done > n_bytes ? done - n_bytes : 0);
}

/* `prepare_input` for the output of `mlp_up`. */
static void prepare_hidden(ForwardContext *p, const Matrix *matrix) {
    if (hidden_in_tiles(p)) {
        p->matrix = matrix;
        p->in.packed_rows = hidden_tiles(p), p->in.packed_stride = tile_row_stride(matrix->inputs);
    } else {
        prepare_input(p, matrix, p->ws->hidden, p->model->f, NULL, NULL);
    }
}

static void gemm_worker(void *context, int begin, int end) {
    ForwardContext *p = context;
    gemm(p->matrix, p->model->net.format, begin, end, p->n, &p->in, p->out, p->out_stride, p->add);
}

/* out (+)= prepared input @ W^T + bias */
static void linear(ForwardContext *p, float *out, int out_stride, bool add) {
    p->out = out, p->out_stride = out_stride, p->add = add;
    parallel_for(p->ws->pool, p->matrix->panels, gemm_worker, p);
}

/* Up and gate projections and the activation of the MLP, panels begin ... end - 1. */
static void mlp_up(void *context, int begin, int end) {
    ForwardContext *p = context;
    const Model *m = p->model;
    const PackedLayer *layer = &m->packed[p->layer];
    float *hidden = p->ws->hidden, *gates = p->ws->gates;
    if (m->net.mlp == SWIGLU) gemm(&layer->gate, m->net.format, begin, end, p->n, &p->in, gates, m->f, false);
    if (p->in.in_tiles) {
        ActivationEpilogue to = {.mlp = m->net.mlp, .gates = gates, .stride = m->f};
        if (hidden_in_tiles(p)) to.packed_rows = hidden_tiles(p), to.packed_stride = tile_row_stride(m->net.mlp_hidden);
        gemm_amx(&layer->up, m->net.format, begin, end, p->n, &p->in, (GemmOutput){.y = hidden, .stride = m->f, .hidden = &to});
        return;
    }
    gemm(&layer->up, m->net.format, begin, end, p->n, &p->in, hidden, m->f, false);
    for (int r = 0; r < p->n; r++) {
        vec *x = (vec *)(hidden + (size_t)r * m->f);
        const vec *gate = (const vec *)(gates + (size_t)r * m->f);
        FOR_MLP(m->net.mlp, for (int i = begin * 2; i < end * 2; i++) x[i] = activate(MLP, x[i], gate[i]))
    }
}
