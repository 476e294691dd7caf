/* The network, and a pass through its layers. */

#define MAX_ROWS 64    /* rows in one pass through the layers */

enum { RELU, GELU, SWIGLU, RELU2 };

/* The network. decoder.py fills it in, in this order; a pointer is NULL where the model has no such part. */
typedef struct {
    int32_t n_layer, n_head, n_kv_head, head_dim, n_embd, mlp_hidden, vocab_size, context_length;
    int32_t layernorm, post_norm, mlp, window; /* window: 0 is all */
    int32_t format, threads;
    float norm_eps, softcap, embedding_scale; /* softcap: 0 is off */
    const float *tokens;    /* (V, C) */
    const float *positions; /* (context, C): learned or sinusoids, added to the stream */
    const float *cosines, *sines; /* (context, D / 2): rotary */
    const float *norm, *norm_bias, *head;
} Network;

typedef struct { /* of one layer, as gpt_cli/model names them */
    const float *norm1, *norm1_bias, *qkv, *qkv_bias, *q_norm, *k_norm, *out, *out_bias;
    const float *norm2, *norm2_bias, *up, *up_bias, *down, *down_bias; /* up: of SwiGLU gate and up, 2F */
} Layer;

typedef struct {
    Matrix qkv, out, gate, up, down;
} Packed;

typedef struct {
    Network net;
    Layer *layers; /* their norms; the matrices are in `packed` */
    Packed *packed;
    Matrix head;
    int c, f, d, s; /* C, F, D, S padded */
    Pool pool;
} Model;

typedef struct { /* one text */
    int32_t *window; /* the tokens that the model sees: at most a context */
    int length, cached;
    bool active;
    float *keys, *values; /* [layer][G][D][S] and [layer][G][S][D], padded: a vector holds 16 keys, or 16 dimensions */
    uint32_t twister[624];
    int drawn;
    float *noise; /* (ahead, V padded): of the coming steps */
    int ahead;
} Stream;

typedef struct {
    Stream *stream;
    int position, token;
    float *logits; /* where they go, NULL if nobody asks */
} Row;

typedef struct {
    Model *model;
    const Row *rows;
    int n, layer;
    bool last;
    float *x, *h, *qkv, *y, *hidden, *gates;
    uint8_t *digits; /* room for those of all rows, and for their steps */
    float *steps;
    const Matrix *matrix;
    Input in;
    float *out;
    int out_stride;
    bool add;
} Pass;

/* (n, C) -> (n, C): over the mean square (Zhang and Sennrich, 2019) or the variance (Ba et al., 2016). */
static void normalise(const Model *m, const float *gain, const float *bias, const float *x, float *y, int n) {
    int width = m->net.n_embd;
    for (int r = 0; r < n; r++, x += m->c, y += m->c) {
        float mean = 0;
        if (m->net.layernorm) {
            vec total = {0};
            for (int i = 0; i < m->c; i += LANES) total += *(const vec *)(x + i);
            mean = sum_of(total) / width;
        }
        vec square = {0};
        int i = 0;
        for (; i + LANES <= width; i += LANES) {
            vec centred = *(const vec *)(x + i) - mean;
            square += centred * centred;
        }
        float rest = sum_of(square);
        for (; i < width; i++) rest += (x[i] - mean) * (x[i] - mean);
        float factor = 1.0f / sqrtf(rest / width + m->net.norm_eps);
        if (bias)
            for (int j = 0; j < width; j++) y[j] = (x[j] - mean) * factor * gain[j] + bias[j];
        else
            for (int j = 0; j < width; j++) y[j] = (x[j] - mean) * factor * gain[j];
    }
}

static Input input(Pass *p, const Matrix *matrix, const float *x, int stride) {
    if (p->model->net.format != INT8) return (Input){.x = x, .stride = stride};
    int inputs = padded(matrix->inputs, LANES), size = INTEGERS ? 2 : 4;
    for (int r = 0; r < p->n; r++)
        p->steps[r] = quantise(x + (size_t)r * stride, inputs, p->digits + (size_t)r * size * inputs);
    return (Input){.x = (const float *)p->digits, .stride = inputs, .digits = p->digits, .steps = p->steps,
                   .digit_stride = size * inputs};
}

static void product(void *context, int begin, int end) {
    Pass *p = context;
    multiply(p->matrix, p->model->net.format, begin, end, p->n, &p->in, p->out, p->out_stride, p->add);
}

static void linear(Pass *p, const Matrix *matrix, const float *in, int in_stride, float *out, int out_stride, bool add) {
    p->matrix = matrix, p->in = input(p, matrix, in, in_stride), p->out = out, p->out_stride = out_stride, p->add = add;
    share_out(&p->model->pool, matrix->panels, product, p);
}

/* The widened half of the MLP: up, gate and activation of some panels. */
static void widen(void *context, int begin, int end) {
    Pass *p = context;
    const Model *m = p->model;
    const Packed *layer = &m->packed[p->layer];
    multiply(&layer->up, m->net.format, begin, end, p->n, &p->in, p->hidden, m->f, false);
    if (m->net.mlp == SWIGLU) multiply(&layer->gate, m->net.format, begin, end, p->n, &p->in, p->gates, m->f, false);
    for (int r = 0; r < p->n; r++)
        for (int i = begin * PANEL; i < end * PANEL; i += LANES) {
            vec *at = (vec *)(p->hidden + (size_t)r * m->f + i);
            vec x = *at;
            switch (m->net.mlp) {
            case SWIGLU: {
                vec gate = *(vec *)(p->gates + (size_t)r * m->f + i);
                *at = gate * sigmoid(gate) * x;
                break;
            }
            case GELU: /* the approximation by tanh, of which this is another spelling */
                *at = x * sigmoid(x * (1.5957691216f + 0.0713548163f * x * x));
                break;
            case RELU: *at = larger(x, (vec){0}); break;
            case RELU2: *at = larger(x, (vec){0}) * larger(x, (vec){0}); break;
            }
        }
}
