/* The model as native_engine.py describes it: its sizes, its parameters and their gradients, and its matrices packed for products.

   C is the width (n_embd), H the query heads and Hkv the key/value heads, of D numbers each, F the hidden width of the MLP. */

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
    elem_t *matrices;                      /* bf16: packed weights, W^T and W of each, see `pack_matrix` */
    const long *packed_offsets;            /* of each parameter in `matrices` */
    Backend backend;
} Network;

/* Columns of a row of queries, keys and values, and of the output of the up projection. */
static inline int qkv_width(const Network *net) { return (net->n_head + 2 * net->n_kv_head) * net->head_dim; }
static inline int up_width(const Network *net) { return net->mlp_hidden * (net->mlp == SWIGLU ? 2 : 1); }

/* A parameter is named by its layer and its index in there; those of the network are in layer n_layer, behind the blocks. */
static inline int index_of(int layer, int which) { return layer * PER_BLOCK + which; }
static inline const float *parameter(const Network *net, int layer, int which) { return net->parameters[index_of(layer, which)]; }
static inline float *gradient(const Network *net, float *gradients, int layer, int which) {
    int i = index_of(layer, which);
    return net->parameters[i] ? gradients + net->offsets[i] : NULL;
}

typedef struct { int out, in; } MatrixShape; /* W (out, in): x (N, in) -> x W^T (N, out) */

/* The shape of a matrix that products read; (0, 0) for any other parameter. */
static MatrixShape matrix_shape(const Network *net, int layer, int which) {
    int c = net->n_embd;
    if (layer == net->n_layer) return which == HEAD ? (MatrixShape){net->vocab_size, c} : (MatrixShape){0, 0};
    switch (which) {
    case QKV: return (MatrixShape){qkv_width(net), c};
    case OUT: return (MatrixShape){c, c};
    case UP: return (MatrixShape){up_width(net), c};
    case DOWN: return (MatrixShape){c, net->mlp_hidden};
    default: return (MatrixShape){0, 0};
    }
}

/* W^T and W as the B of a product: of x W^T in the forward pass, and of dy W in the backward pass. */
#ifdef BF16
/* In `matrices` W^T comes first, then W; see gemm.h for their panels. */
static void pack_matrix(const Network *net, int layer, int which) {
    MatrixShape w = matrix_shape(net, layer, which);
    long depth = round_up_tile(w.in), strips = round_up_tile(w.out);
    const float *from = parameter(net, layer, which);
    elem_t *wt_panels = net->matrices + net->packed_offsets[index_of(layer, which)], *w_panels = wt_panels + depth * strips;
    elem_t rows_of_w[TILE * depth];
    for (int j = 0; j < w.out; j += TILE) {
        int rows = min_int(TILE, w.out - j);
        for (int i = 0; i < rows; i++) to_elems(w.in, from + (long)(j + i) * w.in, rows_of_w + i * depth);
        pack_bt(w.in, rows, rows_of_w, (int)depth, wt_panels + j * depth);
        for (int p = 0; p < w.in; p += TILE)
            pack_b(rows, min_int(TILE, w.in - p), rows_of_w + p, (int)depth, w_panels + p * strips + j * TILE);
    }
}

static inline PackedB packed_wt(const Network *net, int layer, int which) {
    long depth = round_up_tile(matrix_shape(net, layer, which).in);
    return (PackedB){net->matrices + net->packed_offsets[index_of(layer, which)], depth * TILE};
}
static inline PackedB packed_w(const Network *net, int layer, int which) {
    MatrixShape w = matrix_shape(net, layer, which);
    long depth = round_up_tile(w.out), wt_size = depth * round_up_tile(w.in);
    return (PackedB){net->matrices + net->packed_offsets[index_of(layer, which)] + wt_size, depth * TILE};
}
#else /* the BLAS reads them where they are */
static inline PackedB packed_wt(const Network *net, int layer, int which) {
    MatrixShape w = matrix_shape(net, layer, which);
    return pack_bt(w.in, w.out, parameter(net, layer, which), w.in, NULL);
}
static inline PackedB packed_w(const Network *net, int layer, int which) {
    MatrixShape w = matrix_shape(net, layer, which);
    return pack_b(w.out, w.in, parameter(net, layer, which), w.in, NULL);
}
#endif
