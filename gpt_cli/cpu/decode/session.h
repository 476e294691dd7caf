/* Texts that are written together.

   Many texts are divided among the threads, each of which takes its own through the whole network, for as many steps as are
   asked for: threads that have nothing to tell each other do not wait. Few texts share the work on each operation, and so do
   texts of a model that is larger than the caches, whose weights are then read once. */

typedef struct Session {
    Workspace *rooms; /* of each thread; the first also where all share */
    Model *model;
    Sampling sampling;
    int n;           /* texts written together */
    int n_rooms;
    size_t apart;    /* V padded */
    Sequence *streams;
    char *caches; /* of all texts */
    float *logits, *heaps; /* (n, V padded) each; with a drafter and its one text, the logits of all rows of a pass */
    bool shared_prompt;            /* one prompt for all: it is read once */
    DraftState *drafter;      /* NULL: nothing is guessed */
    struct Session *small; /* the model that guesses, NULL: none */
} Session;

/* A token more. Where it would not fit, the older half of the window goes first, and what is left is read anew, at
   its new positions (context_start in gpt_cli/sampling/generate.py is the definition). */
static void append_token(const Model *m, Sequence *s, int32_t token) {
    int context = m->net.context_length, half = context / 2;
    if (s->length == context) {
        memmove(s->window, s->window + half, (size_t)(context - half) * sizeof *s->window);
        s->length -= half, s->cached = 0;
    }
    s->window[s->length++] = token;
}

/* Read what the caches of streams begin ... end - 1 lack; their next logits. */
static void prefill(Session *session, const Workspace *room, int begin, int end) {
    BatchToken rows[MAX_ROWS];
    int n = 0;
    for (int i = begin; i < end; i++) {
        Sequence *s = &session->streams[i];
        if (!s->active) continue;
        for (; s->cached < s->length; s->cached++) {
            bool newest = s->cached == s->length - 1;
            rows[n++] = (BatchToken){s, s->cached, s->window[s->cached], newest ? session->logits + i * session->apart : NULL};
            if (n == MAX_ROWS) forward(room, rows, n), n = 0;
        }
    }
    if (n) forward(room, rows, n);
}

static void broadcast_prompt(Session *session) {
    const Model *m = session->model;
    size_t size = cache_bytes(m);
    for (int i = 1; i < session->n; i++) {
        Sequence *s = &session->streams[i];
        memcpy(s->cache, session->streams->cache, size);
        memcpy(session->logits + i * session->apart, session->logits, m->net.vocab_size * sizeof(float));
        s->cached = session->streams->cached;
    }
}

static void choose_tokens(void *context, int begin, int end) {
    Session *session = context;
    int v = session->model->net.vocab_size;
    for (int i = begin; i < end; i++) {
        Sequence *s = &session->streams[i];
        if (session->sampling.temperature > 0) draw(s, v, s->noise);
        if (!s->active) continue;
        size_t at = i * session->apart;
        append_token(session->model, s, sample_token(session->logits + at, v, &session->sampling, s->noise, session->heaps + at));
    }
}

typedef struct { /* what gpt_write is asked for */
    Session *session;
    int32_t first, steps, end_of_text, *tokens; /* steps first ... steps - 1 */
    float *logits;
    _Atomic int32_t made; /* steps in which a text was written */
} Writing;

static bool any_active(const Session *session, int begin, int end) {
    for (int i = begin; i < end; i++)
        if (session->streams[i].active) return true;
    return false;
}

/* What has been chosen for texts begin ... end - 1 at a step. */
static void record_tokens(const Writing *w, int step, int begin, int end) {
    const Session *session = w->session;
    for (int i = begin; i < end; i++) {
        Sequence *s = &session->streams[i];
        int32_t token = w->tokens[(size_t)step * session->n + i] = s->window[s->length - 1];
        if (token == w->end_of_text) s->active = false;
    }
}

static void show_logits(const Writing *w, int step, int begin, int end) {
    const Session *session = w->session;
    size_t v = session->model->net.vocab_size;
    for (int i = begin; i < end && w->logits; i++)
        memcpy(w->logits + ((size_t)step * session->n + i) * v, session->logits + i * session->apart, v * sizeof(float));
}

/* All steps of texts begin ... end - 1, by one thread. */
static void write_share(void *context, int begin, int end) {
    Writing *w = context;
    Session *session = w->session;
    int parts = session->model->pool.helpers + 1, part = 0;
    while (part < parts - 1 && session->n * part / parts < begin) part++; /* as parallel_for divides */
    for (int step = w->first; step < w->steps; step++) {
        if (any_active(session, begin, end)) {
            prefill(session, &session->rooms[part], begin, end);
            show_logits(w, step, begin, end);
            choose_tokens(session, begin, end);
            for (int32_t made = w->made; made <= step && !atomic_compare_exchange_weak(&w->made, &made, step + 1);) {}
        }
        record_tokens(w, step, begin, end);
    }
}

/* Whether each thread is to take texts of its own. */
static bool use_data_parallel(const Session *session) {
    const Model *m = session->model;
    return m->pool.helpers && session->n >= (m->fits_l2 ? 1 : MIN_AMX_ROWS) * (m->pool.helpers + 1);
}

/* Who works on one operation. */
static Pool *workers(Model *m) { return m->fits_l2 ? NULL : &m->pool; }
