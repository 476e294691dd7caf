/* What a block is made of besides products: norms, activations, rotations; forwards and backwards.
   N rows (tokens), C width. Gradients with respect to parameters are added to; the others are written. */

/* h = (x - mean) * scale * gain + bias, scale = 1 / sqrt(variance + eps); RMSNorm takes the mean for zero. */
static void norm_forward(int n, int c, const float *x, const float *gain, const float *bias, int rms, float eps,
                         real *h, float *mean, float *scale) {
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
            for (int i = 0; i < c; i++) h[i] = narrow((x[i] - m) * s * gain[i] + bias[i]);
        } else {
            SIMD
            for (int i = 0; i < c; i++) h[i] = narrow((x[i] - m) * s * gain[i]);
        }
    }
}

/* Adds to dx what flows back through the norm from dh. */
static void norm_backward(int n, int c, const float *dh, const float *x, const float *gain, int rms, const float *mean,
                          const float *scale, float *dx, float *d_gain, float *d_bias) {
    for (int t = 0; t < n; t++, dh += c, x += c, dx += c) {
        float m = mean[t], s = scale[t], sum = 0.0f, along = 0.0f;
        SIMD_SUM(sum, along)
        for (int i = 0; i < c; i++) {
            float normal = (x[i] - m) * s, g = dh[i] * gain[i];
            sum += g, along += g * normal;
        }
        sum = rms ? 0.0f : sum / (float)c, along /= (float)c;
        SIMD
        for (int i = 0; i < c; i++) {
            float normal = (x[i] - m) * s;
            dx[i] += s * (dh[i] * gain[i] - sum - normal * along);
            d_gain[i] += dh[i] * normal;
        }
        if (d_bias) {
            SIMD
            for (int i = 0; i < c; i++) d_bias[i] += dh[i];
        }
    }
}

static void add_bias(int n, int c, float *x, const float *bias) {
    if (bias)
        for (int t = 0; t < n; t++, x += c) {
            SIMD
            for (int i = 0; i < c; i++) x[i] += bias[i];
        }
}

static void bias_backward(int n, int c, const real *dy, float *d_bias) {
    if (d_bias)
        for (int t = 0; t < n; t++, dy += c) {
            SIMD
            for (int i = 0; i < c; i++) d_bias[i] += wide(dy[i]);
        }
}

enum { RELU, GELU, SWIGLU, RELU2 };

static inline float gelu_inner(float x) { return 0.7978845608f * (x + 0.044715f * x * x * x); }

/* up (N, U) as projected -> kept (N, U) in `real`, and hidden (N, F); U is 2 F for swiglu, else F. */
static void activate(int kind, int n, int f, const float *up, real *kept, real *hidden) {
    narrow_all((long)n * f * (kind == SWIGLU ? 2 : 1), up, kept);
    if (kind == SWIGLU) {
        for (int t = 0; t < n; t++, up += 2 * f, hidden += f) {
            SIMD
            for (int i = 0; i < f; i++) hidden[i] = narrow(up[i] * sigmoid(up[i]) * up[f + i]);
        }
        return;
    }
    for (int t = 0; t < n; t++, up += f, hidden += f) {
        if (kind == GELU) {
            SIMD
            for (int i = 0; i < f; i++) hidden[i] = narrow(0.5f * up[i] * (1.0f + hyperbolic_tangent(gelu_inner(up[i]))));
        } else {
            SIMD
            for (int i = 0; i < f; i++) {
                float positive = up[i] < 0.0f ? 0.0f : up[i];
                hidden[i] = narrow(kind == RELU ? positive : positive * positive);
            }
        }
    }
}

/* d_hidden (N, F), kept (N, U) -> d_up (N, U). */
static void activate_backward(int kind, int n, int f, const float *d_hidden, const real *kept, real *d_up) {
    for (int t = 0; t < n; t++, d_hidden += f) {
        if (kind == SWIGLU) {
            SIMD
            for (int i = 0; i < f; i++) {
                float gate = wide(kept[i]), up = wide(kept[f + i]), s = sigmoid(gate), d = d_hidden[i];
                d_up[i] = narrow(d * up * s * (1.0f + gate * (1.0f - s)));
                d_up[f + i] = narrow(d * gate * s);
            }
            kept += 2 * f, d_up += 2 * f;
            continue;
        }
        if (kind == GELU) {
            SIMD
            for (int i = 0; i < f; i++) {
                float x = wide(kept[i]), tangent = hyperbolic_tangent(gelu_inner(x));
                float inner = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
                d_up[i] = narrow(d_hidden[i] * 0.5f * (1.0f + tangent + x * (1.0f - tangent * tangent) * inner));
            }
        } else {
            SIMD
            for (int i = 0; i < f; i++) {
                float x = wide(kept[i]), slope = kind == RELU ? 1.0f : 2.0f * x;
                d_up[i] = narrow(x > 0.0f ? d_hidden[i] * slope : 0.0f);
            }
        }
        kept += f, d_up += f;
    }
}

/* One head's query or key: normalised (gain not NULL), then rotated (cosines not NULL); half of D are pairs (i, i + D / 2).
   `raw` and `out` may be the same. Gives the scale of the norm. */
static float turn(int d, const real *raw, const float *gain, float eps, const float *cosines, const float *sines,
                  real *out) {
    float x[d], scale = 1.0f;
    SIMD
    for (int i = 0; i < d; i++) x[i] = wide(raw[i]);
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
            out[i] = narrow(a * cosines[i] - b * sines[i]);
            out[half + i] = narrow(b * cosines[i] + a * sines[i]);
        }
    } else
        narrow_all(d, x, out);
    return scale;
}

/* The gradient of `turn`: d_out (D) -> d_raw (D), and adds to d_gain. */
static void turn_backward(int d, const float *d_out, const real *raw, const float *gain, float scale,
                          const float *cosines, const float *sines, real *d_raw, float *d_gain) {
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
        float along = 0.0f;
        SIMD_SUM(along)
        for (int i = 0; i < d; i++) {
            float normal = wide(raw[i]) * scale;
            d_gain[i] += dx[i] * normal;
            dx[i] *= gain[i];
            along += dx[i] * normal;
        }
        along /= (float)d;
        SIMD
        for (int i = 0; i < d; i++) dx[i] = scale * (dx[i] - wide(raw[i]) * scale * along);
    }
    narrow_all(d, dx, d_raw);
}
