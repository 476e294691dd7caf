/* Texts that join and leave each other at any token: each has settings, keys and values of its own, and a pass takes what
   all of them lack. What is written for one is what gpt_write writes for it alone.

   Where a long prompt joins, a step reads no more than so many of its tokens, and writes the others on meanwhile. */

enum { FREE, SHOWN, LEFT }; /* whether a text's logits are kept for the caller, and then the choice left to him, too */
enum { NOT_YET = -1, YOURS = -2 }; /* in place of a token: nothing was written; the caller is to choose, and gpt_put */

typedef struct Seat {
    Sequence stream;
    Sampling sampling;
    const Model *model;
    int32_t shows, end_of_text, left; /* left: tokens that it may still be given */
    bool due; /* its logits were computed in this step */
    float *logits, *heap, *shown; /* (V padded) each */
} Seat;

typedef struct { /* room for the passes of all seats of a model */
    Model *model;
    int n_rooms;
    Workspace rooms[MAX_HELPERS + 1];
} Desk;

void gpt_close_desk(Desk *desk) {
    if (!desk) return;
    for (int i = 0; i < desk->n_rooms; i++) free(desk->rooms[i].memory);
    free(desk);
}

/* NULL: out of memory. */
Desk *gpt_open_desk(Model *m) {
    Desk *desk = alloc_zeroed(sizeof *desk);
    if (!desk) return NULL;
    desk->model = m, desk->n_rooms = m->pool.helpers + 1;
    bool fits = true;
    for (int i = 0; fits && i < desk->n_rooms; i++) fits = alloc_workspace(&desk->rooms[i], m);
    if (!fits) gpt_close_desk(desk), desk = NULL;
    return desk;
}

void gpt_leave(Seat *seat) {
    if (!seat) return;
    free(seat->stream.window), free(seat->stream.cache), free(seat->stream.noise);
    free(seat->logits), free(seat->heap), free(seat->shown), free((void *)seat->sampling.never), free(seat);
}

/* A text that begins with `length` tokens (1 to a context) and ends after `longest` more. NULL: out of memory. */
Seat *gpt_join(const Model *m, const int32_t *prompt, int32_t length, uint32_t seed, const Sampling *sampling,
               int32_t end_of_text, int32_t shows, int32_t longest) {
    Seat *seat = alloc_zeroed(sizeof *seat);
    if (!seat) return NULL;
    size_t v = padded(m->net.vocab_size, PANEL) * sizeof(float), n_never = sampling->n_never * sizeof(int32_t);
    int32_t *never = alloc_zeroed(n_never);
    seat->model = m, seat->sampling = *sampling, seat->sampling.never = never;
    seat->shows = shows, seat->end_of_text = end_of_text, seat->left = longest;
    Sequence *s = &seat->stream;
    s->window = alloc_zeroed(m->net.context_length * sizeof *s->window);
    s->cache = alloc_zeroed(cache_bytes(m)), s->noise = alloc_zeroed(v);
    seat->logits = alloc_zeroed(v), seat->heap = alloc_zeroed(v), seat->shown = alloc_zeroed(shows ? v : 1);
    if (!never || !s->window || !s->cache || !s->noise || !seat->logits || !seat->heap || !seat->shown) {
        gpt_leave(seat);
        return NULL;
    }
    memcpy(never, sampling->never, n_never);
    memcpy(s->window, prompt, length * sizeof *s->window);
    s->active = true, s->length = length;
    seed_twister(s, seed);
    return seat;
}

/* (V,): what the next token is chosen from, of a text that shows it. */
const float *gpt_shown(const Seat *seat) { return seat->shown; }

/* The token that the caller has chosen. */
void gpt_put(Seat *seat, int32_t token) { append_token(seat->model, &seat->stream, token); }

typedef struct { /* what gpt_round is asked for */
    const Desk *desk;
    Seat **seats;
    int32_t n, steps, most, *tokens; /* most: tokens of prompts that a thread reads in a step */
} Round;

/* Read what the caches of seats begin ... end - 1 lack, of long prompts a part; the logits of those that lack nothing. */
static void read_seats(const Round *r, const Workspace *room, int begin, int end) {
    BatchToken rows[MAX_ROWS];
    int n = 0, left = r->most;
    for (int i = begin; i < end; i++) {
        Seat *seat = r->seats[i];
        Sequence *s = &seat->stream;
        seat->due = false;
        if (!s->active) continue;
        int lacks = s->length - s->cached, some = lacks == 1 || lacks <= left ? lacks : left;
        if (lacks > 1) left -= some;
        for (seat->due = some == lacks; some; some--, s->cached++) {
            bool newest = s->cached == s->length - 1;
            rows[n++] = (BatchToken){s, s->cached, s->window[s->cached], newest ? seat->logits : NULL};
            if (n == MAX_ROWS) forward(room, rows, n), n = 0;
        }
    }
    if (n) forward(room, rows, n);
}

/* The next token of seats begin ... end - 1. */
static void fill_seats(const Round *r, int step, int begin, int end) {
    int v = r->desk->model->net.vocab_size;
    for (int i = begin; i < end; i++) {
        Seat *seat = r->seats[i];
        Sequence *s = &seat->stream;
        int32_t *token = &r->tokens[(size_t)step * r->n + i];
        *token = NOT_YET;
        if (!seat->due) continue;
        if (seat->shows) memcpy(seat->shown, seat->logits, v * sizeof(float));
        if (seat->shows == LEFT) {
            *token = YOURS, seat->due = false;
            continue;
        }
        if (seat->sampling.temperature > 0) draw(s, v, s->noise);
        *token = sample_token(seat->logits, v, &seat->sampling, s->noise, seat->heap);
        append_token(seat->model, s, *token);
        if (*token == seat->end_of_text || !--seat->left) s->active = false;
    }
}

static void round_of_share(void *context, int begin, int end) {
    const Round *r = context;
    int parts = r->desk->model->pool.helpers + 1, part = 0;
    while (part < parts - 1 && r->n * part / parts < begin) part++; /* as parallel_for divides */
    for (int step = 0; step < r->steps; step++) {
        read_seats(r, &r->desk->rooms[part], begin, end);
        fill_seats(r, step, begin, end);
    }
}

static void fill_first(void *context, int begin, int end) { fill_seats(context, 0, begin, end); }

/* `steps` tokens of each of `n` texts into `tokens` (steps, n), or what stands in their place. With a text that leaves the
   choice to the caller `steps` is 1. A step reads about `most` tokens of prompts. */
void gpt_round(Desk *desk, Seat **seats, int32_t n, int32_t steps, int32_t most, int32_t *tokens) {
    Model *m = desk->model;
    Pool *pool = workers(m);
    Round r = {.desk = desk, .seats = seats, .n = n, .steps = steps, .most = most, .tokens = tokens};
    for (int i = 0; i < desk->n_rooms; i++) desk->rooms[i].pool = NULL;
    if (m->pool.helpers && n >= (m->fits_l2 ? 1 : MIN_AMX_ROWS) * (m->pool.helpers + 1)) {
        r.most = (most + m->pool.helpers) / (m->pool.helpers + 1);
        ensure_awake(&m->pool);
        m->pool.lengthy = true;
        parallel_for(&m->pool, n, round_of_share, &r);
        m->pool.lengthy = false;
        return;
    }
    desk->rooms->pool = pool;
    if (pool) ensure_awake(pool);
    for (; r.steps; r.steps--, r.tokens += n) {
        read_seats(&r, desk->rooms, 0, n);
        parallel_for(pool, n, fill_first, &r);
    }
    desk->rooms->pool = NULL;
}
