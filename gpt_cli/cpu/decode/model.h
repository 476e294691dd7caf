/* The model: as bindings.py describes it, and as the decoder keeps it, with matrices in panels and padded vectors. */

/* bindings.py fills these two in, in this order; a pointer is NULL where the model lacks the parameter. */
typedef struct {
    MODEL_FIELDS;
    int32_t post_norm, format, threads, use_amx; /* use_amx: where there is any */
    NETWORK_PARAMETERS(AS_POINTER)             /* positions (context, C): learned or sinusoidal */
    const float *cosines, *sines;              /* (context, D / 2): RoPE */
} Network;

typedef struct { BLOCK_PARAMETERS(AS_POINTER) } Layer;

/* The matrices of a layer: X(name, outputs, inputs, weights, bias), from the sizes in gpt_open. With SwiGLU the two halves of `layer->up`
   are gate and up, of F outputs each; otherwise the gate has no outputs, and is left out. */
#define LAYER_MATRICES(X)                                                                    \
    X(qkv, c + 2 * kv, c, layer->qkv, layer->qkv_bias)                                       \
    X(out, c, c, layer->out, layer->out_bias)                                                \
    X(gate, gate, c, layer->up, layer->up_bias)                                              \
    X(up, f, c, layer->up + (size_t)gate * c, layer->up_bias ? layer->up_bias + gate : NULL) \
    X(down, c, f, layer->down, layer->down_bias)

/* Its vectors: X(name, numbers, numbers with padding); NULL where the model has none. */
#define LAYER_VECTORS(X)                                                              \
    X(norm1, c, m->c) X(norm1_bias, c, m->c) X(norm2, c, m->c) X(norm2_bias, c, m->c) \
    X(q_norm, d, m->d) X(k_norm, d, m->d)

#define MATRIX_FIELD(name, outputs, inputs, weights, bias) Matrix name;
#define VECTOR_FIELD(name, numbers, padded_to) float *name;
typedef struct { LAYER_MATRICES(MATRIX_FIELD) LAYER_VECTORS(VECTOR_FIELD) } PackedLayer;

typedef struct {
    Network net;
    PackedLayer *packed;
    Matrix head;
    char *weights; /* of all matrices */
    float *norm, *norm_bias;
    int c, f, d, s; /* C, F, D, S padded */
    size_t block_bytes; /* of 16 keys and values of a head, see attention.h and kv_int8.h */
    bool use_amx; /* allowed, and there */
    bool kv_int8; /* the KV cache is quantized to int8 */
    bool fits_l2; /* the weights fit in L2: threads run data parallel over sequences, not inside an operation */
    Pool pool;
} Model;
