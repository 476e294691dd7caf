/* The forward pass. */

static void embed(void *context, int begin, int end) {
    ForwardContext *p = context;
    const Network *net = &p->model->net;
    for (int r = begin; r < end; r++) {
        const float *token = net->tokens + (size_t)p->rows[r].token * net->n_embd;
        const float *position = net->positions ? net->positions + (size_t)p->rows[r].position * net->n_embd : NULL;
        float *x = p->ws->x + (size_t)r * p->model->c;
        for (int i = 0; i < net->n_embd; i++) x[i] = token[i] * net->embedding_scale + (position ? position[i] : 0);
    }
}

/* Post-norm. */
static void post_norm_rows(void *context, int begin, int end) {
    ForwardContext *p = context;
    float *x = p->ws->x + (size_t)begin * p->model->c;
    norm_rows(p->model, p->gain, p->gain_bias, x, x, end - begin);
}

/* Drop the rows whose logits are not wanted: after the last layer's keys and values nothing reads them. */
static void compact_rows(ForwardContext *p, BatchToken *compacted) {
    size_t c = p->model->c, y_stride = p->ws->y_stride;
    float *x = p->ws->x, *y = p->ws->y;
    int wanted = 0;
    for (int r = 0; r < p->n; r++) {
        if (!p->rows[r].logits) continue;
        memmove(x + wanted * c, x + r * c, c * sizeof *x);
        memmove(y + wanted * y_stride, y + r * y_stride, p->model->net.n_embd * sizeof *y);
        compacted[wanted++] = p->rows[r];
    }
    p->n = wanted, p->rows = compacted;
}

static void copy_logits(void *context, int begin, int end) {
    ForwardContext *p = context;
    const Network *net = &p->model->net;
    int stride = p->model->head.panels * PANEL;
    for (int r = begin; r < end; r++) {
        float *from = p->ws->logits + (size_t)r * stride;
        if (net->softcap > 0)
            for (int i = 0; i < stride; i += LANES) {
                vec x = *(vec *)(from + i) / net->softcap; /* tanh x = 2 sigmoid(2x) - 1 */
                *(vec *)(from + i) = net->softcap * (2.0f * sigmoid(2.0f * x) - 1.0f);
            }
        memcpy(p->rows[r].logits, from, net->vocab_size * sizeof *from);
    }
}

/* The logits of up to MAX_ROWS rows, where wanted. Rows of one sequence are in the order of positions, and follow its cache. */
static void forward(const Workspace *ws, const BatchToken *rows, int n) {
    const Model *m = ws->model;
    const Network *net = &m->net;
    BatchToken compacted[MAX_ROWS];
    ForwardContext pass = {.ws = ws, .model = m, .rows = rows, .n = n};
    ForwardContext *p = &pass;
    for_rows(p, embed);
    for (int l = 0; l < net->n_layer; l++) {
        const PackedLayer *layer = &m->packed[l];
        bool before = !net->post_norm;
        p->layer = l, p->last = l == net->n_layer - 1;
        prepare_input(p, &layer->qkv, ws->x, m->c, before ? layer->norm1 : NULL, layer->norm1_bias);
        linear(p, ws->qkv, ws->qkv_stride, false);
        attend_all(p);
        if (p->last) compact_rows(p, compacted);
        if (!p->n) return;
        prepare_input(p, &layer->out, ws->y, ws->y_stride, NULL, NULL);
        linear(p, ws->x, m->c, true);
        p->gain = layer->norm1, p->gain_bias = layer->norm1_bias;
        if (!before) for_rows(p, post_norm_rows);
        prepare_input(p, &layer->up, ws->x, m->c, before ? layer->norm2 : NULL, layer->norm2_bias);
        parallel_for(ws->pool, layer->up.panels, mlp_up, p);
        prepare_hidden(p, &layer->down);
        linear(p, ws->x, m->c, true);
        p->gain = layer->norm2, p->gain_bias = layer->norm2_bias;
        if (!before) for_rows(p, post_norm_rows);
    }
    prepare_input(p, &m->head, ws->x, m->c, m->norm, m->norm_bias);
    linear(p, ws->logits, m->head.panels * PANEL, false);
    for_rows(p, copy_logits);
}
