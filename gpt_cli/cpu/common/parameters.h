/* The model as both engines are given it: what gpt_cli/model/parameters.py and cpu/common/c_model.py say in Python. */

enum { RELU, GELU, SWIGLU, RELU2 }; /* mlp */

#define MODEL_FIELDS                                                                                                 \
    int32_t n_layer, n_head, n_kv_head, head_dim, n_embd, mlp_hidden, vocab_size, context_length;                    \
    int32_t layernorm, mlp, window; /* window 0: all */                                                              \
    float norm_eps, softcap, embedding_scale /* softcap 0: none */

/* The parameters of a block, then those of the network; `up` is of SwiGLU gate and up. */
#define BLOCK_PARAMETERS(X)                                                                                          \
    X(norm1, NORM1) X(norm1_bias, NORM1_BIAS) X(qkv, QKV) X(qkv_bias, QKV_BIAS) X(q_norm, Q_NORM) X(k_norm, K_NORM)  \
    X(out, OUT) X(out_bias, OUT_BIAS) X(norm2, NORM2) X(norm2_bias, NORM2_BIAS) X(up, UP) X(up_bias, UP_BIAS)        \
    X(down, DOWN) X(down_bias, DOWN_BIAS)
#define NETWORK_PARAMETERS(X) X(tokens, TOKENS) X(positions, POSITIONS) X(norm, NORM) X(norm_bias, NORM_BIAS) X(head, HEAD)

#define AS_POINTER(name, NAME) const float *name;
#define AS_INDEX(name, NAME) NAME,
