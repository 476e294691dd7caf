/* From logits to tokens, as gpt_cli/sampling has it. */

typedef struct { /* as gpt_cli/sampling has it; 0 is off */
    float temperature; /* 0: greedy */
    int32_t top_k;
    double top_p;
    float log_min_p; /* 0 is off: ln 1 keeps all that are as likely as the likeliest, and says nothing */
    int32_t use_min_p, n_never;
    const int32_t *never; /* tokens that are not written */
} Sampling;

/* The Mersenne Twister (Matsumoto and Nishimura, 1998), torch's generator on a CPU. */
static void seed_twister(Stream *s, uint32_t seed) {
    s->twister[0] = seed;
    for (uint32_t i = 1; i < 624; i++)
        s->twister[i] = 1812433253u * (s->twister[i - 1] ^ (s->twister[i - 1] >> 30)) + i;
    s->drawn = 624;
}

static void twist(uint32_t *t) {
    for (int i = 0; i < 624; i++) {
        uint32_t y = (t[i] & 0x80000000u) | (t[i + 1 < 624 ? i + 1 : 0] & 0x7fffffffu);
        t[i] = t[i + 397 < 624 ? i + 397 : i - 227] ^ (y >> 1) ^ (-(y & 1) & 0x9908b0dfu);
    }
}

/* (V,) standard Gumbel noise: -ln(-ln(1 - u)), u uniform in steps of 2^-24, as gpt_cli/sampling/noise.py has it. */
static void draw(Stream *s, int n, float *noise) {
    for (int i = 0; i < n; i++) {
        if (s->drawn == 624) twist(s->twister), s->drawn = 0;
        uint32_t y = s->twister[s->drawn++];
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c5680u;
        y ^= (y << 15) & 0xefc60000u;
        y ^= y >> 18;
        noise[i] = (float)(y & 0xffffff) * 0x1p-24f;
    }
    for (int i = 0; i < n; i += LANES) {
        vec exponential_ = -logarithm(1.0f - *(loose *)(noise + i));
        *(loose *)(noise + i) = -logarithm(larger(exponential_, splat(0x1p-25f)));
    }
}

static void sift(float *heap, int n, int i) {
    float x = heap[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= x) break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

static void cut(float *logits, int n, float threshold) {
    for (int i = 0; i < n; i++) logits[i] = logits[i] < threshold ? -INFINITY : logits[i];
}

/* (V,) logits -> a token; `heap` has room for V. See gpt_cli/sampling/filters.py, which is the definition. */
static int choose(float *logits, int n, const Sampling *how, const float *noise, float *heap) {
    for (int i = 0; i < how->n_never; i++) logits[how->never[i]] = -INFINITY;
    if (how->temperature > 0) {
        for (int i = 0; i < n; i++) logits[i] /= how->temperature;
        if (how->top_k > 0 || (how->top_p > 0 && how->top_p < 1)) {
            memcpy(heap, logits, n * sizeof *heap);
            for (int i = n / 2; i >= 0; i--) sift(heap, n, i);
            float threshold = -INFINITY, top = heap[0];
            int left = n; /* the likeliest of the rest stands first */
            if (how->top_k > 0) {
                int k = how->top_k < n ? how->top_k : n;
                for (int i = 1; i < k; i++) heap[0] = heap[--left], sift(heap, left, 0);
                cut(logits, n, heap[0]);
            }
            if (how->top_p > 0 && how->top_p < 1) {
                double total = 0;
                for (int i = 0; i < n; i++) total += expf(logits[i] - top);
                memcpy(heap, logits, n * sizeof *heap);
                for (int i = n / 2; i >= 0; i--) sift(heap, n, i);
                double limit = how->top_p * 0x1p40;
                int64_t likelier = 0;
                for (left = n; left > 0 && likelier < limit && heap[0] > -INFINITY;) {
                    threshold = heap[0];
                    likelier += (int64_t)((float)(expf(heap[0] - top) / total) * 0x1p40f);
                    heap[0] = heap[--left], sift(heap, left, 0);
                }
                cut(logits, n, threshold);
            }
        }
        if (how->use_min_p) {
            float top = logits[0];
            for (int i = 1; i < n; i++) top = logits[i] > top ? logits[i] : top;
            cut(logits, n, top + how->log_min_p);
        }
        for (int i = 0; i < n; i++) logits[i] += noise[i];
    }
    int best = 0;
    for (int i = 1; i < n; i++) best = logits[i] > logits[best] ? i : best;
    return best;
}
