/* The loss of a decoder-only transformer and its gradient, for a CPU: the same function as gpt_cli.model.GPT followed by a
   mean cross-entropy, with its backward pass written out.

   Each thread takes sequences of its own, a few at a time so that what they need stays in the cache, and adds up
   gradients of its own; the threads meet once, to add these up in a fixed order. There is nothing else to wait for, which
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
    float dropout;                         /* of the embedding, and of what blocks add to the stream */
    const float *positions;                /* (context, C) added to the stream, not learned; or NULL */
    const float *cosines, *sines;          /* (context, D / 2) rotations; or NULL */
    const float *const *parameters;        /* n_layer blocks, then the network; NULL where there is none */
    const long *offsets;                   /* where each starts in a flat array of all; shared by tied ones */
    long n_parameters;                     /* of the flat array */
    elem_t *matrices;                        /* bf16: the matrices as products read them; two of each, see `pack` */
    const long *packed_offsets;                    /* where those of each parameter start in `matrices` */
    Backend backend;
} Network;

typedef struct { /* what a block keeps for its backward pass */
    float *x1, *x2, *mean1, *scale1, *mean2, *scale2, *turn_scales, *row_max, *row_inv_sum;
    elem_t *h1, *raw, *qkv, *y, *h2, *up, *hidden;
} Activations;

typedef struct { /* of one thread */
    Activations *kept;
    float *x, *dx, *wide_rows, *mean, *scale, *logits;
    elem_t *h, *narrow_rows, *d_logits;
    AttnBuffers tiles;
    Products products;
    Noise noise;
} Workspace;

enum { EMBEDDED, ATTENDED, WIDENED }; /* places of dropout; the latter two once in each block */

static inline int site_of(int layer, int which) { return which == EMBEDDED ? 0 : 2 * layer + which; }

enum { LOGIT_ROWS = 128 };

static int widest(const Network *net) { /* of the rows that a projection writes or reads */
    int heads = (net->n_head + 2 * net->n_kv_head) * net->head_dim, up = net->mlp_hidden * (net->mlp == SWIGLU ? 2 : 1);
    return larger(larger(heads, up), net->n_embd);
}

/* Lay out what a thread needs for chunks of n tokens in sequences of at most `length`; gives the bytes. Without a backward
   pass (`keep` 0) all blocks write over the same few rows, which then stay in the cache. */
static size_t layout_workspace(const Network *net, int n, int length, int keep, char *base, Workspace *room) {
    size_t c = net->n_embd, g = net->n_head + 2 * net->n_kv_head, d = net->head_dim, f = net->mlp_hidden;
    size_t u = net->mlp == SWIGLU ? 2 * f : f, rows = (size_t)n, v = net->vocab_size, wide_row = widest(net);
    size_t tile = (size_t)TILE * round_up_tile(length), head = round_up_tile(length) * round_up_tile(d), logit_rows = smaller(n, LOGIT_ROWS);
    char *at = base;
    room->kept = arena_alloc(&at, sizeof(Activations) * (size_t)net->n_layer);
    for (int layer = 0; layer < net->n_layer; layer++) {
        Activations k;
        if (layer && !keep) {
            if (base) room->kept[layer] = room->kept[0];
            continue;
        }
        k.x1 = arena_alloc(&at, rows * c * sizeof(float)), k.x2 = arena_alloc(&at, rows * c * sizeof(float));
        k.mean1 = arena_alloc(&at, rows * sizeof(float)), k.scale1 = arena_alloc(&at, rows * sizeof(float));
        k.mean2 = arena_alloc(&at, rows * sizeof(float)), k.scale2 = arena_alloc(&at, rows * sizeof(float));
        k.turn_scales = arena_alloc(&at, rows * g * sizeof(float)), k.row_max = arena_alloc(&at, (rows * net->n_head + LANES) * sizeof(float));
        k.row_inv_sum = arena_alloc(&at, (rows * net->n_head + LANES) * sizeof(float));
        k.h1 = arena_alloc(&at, rows * c * sizeof(elem_t)), k.h2 = arena_alloc(&at, rows * c * sizeof(elem_t));
        k.raw = arena_alloc(&at, rows * g * d * sizeof(elem_t)), k.qkv = arena_alloc(&at, rows * g * d * sizeof(elem_t));
        k.y = arena_alloc(&at, rows * c * sizeof(elem_t)), k.up = arena_alloc(&at, rows * u * sizeof(elem_t));
        k.hidden = arena_alloc(&at, rows * f * sizeof(elem_t));
        if (base) room->kept[layer] = k;
    }
    room->x = arena_alloc(&at, rows * c * sizeof(float)), room->dx = arena_alloc(&at, rows * c * sizeof(float));
    room->wide_rows = arena_alloc(&at, rows * wide_row * sizeof(float));
    room->narrow_rows = arena_alloc(&at, rows * wide_row * sizeof(elem_t));
    room->mean = arena_alloc(&at, rows * sizeof(float)), room->scale = arena_alloc(&at, rows * sizeof(float));
    room->h = arena_alloc(&at, rows * c * sizeof(elem_t));
    AttnBuffers *tiles = &room->tiles;
    tiles->scores = arena_alloc(&at, tile * sizeof(float)), tiles->d_weights = arena_alloc(&at, tile * sizeof(float));
    tiles->weights = arena_alloc(&at, tile * sizeof(elem_t)), tiles->d_scores = arena_alloc(&at, tile * sizeof(elem_t));
    tiles->delta = arena_alloc(&at, (size_t)(length + LANES) * sizeof(float));
    elem_t **panels[] = {&tiles->q_columns, &tiles->q_rows, &tiles->dy_columns, &tiles->dy_rows, &tiles->k_rows};
    for (int i = 0; i < 5; i++) *panels[i] = arena_alloc(&at, head * sizeof(elem_t));
    long deepest = larger(larger(n, (int)wide_row), (int)v);
    Products *products = &room->products;
    products->backend = &net->backend;
#ifdef BF16
    products->left = arena_alloc(&at, sizeof(elem_t) * STRIP * round_up_tile(deepest));
    products->panels = arena_alloc(&at, sizeof(elem_t) * round_up_tile(n) * round_up_tile(wide_row));
#else
    (void)deepest;
    products->out = arena_alloc(&at, sizeof(float) * rows * wide_row);
#endif
    room->logits = arena_alloc(&at, logit_rows * v * sizeof(float)), room->d_logits = arena_alloc(&at, logit_rows * v * sizeof(elem_t));
    return (size_t)(at - base);
}

static inline int index_of(const Network *net, int layer, int which) {
    return layer < net->n_layer ? layer * PER_BLOCK + which : net->n_layer * PER_BLOCK + which;
}
static inline const float *vector(const Network *net, int layer, int which) {
    return net->parameters[index_of(net, layer, which)];
}
/* A matrix W (out, in) as the right side of x W^T, and of dy W. */
static inline PackedB weight_t(const Network *net, int layer, int which, int out, int in) {
#ifdef BF16
    (void)out;
    return (PackedB){net->matrices + net->packed_offsets[index_of(net, layer, which)], round_up_tile(in) * STRIP};
#else
    return pack_bt(in, out, vector(net, layer, which), in, NULL);
#endif
}
static inline PackedB backward(const Network *net, int layer, int which, int out, int in) {
#ifdef BF16
    long onward_size = round_up_tile(out) * round_up_tile(in);
    return (PackedB){net->matrices + net->packed_offsets[index_of(net, layer, which)] + onward_size, round_up_tile(out) * STRIP};
#else
    return pack_b(out, in, vector(net, layer, which), in, NULL);
#endif
}
static inline float *gradient(const Network *net, float *gradients, int layer, int which) {
    int i = index_of(net, layer, which);
    return net->parameters[i] ? gradients + net->offsets[i] : NULL;
}

/* Adds to the gradient of W (out, in): dy^T x, with dy (N, out) and x (N, in). */
static void add_gradient(const Network *net, int layer, int which, int n, int out, int in, const elem_t *dy, const elem_t *x,
                         const Products *products, float *gradients) {
    multiply(products, out, in, n, (MatrixA){dy, out, 1}, pack_b(n, in, x, in, products->panels), put,
             &(StoreF32){gradient(net, gradients, layer, which), in, 1.0f, 1.0f});
}

/* x (N, C) of `tokens` (N,), whose sequences are `length` long. */
static void embed(const Network *net, const int64_t *tokens, int n, int length, float *x) {
    int c = net->n_embd, top = net->n_layer;
    const float *table = vector(net, top, TOKENS);
    const float *packed_offsets = net->positions ? net->positions : vector(net, top, POSITIONS);
    for (int t = 0; t < n; t++, x += c) {
        const float *token = table + (long)tokens[t] * c, *place = packed_offsets ? packed_offsets + (long)(t % length) * c : NULL;
        SIMD
        for (int i = 0; i < c; i++) x[i] = token[i] * net->embedding_scale;
        if (place) {
            SIMD
            for (int i = 0; i < c; i++) x[i] += place[i];
        }
    }
}

NOINLINE void embed_backward(const Network *net, const int64_t *tokens, int n, int length, const float *dx, float *gradients) {
    int c = net->n_embd, top = net->n_layer;
    float *table = gradient(net, gradients, top, TOKENS), *packed_offsets = gradient(net, gradients, top, POSITIONS);
    for (int t = 0; t < n; t++, dx += c) {
        float *token = table + (long)tokens[t] * c;
        SIMD
        for (int i = 0; i < c; i++) token[i] += dx[i] * net->embedding_scale;
        if (packed_offsets) {
            float *place = packed_offsets + (long)(t % length) * c;
            SIMD
            for (int i = 0; i < c; i++) place[i] += dx[i];
        }
    }
}

/* dx (N, C) of the stream -> that of what was added to it. */
NOINLINE void drop_backward(int n, int c, const float *dx, const Noise *noise, int stream_id, elem_t *d_added) {
    float factor[c];
    if (!noise->limit) narrow_all((long)n * c, dx, d_added);
    for (int t = 0; t < n && noise->limit; t++, dx += c, d_added += c) {
        dropout_scale(noise, stream_id, t, 0, c, factor);
        SIMD
        for (int i = 0; i < c; i++) factor[i] *= dx[i];
        narrow_all(c, factor, d_added);
    }
}

/* x (N, C), or its gradient: what the embedding gives, some of it dropped. */
static void drop_embedded(int n, int c, float *x, const Noise *noise) {
    float factor[c];
    for (int t = 0; t < n && noise->limit; t++, x += c) {
        dropout_scale(noise, site_of(0, EMBEDDED), t, 0, c, factor);
        SIMD
        for (int i = 0; i < c; i++) x[i] *= factor[i];
    }
}

/* x1 -> x2: attention is added to the stream. */
NOINLINE void attend(const Network *net, int layer, int n, int length, const Workspace *room, float *x2) {
    const Activations *k = &room->kept[layer];
    const Products *products = &room->products;
    int c = net->n_embd, d = net->head_dim, n_qk_heads = net->n_head + net->n_kv_head, g = n_qk_heads + net->n_kv_head, row = g * d;
    AttnShape heads = {net->n_head, net->n_kv_head, d, net->window};
    norm_forward(n, c, k->x1, vector(net, layer, NORM1), vector(net, layer, NORM1_BIAS), !net->layernorm, net->norm_eps, k->h1,
                 k->mean1, k->scale1);
    multiply(products, n, row, c, (MatrixA){k->h1, c, 0}, weight_t(net, layer, QKV, row, c), put_narrowed,
             &(StoreBf16){k->raw, row, vector(net, layer, QKV_BIAS)});
    for (int t = 0; t < n; t++) {
        long place = (long)(t % length) * (d / 2);
        const float *cosines = net->cosines ? net->cosines + place : NULL, *sines = net->sines ? net->sines + place : NULL;
        for (int head = 0; head < n_qk_heads; head++) {
            long at = (long)t * row + head * d;
            k->turn_scales[(long)t * g + head] =
                qk_norm_rope(d, k->raw + at, vector(net, layer, head < net->n_head ? Q_NORM : K_NORM), net->norm_eps, cosines, sines,
                     k->qkv + at);
        }
        memcpy(k->qkv + (long)t * row + n_qk_heads * d, k->raw + (long)t * row + n_qk_heads * d, sizeof(elem_t) * net->n_kv_head * d);
    }
    for (int t = 0; t < n; t += length)
        attention_forward(products, &heads, length, k->qkv + (long)t * row, k->y + (long)t * c,
                          k->row_max + (long)t * net->n_head, k->row_inv_sum + (long)t * net->n_head, &room->tiles);
    multiply(products, n, c, c, (MatrixA){k->y, c, 0}, weight_t(net, layer, OUT, c, c), put_added,
             &(ResidualAdd){k->x1, x2, c, vector(net, layer, OUT_BIAS), &room->noise, site_of(layer, ATTENDED)});
}

NOINLINE void attend_backward(const Network *net, int layer, int n, int length, const Workspace *room, float *gradients) {
    const Activations *k = &room->kept[layer];
    const Products *products = &room->products;
    int c = net->n_embd, d = net->head_dim, n_qk_heads = net->n_head + net->n_kv_head, g = n_qk_heads + net->n_kv_head, row = g * d;
    AttnShape heads = {net->n_head, net->n_kv_head, d, net->window};
    elem_t *upstream = room->h, *dy = room->narrow_rows, *d_raw = dy; /* dy is used up before d_raw is written */
    drop_backward(n, c, room->dx, &room->noise, site_of(layer, ATTENDED), upstream);
    bias_backward(n, c, upstream, gradient(net, gradients, layer, OUT_BIAS));
    add_gradient(net, layer, OUT, n, c, c, upstream, k->y, products, gradients);
    multiply(products, n, c, c, (MatrixA){upstream, c, 0}, backward(net, layer, OUT, c, c), put_narrowed, &(StoreBf16){dy, c, NULL});
    float *d_qkv = room->wide_rows;
    for (int t = 0; t < n; t += length)
        attention_backward(products, &heads, length, k->qkv + (long)t * row, k->y + (long)t * c,
                           k->row_max + (long)t * net->n_head, k->row_inv_sum + (long)t * net->n_head, dy + (long)t * c, d_qkv + (long)t * row, &room->tiles);
    for (int t = 0; t < n; t++) {
        long place = (long)(t % length) * (d / 2);
        const float *cosines = net->cosines ? net->cosines + place : NULL, *sines = net->sines ? net->sines + place : NULL;
        for (int head = 0; head < n_qk_heads; head++) {
            int norm = head < net->n_head ? Q_NORM : K_NORM;
            long at = (long)t * row + head * d;
            turn_backward(d, d_qkv + at, k->raw + at, vector(net, layer, norm), k->turn_scales[(long)t * g + head], cosines,
                          sines, d_raw + at, gradient(net, gradients, layer, norm));
        }
        narrow_all((long)net->n_kv_head * d, d_qkv + (long)t * row + n_qk_heads * d, d_raw + (long)t * row + n_qk_heads * d);
    }
    bias_backward(n, row, d_raw, gradient(net, gradients, layer, QKV_BIAS));
    add_gradient(net, layer, QKV, n, row, c, d_raw, k->h1, products, gradients);
    multiply(products, n, c, row, (MatrixA){d_raw, row, 0}, backward(net, layer, QKV, row, c), put,
             &(StoreF32){room->wide_rows, c, 1.0f, 0.0f});
    norm_backward(n, c, room->wide_rows, k->x1, vector(net, layer, NORM1), !net->layernorm, k->mean1, k->scale1, room->dx,
                  gradient(net, gradients, layer, NORM1), gradient(net, gradients, layer, NORM1_BIAS));
}

/* x2 -> x3: the MLP is added to the stream. */
NOINLINE void mlp_forward(const Network *net, int layer, int n, const Workspace *room, float *x3) {
    const Activations *k = &room->kept[layer];
    const Products *products = &room->products;
    int c = net->n_embd, f = net->mlp_hidden, u = net->mlp == SWIGLU ? 2 * f : f;
    const float *bias = vector(net, layer, UP_BIAS);
    Mlp mlp = {net->mlp, f, bias, k->up, k->hidden, NULL};
    norm_forward(n, c, k->x2, vector(net, layer, NORM2), vector(net, layer, NORM2_BIAS), !net->layernorm, net->norm_eps, k->h2,
                 k->mean2, k->scale2);
    MatrixA h2 = {k->h2, c, 0};
    PackedB up = weight_t(net, layer, UP, u, c);
    if (net->mlp == SWIGLU)
        multiply(products, n, u, c, h2, up, put_narrowed, &(StoreBf16){k->up, u, bias}), swiglu_forward(n, &mlp);
    else
        multiply(products, n, u, c, h2, up, activate, &mlp);
    multiply(products, n, c, f, (MatrixA){k->hidden, f, 0}, weight_t(net, layer, DOWN, c, f), put_added,
             &(ResidualAdd){k->x2, x3, c, vector(net, layer, DOWN_BIAS), &room->noise, site_of(layer, WIDENED)});
}

NOINLINE void mlp_backward(const Network *net, int layer, int n, const Workspace *room, float *gradients) {
    const Activations *k = &room->kept[layer];
    const Products *products = &room->products;
    int c = net->n_embd, f = net->mlp_hidden, u = net->mlp == SWIGLU ? 2 * f : f;
    elem_t *upstream = room->h, *d_up = room->narrow_rows;
    Mlp mlp = {net->mlp, f, NULL, k->up, k->hidden, d_up};
    drop_backward(n, c, room->dx, &room->noise, site_of(layer, WIDENED), upstream);
    bias_backward(n, c, upstream, gradient(net, gradients, layer, DOWN_BIAS));
    add_gradient(net, layer, DOWN, n, c, f, upstream, k->hidden, products, gradients);
    multiply(products, n, f, c, (MatrixA){upstream, c, 0}, backward(net, layer, DOWN, c, f), activate_backward, &mlp);
    bias_backward(n, u, d_up, gradient(net, gradients, layer, UP_BIAS));
    add_gradient(net, layer, UP, n, u, c, d_up, k->h2, products, gradients);
    multiply(products, n, c, u, (MatrixA){d_up, u, 0}, backward(net, layer, UP, u, c), put,
             &(StoreF32){room->wide_rows, c, 1.0f, 0.0f});
    norm_backward(n, c, room->wide_rows, k->x2, vector(net, layer, NORM2), !net->layernorm, k->mean2, k->scale2, room->dx,
                  gradient(net, gradients, layer, NORM2), gradient(net, gradients, layer, NORM2_BIAS));
}

/* Of one row of logits (V,) the loss; the row becomes the gradient of `weight` times the loss. A negative target does not count. */
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
    float largest = most_of(v, logits);
    SIMD_SUM(sum)
    for (int i = 0; i < v; i++) sum += exponential(logits[i] - largest);
    float log_sum = largest + logf(sum);
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

/* The loss of the final stream room->x (N, C), summed; with gradients, room->dx and those of norm and head. */
NOINLINE double head_loss(const Network *net, int n, const int64_t *targets, float weight, const Workspace *room, float *gradients) {
    int c = net->n_embd, v = net->vocab_size, top = net->n_layer;
    const Products *products = &room->products;
    double loss = 0.0;
    norm_forward(n, c, room->x, vector(net, top, NORM), vector(net, top, NORM_BIAS), !net->layernorm, net->norm_eps, room->h,
                 room->mean, room->scale);
    for (int t = 0; t < n; t += LOGIT_ROWS) { /* logits of a large vocabulary are never there all at once */
        int rows = smaller(LOGIT_ROWS, n - t);
        const elem_t *h = room->h + (long)t * c;
        multiply(products, rows, v, c, (MatrixA){h, c, 0}, weight_t(net, top, HEAD, v, c), put, &(StoreF32){room->logits, v, 1.0f, 0.0f});
        for (int i = 0; i < rows; i++)
            loss += cross_entropy(net, room->logits + (long)i * v, targets[t + i], weight, gradients != NULL);
        if (!gradients) continue;
        narrow_all((long)rows * v, room->logits, room->d_logits);
        add_gradient(net, top, HEAD, rows, v, c, room->d_logits, h, products, gradients);
        multiply(products, rows, c, v, (MatrixA){room->d_logits, v, 0}, backward(net, top, HEAD, v, c), put,
                 &(StoreF32){room->wide_rows + (long)t * c, c, 1.0f, 0.0f});
    }
    if (gradients) {
        memset(room->dx, 0, sizeof(float) * (size_t)n * c);
        norm_backward(n, c, room->wide_rows, room->x, vector(net, top, NORM), !net->layernorm, room->mean, room->scale, room->dx,
                      gradient(net, gradients, top, NORM), gradient(net, gradients, top, NORM_BIAS));
    }
    return loss;
}

/* The summed loss of a chunk of whole sequences; adds to `gradients` unless it is NULL. */
static double run_chunk(const Network *net, const int64_t *tokens, const int64_t *targets, int n, int length, float weight,
                        const Workspace *room, float *gradients) {
    float *embedded = net->n_layer ? room->kept[0].x1 : room->x;
    embed(net, tokens, n, length, embedded);
    drop_embedded(n, net->n_embd, embedded, &room->noise);
    for (int layer = 0; layer < net->n_layer; layer++) {
        attend(net, layer, n, length, room, room->kept[layer].x2);
        mlp_forward(net, layer, n, room, layer + 1 < net->n_layer ? room->kept[layer + 1].x1 : room->x);
    }
    double loss = head_loss(net, n, targets, weight, room, gradients);
    if (gradients) {
        for (int layer = net->n_layer - 1; layer >= 0; layer--) {
            mlp_backward(net, layer, n, room, gradients);
            attend_backward(net, layer, n, length, room, gradients);
        }
        drop_embedded(n, net->n_embd, room->dx, &room->noise);
        embed_backward(net, tokens, n, length, room->dx, gradients);
    }
    return loss;
}

typedef struct {
    const Network *net;
    const int64_t *tokens, *targets;        /* (sequences, length), rows `stride` apart */
    int first, last, length, stride, chunk; /* this thread's sequences, and how many at a time */
    float weight;
    uint64_t seed;
    Workspace room;
    int64_t *rows; /* (2, chunk * length): a chunk's tokens and targets */
    float *gradients; /* its own; NULL: only the loss is wanted */
    double loss;
} ThreadTask;

static void work(void *argument) {
    ThreadTask *share = argument;
    const Network *net = share->net;
    int length = share->length, before = begin_products(&net->backend);
    if (share->gradients) memset(share->gradients, 0, sizeof(float) * (size_t)net->n_parameters);
    for (int first = share->first; first < share->last; first += share->chunk) {
        int sequences = smaller(share->chunk, share->last - first);
        int64_t *tokens = share->rows, *targets = share->rows + (long)share->chunk * length;
        for (int i = 0; i < sequences; i++) {
            long at = (long)(first + i) * share->stride;
            memcpy(tokens + (long)i * length, share->tokens + at, sizeof *tokens * length);
            memcpy(targets + (long)i * length, share->targets + at, sizeof *targets * length);
        }
        share->room.noise = noise_of(share->gradients ? net->dropout : 0.0f, share->seed, (long)first * length);
        share->loss += run_chunk(net, tokens, targets, sequences * length, length, share->weight, &share->room,
                                 share->gradients);
    }
    end_products(&net->backend, before);
}

typedef struct {
    float *gradients; /* (threads, n_parameters) */
    long n_parameters, from, to;
    int threads;
} Sum;

static void reduce_gradients(void *argument) { /* into the first row, in the order of the threads */
    const Sum *sum = argument;
    for (int other = 1; other < sum->threads; other++) {
        const float *more = sum->gradients + sum->n_parameters * other;
        SIMD
        for (long i = sum->from; i < sum->to; i++) sum->gradients[i] += more[i];
    }
}

#ifdef BF16
typedef struct {
    const Network *net;
    int first, step; /* which matrices are its own */
} Packing;

/* W (out, in) as panels: of W^T, then of W. */
static void pack(const float *w, int out, int in, elem_t *panels) {
    long depth = round_up_tile(in), strips = round_up_tile(out);
    elem_t strip[STRIP * depth], *across = panels + depth * strips;
    for (int j = 0; j < out; j += STRIP) {
        int rows = smaller(STRIP, out - j);
        for (int i = 0; i < rows; i++) narrow_all(in, w + (long)(j + i) * in, strip + i * depth);
        pack_bt(in, rows, strip, (int)depth, panels + j * depth);
        for (int p = 0; p < in; p += STRIP) pack_b(rows, smaller(STRIP, in - p), strip + p, (int)depth, across + p * strips + j * STRIP);
    }
}

NOINLINE void pack_worker(void *argument) {
    const Packing *packing = argument;
    const Network *net = packing->net;
    int c = net->n_embd, f = net->mlp_hidden, top = net->n_layer * PER_BLOCK;
    int heads = (net->n_head + 2 * net->n_kv_head) * net->head_dim, matrix = 0;
    for (int at = 0; at <= top + HEAD; at++) {
        int which = at < top ? at % PER_BLOCK : at - top, out = 0, in = c;
        if (at >= top) out = which == HEAD ? net->vocab_size : 0;
        else if (which == QKV) out = heads;
        else if (which == OUT) out = c;
        else if (which == UP) out = net->mlp == SWIGLU ? 2 * f : f;
        else if (which == DOWN) out = c, in = f;
        if (out && matrix++ % packing->step == packing->first)
            pack(net->parameters[at], out, in, net->matrices + net->packed_offsets[at]);
    }
}
#endif

/* The matrices as products read them; to be called after every update. */
void pack_weights(const Network *net, int threads) {
#ifdef BF16
    Packing shares[threads];
    for (int i = 0; i < threads; i++) shares[i] = (Packing){net, i, threads};
    parallel_run(pack_worker, shares, sizeof *shares, threads);
#else
    (void)net, (void)threads;
#endif
}

/* Whether the processor and the system let us use AMX. */
int tiles_available(void) { return amx_request(); }

/* Bytes of room that `loss_and_gradients` needs for each thread; `keep`: with gradients. */
size_t room_bytes(const Network *net, int chunk, int length, int keep) {
    Workspace room;
    char *end = (char *)layout_workspace(net, chunk * length, length, keep, NULL, &room);
    arena_alloc(&end, 2 * sizeof(int64_t) * (size_t)chunk * length);
    return (size_t)end; /* whole cache lines: the next thread's begins at one, too */
}

/* The summed loss of (sequences, length) tokens, whose rows are `stride` apart. `gradients` (threads, n_parameters), or NULL, gets
   in its first row the gradient of `weight` times that loss, with the dropout that `seed` draws. `rooms` is room_bytes for each
   thread. */
double loss_and_gradients(const Network *net, const int64_t *tokens, const int64_t *targets, int sequences, int length,
                          int stride, int chunk, float weight, uint64_t seed, char *rooms, float *gradients, int threads) {
    ThreadTask shares[threads];
    Sum sums[threads];
    size_t bytes = room_bytes(net, chunk, length, gradients != NULL);
    double loss = 0.0;
    for (int i = 0; i < threads; i++) {
        ThreadTask *share = &shares[i];
        char *room = rooms + bytes * (size_t)i;
        memset(share, 0, sizeof *share);
        share->net = net, share->tokens = tokens, share->targets = targets;
        share->first = (int)((long)sequences * i / threads), share->last = (int)((long)sequences * (i + 1) / threads);
        share->length = length, share->stride = stride, share->chunk = chunk, share->weight = weight, share->seed = seed;
        share->rows = (int64_t *)(room + layout_workspace(net, chunk * length, length, gradients != NULL, room, &share->room));
        share->gradients = gradients ? gradients + net->n_parameters * i : NULL;
        sums[i] = (Sum){gradients, net->n_parameters, net->n_parameters * i / threads, net->n_parameters * (i + 1) / threads,
                        threads};
    }
    parallel_run(work, shares, sizeof *shares, threads);
    if (gradients && threads > 1) parallel_run(reduce_gradients, sums, sizeof *sums, threads);
    for (int i = 0; i < threads; i++) loss += shares[i].loss;
    return loss;
}

/* What `seed` draws for a batch: the factors (rows, C) of the embedding's dropout, then of those in each block. */
void draw_dropout(const Network *net, uint64_t seed, int rows, float *out) {
    Noise noise = noise_of(net->dropout, seed, 0);
    for (int stream_id = 0; stream_id <= 2 * net->n_layer; stream_id++)
        for (int t = 0; t < rows; t++, out += net->n_embd) dropout_scale(&noise, stream_id, t, 0, net->n_embd, out);
}
