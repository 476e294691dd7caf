/* The loss of a chunk of whole sequences, and its gradient: the embedding, the blocks, the head, and each of these backwards.

   N tokens of a chunk, T of a sequence, C width, G = H + 2 Hkv heads of D, F hidden, U = 2 F for swiglu else F, V vocabulary. */

enum { DROP_EMBEDDING, DROP_ATTENTION, DROP_MLP }; /* which dropout; the latter two once in each block */

static inline int dropout_stream(int layer, int which) { return which == DROP_EMBEDDING ? 0 : 2 * layer + which; }

/* Of the attention weights of the sequence that begins at row `row`. */
static inline AttnDropout weight_dropout(const Network *net, int layer, const Dropout *dropout, long row) {
    return (AttnDropout){dropout, 1 + 2 * net->n_layer + layer * net->n_head, row};
}

/* dW (out, in) += dy^T x, with dy (N, out) and x (N, in). */
static void add_gradient(const Network *net, int layer, int which, int n, const elem_t *dy, const elem_t *x, const GemmContext *gemm_ctx,
                         float *gradients) {
    MatrixShape w = matrix_shape(net, layer, which);
    gemm(gemm_ctx, w.out, w.in, n, (MatrixA){dy, w.out, 1}, pack_b(n, w.in, x, w.in, gemm_ctx->packed_b), store_f32,
         &(StoreF32){gradient(net, gradients, layer, which), w.in, 1.0f, 1.0f});
}

/* x (N, C) of `tokens` (N,), whose sequences are `length` long. */
static void embed(const Network *net, const int64_t *tokens, int n, int length, float *x) {
    int c = net->n_embd, top = net->n_layer;
    const float *table = parameter(net, top, TOKENS);
    const float *positions = net->positions ? net->positions : parameter(net, top, POSITIONS);
    for (int t = 0; t < n; t++, x += c) {
        const float *token = table + (long)tokens[t] * c, *position = positions ? positions + (long)(t % length) * c : NULL;
        SIMD
        for (int i = 0; i < c; i++) x[i] = token[i] * net->embedding_scale;
        if (position) {
            SIMD
            for (int i = 0; i < c; i++) x[i] += position[i];
        }
    }
}

NOINLINE void embed_backward(const Network *net, const int64_t *tokens, int n, int length, const float *dx, float *gradients) {
    int c = net->n_embd, top = net->n_layer;
    float *table = gradient(net, gradients, top, TOKENS), *positions = gradient(net, gradients, top, POSITIONS);
    for (int t = 0; t < n; t++, dx += c) {
        float *token = table + (long)tokens[t] * c;
        SIMD
        for (int i = 0; i < c; i++) token[i] += dx[i] * net->embedding_scale;
        if (positions) {
            float *position = positions + (long)(t % length) * c;
            SIMD
            for (int i = 0; i < c; i++) position[i] += dx[i];
        }
    }
}

/* dx (N, C) of the residual stream -> the gradient of the branch before its dropout. */
NOINLINE void dropout_backward(int n, int c, const float *dx, const Dropout *dropout, int stream_id, elem_t *d_added) {
    float factor[c];
    if (!dropout->limit) to_elems((long)n * c, dx, d_added);
    for (int t = 0; t < n && dropout->limit; t++, dx += c, d_added += c) {
        dropout_scale(dropout, stream_id, t, 0, c, factor);
        SIMD
        for (int i = 0; i < c; i++) factor[i] *= dx[i];
        to_elems(c, factor, d_added);
    }
}

/* Dropout of the embedding x (N, C), or of its gradient, in place. */
static void dropout_embedding(int n, int c, float *x, const Dropout *dropout) {
    float factor[c];
    for (int t = 0; t < n && dropout->limit; t++, x += c) {
        dropout_scale(dropout, dropout_stream(0, DROP_EMBEDDING), t, 0, c, factor);
        SIMD
        for (int i = 0; i < c; i++) x[i] *= factor[i];
    }
}

/* The RoPE tables of token t, each (D / 2,) or NULL. */
static inline const float *rope_row(const Network *net, const float *table, int t, int length) {
    return table ? table + (long)(t % length) * (net->head_dim / 2) : NULL;
}

static inline AttnShape attn_shape(const Network *net) {
    return (AttnShape){net->n_head, net->n_kv_head, net->head_dim, net->window};
}

/* x2 = x1 + attention(norm(x1)) */
NOINLINE void attention_block_forward(const Network *net, int layer, int n, int length, const Workspace *ws, float *x2) {
    const Activations *saved = &ws->saved[layer];
    const GemmContext *gemm_ctx = &ws->gemm_ctx;
    int c = net->n_embd, d = net->head_dim, qk_heads = net->n_head + net->n_kv_head, g = qk_heads + net->n_kv_head, width = g * d;
    AttnShape shape = attn_shape(net);
    norm_forward(n, c, saved->x1, parameter(net, layer, NORM1), parameter(net, layer, NORM1_BIAS), !net->layernorm, net->norm_eps,
                 saved->h1, saved->mean1, saved->scale1);
    gemm(gemm_ctx, n, width, c, (MatrixA){saved->h1, c, 0}, packed_wt(net, layer, QKV), store_elem,
         &(StoreElem){saved->raw, width, parameter(net, layer, QKV_BIAS)});
    for (int t = 0; t < n; t++) {
        const elem_t *raw = saved->raw + (long)t * width;
        elem_t *qkv = saved->qkv + (long)t * width;
        float *scales = saved->qk_scales + (long)t * g;
        const float *cosines = rope_row(net, net->cosines, t, length), *sines = rope_row(net, net->sines, t, length);
        for (int head = 0; head < qk_heads; head++) {
            const float *gain = parameter(net, layer, head < net->n_head ? Q_NORM : K_NORM);
            scales[head] = qk_norm_rope(d, raw + head * d, gain, net->norm_eps, cosines, sines, qkv + head * d);
        }
        memcpy(qkv + qk_heads * d, raw + qk_heads * d, sizeof(elem_t) * net->n_kv_head * d);
    }
    for (int t = 0; t < n; t += length)
        attention_forward(gemm_ctx, &shape, length, saved->qkv + (long)t * width, saved->y + (long)t * c,
                          saved->row_max + (long)t * net->n_head, saved->row_inv_sum + (long)t * net->n_head,
                          weight_dropout(net, layer, &ws->attention_dropout, t), &ws->attn);
    gemm(gemm_ctx, n, c, c, (MatrixA){saved->y, c, 0}, packed_wt(net, layer, OUT), add_residual,
         &(ResidualAdd){saved->x1, x2, c, parameter(net, layer, OUT_BIAS), &ws->dropout, dropout_stream(layer, DROP_ATTENTION)});
}

NOINLINE void attention_block_backward(const Network *net, int layer, int n, int length, const Workspace *ws, float *gradients) {
    const Activations *saved = &ws->saved[layer];
    const GemmContext *gemm_ctx = &ws->gemm_ctx;
    int c = net->n_embd, d = net->head_dim, qk_heads = net->n_head + net->n_kv_head, g = qk_heads + net->n_kv_head, width = g * d;
    AttnShape shape = attn_shape(net);
    elem_t *upstream = ws->h, *dy = ws->elem_rows;
    dropout_backward(n, c, ws->dx, &ws->dropout, dropout_stream(layer, DROP_ATTENTION), upstream);
    bias_backward(n, c, upstream, gradient(net, gradients, layer, OUT_BIAS));
    add_gradient(net, layer, OUT, n, upstream, saved->y, gemm_ctx, gradients);
    gemm(gemm_ctx, n, c, c, (MatrixA){upstream, c, 0}, packed_w(net, layer, OUT), store_elem, &(StoreElem){dy, c, NULL});
    for (int t = 0; t < n; t += length)
        attention_backward(gemm_ctx, &shape, length, saved->qkv + (long)t * width, saved->y + (long)t * c,
                           saved->row_max + (long)t * net->n_head, saved->row_inv_sum + (long)t * net->n_head, dy + (long)t * c,
                           ws->f32_rows + (long)t * width, weight_dropout(net, layer, &ws->attention_dropout, t), &ws->attn);
    elem_t *d_raw = ws->elem_rows; /* over dy, which nothing reads any more */
    for (int t = 0; t < n; t++) {
        const elem_t *raw = saved->raw + (long)t * width;
        float *d_qkv = ws->f32_rows + (long)t * width;
        elem_t *to = d_raw + (long)t * width;
        const float *scales = saved->qk_scales + (long)t * g;
        const float *cosines = rope_row(net, net->cosines, t, length), *sines = rope_row(net, net->sines, t, length);
        for (int head = 0; head < qk_heads; head++) {
            int norm = head < net->n_head ? Q_NORM : K_NORM;
            qk_norm_rope_backward(d, d_qkv + head * d, raw + head * d, parameter(net, layer, norm), scales[head], cosines, sines,
                                  to + head * d, gradient(net, gradients, layer, norm));
        }
        to_elems((long)net->n_kv_head * d, d_qkv + qk_heads * d, to + qk_heads * d);
    }
    bias_backward(n, width, d_raw, gradient(net, gradients, layer, QKV_BIAS));
    add_gradient(net, layer, QKV, n, d_raw, saved->h1, gemm_ctx, gradients);
    gemm(gemm_ctx, n, c, width, (MatrixA){d_raw, width, 0}, packed_w(net, layer, QKV), store_f32,
         &(StoreF32){ws->f32_rows, c, 1.0f, 0.0f});
    norm_backward(n, c, ws->f32_rows, saved->x1, parameter(net, layer, NORM1), !net->layernorm, saved->mean1, saved->scale1, ws->dx,
                  gradient(net, gradients, layer, NORM1), gradient(net, gradients, layer, NORM1_BIAS));
}

/* x3 = x2 + mlp(norm(x2)) */
NOINLINE void mlp_block_forward(const Network *net, int layer, int n, const Workspace *ws, float *x3) {
    const Activations *saved = &ws->saved[layer];
    const GemmContext *gemm_ctx = &ws->gemm_ctx;
    int c = net->n_embd, f = net->mlp_hidden, u = up_width(net);
    const float *bias = parameter(net, layer, UP_BIAS);
    Mlp mlp = {net->mlp, f, bias, saved->up, saved->hidden, NULL};
    norm_forward(n, c, saved->x2, parameter(net, layer, NORM2), parameter(net, layer, NORM2_BIAS), !net->layernorm, net->norm_eps,
                 saved->h2, saved->mean2, saved->scale2);
    MatrixA h2 = {saved->h2, c, 0};
    PackedB up = packed_wt(net, layer, UP);
    if (net->mlp == SWIGLU)
        gemm(gemm_ctx, n, u, c, h2, up, store_elem, &(StoreElem){saved->up, u, bias}), swiglu_forward(n, &mlp);
    else
        gemm(gemm_ctx, n, u, c, h2, up, activate, &mlp);
    gemm(gemm_ctx, n, c, f, (MatrixA){saved->hidden, f, 0}, packed_wt(net, layer, DOWN), add_residual,
         &(ResidualAdd){saved->x2, x3, c, parameter(net, layer, DOWN_BIAS), &ws->dropout, dropout_stream(layer, DROP_MLP)});
}

NOINLINE void mlp_block_backward(const Network *net, int layer, int n, const Workspace *ws, float *gradients) {
    const Activations *saved = &ws->saved[layer];
    const GemmContext *gemm_ctx = &ws->gemm_ctx;
    int c = net->n_embd, f = net->mlp_hidden, u = up_width(net);
    elem_t *upstream = ws->h, *d_up = ws->elem_rows;
    Mlp mlp = {net->mlp, f, NULL, saved->up, saved->hidden, d_up};
    dropout_backward(n, c, ws->dx, &ws->dropout, dropout_stream(layer, DROP_MLP), upstream);
    bias_backward(n, c, upstream, gradient(net, gradients, layer, DOWN_BIAS));
    add_gradient(net, layer, DOWN, n, upstream, saved->hidden, gemm_ctx, gradients);
    gemm(gemm_ctx, n, f, c, (MatrixA){upstream, c, 0}, packed_w(net, layer, DOWN), activate_backward, &mlp);
    bias_backward(n, u, d_up, gradient(net, gradients, layer, UP_BIAS));
    add_gradient(net, layer, UP, n, d_up, saved->h2, gemm_ctx, gradients);
    gemm(gemm_ctx, n, c, u, (MatrixA){d_up, u, 0}, packed_w(net, layer, UP), store_f32,
         &(StoreF32){ws->f32_rows, c, 1.0f, 0.0f});
    norm_backward(n, c, ws->f32_rows, saved->x2, parameter(net, layer, NORM2), !net->layernorm, saved->mean2, saved->scale2, ws->dx,
                  gradient(net, gradients, layer, NORM2), gradient(net, gradients, layer, NORM2_BIAS));
}

/* The loss of one row of logits (V,), which is overwritten by the gradient of `weight` times the loss. A negative target is ignored. */
static double cross_entropy(const Network *net, float *logits, int64_t target, float weight, int want_gradient) {
    int v = net->vocab_size;
    float cap = net->softcap, sum = 0.0f;
    if (target < 0) {
        memset(logits, 0, sizeof(float) * (size_t)v);
        return 0.0;
    }
    if (cap > 0.0f) {
        SIMD
        for (int i = 0; i < v; i++) logits[i] = cap * hyperbolic_tangent(logits[i] / cap);
    }
    float maximum = max_of(v, logits);
    SIMD_SUM(sum)
    for (int i = 0; i < v; i++) sum += exponential(logits[i] - maximum);
    float log_sum = maximum + logf(sum);
    double loss = (double)log_sum - (double)logits[target];
    if (!want_gradient) return loss;
    float capped = logits[target];
    float at_target = cap > 0.0f ? weight * (1.0f - capped * capped / (cap * cap)) : weight;
    SIMD
    for (int i = 0; i < v; i++) {
        float slope = cap > 0.0f ? 1.0f - logits[i] * logits[i] / (cap * cap) : 1.0f;
        logits[i] = weight * exponential(logits[i] - log_sum) * slope;
    }
    logits[target] -= at_target;
    return loss;
}

/* The summed loss of the final ws->x (N, C); with gradients also ws->dx and those of the norm and the head. */
NOINLINE double head_loss(const Network *net, int n, float weight, const Workspace *ws, float *gradients) {
    int c = net->n_embd, v = net->vocab_size, top = net->n_layer;
    const GemmContext *gemm_ctx = &ws->gemm_ctx;
    double loss = 0.0;
    norm_forward(n, c, ws->x, parameter(net, top, NORM), parameter(net, top, NORM_BIAS), !net->layernorm, net->norm_eps, ws->h,
                 ws->mean, ws->scale);
    for (int t = 0; t < n; t += LOGIT_ROWS) {
        int rows = min_int(LOGIT_ROWS, n - t);
        const elem_t *h = ws->h + (long)t * c;
        gemm(gemm_ctx, rows, v, c, (MatrixA){h, c, 0}, packed_wt(net, top, HEAD), store_f32, &(StoreF32){ws->logits, v, 1.0f, 0.0f});
        for (int i = 0; i < rows; i++)
            loss += cross_entropy(net, ws->logits + (long)i * v, ws->targets[t + i], weight, gradients != NULL);
        if (!gradients) continue;
        to_elems((long)rows * v, ws->logits, ws->d_logits);
        add_gradient(net, top, HEAD, rows, ws->d_logits, h, gemm_ctx, gradients);
        gemm(gemm_ctx, rows, c, v, (MatrixA){ws->d_logits, v, 0}, packed_w(net, top, HEAD), store_f32,
             &(StoreF32){ws->f32_rows + (long)t * c, c, 1.0f, 0.0f});
    }
    if (gradients) {
        memset(ws->dx, 0, sizeof(float) * (size_t)n * c);
        norm_backward(n, c, ws->f32_rows, ws->x, parameter(net, top, NORM), !net->layernorm, ws->mean, ws->scale, ws->dx,
                      gradient(net, gradients, top, NORM), gradient(net, gradients, top, NORM_BIAS));
    }
    return loss;
}

/* The summed loss of the n tokens ws->inputs, whole sequences of `length`; accumulates into `gradients` unless NULL. */
static double run_chunk(const Network *net, int n, int length, float weight, const Workspace *ws, float *gradients) {
    float *embedded = net->n_layer ? ws->saved[0].x1 : ws->x;
    embed(net, ws->inputs, n, length, embedded);
    dropout_embedding(n, net->n_embd, embedded, &ws->dropout);
    for (int layer = 0; layer < net->n_layer; layer++) {
        attention_block_forward(net, layer, n, length, ws, ws->saved[layer].x2);
        mlp_block_forward(net, layer, n, ws, layer + 1 < net->n_layer ? ws->saved[layer + 1].x1 : ws->x);
    }
    double loss = head_loss(net, n, weight, ws, gradients);
    if (gradients) {
        for (int layer = net->n_layer - 1; layer >= 0; layer--) {
            mlp_block_backward(net, layer, n, ws, gradients);
            attention_block_backward(net, layer, n, length, ws, gradients);
        }
        dropout_embedding(n, net->n_embd, ws->dx, &ws->dropout);
        embed_backward(net, ws->inputs, n, length, ws->dx, gradients);
    }
    return loss;
}
