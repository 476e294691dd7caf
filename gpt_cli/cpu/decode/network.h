/* The network, the texts that it reads, and a pass of rows through it. */

#define MAX_ROWS 64 /* rows in one pass through the layers */
enum { MIN_AMX_ROWS = 8 };  /* rows from which on threads share them, and tiles pay */

/* The network. bindings.py fills it in, in this order; a pointer is NULL where the model has no such part. */
typedef struct {
    MODEL_FIELDS;
    int32_t post_norm, format, threads, tiles; /* tiles: whether AMX's may be used */
    NETWORK_PARAMETERS(AS_POINTER)             /* positions (context, C): sinusoids, too, added to the stream */
    const float *cosines, *sines;              /* (context, D / 2): rotary */
} Network;

typedef struct { BLOCK_PARAMETERS(AS_POINTER) } Layer;

typedef struct {
    Matrix qkv, out, gate, up, down;
    float *norm1, *norm1_bias, *norm2, *norm2_bias, *q_norm, *k_norm; /* padded */
} Packed;

typedef struct {
    Network net;
    Packed *packed;
    Matrix head;
    char *weights; /* of all matrices */
    float *norm, *norm_bias;
    int c, f, d, s; /* C, F, D, S padded */
    size_t block_bytes; /* of 16 keys and values of a head, see attention.h and kv_int8.h */
    bool tiles, bytes; /* bytes: keys and values are kept in them */
    bool fits_l2; /* the weights stay in a core's own cache: sharing an operation would cost more than it saves */
    Pool pool;
} Model;

typedef struct { /* one text */
    int32_t *window; /* the tokens that the model sees: at most a context */
    int length, cached;
    bool active;
    char *cache; /* keys and values: (layer, S / 16) blocks of all heads, see attention.h and kv_int8.h */
    uint32_t twister[624];
    int drawn;
    float *noise; /* (ahead, V padded): of the coming steps */
    int ahead;
} Sequence;

typedef struct {
    Sequence *stream;
    int position, token;
    float *logits; /* where they go, NULL if nobody asks */
} BatchToken;

typedef struct { /* room for one pass, and who computes it */
    Model *model;
    Pool *pool; /* NULL: the caller alone */
    char *memory; /* of all that follows */
    float *x, *h, *qkv, *y, *hidden, *gates, *logits, *steps;
    uint8_t *limbs; /* for those of all rows */
    int qkv_stride, y_stride; /* y: what the heads of each row saw. It mostly lies in qkv, as what is hidden does: see layout_workspace */
} Workspace;

typedef struct {
    const Workspace *room;
    const Model *model;
    const BatchToken *rows;
    int n, layer;
    bool last;
    const float *gain, *gain_bias, *from; /* what `prepare_rows` normalises, and reads */
    int from_stride;
    const Matrix *matrix;
    GemmInput in;
    float *out;
    int out_stride;
    bool add;
} ForwardContext;

/* Stages that treat each row by itself: few rows are not worth handing over. */
static void for_rows(ForwardContext *p, Work work) { parallel_for(p->n < MIN_AMX_ROWS ? NULL : p->room->pool, p->n, work, p); }

INLINE vec raised(const int POWER, vec x) {
    if (POWER == 2) x *= x;
    return x;
}

/* The sum of (n,) differences from `mean`, or of their squares: in four vectors, since one would wait for itself. */
INLINE float sum_around(const int POWER, const float *x, float mean, int n) {
    vec sums[4] = {{0}};
    int i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) sums[j] += raised(POWER, *(const vec *)(x + i + j * LANES) - mean);
    for (; i + LANES <= n; i += LANES) sums[0] += raised(POWER, *(const vec *)(x + i) - mean);
    float sum = hsum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < n; i++) sum += POWER == 2 ? (x[i] - mean) * (x[i] - mean) : x[i] - mean;
    return sum;
}

/* (n, C) -> (n, C): over the mean square (Zhang and Sennrich, 2019) or the variance (Ba et al., 2016). */
static void normalise(const Model *m, const float *gain, const float *bias, const float *x, float *y, int n) {
    int width = m->net.n_embd;
    for (int r = 0; r < n; r++, x += m->c, y += m->c) {
        float mean = m->net.layernorm ? sum_around(1, x, 0, width) / width : 0;
        float factor = 1.0f / sqrtf(sum_around(2, x, mean, width) / width + m->net.norm_eps);
        for (int i = 0; i < m->c; i += LANES) { /* what pads the gain is zero */
            vec scaled = (*(const vec *)(x + i) - mean) * factor * *(const vec *)(gain + i);
            if (bias) scaled += *(const vec *)(bias + i);
            *(vec *)(y + i) = scaled;
        }
    }
}

/* Rows as the product reads them: normalised where there is a gain, and for int8 in whole numbers. */
static void prepare_rows(void *context, int begin, int end) {
    ForwardContext *p = context;
    const Model *m = p->model;
    const float *from = p->from + (size_t)begin * p->from_stride;
    float *h = (float *)p->in.x + (size_t)begin * m->c;
    if (m->net.format == FP32) {
        if (p->gain) normalise(m, p->gain, p->gain_bias, from, h, end - begin);
        return;
    }
    int inputs = p->matrix->inputs, filled = padded(inputs, LANES);
    for (int r = begin; r < end; r++, from += p->from_stride) {
        uint8_t *row_tile = row_of_strip(p->room->limbs, inputs, r);
        uint8_t *to = p->room->limbs + (size_t)r * p->in.digit_stride;
        const float *x = from;
        if (p->gain) normalise(m, p->gain, p->gain_bias, from, h, 1), x = h; /* one row of it stays near */
        if (m->net.format == BF16 && p->in.strips) round_into_strip(x, inputs, row_tile);
        else if (m->net.format == BF16) round_to_bf16(x, filled, (float *)to);
        else p->room->steps[r] = p->in.strips ? quantise_into_strip(x, inputs, row_tile) : quantize_rows(x, filled, to);
    }
}

/* What `matrix` is multiplied by: `from`, normalised into h where there is a gain. */
static void prepare_input(ForwardContext *p, const Matrix *matrix, const float *from, int stride, const float *gain, const float *gain_bias) {
    const Model *m = p->model;
    bool strips = m->tiles && p->n >= MIN_AMX_ROWS;
    p->matrix = matrix, p->from = from, p->from_stride = stride, p->gain = gain, p->gain_bias = gain_bias;
    p->in = (GemmInput){.x = gain ? p->room->h : from, .stride = stride};
    bool floats = m->net.format == BF16 ? !strips : m->net.format == INT8 && !INTEGERS;
    if (m->net.format != FP32) {
        int wide = padded(matrix->inputs, LANES);
        p->in.limbs = p->room->limbs, p->in.steps = p->room->steps, p->in.strips = strips;
        p->in.digit_stride = strips ? strip_bytes(matrix->inputs) : (floats ? 4 : 2) * wide;
    }
    if (gain || m->net.format != FP32) for_rows(p, prepare_rows);
    if (floats) p->in.x = (const float *)p->room->limbs, p->in.stride = p->in.digit_stride / 4;
}

/* Whether what is hidden is left where the next product reads it, and as that reads it. */
INLINE bool hides_into_strips(const ForwardContext *p) { return p->model->net.format == BF16 && p->in.strips; }

/* Where that is: in the place of the queries, keys and values of the last rows, which were read last. */
INLINE uint8_t *strips_of_hidden(const ForwardContext *p) {
    size_t bytes_ = (size_t)padded(p->n, STRIP) * strip_bytes(p->model->net.mlp_hidden);
    size_t done = (size_t)p->n * p->room->qkv_stride * sizeof(float);
    return (uint8_t *)p->room->qkv + (done > bytes_ ? done - bytes_ : 0);
}

/* `prepare_input` for what `mlp_up` left. */
static void give_hidden(ForwardContext *p, const Matrix *matrix) {
    if (hides_into_strips(p)) {
        p->matrix = matrix;
        p->in.limbs = strips_of_hidden(p), p->in.digit_stride = strip_bytes(matrix->inputs);
    } else {
        prepare_input(p, matrix, p->room->hidden, p->model->f, NULL, NULL);
    }
}

static void product(void *context, int begin, int end) {
    ForwardContext *p = context;
    gemm(p->matrix, p->model->net.format, begin, end, p->n, &p->in, p->out, p->out_stride, p->add);
}

/* out (+)= what was given, times its matrix. */
static void linear(ForwardContext *p, float *out, int out_stride, bool add) {
    p->out = out, p->out_stride = out_stride, p->add = add;
    parallel_for(p->room->pool, p->matrix->panels, product, p);
}

/* The widened half of the MLP: up, gate and activation of some panels. */
static void mlp_up(void *context, int begin, int end) {
    ForwardContext *p = context;
    const Model *m = p->model;
    const Packed *layer = &m->packed[p->layer];
    float *hidden = p->room->hidden, *gates = p->room->gates;
    if (m->net.mlp == SWIGLU) gemm(&layer->gate, m->net.format, begin, end, p->n, &p->in, gates, m->f, false);
    if (p->in.strips) {
        ActivationEpilogue to = {.mlp = m->net.mlp, .gates = gates, .stride = m->f};
        if (hides_into_strips(p)) to.limbs = strips_of_hidden(p), to.digit_stride = strip_bytes(m->net.mlp_hidden);
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
