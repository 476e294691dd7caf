/* A pass of rows through all layers. */

typedef struct { /* room for one pass, and who writes */
    Model *model;
    float *x, *h, *qkv, *y, *hidden, *gates, *logits, *steps;
    uint8_t *digits;
} Room;

/* The logits of those of up to MAX_ROWS rows that ask for them. Rows of one stream stand in the order of positions,
   and continue what its cache holds. */
static void forward(Room *room, const Row *rows, int n) {
    Model *m = room->model;
    const Network *net = &m->net;
    Row kept[MAX_ROWS];
    Pass pass = {.model = m, .rows = rows, .n = n, .x = room->x, .h = room->h, .qkv = room->qkv, .y = room->y,
                 .hidden = room->hidden, .gates = room->gates,
                 .digits = room->digits, .steps = room->steps};
    Pass *p = &pass;
    for (int r = 0; r < n; r++) {
        const float *token = net->tokens + (size_t)rows[r].token * net->n_embd;
        const float *place = net->positions ? net->positions + (size_t)rows[r].position * net->n_embd : NULL;
        for (int i = 0; i < net->n_embd; i++)
            p->x[(size_t)r * m->c + i] = token[i] * net->embedding_scale + (place ? place[i] : 0);
    }
    int qkv_stride = padded((net->n_head + 2 * net->n_kv_head) * net->head_dim, PANEL);
    for (int l = 0; l < net->n_layer; l++) {
        const Layer *layer = &m->layers[l];
        const Packed *packed = &m->packed[l];
        p->layer = l, p->last = l == net->n_layer - 1;
        if (!net->post_norm) normalise(m, layer->norm1, layer->norm1_bias, p->x, p->h, p->n);
        linear(p, &packed->qkv, net->post_norm ? p->x : p->h, m->c, p->qkv, qkv_stride, false);
        share_out(&m->pool, net->n_kv_head, attention, p);
        if (p->last) { /* what nobody asks for needs no more than its keys and values */
            int wanted = 0;
            for (int r = 0; r < n; r++)
                if (rows[r].logits) {
                    memmove(p->x + (size_t)wanted * m->c, p->x + (size_t)r * m->c, m->c * sizeof *p->x);
                    memmove(p->y + (size_t)wanted * m->c, p->y + (size_t)r * m->c, m->c * sizeof *p->y);
                    kept[wanted++] = rows[r];
                }
            p->n = wanted;
            if (!wanted) return;
        }
        linear(p, &packed->out, p->y, m->c, p->x, m->c, true);
        if (net->post_norm) normalise(m, layer->norm1, layer->norm1_bias, p->x, p->x, p->n);
        if (net->post_norm) memcpy(p->h, p->x, (size_t)p->n * m->c * sizeof *p->x);
        else normalise(m, layer->norm2, layer->norm2_bias, p->x, p->h, p->n);
        p->in = input(p, &packed->up, p->h, m->c);
        share_out(&m->pool, packed->up.panels, widen, p);
        linear(p, &packed->down, p->hidden, m->f, p->x, m->c, true);
        if (net->post_norm) normalise(m, layer->norm2, layer->norm2_bias, p->x, p->x, p->n);
    }
    if (!net->post_norm) normalise(m, net->norm, net->norm_bias, p->x, p->x, p->n);
    int stride = m->head.panels * PANEL;
    linear(p, &m->head, p->x, m->c, room->logits, stride, false);
    for (int r = 0; r < p->n; r++) {
        float *from = room->logits + (size_t)r * stride;
        if (net->softcap > 0)
            for (int i = 0; i < stride; i += LANES) {
                vec x = *(vec *)(from + i) / net->softcap; /* tanh x = 2 sigmoid(2x) - 1 */
                *(vec *)(from + i) = net->softcap * (2.0f * sigmoid(2.0f * x) - 1.0f);
            }
        memcpy(kept[r].logits, from, net->vocab_size * sizeof *from);
    }
}
