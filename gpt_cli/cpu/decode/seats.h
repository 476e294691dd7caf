/* Continuous batching: sequences join and leave at any token. A seat (a slot of llama.cpp's server; `gpt serve --seats`) has its
   own sampling parameters and KV cache, and gets the bits that gpt_write gives for it alone.

   Chunked prefill: a step runs at most `prompt_budget` tokens of prompts, and decodes the other seats meanwhile. */

enum { LOGITS_DROPPED, LOGITS_KEPT, CALLER_SAMPLES }; /* logits_mode: whether the caller can read them, and samples itself */
enum { NO_TOKEN = -1, NEEDS_SAMPLING = -2 }; /* in place of a token: none was sampled; the caller is to sample and gpt_accept */

typedef struct Seat {
    Sequence sequence;
    Sampling sampling;
    const Model *model;
    int32_t logits_mode, remaining; /* remaining: of max_new_tokens */
    bool has_logits; /* its logits were computed in this step */
    float *logits, *heap, *kept_logits; /* (V padded) each */
    const uint32_t *mask; /* of the caller, who may change it between steps; NULL: none. See apply_mask */
} Seat;

typedef struct { /* workspaces of the forward passes of all seats of a model */
    Model *model;
    int n_workspaces;
    Workspace workspaces[MAX_WORKERS + 1];
} ContinuousBatch;

void gpt_close_batch(ContinuousBatch *batch) {
    if (!batch) return;
    for (int i = 0; i < batch->n_workspaces; i++) free(batch->workspaces[i].memory);
    free(batch);
}

/* NULL: out of memory. */
ContinuousBatch *gpt_open_batch(Model *m) {
    ContinuousBatch *batch = alloc_zeroed(sizeof *batch);
    if (!batch) return NULL;
    batch->model = m, batch->n_workspaces = m->pool.n_workers + 1;
    bool fits = true;
    for (int i = 0; fits && i < batch->n_workspaces; i++) fits = alloc_workspace(&batch->workspaces[i], m);
    if (!fits) gpt_close_batch(batch), batch = NULL;
    return batch;
}

void gpt_leave(Seat *seat) {
    if (!seat) return;
    free(seat->sequence.tokens), free(seat->sequence.cache), free(seat->sequence.noise);
    free(seat->logits), free(seat->heap), free(seat->kept_logits), free_token_lists(&seat->sampling), free(seat);
}

/* A sequence with a prompt of `length` tokens (1 to context_length). NULL: out of memory. */
Seat *gpt_join(const Model *m, const int32_t *prompt, int32_t length, uint32_t seed, const Sampling *sampling,
               int32_t logits_mode, int32_t max_new_tokens) {
    Seat *seat = alloc_zeroed(sizeof *seat);
    if (!seat) return NULL;
    size_t v = padded(m->net.vocab_size, PANEL) * sizeof(float);
    seat->model = m, seat->sampling = *sampling;
    bool fits = copy_token_lists(&seat->sampling);
    seat->logits_mode = logits_mode, seat->remaining = max_new_tokens;
    Sequence *s = &seat->sequence;
    s->tokens = alloc_zeroed(m->net.context_length * sizeof *s->tokens);
    s->cache = alloc_zeroed(cache_bytes(m)), s->noise = alloc_zeroed(v);
    seat->logits = alloc_zeroed(v), seat->heap = alloc_zeroed(v), seat->kept_logits = alloc_zeroed(logits_mode ? v : 1);
    if (!fits || !s->tokens || !s->cache || !s->noise || !seat->logits || !seat->heap || !seat->kept_logits) {
        gpt_leave(seat);
        return NULL;
    }
    memcpy(s->tokens, prompt, length * sizeof *s->tokens);
    s->active = true, s->length = length;
    seed_mt(s, seed);
    return seat;
}

/* (V,): the logits of the next token, unless they are dropped. */
const float *gpt_seat_logits(const Seat *seat) { return seat->kept_logits; }

/* Sample under `mask` from now on, which stays the caller's. */
void gpt_mask_seat(Seat *seat, const uint32_t *mask) { seat->mask = mask; }

/* The token that the caller sampled. */
void gpt_accept(Seat *seat, int32_t token) { append_token(seat->model, &seat->sequence, token); }

typedef struct { /* the arguments of gpt_step_batch */
    const ContinuousBatch *batch;
    Seat **seats;
    int32_t n, steps, prompt_budget, *tokens; /* prompt_budget: tokens of prompts that a thread runs in a step */
} BatchStep;

/* Run the tokens that are not cached of seats begin ... end - 1, of long prompts a part; logits of those that are complete. */
static void prefill_seats(const BatchStep *r, const Workspace *ws, int begin, int end) {
    BatchToken rows[MAX_ROWS];
    int n = 0, left = r->prompt_budget;
    for (int i = begin; i < end; i++) {
        Seat *seat = r->seats[i];
        Sequence *s = &seat->sequence;
        seat->has_logits = false;
        if (!s->active) continue;
        int pending = s->length - s->cached, n_prefill = pending == 1 || pending <= left ? pending : left;
        if (pending > 1) left -= n_prefill;
        for (seat->has_logits = n_prefill == pending; n_prefill; n_prefill--, s->cached++) {
            bool newest = s->cached == s->length - 1;
            rows[n++] = (BatchToken){s, s->cached, s->tokens[s->cached], newest ? seat->logits : NULL};
            if (n == MAX_ROWS) forward(ws, rows, n), n = 0;
        }
    }
    if (n) forward(ws, rows, n);
}

/* The next token of seats begin ... end - 1. */
static void sample_seats(const BatchStep *r, int step, int begin, int end) {
    int v = r->batch->model->net.vocab_size;
    for (int i = begin; i < end; i++) {
        Seat *seat = r->seats[i];
        Sequence *s = &seat->sequence;
        int32_t *token = &r->tokens[(size_t)step * r->n + i];
        *token = NO_TOKEN;
        if (!seat->has_logits) continue;
        if (seat->logits_mode) memcpy(seat->kept_logits, seat->logits, v * sizeof(float));
        if (seat->logits_mode == CALLER_SAMPLES) {
            *token = NEEDS_SAMPLING, seat->has_logits = false;
            continue;
        }
        if (seat->sampling.temperature > 0) draw_gumbel(s, v, s->noise);
        *token = sample_token(seat->logits, v, &seat->sampling, seat->mask, s->noise, seat->heap);
        append_token(seat->model, s, *token);
        if (ends_sequence(&seat->sampling, *token) || !--seat->remaining) s->active = false;
    }
}

static void batch_worker(void *context, int begin, int end) {
    const BatchStep *r = context;
    const Workspace *ws = &r->batch->workspaces[thread_of(&r->batch->model->pool, begin, r->n)];
    for (int step = 0; step < r->steps; step++) {
        prefill_seats(r, ws, begin, end);
        sample_seats(r, step, begin, end);
    }
}

static void sample_first_step(void *context, int begin, int end) { sample_seats(context, 0, begin, end); }

/* `steps` tokens of each of `n` seats into `tokens` (steps, n), or NO_TOKEN, NEEDS_SAMPLING. With a seat whose caller samples
   or a mask `steps` is 1. A step runs about `prompt_budget` tokens of prompts. */
void gpt_step_batch(ContinuousBatch *batch, Seat **seats, int32_t n, int32_t steps, int32_t prompt_budget, int32_t *tokens) {
    Model *m = batch->model;
    Pool *pool = shared_pool(m);
    BatchStep r = {.batch = batch, .seats = seats, .n = n, .steps = steps, .prompt_budget = prompt_budget, .tokens = tokens};
    for (int i = 0; i < batch->n_workspaces; i++) batch->workspaces[i].pool = NULL;
    if (use_data_parallel(m, n)) {
        r.prompt_budget = (prompt_budget + m->pool.n_workers) / (m->pool.n_workers + 1);
        ensure_awake(&m->pool);
        m->pool.wake_workers = true;
        parallel_for(&m->pool, n, batch_worker, &r);
        m->pool.wake_workers = false;
        return;
    }
    batch->workspaces->pool = pool;
    if (pool) ensure_awake(pool);
    for (; r.steps; r.steps--, r.tokens += n) {
        prefill_seats(&r, batch->workspaces, 0, n);
        parallel_for(pool, n, sample_first_step, &r);
    }
    batch->workspaces->pool = NULL;
}
