/* The buffers of one forward pass. */

#define MAX_ROWS 64 /* tokens in one forward pass (llama.cpp's n_ubatch) */

/* X(type of an element, name, number of elements), see arena.h. A row of floats is zero-padded to whole panels. */
#define WORKSPACE_BUFFERS(X)                                                                                               \
    X(float, x, rows * m->c)                               /* the residual stream */                                       \
    X(float, h, rows * m->c)                               /* x, normalised */                                             \
    X(float, qkv, rows * shared_width)                     /* queries, keys and values; also y and hidden */               \
    X(float, y, y_in_qkv ? 0 : rows * m->c)                /* output of the heads */                                       \
    X(float, gates, rows * m->f)                           /* of SwiGLU */                                                 \
    X(float, logits, rows * padded(net->vocab_size, PANEL))                                                                \
    X(float, row_scales, rows)                             /* of packed_rows in int8 */                                    \
    X(uint8_t, packed_rows, rows * widest * sizeof(float)) /* rows as a GEMM reads them: quantized, or rounded to bf16 */

typedef struct {
    Model *model;
    Pool *pool;    /* NULL: single-threaded */
    char *memory;  /* of all buffers */
    WORKSPACE_BUFFERS(BUFFER_FIELD)
    float *hidden; /* (rows, F padded): output of the MLP's activation */
    int qkv_stride, y_stride;
} Workspace;

_Static_assert(MAX_ROWS % TILE_ROWS == 0, "rows are also written in whole tiles, see hidden_tiles");

/* Set the buffers of a workspace to parts of `memory`; returns the bytes needed (with NULL only that).

   Buffers that are live at different times share memory, so that it stays in the cache: other memory would be evicted by the KV
   caches, and fetched again before it is written. Those that share are, within a layer:

   - y is in the place of the queries, row by row: a head writes its output over its query, which was copied before. It has a buffer of
     its own where C is no whole number of vectors, because a GEMM, which reads whole vectors, would read on into the keys.
   - hidden is in the place of qkv: by then attention has read the keys and values, and the output projection has read y. AMX's tiles
     of hidden (`hidden_tiles`) need half as much. */
static size_t layout_workspace(Workspace *to, char *memory) {
    const Model *m = to->model;
    const Network *net = &m->net;
    int qkv_width = padded((net->n_head + 2 * net->n_kv_head) * net->head_dim, PANEL), widest = padded(m->c > m->f ? m->c : m->f, TILE_K);
    int shared_width = qkv_width > widest ? qkv_width : widest;
    size_t rows = MAX_ROWS;
    bool y_in_qkv = net->n_embd % LANES == 0;
    Arena whole = {memory, 0}, *arena = &whole;
    WORKSPACE_BUFFERS(TAKE_BUFFER)
    to->hidden = to->qkv;
    if (y_in_qkv) to->y = to->qkv;
    to->qkv_stride = qkv_width, to->y_stride = y_in_qkv ? qkv_width : m->c;
    return arena->used;
}

/* In one piece, and so in huge pages for a larger model: a GEMM writes all rows in turn. False: out of memory. */
static bool alloc_workspace(Workspace *ws, Model *m) {
    ws->model = m, ws->memory = alloc_zeroed(layout_workspace(ws, NULL));
    if (ws->memory) layout_workspace(ws, ws->memory);
    return ws->memory;
}
