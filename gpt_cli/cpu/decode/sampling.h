/* Sampling: filters and Gumbel-max, as gpt_cli/sampling/filters.py defines them. */

typedef struct { /* parameters; 0 is off */
    float temperature; /* 0: greedy */
    int32_t top_k;
    double top_p;
    float log_min_p; /* 0 is off: ln 1 keeps all that are as likely as the likeliest, and says nothing */
    int32_t use_min_p, n_banned, n_ends;
    const int32_t *token_lists; /* (n_banned + n_ends,): tokens that are never sampled, then those that end a sequence */
} Sampling;

/* Have `copy` own its lists, which `free_token_lists` releases. False: out of memory. */
static bool copy_token_lists(Sampling *copy) {
    size_t bytes = ((size_t)copy->n_banned + copy->n_ends) * sizeof *copy->token_lists;
    int32_t *lists = alloc_zeroed(bytes);
    if (lists && bytes) memcpy(lists, copy->token_lists, bytes);
    copy->token_lists = lists;
    return lists;
}

static void free_token_lists(Sampling *copy) { free((void *)copy->token_lists); }

static bool ends_sequence(const Sampling *sampling, int32_t token) {
    for (int i = 0; i < sampling->n_ends; i++)
        if (sampling->token_lists[sampling->n_banned + i] == token) return true;
    return false;
}

/* The Mersenne Twister (Matsumoto and Nishimura, 1998), torch's generator on a CPU. */
static void seed_mt(Sequence *s, uint32_t seed) {
    s->mt[0] = seed;
    for (uint32_t i = 1; i < 624; i++)
        s->mt[i] = 1812433253u * (s->mt[i - 1] ^ (s->mt[i - 1] >> 30)) + i;
    s->mt_index = 624;
}

INLINE uint32_t mt_mix(uint32_t a, uint32_t b, uint32_t far) {
    uint32_t y = (a & 0x80000000u) | (b & 0x7fffffffu);
    return far ^ (y >> 1) ^ (-(y & 1) & 0x9908b0dfu);
}

static void mt_refill(uint32_t *t) {
    INDEPENDENT
    for (int i = 0; i < 227; i++) t[i] = mt_mix(t[i], t[i + 1], t[i + 397]);
    INDEPENDENT
    for (int i = 227; i < 454; i++) t[i] = mt_mix(t[i], t[i + 1], t[i - 227]); /* no loop-carried dependence */
    INDEPENDENT
    for (int i = 454; i < 623; i++) t[i] = mt_mix(t[i], t[i + 1], t[i - 227]);
    t[623] = mt_mix(t[623], t[0], t[396]);
}

/* (V,) standard Gumbel noise: -ln(-ln(1 - u)), u uniform in steps of 2^-24, as gpt_cli/sampling/filters.py has it. */
static void draw_gumbel(Sequence *s, int n, float *noise) {
    for (int done = 0; done < n;) {
        if (s->mt_index == 624) mt_refill(s->mt), s->mt_index = 0;
        int some = n - done < 624 - s->mt_index ? n - done : 624 - s->mt_index;
        const uint32_t *from = s->mt + s->mt_index;
        for (int i = 0; i < some; i++) {
            uint32_t y = from[i];
            y ^= y >> 11;
            y ^= (y << 7) & 0x9d2c5680u;
            y ^= (y << 15) & 0xefc60000u;
            y ^= y >> 18;
            noise[done + i] = (float)(int32_t)(y & 0xffffff) * 0x1p-24f;
        }
        s->mt_index += some, done += some;
    }
    for (int i = n; i % LANES; i++) noise[i] = 0;
    for (int i = 0; i < n; i += LANES) {
        vec exponential_ = -logarithm(1.0f - *(vec *)(noise + i));
        *(vec *)(noise + i) = -logarithm(vmax(exponential_, splat(0x1p-25f)));
    }
}

static void sift_down(float *heap, int n, int i) {
    float x = heap[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= x) break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

static void mask_below(float *logits, int n, float threshold) {
    for (int i = 0; i < n; i++) logits[i] = logits[i] < threshold ? -INFINITY : logits[i];
}

/* The first argmax of (n,). */
static int argmax(const float *x, int n) {
    const ivec count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vec maxima = *(const vec *)x;
    ivec at = count;
    for (int i = LANES; i < n; i += LANES) {
        vec v = *(const vec *)(x + i);
        ivec larger = v > maxima;
        maxima = blend(larger, v, maxima), at = (larger & (count + i)) | (~larger & at);
    }
    int best = 0;
    for (int lane = 1; lane < LANES; lane++)
        if (maxima[lane] > maxima[best] || (maxima[lane] == maxima[best] && at[lane] < at[best])) best = lane;
    return at[best];
}

/* Exclude the tokens whose bit is 0: bit t % 32 of word t / 32. */
static void apply_mask(float *logits, int n, const uint32_t *mask) {
    for (int first = 0; first < n; first += 32) {
        uint32_t word = mask[first / 32];
        if (word == UINT32_MAX) continue;
        int end = n - first < 32 ? n - first : 32;
        for (int i = 0; i < end; i++) logits[first + i] = word >> i & 1 ? logits[first + i] : -INFINITY;
    }
}

/* (V,) logits -> a token; logits and noise fill whole vectors, `heap`: (V,) scratch, `mask`: see apply_mask, NULL: none. See
   gpt_cli/sampling/filters.py, which is the definition. */
static int sample_token(float *logits, int n, const Sampling *sampling, const uint32_t *mask, const float *noise, float *heap) {
    for (int i = n; i % LANES; i++) logits[i] = -INFINITY;
    if (mask) apply_mask(logits, n, mask);
    for (int i = 0; i < sampling->n_banned; i++) logits[sampling->token_lists[i]] = -INFINITY;
    if (sampling->temperature > 0) {
        for (int i = 0; i < n; i += LANES) *(vec *)(logits + i) /= sampling->temperature;
        if (sampling->top_k > 0 || (sampling->top_p > 0 && sampling->top_p < 1)) {
            memcpy(heap, logits, n * sizeof *heap);
            for (int i = n / 2; i >= 0; i--) sift_down(heap, n, i);
            float threshold = -INFINITY, top = heap[0];
            int left = n; /* a max-heap of the rest */
            if (sampling->top_k > 0) {
                int k = sampling->top_k < n ? sampling->top_k : n;
                for (int i = 1; i < k; i++) heap[0] = heap[--left], sift_down(heap, left, 0);
                mask_below(logits, n, heap[0]);
            }
            if (sampling->top_p > 0 && sampling->top_p < 1) {
                double total = 0;
                for (int i = 0; i < n; i++) total += expf(logits[i] - top);
                memcpy(heap, logits, n * sizeof *heap);
                for (int i = n / 2; i >= 0; i--) sift_down(heap, n, i);
                double limit = sampling->top_p * 0x1p40;
                int64_t likelier = 0;
                for (left = n; left > 0 && likelier < limit && heap[0] > -INFINITY;) {
                    threshold = heap[0];
                    likelier += (int64_t)((float)(expf(heap[0] - top) / total) * 0x1p40f);
                    heap[0] = heap[--left], sift_down(heap, left, 0);
                }
                mask_below(logits, n, threshold);
            }
        }
        if (sampling->use_min_p) {
            float top = logits[0];
            for (int i = 1; i < n; i++) top = logits[i] > top ? logits[i] : top;
            mask_below(logits, n, top + sampling->log_min_p);
        }
        for (int i = 0; i < n; i += LANES) *(vec *)(logits + i) += *(const vec *)(noise + i);
    }
    return argmax(logits, n);
}
