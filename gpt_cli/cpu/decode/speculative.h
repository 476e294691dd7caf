/* Several tokens of one text a pass, where they can be guessed: see ngram_draft.h. */

/* The noise of the step after `step` coming ones, drawn once whoever asks first. */
static const float *peek_noise(Session *session, int step) {
    Sequence *s = session->streams;
    int v = session->model->net.vocab_size, stride = padded(v, PANEL);
    if (!(session->sampling.temperature > 0)) return NULL;
    for (; s->ahead <= step; s->ahead++) draw(s, v, s->noise + (size_t)s->ahead * stride);
    return s->noise + (size_t)step * stride;
}

static void forget_noise(Session *session, int steps) {
    Sequence *s = session->streams;
    size_t stride = padded(session->model->net.vocab_size, PANEL);
    if (!s->ahead) return;
    s->ahead -= steps;
    memmove(s->noise, s->noise + steps * stride, s->ahead * stride * sizeof *s->noise);
}

/* Up to n tokens as the smaller model would write them: with the noise that the larger one will meet, so that the two
   mostly agree where their distributions do (Daliri et al., 2024, arXiv 2408.07978). */
static int draft_with_model(Session *session, int n, DraftToken *guesses) {
    Session *small = session->small;
    DraftState *d = session->drafter;
    Sequence *t = small->streams;
    int v = small->model->net.vocab_size, context = small->model->net.context_length;
    double each = d->one_guess + d->more_rows, all_right = 1, tokens = 1, best = 1 / d->one_row;
    int most = 0;
    if (n > context / 4) n = context / 4;
    if (d->always) most = d->always < n ? d->always : n;
    for (int k = 1; k <= n && !d->always; k++) {
        tokens += all_right *= acceptance_rate(&d->of_model);
        if (tokens / (d->one_row + k * each) > best) best = tokens / (d->one_row + k * each), most = k;
    }
    if (t->length + most > context) { /* now, since what is dropped does not come back */
        memmove(t->window, t->window + context / 2, (size_t)(t->length - context / 2) * sizeof *t->window);
        t->length -= context / 2, t->cached = 0;
    }
    double started = seconds();
    bool fresh = t->length - t->cached == 1;
    for (int k = 0; k < most; k++) {
        prefill(small, small->rooms, 0, 1);
        int32_t token = sample_token(small->logits, v, &session->sampling, peek_noise(session, k), small->heaps);
        guesses[k] = (DraftToken){token, &d->of_model};
        t->window[t->length++] = token;
    }
    if (most && fresh) {
        double each_ = (seconds() - started) / most;
        if (!d->one_guess) d->one_guess = each_;
        d->one_guess += (fmin(each_, 4 * d->one_guess) - d->one_guess) / 16;
    }
    return most;
}

/* What has been written takes the place of what the smaller model guessed. */
static void rollback_draft(Session *small, const DraftToken *guesses, int n_guess, const int32_t *tokens, int n) {
    Sequence *t = small->streams;
    int agreed = 0;
    while (agreed < n && agreed < n_guess && guesses[agreed].token == tokens[agreed]) agreed++;
    t->length -= n_guess - agreed;
    if (t->cached > t->length) t->cached = t->length;
    for (int i = agreed; i < n; i++) append_token(small->model, t, tokens[i]);
}

/* Write the one text of the session on by at least one token and at most `most`: those that the network writes by
   itself, from however many rows at once. Returns how many; their logits go to `logits` where it is not NULL. */
static int speculative_step(Session *session, int most, int32_t end_of_text, int32_t *tokens, float *logits) {
    const Model *m = session->model;
    DraftState *d = session->drafter;
    Sequence *s = session->streams;
    int v = m->net.vocab_size, context = m->net.context_length, n = 0;
    DraftToken guesses[MOST_GUESSES];
    if (s->length - s->cached > 1) { /* a prompt, or a window that moved */
        int32_t newest = s->window[--s->length];
        prefill(session, session->rooms, 0, 1);
        s->window[s->length++] = newest;
    }
    int room = most - 1 < context - s->length ? most - 1 : context - s->length;
    if (room > MOST_GUESSES) room = MOST_GUESSES;
    if (d->measured < 3 && !d->always) { /* see what a row costs, and what some do */
        room = d->measured && d->measured < 2 ? (room < 3 ? room : 3) : 0;
        for (; n < room; n++) guesses[n] = (DraftToken){s->window[s->length - 1], NULL};
    } else if (session->small) {
        n = draft_with_model(session, room, guesses);
    } else {
        int32_t text[LONGEST + MOST_GUESSES];
        memcpy(text, d->recent, sizeof d->recent);
        for (; n < room && ngram_lookup(d, text + LONGEST + n, d->known + n, &guesses[n]); n++) text[LONGEST + n] = guesses[n].token;
        n = best_draft_length(d, guesses, n);
    }
    BatchToken rows[MOST_GUESSES + 1];
    for (int r = 0; r <= n; r++)
        rows[r] = (BatchToken){s, s->length - 1 + r, r ? guesses[r - 1].token : s->window[s->length - 1], session->logits + r * session->apart};
    double started = seconds();
    forward(session->rooms, rows, n + 1);
    update_cost_model(d, n + 1, seconds() - started);
    int made = 0;
    for (bool right = true; right; made++) {
        if (logits) memcpy(logits + (size_t)made * v, rows[made].logits, v * sizeof *logits);
        int32_t token = sample_token(rows[made].logits, v, &session->sampling, peek_noise(session, made), session->heaps);
        s->cached = s->length;
        append_token(m, s, token);
        ngram_insert(d, token);
        tokens[made] = token;
        right = made < n && guesses[made].token == token && token != end_of_text;
        if (made < n && guesses[made].record) {
            update_acceptance(guesses[made].record, guesses[made].token == token);
            d->right += guesses[made].token == token;
        }
    }
    forget_noise(session, made);
    if (n && !guesses[0].record) n = 0;
    if (session->small) rollback_draft(session->small, guesses, n, tokens, made);
    d->passes++, d->guessed += n;
    return made;
}
