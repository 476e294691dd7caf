/* The decoder: a GPT's forward pass with a KV cache, and sampling; tokens in, tokens out, one call for many of them.

   It computes what gpt_cli/model computes (numpy_gpt.py beside this file does so in NumPy, and is what this is checked against
   whenever a model is opened), and samples as gpt_cli/sampling does: the same noise, the same filters. cpu/common/kernel.py compiles
   it, bindings.py calls it.

   Shapes: R rows (a row is one token of one sequence), C n_embd, H query heads, G key/value heads, D head width,
   F hidden width of the MLP, V vocabulary, S keys. Rows of floats are zero-padded to whole panels.

   Batch-invariant: no sum of a row depends on the rows beside it, since each has one order, or is of integers. So a text is the same
   to the last bit, alone and in a batch, on one thread and on several. */

enum { L2_BYTES = 1000000 }; /* of weights that stay in L2: measured on a core with 2 MB, see docs/sampling_speed.md */

#include "simd.h"
/* each of these needs those before it */
#include "../common/arena.h"
#include "gemm.h"
#include "threads.h"
#include "model.h"
#include "workspace.h"
#include "network.h"
#include "attention.h"
#include "layers.h"
#include "sampling.h"
#include "session.h"

void gpt_close(Model *m) {
    if (!m) return;
    atomic_store(&m->pool.stopping, true);
    notify_all(&m->pool);
    for (int i = 0; i < m->pool.n_created; i++) pthread_join(m->pool.threads[i], NULL);
    for (int l = 0; m->packed && l < m->net.n_layer; l++) {
        PackedLayer *packed = &m->packed[l];
#define FREE_MATRIX(name, outputs, inputs, weights, bias) free_matrix(&packed->name);
#define FREE_VECTOR(name, numbers, padded_to) free(packed->name);
        LAYER_MATRICES(FREE_MATRIX)
        LAYER_VECTORS(FREE_VECTOR)
    }
    free_matrix(&m->head);
    free(m->norm), free(m->norm_bias), free(m->weights), free(m->packed), free(m);
}

/* (n,) with zeros after it; nothing for NULL. False: out of memory. */
static bool copy_padded(float **to, const float *from, int n, int width) {
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
    pthread_cond_init(&m->pool.wake, NULL);
    m->net = *net;
    int c = net->n_embd, f = net->mlp_hidden, d = net->head_dim, kv = net->n_kv_head * d, format = net->format;
    int gate = net->mlp == SWIGLU ? f : 0;
    size_t layer_bytes = 0;
#define COUNT_BYTES(name, outputs, inputs, weights, bias) layer_bytes += weight_bytes(format, outputs, inputs);
    LAYER_MATRICES(COUNT_BYTES)
    size_t all = net->n_layer * layer_bytes + weight_bytes(format, net->vocab_size, c) + TILE_K * PANEL; /* tiles read past the end */
    m->packed = alloc_zeroed(net->n_layer * sizeof *m->packed);
    m->c = padded(net->n_embd, PANEL), m->f = padded(net->mlp_hidden, PANEL);
    m->d = padded(net->head_dim, LANES), m->s = padded(net->context_length, LANES);
    m->kv_int8 = net->format != FP32;
    m->block_bytes = m->kv_int8 ? KV_INT8_BLOCK_BYTES(m->d) : sizeof(float) * LANES * (net->head_dim + m->d);
    m->use_amx = net->format != FP32 && net->use_amx && amx_request();
    m->fits_l2 = all < L2_BYTES;
    m->pool.n_workers = net->threads - 1 < MAX_WORKERS ? net->threads - 1 : MAX_WORKERS;
    m->weights = alloc_zeroed(all);
    Arena arena = {m->weights, 0};
    bool fits = m->packed && m->weights;
    for (int l = 0; fits && l < net->n_layer; l++) {
        const Layer *layer = &layers[l];
        PackedLayer *packed = &m->packed[l];
#define PACK_MATRIX(name, outputs, inputs, weights, bias) \
        fits = fits && (!(outputs) || pack_weight(&packed->name, &arena, format, outputs, inputs, weights, bias));
#define COPY_VECTOR(name, numbers, padded_to) fits = fits && copy_padded(&packed->name, layer->name, numbers, padded_to);
        LAYER_MATRICES(PACK_MATRIX)
        LAYER_VECTORS(COPY_VECTOR)
    }
    fits = fits && pack_weight(&m->head, &arena, format, net->vocab_size, c, net->head, NULL)
        && copy_padded(&m->norm, net->norm, c, m->c) && copy_padded(&m->norm_bias, net->norm_bias, c, m->c);
    if (!fits) gpt_close(m), m = NULL;
    return m;
}

void gpt_end(Session *session) {
    if (!session) return;
    for (int i = 0; session->sequences && i < session->n; i++) {
        Sequence *s = &session->sequences[i];
        free(s->tokens), free(s->noise);
    }
    for (int i = 0; session->workspaces && i < session->n_workspaces; i++) free(session->workspaces[i].memory);
    free(session->workspaces), free(session->sequences), free(session->caches), free(session->logits), free(session->heap_scratch);
    free_token_lists(&session->sampling), free(session);
}

/* A session of `n` sequences with prompts of lengths[i] tokens (1 to context_length), concatenated in `prompts`. NULL: out of
   memory. */
Session *gpt_begin(Model *m, int32_t n, const int32_t *prompts, const int32_t *lengths, const uint32_t *seeds,
                   const Sampling *sampling) {
    const Network *net = &m->net;
    Session *session = alloc_zeroed(sizeof *session);
    if (!session) return NULL;
    session->model = m, session->sampling = *sampling, session->n = n;
    bool fits = copy_token_lists(&session->sampling);
    size_t v = session->logits_stride = padded(net->vocab_size, PANEL);
    session->n_workspaces = m->pool.n_workers + 1;
    session->workspaces = alloc_zeroed(session->n_workspaces * sizeof *session->workspaces);
    session->sequences = alloc_zeroed(n * sizeof *session->sequences);
    session->logits = alloc_zeroed(n * v * sizeof(float)), session->heap_scratch = alloc_zeroed(n * v * sizeof(float));
    session->caches = alloc_zeroed(n * cache_bytes(m));
    fits = fits && session->workspaces && session->sequences && session->caches && session->logits && session->heap_scratch;
    for (int i = 0; fits && i <= (use_data_parallel(m, n) ? m->pool.n_workers : 0); i++) fits = alloc_workspace(&session->workspaces[i], m);
    session->shared_prompt = n > 1;
    const int32_t *prompt = prompts;
    for (int i = 0; fits && i < n; i++, prompt += lengths[i - 1]) {
        Sequence *s = &session->sequences[i];
        s->active = true;
        s->tokens = alloc_zeroed(net->context_length * sizeof *s->tokens);
        s->cache = session->caches + i * cache_bytes(m), s->noise = alloc_zeroed(v * sizeof *s->noise);
        fits = s->tokens && s->noise;
        if (!fits) break;
        memcpy(s->tokens, prompt, lengths[i] * sizeof *s->tokens);
        s->length = lengths[i];
        seed_mt(s, seeds[i]);
        session->shared_prompt = session->shared_prompt && lengths[i] == lengths[0]
            && !memcmp(prompt, prompts, lengths[0] * sizeof *prompt);
    }
    if (!fits) gpt_end(session), session = NULL;
    return session;
}

/* One step of all sequences, the threads splitting each operation. */
static void decode_lockstep(DecodeCall *w) {
    Session *session = w->session;
    Pool *pool = session->workspaces->pool = shared_pool(session->model);
    if (pool) ensure_awake(pool);
    prefill(session, session->workspaces, 0, session->shared_prompt ? 1 : session->n);
    if (session->shared_prompt) broadcast_prompt(session), session->shared_prompt = false;
    copy_step_logits(w, w->first, 0, session->n);
    parallel_for(pool, session->n, sample_tokens, session);
    record_tokens(w, w->first++, 0, session->n);
    w->made = w->first;
}

/* Write `steps` tokens of each text into `tokens` (steps, n), and where it is not NULL the logits that they were
   chosen from into `logits` (steps, n, V). With all texts ended this returns early. Returns the steps made. */
int32_t gpt_write(Session *session, int32_t steps, int32_t *tokens, float *logits) {
    Model *m = session->model;
    DecodeCall w = {.session = session, .steps = steps, .tokens = tokens, .logits = logits};
    bool divided = use_data_parallel(m, session->n) && session->workspaces[m->pool.n_workers].memory; /* workers may be fewer than asked for */
    while (w.first < steps && any_active(session, 0, session->n)) {
        if (session->shared_prompt || !divided) {
            decode_lockstep(&w);
            continue;
        }
        session->workspaces->pool = NULL;
        ensure_awake(&m->pool);
        m->pool.wake_workers = true;
        parallel_for(&m->pool, session->n, decode_worker, &w);
        m->pool.wake_workers = false;
        w.first = steps;
    }
    return atomic_load(&w.made);
}

/* End sequence `i`: nothing more is computed for it, and its further tokens are undefined. */
void gpt_stop(Session *session, int32_t i) { session->sequences[i].active = false; }

/* Sample under `masks` (n, words) from now on, which stay the caller's. */
void gpt_mask(Session *session, const uint32_t *masks, int32_t words) { session->masks = masks, session->mask_words = words; }

/* (n,) tokens, at most context_length -> (n, V) logits. Overwrites the session's cache. */
void gpt_score(Session *session, const int32_t *tokens, int32_t n, float *logits) {
    BatchToken rows[MAX_ROWS];
    for (int i = 0, k = 0; i < n; i++) {
        rows[k++] = (BatchToken){session->sequences, i, tokens[i], logits + (size_t)i * session->model->net.vocab_size};
        if (k == MAX_ROWS || i == n - 1) forward(session->workspaces, rows, k), k = 0;
    }
}

#include "seats.h"
