/* Speculative decoding of one sequence: verify several drafted tokens in one forward pass, see ngram_draft.h. */

/* Gumbel noise of the step `step` ahead, drawn at most once. */
static const float *peek_noise(Session *session, int step) {
    Sequence *s = session->sequences;
    int v = session->model->net.vocab_size, stride = padded(v, PANEL);
    if (!(session->sampling.temperature > 0)) return NULL;
    for (; s->n_noise <= step; s->n_noise++) draw_gumbel(s, v, s->noise + (size_t)s->n_noise * stride);
    return s->noise + (size_t)step * stride;
}

static void consume_noise(Session *session, int steps) {
    Sequence *s = session->sequences;
    size_t stride = padded(session->model->net.vocab_size, PANEL);
    if (!s->n_noise) return;
    s->n_noise -= steps;
    memmove(s->noise, s->noise + steps * stride, s->n_noise * stride * sizeof *s->noise);
}

/* Draft up to n tokens with the smaller model, sampled with the target's noise (coupled Gumbel-max), so that the two mostly agree
   where their distributions do (Daliri et al., 2024, arXiv 2408.07978). */
static int draft_with_model(Session *session, int n, DraftToken *drafts) {
    Session *draft_session = session->draft_session;
    DraftState *d = session->draft;
    Sequence *t = draft_session->sequences;
    int v = draft_session->model->net.vocab_size, context = draft_session->model->net.context_length;
    double each = d->draft_seconds + d->extra_row_seconds, p_accepted = 1, tokens = 1, best = 1 / d->first_row_seconds;
    int length = 0;
    if (n > context / 4) n = context / 4;
    if (d->fixed_length) length = d->fixed_length < n ? d->fixed_length : n;
    for (int k = 1; k <= n && !d->fixed_length; k++) {
        tokens += p_accepted *= acceptance_rate(&d->model_acceptance);
        if (tokens / (d->first_row_seconds + k * each) > best) best = tokens / (d->first_row_seconds + k * each), length = k;
    }
    if (t->length + length > context) { /* shift the window now: what is dropped does not come back */
        memmove(t->tokens, t->tokens + context / 2, (size_t)(t->length - context / 2) * sizeof *t->tokens);
        t->length -= context / 2, t->cached = 0;
    }
    double started = seconds();
    bool fresh = t->length - t->cached == 1;
    for (int k = 0; k < length; k++) {
        prefill(draft_session, draft_session->workspaces, 0, 1);
        int32_t token = sample_token(draft_session->logits, v, &session->sampling, peek_noise(session, k), draft_session->heap_scratch);
        drafts[k] = (DraftToken){token, &d->model_acceptance};
        t->tokens[t->length++] = token;
    }
    if (length && fresh) {
        double seconds_per_token = (seconds() - started) / length;
        if (!d->draft_seconds) d->draft_seconds = seconds_per_token;
        d->draft_seconds += (fmin(seconds_per_token, 4 * d->draft_seconds) - d->draft_seconds) / 16;
    }
    return length;
}

/* Replace the rejected drafts in the smaller model's sequence by the tokens that were written. */
static void rollback_draft(Session *draft_session, const DraftToken *drafts, int n_draft, const int32_t *tokens, int n) {
    Sequence *t = draft_session->sequences;
    int agreed = 0;
    while (agreed < n && agreed < n_draft && drafts[agreed].token == tokens[agreed]) agreed++;
    t->length -= n_draft - agreed;
    if (t->cached > t->length) t->cached = t->length;
    for (int i = agreed; i < n; i++) append_token(draft_session->model, t, tokens[i]);
}

/* Write 1 to `n_tokens` tokens, the same as without drafts. Returns how many; `logits` (unless NULL) gets theirs. */
static int speculative_step(Session *session, int n_tokens, int32_t end_of_text, int32_t *tokens, float *logits) {
    const Model *m = session->model;
    DraftState *d = session->draft;
    Sequence *s = session->sequences;
    int v = m->net.vocab_size, context = m->net.context_length, n = 0;
    DraftToken drafts[MAX_DRAFT];
    if (s->length - s->cached > 1) { /* a prompt, or a shifted window */
        int32_t newest = s->tokens[--s->length];
        prefill(session, session->workspaces, 0, 1);
        s->tokens[s->length++] = newest;
    }
    int n_max = n_tokens - 1 < context - s->length ? n_tokens - 1 : context - s->length;
    if (n_max > MAX_DRAFT) n_max = MAX_DRAFT;
    if (d->measured < 3 && !d->fixed_length) { /* measure the cost of one row, and of several */
        n_max = d->measured && d->measured < 2 ? (n_max < 3 ? n_max : 3) : 0;
        for (; n < n_max; n++) drafts[n] = (DraftToken){s->tokens[s->length - 1], NULL};
    } else if (session->draft_session) {
        n = draft_with_model(session, n_max, drafts);
    } else {
        int32_t text[MAX_NGRAM + MAX_DRAFT];
        memcpy(text, d->recent, sizeof d->recent);
        for (; n < n_max && ngram_lookup(d, text + MAX_NGRAM + n, d->n_recent + n, &drafts[n]); n++) text[MAX_NGRAM + n] = drafts[n].token;
        n = best_draft_length(d, drafts, n);
    }
    BatchToken rows[MAX_DRAFT + 1];
    for (int r = 0; r <= n; r++)
        rows[r] = (BatchToken){s, s->length - 1 + r, r ? drafts[r - 1].token : s->tokens[s->length - 1], session->logits + r * session->logits_stride};
    double started = seconds();
    forward(session->workspaces, rows, n + 1);
    update_cost_model(d, n + 1, seconds() - started);
    int made = 0;
    for (bool accepted = true; accepted; made++) {
        if (logits) memcpy(logits + (size_t)made * v, rows[made].logits, v * sizeof *logits);
        int32_t token = sample_token(rows[made].logits, v, &session->sampling, peek_noise(session, made), session->heap_scratch);
        s->cached = s->length;
        append_token(m, s, token);
        ngram_insert(d, token);
        tokens[made] = token;
        accepted = made < n && drafts[made].token == token && token != end_of_text;
        if (made < n && drafts[made].acceptance) {
            update_acceptance(drafts[made].acceptance, drafts[made].token == token);
            d->accepted += drafts[made].token == token;
        }
    }
    consume_noise(session, made);
    if (n && !drafts[0].acceptance) n = 0;
    if (session->draft_session) rollback_draft(session->draft_session, drafts, n, tokens, made);
    d->passes++, d->drafted += n;
    return made;
}
