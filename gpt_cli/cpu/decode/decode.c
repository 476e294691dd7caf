/* A GPT that writes, in C: tokens in, tokens out, one call for many of them.

   It computes what gpt_cli/model computes (reference.py beside this file says the same in NumPy, and is what this is
   checked against whenever a model is opened), and draws as gpt_cli/sampling draws: the same noise, the same filters.
   kernel.py compiles it, library.py calls it.

   Shapes: R rows (a row is one token of one text), C n_embd, H query heads, G key/value heads, D head width,
   F hidden width of the MLP, V vocabulary, S keys. Rows of floats are padded to whole panels with zeros.

   What a row meets does not depend on the rows beside it: each of its sums is made in one order, or of whole numbers. So a
   text is the same to the last bit, alone and among many, by one thread and by several. */

enum { NEAR = 1000000 }; /* bytes: measured on a core with a cache of 2 MB, see docs/sampling_speed.md */

#include "simd.h"
/* each of these needs those before it */
#include "gemm.h"
#include "threads.h"
#include "network.h"
#include "attention.h"
#include "layers.h"
#include "sampling.h"
#include "ngram_draft.h"
#include "session.h"
#include "speculative.h"

void gpt_close(Model *m) {
    if (!m) return;
    atomic_store(&m->pool.ending, true);
    notify_all(&m->pool);
    for (int i = 0; i < m->pool.begun; i++) pthread_join(m->pool.threads[i], NULL);
    for (int l = 0; m->packed && l < m->net.n_layer; l++) {
        Packed *p = &m->packed[l];
        Matrix *each[] = {&p->qkv, &p->out, &p->gate, &p->up, &p->down};
        for (int i = 0; i < 5; i++) free_matrix(each[i]);
        free(p->norm1), free(p->norm1_bias), free(p->norm2), free(p->norm2_bias), free(p->q_norm), free(p->k_norm);
    }
    free_matrix(&m->head);
    free(m->norm), free(m->norm_bias), free(m->weights), free(m->packed), free(m);
}

/* (n,) with zeros after it; nothing for NULL. False: out of memory. */
static bool pad(float **to, const float *from, int n, int width) {
    if (!from) return true;
    *to = alloc_zeroed((size_t)width * sizeof **to);
    if (*to) memcpy(*to, from, (size_t)n * sizeof **to);
    return *to;
}

/* The model, its matrices copied into panels; the embeddings and tables that `net` points to must stay. NULL: out of
   memory. */
Model *gpt_open(const Network *net, const Layer *layers) {
    Model *m = alloc_zeroed(sizeof *m);
    if (!m) return NULL;
    pthread_mutex_init(&m->pool.mutex, NULL);
    pthread_cond_init(&m->pool.woken, NULL);
    m->net = *net;
    int c = net->n_embd, f = net->mlp_hidden, d = net->head_dim, kv = net->n_kv_head * d, format = net->format;
    size_t of_layer = weight_bytes(format, c + 2 * kv, c) + weight_bytes(format, c, c) + weight_bytes(format, c, f)
        + (net->mlp == SWIGLU ? 2 : 1) * weight_bytes(format, f, c);
    size_t all = net->n_layer * of_layer + weight_bytes(format, net->vocab_size, c) + DEEP * PANEL; /* tiles read past the end */
    m->packed = alloc_zeroed(net->n_layer * sizeof *m->packed);
    m->c = padded(net->n_embd, PANEL), m->f = padded(net->mlp_hidden, PANEL);
    m->d = padded(net->head_dim, LANES), m->s = padded(net->context_length, LANES);
    m->bytes = net->format != FP32;
    m->block_bytes = m->bytes ? byte_block(m) : sizeof(float) * LANES * (net->head_dim + m->d);
    m->tiles = net->format != FP32 && net->tiles && amx_request();
    m->fits_l2 = all < NEAR;
    m->pool.spin_limit = 4000; /* some 50 to 150 microseconds */
    m->pool.helpers = net->threads - 1 < MAX_HELPERS ? net->threads - 1 : MAX_HELPERS;
    char *room = m->weights = alloc_zeroed(all);
    bool fits = m->packed && room;
    for (int l = 0; fits && l < net->n_layer; l++) {
        const Layer *layer = &layers[l];
        Packed *p = &m->packed[l];
        size_t gate = net->mlp == SWIGLU ? f : 0; /* gate and up are halves of one matrix */
        fits = pack(&p->qkv, &room, format, c + 2 * kv, c, layer->qkv, layer->qkv_bias)
            && pack(&p->out, &room, format, c, c, layer->out, layer->out_bias)
            && (!gate || pack(&p->gate, &room, format, f, c, layer->up, layer->up_bias))
            && pack(&p->up, &room, format, f, c, layer->up + gate * c, layer->up_bias ? layer->up_bias + gate : NULL)
            && pack(&p->down, &room, format, c, f, layer->down, layer->down_bias)
            && pad(&p->norm1, layer->norm1, c, m->c) && pad(&p->norm1_bias, layer->norm1_bias, c, m->c)
            && pad(&p->norm2, layer->norm2, c, m->c) && pad(&p->norm2_bias, layer->norm2_bias, c, m->c)
            && pad(&p->q_norm, layer->q_norm, d, m->d) && pad(&p->k_norm, layer->k_norm, d, m->d);
    }
    fits = fits && pack(&m->head, &room, format, net->vocab_size, c, net->head, NULL)
        && pad(&m->norm, net->norm, c, m->c) && pad(&m->norm_bias, net->norm_bias, c, m->c);
    if (!fits) gpt_close(m), m = NULL;
    return m;
}

/* Divides `memory` among the parts of a room. Returns the bytes that takes; with NULL nothing else.

   What is wanted at different times lies in one place, which is near then: wherever else it was written to, lines would be
   fetched first, from where keys and values of texts have driven them. What heads see takes the place of their queries (but
   where products, which read whole vectors, would read on into the keys), what is hidden that of queries, keys and values. */
static size_t layout_workspace(Workspace *room, char *memory) {
    const Model *m = room->model;
    const Network *net = &m->net;
    int of_qkv = padded((net->n_head + 2 * net->n_kv_head) * net->head_dim, PANEL), most = padded(m->c > m->f ? m->c : m->f, DEEP);
    bool in_place = net->n_embd % LANES == 0;
    float *limbs = NULL;
    struct { float **part; int width; } parts[] = {
        {&room->x, m->c}, {&room->h, m->c}, {&room->qkv, of_qkv > most ? of_qkv : most}, {&room->y, in_place ? 0 : m->c},
        {&room->gates, m->f}, {&room->logits, padded(net->vocab_size, PANEL)}, {&room->steps, 1}, {&limbs, most},
    };
    size_t at = 0;
    for (int i = 0; i < 8; at += MAX_ROWS * sizeof(float) * parts[i++].width)
        if (memory) *parts[i].part = (float *)(memory + at);
    if (in_place) room->y = room->qkv;
    room->hidden = room->qkv, room->limbs = (uint8_t *)limbs;
    room->qkv_stride = of_qkv, room->y_stride = in_place ? of_qkv : m->c;
    return at;
}

/* In one piece, and so of a larger model in large pages: a product writes to as many rows as there are, in turn. */
static bool alloc_workspace(Workspace *room, Model *m) {
    room->model = m, room->memory = alloc_zeroed(layout_workspace(room, NULL));
    if (room->memory) layout_workspace(room, room->memory);
    return room->memory;
}

void gpt_end(Session *session) {
    if (!session) return;
    for (int o = 0; session->drafter && o < ORDERS; o++) free(session->drafter->slots[o]);
    free(session->drafter);
    for (int i = 0; session->streams && i < session->n; i++) {
        Sequence *s = &session->streams[i];
        free(s->window), free(s->noise);
    }
    for (int i = 0; session->rooms && i < session->n_rooms; i++) free(session->rooms[i].memory);
    free(session->rooms), free(session->streams), free(session->caches), free(session->logits), free(session->heaps);
    free((void *)session->sampling.never), free(session);
}

/* Begin `n` texts with prompts of lengths[i] tokens (1 to a context), one after another in `prompts`. NULL: out of
   memory. */
Session *gpt_begin(Model *m, int32_t n, const int32_t *prompts, const int32_t *lengths, const uint32_t *seeds,
                   const Sampling *sampling) {
    const Network *net = &m->net;
    Session *session = alloc_zeroed(sizeof *session);
    if (!session) return NULL;
    session->model = m, session->sampling = *sampling, session->n = n;
    int32_t *never = alloc_zeroed((size_t)sampling->n_never * sizeof *never);
    session->sampling.never = never;
    size_t v = session->apart = padded(net->vocab_size, PANEL);
    session->n_rooms = m->pool.helpers + 1;
    session->rooms = alloc_zeroed(session->n_rooms * sizeof *session->rooms);
    session->streams = alloc_zeroed(n * sizeof *session->streams);
    session->logits = alloc_zeroed(n * v * sizeof(float)), session->heaps = alloc_zeroed(n * v * sizeof(float));
    session->caches = alloc_zeroed(n * cache_bytes(m));
    bool fits = never && session->rooms && session->streams && session->caches && session->logits && session->heaps;
    for (int i = 0; fits && i <= (use_data_parallel(session) ? m->pool.helpers : 0); i++) fits = alloc_workspace(&session->rooms[i], m);
    if (fits && sampling->n_never) memcpy(never, sampling->never, (size_t)sampling->n_never * sizeof *never);
    session->shared_prompt = n > 1;
    const int32_t *prompt = prompts;
    for (int i = 0; fits && i < n; i++, prompt += lengths[i - 1]) {
        Sequence *s = &session->streams[i];
        s->active = true;
        s->window = alloc_zeroed(net->context_length * sizeof *s->window);
        s->cache = session->caches + i * cache_bytes(m), s->noise = alloc_zeroed(v * sizeof *s->noise);
        fits = s->window && s->noise;
        if (!fits) break;
        memcpy(s->window, prompt, lengths[i] * sizeof *s->window);
        s->length = lengths[i];
        seed_twister(s, seeds[i]);
        session->shared_prompt = session->shared_prompt && lengths[i] == lengths[0]
            && !memcmp(prompt, prompts, lengths[0] * sizeof *prompt);
    }
    if (!fits) gpt_end(session), session = NULL;
    return session;
}

/* One step of all texts, on each operation of which the threads share the work. */
static void decode_lockstep(Writing *w) {
    Session *session = w->session;
    Pool *pool = session->rooms->pool = workers(session->model);
    if (pool) ensure_awake(pool);
    prefill(session, session->rooms, 0, session->shared_prompt ? 1 : session->n);
    if (session->shared_prompt) broadcast_prompt(session), session->shared_prompt = false;
    show_logits(w, w->first, 0, session->n);
    parallel_for(pool, session->n, choose_tokens, session);
    record_tokens(w, w->first++, 0, session->n);
    w->made = w->first;
}

/* Write `steps` tokens of each text into `tokens` (steps, n), and where it is not NULL the logits that they were
   chosen from into `logits` (steps, n, V). A text ends with `end_of_text` (-1: never); with all of them ended this
   returns early. Returns the steps made. */
int32_t gpt_write(Session *session, int32_t steps, int32_t end_of_text, int32_t *tokens, float *logits) {
    Model *m = session->model;
    size_t v = m->net.vocab_size;
    if (session->drafter) {
        int32_t made = 0;
        while (made < steps && session->streams->active) {
            if (session->rooms->pool) ensure_awake(&m->pool);
            made += speculative_step(session, steps - made, end_of_text, tokens + made, logits ? logits + made * v : NULL);
            session->streams->active = tokens[made - 1] != end_of_text;
        }
        return made;
    }
    Writing w = {.session = session, .steps = steps, .end_of_text = end_of_text, .tokens = tokens, .logits = logits};
    bool divided = use_data_parallel(session) && session->rooms[m->pool.helpers].memory; /* helpers may be fewer than they were */
    while (w.first < steps && any_active(session, 0, session->n)) {
        if (session->shared_prompt || !divided) {
            decode_lockstep(&w);
            continue;
        }
        session->rooms->pool = NULL;
        ensure_awake(&m->pool);
        m->pool.lengthy = true;
        parallel_for(&m->pool, session->n, write_share, &w);
        m->pool.lengthy = false;
        w.first = steps;
    }
    return atomic_load(&w.made);
}

/* Text `i` has ended: nothing more is computed for it, and what is written for it means nothing. */
void gpt_stop(Session *session, int32_t i) { session->streams[i].active = false; }

/* Have several tokens of the one text of a session that has not begun written by one pass, where they can be guessed:
   by `small`, a session of another model with the same vocabulary and the same prompt, which must stay, or where that is
   NULL from the n-grams of the `n` tokens of `text` (of other texts, and at its end the prompt) and of what is written.
   `always` of them are looked at in a pass, where there are so many; 0: as many as pay. Returns 0 when out of memory, and then nothing is guessed. */
int32_t gpt_draft(Session *session, Session *small, const int32_t *text, int32_t n, int32_t always) {
    size_t v = padded(session->model->net.vocab_size, PANEL) * sizeof(float);
    DraftState *d = alloc_zeroed(sizeof *d);
    float *logits = alloc_zeroed((MOST_GUESSES + 1) * v), *noise = alloc_zeroed((MOST_GUESSES + 1) * v);
    bool fits = d && logits && noise;
    if (fits) {
        d->ngrams = !small, d->bits = 12, d->always = always;
        while (d->bits < 22 && (1 << d->bits) < 2 * n) d->bits++;
        for (int o = 0; d->ngrams && o < ORDERS; o++) fits = (d->slots[o] = alloc_zeroed(sizeof(Slot) << d->bits)) && fits;
    }
    if (!fits) {
        for (int o = 0; d && o < ORDERS; o++) free(d->slots[o]);
        free(d), free(logits), free(noise);
        return 0;
    }
    for (int32_t i = 0; i < n; i++) ngram_insert(d, text[i]);
    if (small) session->model->pool.spin_limit = 40000; /* the smaller model has no work for the helpers meanwhile */
    free(session->logits), free(session->streams->noise);
    session->logits = logits, session->streams->noise = noise, session->drafter = d, session->small = small;
    return 1;
}

/* Of a session with a drafter: passes over the weights, tokens that were guessed, and those of them that were right. */
void gpt_drafted(const Session *session, int64_t *numbers) {
    numbers[0] = session->drafter->passes, numbers[1] = session->drafter->guessed, numbers[2] = session->drafter->right;
}

/* (n,) tokens, at most a context -> (n, V) logits: of what follows each. */
void gpt_score(Session *session, const int32_t *tokens, int32_t n, float *logits) {
    BatchToken rows[MAX_ROWS];
    if (session->rooms->pool) ensure_awake(&session->model->pool);
    for (int i = 0, k = 0; i < n; i++) {
        rows[k++] = (BatchToken){session->streams, i, tokens[i], logits + (size_t)i * session->model->net.vocab_size};
        if (k == MAX_ROWS || i == n - 1) forward(session->rooms, rows, k), k = 0;
    }
    session->streams->cached = 0;
}

#include "seats.h"
