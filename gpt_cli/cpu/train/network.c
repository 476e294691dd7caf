/* The loss of a decoder-only transformer and its gradient, for a CPU: the same function as gpt_cli.model.GPT followed by a
   mean cross-entropy, with its backward pass written out.

   Data parallel over threads: each runs its own sequences, a chunk at a time so that the working set stays in the cache, and
   accumulates its own gradients; these are reduced once a step, in a fixed order. There is no other synchronisation, which
   is what makes small models fast.

   N tokens of a chunk, T of a sequence, C width, G = H + 2 Hkv heads of D, F hidden, U = 2 F for swiglu else F, V vocabulary. */
#include <stddef.h>

#include "numeric.h"
#include "threads.h"
#include "dropout.h"
#include "gemm.h"
#include "layers.h"
#include "attention.h"

enum { BLOCK_PARAMETERS(AS_INDEX) PER_BLOCK };
enum { NETWORK_PARAMETERS(AS_INDEX) PER_NETWORK };

typedef struct {
    MODEL_FIELDS;
    float dropout;                         /* of the embedding and of each residual branch */
    float attention_dropout;               /* of the attention weights */
    const float *positions;                /* (context, C) added to the embedding, not learned; or NULL */
    const float *cosines, *sines;          /* (context, D / 2) RoPE; or NULL */
    const float *const *parameters;        /* n_layer blocks, then the network; NULL where there is none */
    const long *offsets;                   /* of each in the flat gradient; tied parameters share one */
    long n_parameters;                     /* elements of the flat gradient */
    elem_t *matrices;                      /* bf16: packed weights, W^T and W of each, see `pack_weight` */
    const long *packed_offsets;            /* of each parameter in `matrices` */
    Backend backend;
} Network;

typedef struct { /* of a block, saved for its backward pass */
    float *x1, *x2, *mean1, *scale1, *mean2, *scale2, *qk_scales, *row_max, *row_inv_sum;
    elem_t *h1, *raw, *qkv, *y, *h2, *up, *hidden;
} Activations;

typedef struct { /* of one thread */
    Activations *saved;
    float *x, *dx, *f32_rows, *mean, *scale, *logits;
    elem_t *h, *elem_rows, *d_logits;
    AttnBuffers attn;
    GemmContext gemm_ctx;
    Dropout dropout, attention_dropout;
} Workspace;

enum { DROP_EMBEDDING, DROP_ATTENTION, DROP_MLP }; /* which dropout; the latter two once in each block */

static inline int dropout_stream(int layer, int which) { return which == DROP_EMBEDDING ? 0 : 2 * layer + which; }

/* Of the attention weights of the sequence that begins at row `row`. */
static inline AttnDropout weight_dropout(const Network *net, int layer, const Dropout *dropout, long row) {
    return (AttnDropout){dropout, 1 + 2 * net->n_layer + layer * net->n_head, row};
}

enum { LOGIT_ROWS = 128 };

static int max_projection_width(const Network *net) { /* the most columns that a projection writes or reads */
    int heads = (net->n_head + 2 * net->n_kv_head) * net->head_dim, up = net->mlp_hidden * (net->mlp == SWIGLU ? 2 : 1);
    return max_int(max_int(heads, up), net->n_embd);
}

/* Carve the workspace of a thread for chunks of n tokens in sequences of at most `length` out of `base`; returns its bytes
   (base NULL: only those). Without a backward pass all blocks share the activations of one, which then stay in the cache. */
static size_t layout_workspace(const Network *net, int n, int length, int with_backward, char *base, Workspace *ws) {
    size_t c = net->n_embd, g = net->n_head + 2 * net->n_kv_head, d = net->head_dim, f = net->mlp_hidden;
    size_t u = net->mlp == SWIGLU ? 2 * f : f, rows = (size_t)n, v = net->vocab_size, row_width = max_projection_width(net);
    size_t tile = (size_t)ATTN_TILE * round_up_tile(length), head = round_up_tile(length) * round_up_tile(d), logit_rows = min_int(n, LOGIT_ROWS);
    char *at = base;
    ws->saved = arena_alloc(&at, sizeof(Activations) * (size_t)net->n_layer);
    for (int layer = 0; layer < net->n_layer; layer++) {
        Activations k;
        if (layer && !with_backward) {
            if (base) ws->saved[layer] = ws->saved[0];
            continue;
        }
        k.x1 = arena_alloc(&at, rows * c * sizeof(float)), k.x2 = arena_alloc(&at, rows * c * sizeof(float));
        k.mean1 = arena_alloc(&at, rows * sizeof(float)), k.scale1 = arena_alloc(&at, rows * sizeof(float));
        k.mean2 = arena_alloc(&at, rows * sizeof(float)), k.scale2 = arena_alloc(&at, rows * sizeof(float));
        k.qk_scales = arena_alloc(&at, rows * g * sizeof(float)), k.row_max = arena_alloc(&at, (rows * net->n_head + LANES) * sizeof(float));
        k.row_inv_sum = arena_alloc(&at, (rows * net->n_head + LANES) * sizeof(float));
        k.h1 = arena_alloc(&at, rows * c * sizeof(elem_t)), k.h2 = arena_alloc(&at, rows * c * sizeof(elem_t));
        k.raw = arena_alloc(&at, rows * g * d * sizeof(elem_t)), k.qkv = arena_alloc(&at, rows * g * d * sizeof(elem_t));
        k.y = arena_alloc(&at, rows * c * sizeof(elem_t)), k.up = arena_alloc(&at, rows * u * sizeof(elem_t));
        k.hidden = arena_alloc(&at, rows * f * sizeof(elem_t));
        if (base) ws->saved[layer] = k;
    }
    ws->x = arena_alloc(&at, rows * c * sizeof(float)), ws->dx = arena_alloc(&at, rows * c * sizeof(float));
    ws->f32_rows = arena_alloc(&at, rows * row_width * sizeof(float));
    ws->elem_rows = arena_alloc(&at, rows * row_width * sizeof(elem_t));
    ws->mean = arena_alloc(&at, rows * sizeof(float)), ws->scale = arena_alloc(&at, rows * sizeof(float));
    ws->h = arena_alloc(&at, rows * c * sizeof(elem_t));
    AttnBuffers *attn = &ws->attn;
    attn->scores = arena_alloc(&at, tile * sizeof(float)), attn->d_weights = arena_alloc(&at, tile * sizeof(float));
    attn->weights = arena_alloc(&at, tile * sizeof(elem_t)), attn->d_scores = arena_alloc(&at, tile * sizeof(elem_t));
    attn->delta = arena_alloc(&at, (size_t)(length + LANES) * sizeof(float));
    attn->dropout_keys = arena_alloc(&at, round_up_tile(length) * sizeof(uint32_t));
    elem_t **panels[] = {&attn->q_columns, &attn->q_rows, &attn->dy_columns, &attn->dy_rows, &attn->k_rows};
    for (int i = 0; i < 5; i++) *panels[i] = arena_alloc(&at, head * sizeof(elem_t));
    long deepest = max_int(max_int(n, (int)row_width), (int)v);
    GemmContext *gemm_ctx = &ws->gemm_ctx;
    gemm_ctx->backend = &net->backend;
#ifdef BF16
    gemm_ctx->packed_a = arena_alloc(&at, sizeof(elem_t) * TILE * round_up_tile(deepest));
    gemm_ctx->packed_b = arena_alloc(&at, sizeof(elem_t) * round_up_tile(n) * round_up_tile(row_width));
#else
    (void)deepest;
    gemm_ctx->out = arena_alloc(&at, sizeof(float) * rows * row_width);
#endif
    ws->logits = arena_alloc(&at, logit_rows * v * sizeof(float)), ws->d_logits = arena_alloc(&at, logit_rows * v * sizeof(elem_t));
    return (size_t)(at - base);
}

static inline int index_of(const Network *net, int layer, int which) {
    return layer < net->n_layer ? layer * PER_BLOCK + which : net->n_layer * PER_BLOCK + which;
}
static inline const float *parameter(const Network *net, int layer, int which) {
    return net->parameters[index_of(net, layer, which)];
}
/* Packed W (out, in) as B of x W^T (forward) and of dy W (backward). */
static inline PackedB packed_wt(const Network *net, int layer, int which, int out, int in) {
#ifdef BF16
    (void)out;
    return (PackedB){net->matrices + net->packed_offsets[index_of(net, layer, which)], round_up_tile(in) * TILE};
#else
    return pack_bt(in, out, parameter(net, layer, which), in, NULL);
#endif
}
static inline PackedB packed_w(const Network *net, int layer, int which, int out, int in) {
#ifdef BF16
    long wt_size = round_up_tile(out) * round_up_tile(in);
    return (PackedB){net->matrices + net->packed_offsets[index_of(net, layer, which)] + wt_size, round_up_tile(out) * TILE};
#else
    return pack_b(out, in, parameter(net, layer, which), in, NULL);
#endif
}
static inline float *gradient(const Network *net, float *gradients, int layer, int which) {
    int i = index_of(net, layer, which);
    return net->parameters[i] ? gradients + net->offsets[i] : NULL;
}

/* dW (out, in) += dy^T x, with dy (N, out) and x (N, in). */
static void add_gradient(const Network *net, int layer, int which, int n, int out, int in, const elem_t *dy, const elem_t *x,
                         const GemmContext *gemm_ctx, float *gradients) {
    gemm(gemm_ctx, out, in, n, (MatrixA){dy, out, 1}, pack_b(n, in, x, in, gemm_ctx->packed_b), store_f32,
             &(StoreF32){gradient(net, gradients, layer, which), in, 1.0f, 1.0f});
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

/* x2 = x1 + attention(norm(x1)) */
NOINLINE void attention_block_forward(const Network *net, int layer, int n, int length, const Workspace *ws, float *x2) {
    const Activations *k = &ws->saved[layer];
    const GemmContext *gemm_ctx = &ws->gemm_ctx;
    int c = net->n_embd, d = net->head_dim, n_qk_heads = net->n_head + net->n_kv_head, g = n_qk_heads + net->n_kv_head, row = g * d;
    AttnShape shape = {net->n_head, net->n_kv_head, d, net->window};
    norm_forward(n, c, k->x1, parameter(net, layer, NORM1), parameter(net, layer, NORM1_BIAS), !net->layernorm, net->norm_eps, k->h1,
                 k->mean1, k->scale1);
    gemm(gemm_ctx, n, row, c, (MatrixA){k->h1, c, 0}, packed_wt(net, layer, QKV, row, c), store_elem,
             &(StoreElem){k->raw, row, parameter(net, layer, QKV_BIAS)});
    for (int t = 0; t < n; t++) {
        long rope_at = (long)(t % length) * (d / 2);
        const float *cosines = net->cosines ? net->cosines + rope_at : NULL, *sines = net->sines ? net->sines + rope_at : NULL;
        for (int head = 0; head < n_qk_heads; head++) {
            long at = (long)t * row + head * d;
            k->qk_scales[(long)t * g + head] =
                qk_norm_rope(d, k->raw + at, parameter(net, layer, head < net->n_head ? Q_NORM : K_NORM), net->norm_eps, cosines, sines,
                     k->qkv + at);
        }
        memcpy(k->qkv + (long)t * row + n_qk_heads * d, k->raw + (long)t * row + n_qk_heads * d, sizeof(elem_t) * net->n_kv_head * d);
    }
    for (int t = 0; t < n; t += length)
        attention_forward(gemm_ctx, &shape, length, k->qkv + (long)t * row, k->y + (long)t * c,
                          k->row_max + (long)t * net->n_head, k->row_inv_sum + (long)t * net->n_head,
                          weight_dropout(net, layer, &ws->attention_dropout, t), &ws->attn);
    gemm(gemm_ctx, n, c, c, (MatrixA){k->y, c, 0}, packed_wt(net, layer, OUT, c, c), add_residual,
             &(ResidualAdd){k->x1, x2, c, parameter(net, layer, OUT_BIAS), &ws->dropout, dropout_stream(layer, DROP_ATTENTION)});
}

NOINLINE void attention_block_backward(const Network *net, int layer, int n, int length, const Workspace *ws, float *gradients) {
    const Activations *k = &ws->saved[layer];
    const GemmContext *gemm_ctx = &ws->gemm_ctx;
    int c = net->n_embd, d = net->head_dim, n_qk_heads = net->n_head + net->n_kv_head, g = n_qk_heads + net->n_kv_head, row = g * d;
    AttnShape shape = {net->n_head, net->n_kv_head, d, net->window};
    elem_t *upstream = ws->h, *dy = ws->elem_rows, *d_raw = dy; /* dy is dead before d_raw is written */
    dropout_backward(n, c, ws->dx, &ws->dropout, dropout_stream(layer, DROP_ATTENTION), upstream);
    bias_backward(n, c, upstream, gradient(net, gradients, layer, OUT_BIAS));
    add_gradient(net, layer, OUT, n, c, c, upstream, k->y, gemm_ctx, gradients);
    gemm(gemm_ctx, n, c, c, (MatrixA){upstream, c, 0}, packed_w(net, layer, OUT, c, c), store_elem, &(StoreElem){dy, c, NULL});
    float *d_qkv = ws->f32_rows;
    for (int t = 0; t < n; t += length)
        attention_backward(gemm_ctx, &shape, length, k->qkv + (long)t * row, k->y + (long)t * c,
                           k->row_max + (long)t * net->n_head, k->row_inv_sum + (long)t * net->n_head, dy + (long)t * c, d_qkv + (long)t * row,
                           weight_dropout(net, layer, &ws->attention_dropout, t), &ws->attn);
    for (int t = 0; t < n; t++) {
        long rope_at = (long)(t % length) * (d / 2);
        const float *cosines = net->cosines ? net->cosines + rope_at : NULL, *sines = net->sines ? net->sines + rope_at : NULL;
        for (int head = 0; head < n_qk_heads; head++) {
            int norm = head < net->n_head ? Q_NORM : K_NORM;
            long at = (long)t * row + head * d;
            qk_norm_rope_backward(d, d_qkv + at, k->raw + at, parameter(net, layer, norm), k->qk_scales[(long)t * g + head], cosines,
                          sines, d_raw + at, gradient(net, gradients, layer, norm));
        }
        to_elems((long)net->n_kv_head * d, d_qkv + (long)t * row + n_qk_heads * d, d_raw + (long)t * row + n_qk_heads * d);
    }
    bias_backward(n, row, d_raw, gradient(net, gradients, layer, QKV_BIAS));
    add_gradient(net, layer, QKV, n, row, c, d_raw, k->h1, gemm_ctx, gradients);
    gemm(gemm_ctx, n, c, row, (MatrixA){d_raw, row, 0}, packed_w(net, layer, QKV, row, c), store_f32,
             &(StoreF32){ws->f32_rows, c, 1.0f, 0.0f});
    norm_backward(n, c, ws->f32_rows, k->x1, parameter(net, layer, NORM1), !net->layernorm, k->mean1, k->scale1, ws->dx,
                  gradient(net, gradients, layer, NORM1), gradient(net, gradients, layer, NORM1_BIAS));
}

/* x3 = x2 + mlp(norm(x2)) */
NOINLINE void mlp_block_forward(const Network *net, int layer, int n, const Workspace *ws, float *x3) {
    const Activations *k = &ws->saved[layer];
    const GemmContext *gemm_ctx = &ws->gemm_ctx;
    int c = net->n_embd, f = net->mlp_hidden, u = net->mlp == SWIGLU ? 2 * f : f;
    const float *bias = parameter(net, layer, UP_BIAS);
    Mlp mlp = {net->mlp, f, bias, k->up, k->hidden, NULL};
    norm_forward(n, c, k->x2, parameter(net, layer, NORM2), parameter(net, layer, NORM2_BIAS), !net->layernorm, net->norm_eps, k->h2,
                 k->mean2, k->scale2);
    MatrixA h2 = {k->h2, c, 0};
    PackedB up = packed_wt(net, layer, UP, u, c);
    if (net->mlp == SWIGLU)
        gemm(gemm_ctx, n, u, c, h2, up, store_elem, &(StoreElem){k->up, u, bias}), swiglu_forward(n, &mlp);
    else
        gemm(gemm_ctx, n, u, c, h2, up, activate, &mlp);
    gemm(gemm_ctx, n, c, f, (MatrixA){k->hidden, f, 0}, packed_wt(net, layer, DOWN, c, f), add_residual,
             &(ResidualAdd){k->x2, x3, c, parameter(net, layer, DOWN_BIAS), &ws->dropout, dropout_stream(layer, DROP_MLP)});
}

NOINLINE void mlp_block_backward(const Network *net, int layer, int n, const Workspace *ws, float *gradients) {
    const Activations *k = &ws->saved[layer];
    const GemmContext *gemm_ctx = &ws->gemm_ctx;
    int c = net->n_embd, f = net->mlp_hidden, u = net->mlp == SWIGLU ? 2 * f : f;
    elem_t *upstream = ws->h, *d_up = ws->elem_rows;
    Mlp mlp = {net->mlp, f, NULL, k->up, k->hidden, d_up};
    dropout_backward(n, c, ws->dx, &ws->dropout, dropout_stream(layer, DROP_MLP), upstream);
    bias_backward(n, c, upstream, gradient(net, gradients, layer, DOWN_BIAS));
    add_gradient(net, layer, DOWN, n, c, f, upstream, k->hidden, gemm_ctx, gradients);
    gemm(gemm_ctx, n, f, c, (MatrixA){upstream, c, 0}, packed_w(net, layer, DOWN, c, f), activate_backward, &mlp);
    bias_backward(n, u, d_up, gradient(net, gradients, layer, UP_BIAS));
    add_gradient(net, layer, UP, n, u, c, d_up, k->h2, gemm_ctx, gradients);
    gemm(gemm_ctx, n, c, u, (MatrixA){d_up, u, 0}, packed_w(net, layer, UP, u, c), store_f32,
             &(StoreF32){ws->f32_rows, c, 1.0f, 0.0f});
    norm_backward(n, c, ws->f32_rows, k->x2, parameter(net, layer, NORM2), !net->layernorm, k->mean2, k->scale2, ws->dx,
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
NOINLINE double head_loss(const Network *net, int n, const int64_t *targets, float weight, const Workspace *ws, float *gradients) {
    int c = net->n_embd, v = net->vocab_size, top = net->n_layer;
    const GemmContext *gemm_ctx = &ws->gemm_ctx;
    double loss = 0.0;
    norm_forward(n, c, ws->x, parameter(net, top, NORM), parameter(net, top, NORM_BIAS), !net->layernorm, net->norm_eps, ws->h,
                 ws->mean, ws->scale);
    for (int t = 0; t < n; t += LOGIT_ROWS) { /* chunked: logits of a large vocabulary are never materialised at once */
        int rows = min_int(LOGIT_ROWS, n - t);
        const elem_t *h = ws->h + (long)t * c;
        gemm(gemm_ctx, rows, v, c, (MatrixA){h, c, 0}, packed_wt(net, top, HEAD, v, c), store_f32, &(StoreF32){ws->logits, v, 1.0f, 0.0f});
        for (int i = 0; i < rows; i++)
            loss += cross_entropy(net, ws->logits + (long)i * v, targets[t + i], weight, gradients != NULL);
        if (!gradients) continue;
        to_elems((long)rows * v, ws->logits, ws->d_logits);
        add_gradient(net, top, HEAD, rows, v, c, ws->d_logits, h, gemm_ctx, gradients);
        gemm(gemm_ctx, rows, c, v, (MatrixA){ws->d_logits, v, 0}, packed_w(net, top, HEAD, v, c), store_f32,
                 &(StoreF32){ws->f32_rows + (long)t * c, c, 1.0f, 0.0f});
    }
    if (gradients) {
        memset(ws->dx, 0, sizeof(float) * (size_t)n * c);
        norm_backward(n, c, ws->f32_rows, ws->x, parameter(net, top, NORM), !net->layernorm, ws->mean, ws->scale, ws->dx,
                      gradient(net, gradients, top, NORM), gradient(net, gradients, top, NORM_BIAS));
    }
    return loss;
}

/* The summed loss of a chunk of whole sequences; accumulates into `gradients` unless NULL. */
static double run_chunk(const Network *net, const int64_t *tokens, const int64_t *targets, int n, int length, float weight,
                        const Workspace *ws, float *gradients) {
    float *embedded = net->n_layer ? ws->saved[0].x1 : ws->x;
    embed(net, tokens, n, length, embedded);
    dropout_embedding(n, net->n_embd, embedded, &ws->dropout);
    for (int layer = 0; layer < net->n_layer; layer++) {
        attention_block_forward(net, layer, n, length, ws, ws->saved[layer].x2);
        mlp_block_forward(net, layer, n, ws, layer + 1 < net->n_layer ? ws->saved[layer + 1].x1 : ws->x);
    }
    double loss = head_loss(net, n, targets, weight, ws, gradients);
    if (gradients) {
        for (int layer = net->n_layer - 1; layer >= 0; layer--) {
            mlp_block_backward(net, layer, n, ws, gradients);
            attention_block_backward(net, layer, n, length, ws, gradients);
        }
        dropout_embedding(n, net->n_embd, ws->dx, &ws->dropout);
        embed_backward(net, tokens, n, length, ws->dx, gradients);
    }
    return loss;
}

typedef struct {
    const Network *net;
    const int64_t *tokens, *targets;        /* (sequences, length), row stride `stride` */
    int first, last, length, stride, chunk; /* sequences of this thread, and how many in a chunk */
    float weight;
    uint64_t seed;
    Workspace ws;
    int64_t *rows; /* (2, chunk * length): a chunk's tokens and targets */
    float *gradients; /* of this thread; NULL: loss only */
    double loss;
} ThreadTask;

static void loss_worker(void *argument) {
    ThreadTask *task = argument;
    const Network *net = task->net;
    int length = task->length, before = gemm_begin(&net->backend);
    if (task->gradients) memset(task->gradients, 0, sizeof(float) * (size_t)net->n_parameters);
    for (int first = task->first; first < task->last; first += task->chunk) {
        int sequences = min_int(task->chunk, task->last - first);
        int64_t *tokens = task->rows, *targets = task->rows + (long)task->chunk * length;
        for (int i = 0; i < sequences; i++) {
            long at = (long)(first + i) * task->stride;
            memcpy(tokens + (long)i * length, task->tokens + at, sizeof *tokens * length);
            memcpy(targets + (long)i * length, task->targets + at, sizeof *targets * length);
        }
        task->ws.dropout = dropout_begin(task->gradients ? net->dropout : 0.0f, task->seed, (long)first * length);
        task->ws.attention_dropout = dropout_begin(task->gradients ? net->attention_dropout : 0.0f, task->seed, (long)first * length);
        task->loss += run_chunk(net, tokens, targets, sequences * length, length, task->weight, &task->ws,
                                 task->gradients);
    }
    gemm_end(&net->backend, before);
}

typedef struct {
    float *gradients; /* (threads, n_parameters) */
    long n_parameters, from, to;
    int threads;
} ReduceTask;

static void reduce_gradients(void *argument) { /* into row 0, in the order of the threads */
    const ReduceTask *sum = argument;
    for (int other = 1; other < sum->threads; other++) {
        const float *more = sum->gradients + sum->n_parameters * other;
        SIMD
        for (long i = sum->from; i < sum->to; i++) sum->gradients[i] += more[i];
    }
}

#ifdef BF16
typedef struct {
    const Network *net;
    int first, step; /* packs matrices first, first + step, ... */
} PackTask;

/* Pack W^T, then W (out, in), into panels. */
static void pack_weight(const float *w, int out, int in, elem_t *panels) {
    long depth = round_up_tile(in), strips = round_up_tile(out);
    elem_t a_tile[TILE * depth], *across = panels + depth * strips;
    for (int j = 0; j < out; j += TILE) {
        int rows = min_int(TILE, out - j);
        for (int i = 0; i < rows; i++) to_elems(in, w + (long)(j + i) * in, a_tile + i * depth);
        pack_bt(in, rows, a_tile, (int)depth, panels + j * depth);
        for (int p = 0; p < in; p += TILE) pack_b(rows, min_int(TILE, in - p), a_tile + p, (int)depth, across + p * strips + j * TILE);
    }
}

NOINLINE void pack_worker(void *argument) {
    const PackTask *task = argument;
    const Network *net = task->net;
    int c = net->n_embd, f = net->mlp_hidden, top = net->n_layer * PER_BLOCK;
    int heads = (net->n_head + 2 * net->n_kv_head) * net->head_dim, matrix = 0;
    for (int at = 0; at <= top + HEAD; at++) {
        int which = at < top ? at % PER_BLOCK : at - top, out = 0, in = c;
        if (at >= top) out = which == HEAD ? net->vocab_size : 0;
        else if (which == QKV) out = heads;
        else if (which == OUT) out = c;
        else if (which == UP) out = net->mlp == SWIGLU ? 2 * f : f;
        else if (which == DOWN) out = c, in = f;
        if (out && matrix++ % task->step == task->first)
            pack_weight(net->parameters[at], out, in, net->matrices + net->packed_offsets[at]);
    }
}
#endif

/* Repack all weights; to be called after every update. */
void pack_weights(const Network *net, int threads) {
#ifdef BF16
    PackTask tasks[threads];
    for (int i = 0; i < threads; i++) tasks[i] = (PackTask){net, i, threads};
    parallel_run(pack_worker, tasks, sizeof *tasks, threads);
#else
    (void)net, (void)threads;
#endif
}

/* 1 if the processor has AMX and the system grants it. */
int amx_available(void) { return amx_request(); }

/* Bytes of workspace that `loss_and_gradients` needs for each thread. */
size_t workspace_bytes(const Network *net, int chunk, int length, int with_backward) {
    Workspace ws;
    char *end = (char *)layout_workspace(net, chunk * length, length, with_backward, NULL, &ws);
    arena_alloc(&end, 2 * sizeof(int64_t) * (size_t)chunk * length);
    return (size_t)end; /* whole cache lines, so that the next thread's is aligned, too */
}

/* The summed loss of (sequences, length) tokens, of row stride `stride`. Row 0 of `gradients` (threads, n_parameters), unless NULL,
   becomes the gradient of `weight` times that loss, with the dropout of `seed`. `workspaces`: workspace_bytes for each thread. */
double loss_and_gradients(const Network *net, const int64_t *tokens, const int64_t *targets, int sequences, int length,
                          int stride, int chunk, float weight, uint64_t seed, char *workspaces, float *gradients, int threads) {
    ThreadTask tasks[threads];
    ReduceTask sums[threads];
    size_t bytes = workspace_bytes(net, chunk, length, gradients != NULL);
    double loss = 0.0;
    for (int i = 0; i < threads; i++) {
        ThreadTask *task = &tasks[i];
        char *ws = workspaces + bytes * (size_t)i;
        memset(task, 0, sizeof *task);
        task->net = net, task->tokens = tokens, task->targets = targets;
        task->first = (int)((long)sequences * i / threads), task->last = (int)((long)sequences * (i + 1) / threads);
        task->length = length, task->stride = stride, task->chunk = chunk, task->weight = weight, task->seed = seed;
        task->rows = (int64_t *)(ws + layout_workspace(net, chunk * length, length, gradients != NULL, ws, &task->ws));
        task->gradients = gradients ? gradients + net->n_parameters * i : NULL;
        sums[i] = (ReduceTask){gradients, net->n_parameters, net->n_parameters * i / threads, net->n_parameters * (i + 1) / threads,
                        threads};
    }
    parallel_run(loss_worker, tasks, sizeof *tasks, threads);
    if (gradients && threads > 1) parallel_run(reduce_gradients, sums, sizeof *sums, threads);
    for (int i = 0; i < threads; i++) loss += tasks[i].loss;
    return loss;
}

/* The dropout masks of `seed` for a batch: (rows, C) of the embedding's, then of the two in each block. */
void draw_dropout(const Network *net, uint64_t seed, int rows, float *out) {
    Dropout dropout = dropout_begin(net->dropout, seed, 0);
    for (int stream_id = 0; stream_id <= 2 * net->n_layer; stream_id++)
        for (int t = 0; t < rows; t++, out += net->n_embd) dropout_scale(&dropout, stream_id, t, 0, net->n_embd, out);
}

/* The masks of the attention weights of `seed` for a batch: (n_layer, sequences, H, key, query). */
void draw_attention_dropout(const Network *net, uint64_t seed, int sequences, int length, float *out) {
    Dropout dropout = dropout_begin(net->attention_dropout, seed, 0);
    for (int layer = 0; layer < net->n_layer; layer++)
        for (long row = 0; row < (long)sequences * length; row += length) {
            AttnDropout drop = weight_dropout(net, layer, &dropout, row);
            for (int head = 0; head < net->n_head; head++)
                for (int key = 0; key < length; key++, out += length)
                    dropout_scale(&dropout, drop.stream_id + head, row + key, 0, length, out);
        }
}
