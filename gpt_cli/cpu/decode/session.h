/* A batch of sequences that start together.

   Many sequences run data parallel: each thread takes its own through the whole network, for all steps of a call, without
   synchronisation. Few sequences, or a model larger than L2, run in lock step: threads split each operation, and weights are
   read once for all sequences. */

typedef struct {
    Workspace *workspaces; /* of each thread; the first also in lock step */
    Model *model;
    Sampling sampling;
    int n;           /* batch size */
    int n_workspaces;
    size_t logits_stride;   /* V padded */
    Sequence *sequences;
    char *caches; /* KV caches of all */
    float *logits, *heap_scratch; /* (n, V padded) each */
    bool shared_prompt;            /* one prompt for all: prefilled once */
    const uint32_t *masks; /* (n, mask_words) of the caller, who may change them between steps; NULL: none. See apply_mask */
    int32_t mask_words;
} Session;

/* Where the token does not fit, the older half of the window is dropped first and the rest prefilled again at its new positions
   (context_start in gpt_cli/sampling/generate.py is the definition). */
static void append_token(const Model *m, Sequence *s, int32_t token) {
    int context = m->net.context_length, half = context / 2;
    if (s->length == context) {
        memmove(s->tokens, s->tokens + half, (size_t)(context - half) * sizeof *s->tokens);
        s->length -= half, s->cached = 0;
    }
    s->tokens[s->length++] = token;
}

/* Run the tokens that are not cached of sequences begin ... end - 1, and compute their next logits. */
static void prefill(Session *session, const Workspace *ws, int begin, int end) {
    BatchToken rows[MAX_ROWS];
    int n = 0;
    for (int i = begin; i < end; i++) {
        Sequence *s = &session->sequences[i];
        if (!s->active) continue;
        for (; s->cached < s->length; s->cached++) {
            bool newest = s->cached == s->length - 1;
            rows[n++] = (BatchToken){s, s->cached, s->tokens[s->cached], newest ? session->logits + i * session->logits_stride : NULL};
            if (n == MAX_ROWS) forward(ws, rows, n), n = 0;
        }
    }
    if (n) forward(ws, rows, n);
}

static void broadcast_prompt(Session *session) {
    const Model *m = session->model;
    size_t size = cache_bytes(m);
    for (int i = 1; i < session->n; i++) {
        Sequence *s = &session->sequences[i];
        memcpy(s->cache, session->sequences->cache, size);
        memcpy(session->logits + i * session->logits_stride, session->logits, m->net.vocab_size * sizeof(float));
        s->cached = session->sequences->cached;
    }
}

static void sample_tokens(void *context, int begin, int end) {
    Session *session = context;
    int v = session->model->net.vocab_size;
    for (int i = begin; i < end; i++) {
        Sequence *s = &session->sequences[i];
        if (session->sampling.temperature > 0) draw_gumbel(s, v, s->noise);
        if (!s->active) continue;
        size_t at = i * session->logits_stride;
        const uint32_t *mask = session->masks ? session->masks + (size_t)i * session->mask_words : NULL;
        append_token(session->model, s,
                     sample_token(session->logits + at, v, &session->sampling, mask, s->noise, session->heap_scratch + at));
    }
}

typedef struct { /* the arguments of gpt_write */
    Session *session;
    int32_t first, steps, *tokens; /* steps first ... steps - 1 */
    float *logits;
    _Atomic int32_t made; /* steps with an active sequence */
} DecodeCall;

static bool any_active(const Session *session, int begin, int end) {
    for (int i = begin; i < end; i++)
        if (session->sequences[i].active) return true;
    return false;
}

/* Write out the tokens sampled in a step; an end token ends its sequence. */
static void record_tokens(const DecodeCall *w, int step, int begin, int end) {
    const Session *session = w->session;
    for (int i = begin; i < end; i++) {
        Sequence *s = &session->sequences[i];
        int32_t token = w->tokens[(size_t)step * session->n + i] = s->tokens[s->length - 1];
        if (ends_sequence(&session->sampling, token)) s->active = false;
    }
}

static void copy_step_logits(const DecodeCall *w, int step, int begin, int end) {
    const Session *session = w->session;
    size_t v = session->model->net.vocab_size;
    for (int i = begin; i < end && w->logits; i++)
        memcpy(w->logits + ((size_t)step * session->n + i) * v, session->logits + i * session->logits_stride, v * sizeof(float));
}

/* Data parallel: all steps of sequences begin ... end - 1, on one thread. */
static void decode_worker(void *context, int begin, int end) {
    DecodeCall *w = context;
    Session *session = w->session;
    const Workspace *ws = &session->workspaces[thread_of(&session->model->pool, begin, session->n)];
    for (int step = w->first; step < w->steps; step++) {
        if (any_active(session, begin, end)) {
            prefill(session, ws, begin, end);
            copy_step_logits(w, step, begin, end);
            sample_tokens(session, begin, end);
            for (int32_t made = w->made; made <= step && !atomic_compare_exchange_weak(&w->made, &made, step + 1);) {}
        }
        record_tokens(w, step, begin, end);
    }
}

/* True if there are enough sequences for each thread to run its own. */
static bool use_data_parallel(const Model *m, int n) {
    return m->pool.n_workers && n >= (m->fits_l2 ? 1 : MIN_AMX_ROWS) * (m->pool.n_workers + 1);
}

/* The pool that splits single operations, NULL where that does not pay. */
static Pool *shared_pool(Model *m) { return m->fits_l2 ? NULL : &m->pool; }
