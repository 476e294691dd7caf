/* Texts that are written together. */

typedef struct Session {
    Room room;
    Model *model;
    Sampling sampling;
    int n; /* texts written together */
    Stream *streams;
    float *logits, *heaps; /* (n, V) each; with a drafter and its one text, the logits of all rows of a pass */
    bool alike;            /* one prompt for all: it is read once */
    Drafter *drafter;      /* NULL: nothing is guessed */
    struct Session *small; /* the model that guesses, NULL: none */
} Session;

/* A token more. Where it would not fit, the older half of the window goes first, and what is left is read anew, at
   its new positions (window_start in gpt_cli/sampling/generate.py is the definition). */
static void push(const Model *m, Stream *s, int32_t token) {
    int context = m->net.context_length, half = context / 2;
    if (s->length == context) {
        memmove(s->window, s->window + half, (size_t)(context - half) * sizeof *s->window);
        s->length -= half, s->cached = 0;
    }
    s->window[s->length++] = token;
}

/* Read what the caches of the streams lack; their next logits. */
static void read_pending(Session *session, int streams) {
    Row rows[MAX_ROWS];
    int n = 0, v = session->model->net.vocab_size;
    for (int i = 0; i < streams; i++) {
        Stream *s = &session->streams[i];
        if (!s->active) continue;
        for (; s->cached < s->length; s->cached++) {
            bool newest = s->cached == s->length - 1;
            rows[n++] = (Row){s, s->cached, s->window[s->cached], newest ? session->logits + (size_t)i * v : NULL};
            if (n == MAX_ROWS) forward(&session->room, rows, n), n = 0;
        }
    }
    if (n) forward(&session->room, rows, n);
}

static void copy_first(Session *session) {
    const Model *m = session->model;
    size_t size = (size_t)m->net.n_layer * m->net.n_kv_head * m->s * m->d * sizeof(float);
    for (int i = 1; i < session->n; i++) {
        Stream *s = &session->streams[i];
        memcpy(s->keys, session->streams->keys, size), memcpy(s->values, session->streams->values, size);
        memcpy(session->logits + (size_t)i * m->net.vocab_size, session->logits, m->net.vocab_size * sizeof(float));
        s->cached = session->streams->cached;
    }
}

static void choose_tokens(void *context, int begin, int end) {
    Session *session = context;
    int v = session->model->net.vocab_size;
    for (int i = begin; i < end; i++) {
        Stream *s = &session->streams[i];
        if (session->sampling.temperature > 0) draw(s, v, s->noise);
        if (!s->active) continue;
        int token = choose(session->logits + (size_t)i * v, v, &session->sampling, s->noise, session->heaps + (size_t)i * v);
        push(session->model, s, token);
    }
}
