/* The layers of a block besides its GEMMs: norms, activations, QK norm and RoPE; forward and backward.
   N rows (tokens), C width. Gradients of parameters are accumulated, all others overwritten. */

/* h = (x - mean) * scale * gain + bias, scale = 1 / sqrt(variance + eps); RMSNorm has mean 0. */
NOINLINE void norm_forward(int n, int c, const float *x, const float *gain, const float *bias, int rms, float eps,
                         elem_t *h, float *mean, float *scale) {
    for (int t = 0; t < n; t++, x += c, h += c) {
        float sum = 0.0f, squares = 0.0f;
        if (!rms) {
            SIMD_SUM(sum)
            for (int i = 0; i < c; i++) sum += x[i];
        }
        float m = sum / (float)c;
        SIMD_SUM(squares)
        for (int i = 0; i < c; i++) squares += (x[i] - m) * (x[i] - m);
        float s = 1.0f / sqrtf(squares / (float)c + eps);
        mean[t] = m, scale[t] = s;
        if (bias) {
            SIMD
            for (int i = 0; i < c; i++) h[i] = to_elem((x[i] - m) * s * gain[i] + bias[i]);
        } else {
            SIMD
            for (int i = 0; i < c; i++) h[i] = to_elem((x[i] - m) * s * gain[i]);
        }
    }
}

/* Accumulates into dx, d_gain and d_bias. */
NOINLINE void norm_backward(int n, int c, const float *dh, const float *x, const float *gain, int rms, const float *mean,
                          const float *scale, float *dx, float *d_gain, float *d_bias) {
    for (int t = 0; t < n; t++, dh += c, x += c, dx += c) {
        float m = mean[t], s = scale[t], sum = 0.0f, delta = 0.0f;
        SIMD_SUM(sum, delta)
        for (int i = 0; i < c; i++) {
            float normal = (x[i] - m) * s, g = dh[i] * gain[i];
            sum += g, delta += g * normal;
        }
        sum = rms ? 0.0f : sum / (float)c, delta /= (float)c;
        SIMD
        for (int i = 0; i < c; i++) {
            float normal = (x[i] - m) * s;
            dx[i] += s * (dh[i] * gain[i] - sum - normal * delta);
            d_gain[i] += dh[i] * normal;
        }
        if (d_bias) {
            SIMD
            for (int i = 0; i < c; i++) d_bias[i] += dh[i];
        }
    }
}

NOINLINE void bias_backward(int n, int c, const elem_t *dy, float *d_bias) {
    if (d_bias)
        for (int t = 0; t < n; t++, dy += c) {
            SIMD
            for (int i = 0; i < c; i++) d_bias[i] += to_float(dy[i]);
        }
}


static inline float gelu_inner(float x) { return 0.7978845608f * (x + 0.044715f * x * x * x); }

/* The activation of an MLP as a GEMM epilogue; saved for the backward pass is `up` (N, U), U = 2 F for swiglu, else F. */
typedef struct {
    int kind, width; /* F */
    const float *bias; /* of the up projection, or NULL */
    elem_t *up, *hidden; /* (N, U), (N, F) */
    elem_t *d_up;        /* (N, U) */
} Mlp;

/* A block of the up projection -> up and hidden; not for swiglu, whose gate and up are in different blocks. */
INLINE void activate_block(const Mlp *m, int row, int column, int rows, int columns, const float *restrict block, int ld) {
    long at = (long)row * m->width + column;
    for (int t = 0; t < rows; t++, at += m->width, block += ld) {
        float sum[columns], y[columns];
        const float *x = block; /* not a copy: memcpy's shorter stores are not forwarded to loads of whole vectors, which wait for them */
        if (m->bias) {
            SIMD
            for (int i = 0; i < columns; i++) sum[i] = block[i] + m->bias[column + i];
            x = sum;
        }
        if (m->kind == GELU) {
            SIMD
            for (int i = 0; i < columns; i++) y[i] = 0.5f * x[i] * (1.0f + hyperbolic_tangent(gelu_inner(x[i])));
        } else {
            SIMD
            for (int i = 0; i < columns; i++) {
                float positive = x[i] < 0.0f ? 0.0f : x[i];
                y[i] = m->kind == RELU ? positive : positive * positive;
            }
        }
        to_elems(columns, x, m->up + at);
        to_elems(columns, y, m->hidden + at);
    }
}
EPILOGUE(activate, activate_block)

/* `up` (N, 2 F) -> hidden (N, F). */
NOINLINE void swiglu_forward(int n, const Mlp *m) {
    int f = m->width;
    const elem_t *up = m->up;
    for (int t = 0; t < n; t++, up += 2 * f) {
        float y[f];
        SIMD
        for (int i = 0; i < f; i++) y[i] = to_float(up[i]) * sigmoid(to_float(up[i])) * to_float(up[f + i]);
        to_elems(f, y, m->hidden + (long)t * f);
    }
}

/* A block of the gradient of hidden -> d_up. */
INLINE void activate_backward_block(const Mlp *m, int row, int column, int rows, int columns, const float *restrict block,
                                    int ld) {
    int u = m->kind == SWIGLU ? 2 * m->width : m->width;
    const elem_t *restrict up = m->up + (long)row * u + column;
    elem_t *restrict d_up = m->d_up + (long)row * u + column;
    float dx[columns], d_gate[columns];
    for (int t = 0; t < rows; t++, up += u, d_up += u, block += ld) {
        if (m->kind == SWIGLU) {
            const elem_t *other = up + m->width;
            SIMD
            for (int i = 0; i < columns; i++) {
                float x = to_float(up[i]), s = sigmoid(x);
                d_gate[i] = block[i] * to_float(other[i]) * s * (1.0f + x * (1.0f - s));
                dx[i] = block[i] * x * s;
            }
            to_elems(columns, d_gate, d_up);
            to_elems(columns, dx, d_up + m->width);
            continue;
        }
        if (m->kind == GELU) {
            SIMD
            for (int i = 0; i < columns; i++) {
                float x = to_float(up[i]), tangent = hyperbolic_tangent(gelu_inner(x));
                float inner = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
                dx[i] = block[i] * 0.5f * (1.0f + tangent + x * (1.0f - tangent * tangent) * inner);
            }
        } else {
            SIMD
            for (int i = 0; i < columns; i++) {
                float x = to_float(up[i]), slope = m->kind == RELU ? 1.0f : 2.0f * x;
                dx[i] = x > 0.0f ? block[i] * slope : 0.0f;
            }
        }
        to_elems(columns, dx, d_up);
    }
}
EPILOGUE(activate_backward, activate_backward_block)

/* QK norm (gain not NULL), then RoPE (cosines not NULL; GPT-NeoX layout: pairs (i, i + D / 2)) of one head's query or key.
   `raw` and `out` may be the same. Returns the scale of the norm. */
INLINE float qk_norm_rope_of(int d, const elem_t *raw, const float *gain, float eps, const float *cosines, const float *sines,
                  elem_t *out) {
    float x[d], scale = 1.0f;
    SIMD
    for (int i = 0; i < d; i++) x[i] = to_float(raw[i]);
    if (gain) {
        float squares = 0.0f;
        SIMD_SUM(squares)
        for (int i = 0; i < d; i++) squares += x[i] * x[i];
        scale = 1.0f / sqrtf(squares / (float)d + eps);
        SIMD
        for (int i = 0; i < d; i++) x[i] *= scale * gain[i];
    }
    if (cosines) {
        int half = d / 2;
        SIMD
        for (int i = 0; i < half; i++) {
            float a = x[i], b = x[half + i];
            x[i] = a * cosines[i] - b * sines[i];
            x[half + i] = b * cosines[i] + a * sines[i];
        }
    }
    to_elems(d, x, out);
    return scale;
}

/* d_out (D) -> d_raw (D); accumulates into d_gain. */
INLINE void qk_norm_rope_backward_of(int d, const float *d_out, const elem_t *raw, const float *gain, float scale,
                          const float *cosines, const float *sines, elem_t *d_raw, float *d_gain) {
    float dx[d];
    if (cosines) {
        int half = d / 2;
        SIMD
        for (int i = 0; i < half; i++) {
            float a = d_out[i], b = d_out[half + i];
            dx[i] = a * cosines[i] + b * sines[i];
            dx[half + i] = b * cosines[i] - a * sines[i];
        }
    } else
        memcpy(dx, d_out, sizeof dx);
    if (gain) {
        float delta = 0.0f;
        SIMD_SUM(delta)
        for (int i = 0; i < d; i++) {
            float normal = to_float(raw[i]) * scale;
            d_gain[i] += dx[i] * normal;
            dx[i] *= gain[i];
            delta += dx[i] * normal;
        }
        delta /= (float)d;
        SIMD
        for (int i = 0; i < d; i++) dx[i] = scale * (dx[i] - to_float(raw[i]) * scale * delta);
    }
    to_elems(d, dx, d_raw);
}

/* Specialised for the usual head dimensions. */
NOINLINE float qk_norm_rope(int d, const elem_t *raw, const float *gain, float eps, const float *cosines, const float *sines, elem_t *out) {
    if (d == 32) return qk_norm_rope_of(32, raw, gain, eps, cosines, sines, out);
    if (d == 64) return qk_norm_rope_of(64, raw, gain, eps, cosines, sines, out);
    return qk_norm_rope_of(d, raw, gain, eps, cosines, sines, out);
}

NOINLINE void qk_norm_rope_backward(int d, const float *d_out, const elem_t *raw, const float *gain, float scale, const float *cosines,
                          const float *sines, elem_t *d_raw, float *d_gain) {
    if (d == 32)
        qk_norm_rope_backward_of(32, d_out, raw, gain, scale, cosines, sines, d_raw, d_gain);
    else if (d == 64)
        qk_norm_rope_backward_of(64, d_out, raw, gain, scale, cosines, sines, d_raw, d_gain);
    else
        qk_norm_rope_backward_of(d, d_out, raw, gain, scale, cosines, sines, d_raw, d_gain);
}
