/* A pass of rows through all layers. */

static void embed(void *context, int begin, int end) {
    ForwardContext *p = context;
    const Network *net = &p->model->net;
    for (int r = begin; r < end; r++) {
        const float *token = net->tokens + (size_t)p->rows[r].token * net->n_embd;
        const float *place = net->positions ? net->positions + (size_t)p->rows[r].position * net->n_embd : NULL;
        float *x = p->room->x + (size_t)r * p->model->c;
        for (int i = 0; i < net->n_embd; i++) x[i] = token[i] * net->embedding_scale + (place ? place[i] : 0);
    }
}

/* The norms of a model that has them after its branches. */
static void normalise_stream(void *context, int begin, int end) {
    ForwardContext *p = context;
    float *x = p->room->x + (size_t)begin * p->model->c;
    normalise(p->model, p->gain, p->gain_bias, x, x, end - begin);
}

/* Leave out the rows whose logits nobody asks for: after the last layer's keys and values nothing else needs them. */
static void compact_rows(ForwardContext *p, BatchToken *kept) {
    size_t c = p->model->c, apart = p->room->y_stride;
    float *x = p->room->x, *y = p->room->y;
    int wanted = 0;
    for (int r = 0; r < p->n; r++) {
        if (!p->rows[r].logits) continue;
        memmove(x + wanted * c, x + r * c, c * sizeof *x);
        memmove(y + wanted * apart, y + r * apart, p->model->net.n_embd * sizeof *y);
        kept[wanted++] = p->rows[r];
    }
    p->n = wanted, p->rows = kept;
}

static void copy_logits(void *context, int begin, int end) {
    ForwardContext *p = context;
    const Network *net = &p->model->net;
    int stride = p->model->head.panels * PANEL;
    for (int r = begin; r < end; r++) {
        float *from = p->room->logits + (size_t)r * stride;
        if (net->softcap > 0)
            for (int i = 0; i < stride; i += LANES) {
                vec x = *(vec *)(from + i) / net->softcap; /* tanh x = 2 sigmoid(2x) - 1 */
                *(vec *)(from + i) = net->softcap * (2.0f * sigmoid(2.0f * x) - 1.0f);
            }
        memcpy(p->rows[r].logits, from, net->vocab_size * sizeof *from);
    }
}

/* The logits of those of up to MAX_ROWS rows that ask for them. Rows of one stream stand in the order of positions,
   and continue what its cache holds. */
static void forward(const Workspace *room, const BatchToken *rows, int n) {
    const Model *m = room->model;
    const Network *net = &m->net;
    BatchToken kept[MAX_ROWS];
    ForwardContext pass = {.room = room, .model = m, .rows = rows, .n = n};
    ForwardContext *p = &pass;
    for_rows(p, embed);
    for (int l = 0; l < net->n_layer; l++) {
        const Packed *layer = &m->packed[l];
        bool before = !net->post_norm;
        p->layer = l, p->last = l == net->n_layer - 1;
        prepare_input(p, &layer->qkv, room->x, m->c, before ? layer->norm1 : NULL, layer->norm1_bias);
        linear(p, room->qkv, room->qkv_stride, false);
        attend_all(p);
        if (p->last) compact_rows(p, kept);
        if (!p->n) return;
        prepare_input(p, &layer->out, room->y, room->y_stride, NULL, NULL);
        linear(p, room->x, m->c, true);
        p->gain = layer->norm1, p->gain_bias = layer->norm1_bias;
        if (!before) for_rows(p, normalise_stream);
        prepare_input(p, &layer->up, room->x, m->c, before ? layer->norm2 : NULL, layer->norm2_bias);
        parallel_for(room->pool, layer->up.panels, mlp_up, p);
        give_hidden(p, &layer->down);
        linear(p, room->x, m->c, true);
        p->gain = layer->norm2, p->gain_bias = layer->norm2_bias;
        if (!before) for_rows(p, normalise_stream);
    }
    prepare_input(p, &m->head, room->x, m->c, m->norm, m->norm_bias);
    linear(p, room->logits, m->head.panels * PANEL, false);
    for_rows(p, copy_logits);
}
