/* The memory of a thread while it computes the loss of a chunk and its gradient.

   The two tables list its buffers (see arena.h), whose sizes are computed from `Counts n`. A further buffer is one more line there. */

enum { LOGIT_ROWS = 128 }; /* rows whose logits are computed together: those of a large vocabulary are never all there at once */

typedef struct {
    size_t tokens; /* of a chunk */
    size_t layers, embd, heads, qkv_heads, head_dim, up, hidden, vocab;
    size_t row_width;  /* columns of the widest row that a block's products read or write */
    size_t logit_rows; /* at most LOGIT_ROWS */
} Counts;

/* What the forward pass of a block saves for its backward pass. */
#define BLOCK_BUFFERS(X)                                                                                                         \
    X(float, x1, n.tokens * n.embd) X(float, x2, n.tokens * n.embd)   /* the residual stream before attention, before the MLP */ \
    X(float, mean1, n.tokens) X(float, scale1, n.tokens)              /* of the rows of x1, by the norm before attention */      \
    X(float, mean2, n.tokens) X(float, scale2, n.tokens)              /* of the rows of x2, by the norm before the MLP */        \
    X(float, qk_scales, n.tokens * n.qkv_heads)                       /* by QK norm; none of the values */                       \
    X(float, row_max, n.tokens * n.heads + LANES)                     /* of the softmax of each query and head; */               \
    X(float, row_inv_sum, n.tokens * n.heads + LANES)                 /* whole vectors are read, beyond the end */               \
    X(elem_t, h1, n.tokens * n.embd) X(elem_t, h2, n.tokens * n.embd) /* x1 and x2, normalised */                                \
    X(elem_t, raw, n.tokens * n.qkv_heads * n.head_dim)               /* queries, keys and values before QK norm and RoPE, */    \
    X(elem_t, qkv, n.tokens * n.qkv_heads * n.head_dim)               /* and after it */                                         \
    X(elem_t, y, n.tokens * n.embd)                                   /* output of the heads */                                  \
    X(elem_t, up, n.tokens * n.up)                                    /* output of the up projection, before the activation, */  \
    X(elem_t, hidden, n.tokens * n.hidden)                            /* and after it */

typedef struct { BLOCK_BUFFERS(BUFFER_FIELD) } Activations;

#define WORKSPACE_BUFFERS(X)                                                                                       \
    X(Activations, saved, n.layers)                    /* of each block */                                         \
    X(int64_t, inputs, n.tokens) X(int64_t, targets, n.tokens)                                                     \
    X(float, x, n.tokens * n.embd)                     /* the residual stream after the last block */              \
    X(float, mean, n.tokens) X(float, scale, n.tokens) /* of the rows of x, by the last norm */                    \
    X(elem_t, h, n.tokens * n.embd)                    /* x, normalised; then the gradient of a branch's output */ \
    X(float, dx, n.tokens * n.embd)                    /* gradient of the residual stream */                       \
    X(float, f32_rows, n.tokens * n.row_width)         /* gradient of qkv, then of a norm's output */              \
    X(elem_t, elem_rows, n.tokens * n.row_width)       /* gradient of y, then of `raw`; or of `up` */              \
    X(float, logits, n.logit_rows * n.vocab) X(elem_t, d_logits, n.logit_rows * n.vocab)

typedef struct {
    WORKSPACE_BUFFERS(BUFFER_FIELD)
    AttnBuffers attn;
    GemmContext gemm_ctx;
    Dropout dropout, attention_dropout; /* of the chunk */
} Workspace;

static Activations take_activations(Arena *arena, Counts n) {
    Activations activations, *to = &activations;
    BLOCK_BUFFERS(TAKE_BUFFER)
    return activations;
}

/* Set the buffers of `to` to parts of `memory`, for chunks of `tokens` tokens in sequences of at most `length`; returns the bytes needed
   (with NULL only that). Without a backward pass all blocks share the activations of one, which then stay in the cache. */
static size_t layout_workspace(const Network *net, int tokens, int length, bool with_backward, char *memory, Workspace *to) {
    Arena whole = {memory, 0}, *arena = &whole;
    int row_width = max_int(max_int(qkv_width(net), up_width(net)), net->n_embd);
    Counts n = {
        .tokens = tokens, .layers = net->n_layer, .embd = net->n_embd, .heads = net->n_head,
        .qkv_heads = net->n_head + 2 * net->n_kv_head, .head_dim = net->head_dim, .up = up_width(net), .hidden = net->mlp_hidden,
        .vocab = net->vocab_size, .row_width = row_width, .logit_rows = min_int(tokens, LOGIT_ROWS),
    };
    Activations activations = {0};
    WORKSPACE_BUFFERS(TAKE_BUFFER)
    for (int layer = 0; layer < net->n_layer; layer++) {
        if (layer == 0 || with_backward) activations = take_activations(arena, n);
        if (memory) to->saved[layer] = activations;
    }
    to->attn = attn_buffers(arena, length, net->head_dim);
    to->gemm_ctx = gemm_context(&net->backend, arena, tokens, row_width, max_int(max_int(tokens, row_width), net->vocab_size));
    return arena->used;
}
