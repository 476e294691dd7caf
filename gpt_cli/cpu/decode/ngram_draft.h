/* Drafts for speculative decoding: the network verifies several drafted tokens in one pass over its weights, and accepts
   those that it samples itself, so the text does not change.

   Two sources: n-grams, what followed the same last tokens before, in this text or in another that was fed (prompt lookup decoding,
   Saxena, 2023), and a smaller model, see `draft_with_model` in speculative.h. The draft length follows from acceptance rates and
   measured times. */

#define MAX_DRAFT 15 /* with the token that they follow, two AMX tiles of rows */

enum { N_ORDERS = 6, VOTE_BUCKETS = 4, MAX_NGRAM = 16 };
static const int ngram_length[N_ORDERS] = {16, 10, 7, 5, 4, 3}; /* tokens of context of each order */

typedef struct { /* what followed an n-gram: the majority by Boyer-Moore voting (1981) */
    uint32_t tag, votes;
    int32_t token;
} NgramEntry;

typedef struct {
    float accepted, proposed;
} Acceptance;

typedef struct {
    bool ngrams;
    int bits, fixed_length; /* fixed_length: of drafts, 0: adaptive; bits: log2 of table sizes */
    NgramEntry *tables[N_ORDERS];
    int32_t recent[MAX_NGRAM];       /* the last tokens, newest last */
    int n_recent;                     /* valid tokens at its end */
    Acceptance acceptances[N_ORDERS][VOTE_BUCKETS], model_acceptance;
    double first_row_seconds, extra_row_seconds;     /* of a pass: its first row, each further row */
    double draft_seconds;              /* of a token drafted by the model */
    int measured;
    int64_t passes, drafted, accepted; /* statistics, see gpt_draft_stats */
} DraftState;

typedef struct {
    int32_t token;
    Acceptance *acceptance; /* to update; NULL: a probe */
} DraftToken;

static uint32_t ngram_hash(const int32_t *tokens, int n) { /* FNV-1a, mixed once more */
    uint32_t h = 2166136261u;
    for (int i = 0; i < n; i++) h = (h ^ (uint32_t)tokens[i]) * 16777619u;
    h ^= h >> 15, h *= 2246822519u;
    return h ^ h >> 13;
}

static NgramEntry *ngram_entry(const DraftState *d, int order, const int32_t *end, uint32_t *tag) {
    *tag = ngram_hash(end - ngram_length[order], ngram_length[order]);
    return &d->tables[order][*tag >> (32 - d->bits)];
}

/* Append `token` to the text, and count it as what followed its n-grams. */
static void ngram_insert(DraftState *d, int32_t token) {
    for (int o = 0; d->ngrams && o < N_ORDERS; o++) {
        if (d->n_recent < ngram_length[o]) continue;
        uint32_t tag;
        NgramEntry *entry = ngram_entry(d, o, d->recent + MAX_NGRAM, &tag);
        if (entry->votes && entry->tag == tag && entry->token == token) entry->votes += entry->votes < 255;
        else if (entry->votes > 1) entry->votes--;
        else *entry = (NgramEntry){tag, 1, token};
    }
    memmove(d->recent, d->recent + 1, (MAX_NGRAM - 1) * sizeof *d->recent);
    d->recent[MAX_NGRAM - 1] = token;
    d->n_recent += d->n_recent < MAX_NGRAM;
}

/* What followed the longest known n-gram before `end`, where `n_recent` tokens are. */
static bool ngram_lookup(DraftState *d, const int32_t *end, int n_recent, DraftToken *draft) {
    for (int o = 0; o < N_ORDERS; o++) {
        if (n_recent < ngram_length[o]) continue;
        uint32_t tag;
        NgramEntry *entry = ngram_entry(d, o, end, &tag);
        if (!entry->votes || entry->tag != tag) continue;
        int bucket = entry->votes < 2 ? 0 : entry->votes < 4 ? 1 : entry->votes < 16 ? 2 : 3;
        *draft = (DraftToken){entry->token, &d->acceptances[o][bucket]};
        return true;
    }
    return false;
}

/* Laplace-smoothed: 1/2 before any were proposed. */
static double acceptance_rate(const Acceptance *r) { return (r->accepted + 1) / (r->proposed + 2); }

static void update_acceptance(Acceptance *r, bool accepted) {
    if (r->proposed >= 64) r->accepted /= 2, r->proposed /= 2; /* exponential forgetting */
    r->accepted += accepted, r->proposed += 1;
}

/* How many of n drafts to verify: the number with the most expected tokens per second. */
static int best_draft_length(const DraftState *d, const DraftToken *drafts, int n) {
    double p_accepted = 1, tokens = 1, best = tokens / d->first_row_seconds;
    int best_n = 0;
    if (d->fixed_length) return n < d->fixed_length ? n : d->fixed_length;
    for (int k = 1; k <= n; k++) {
        tokens += p_accepted *= acceptance_rate(drafts[k - 1].acceptance);
        double rate = tokens / (d->first_row_seconds + k * d->extra_row_seconds);
        if (rate > best) best = rate, best_n = k;
    }
    return best_n;
}

/* Moving averages of the cost of a pass; outliers (preemption) are clipped to four times the average. */
static void update_cost_model(DraftState *d, int rows, double elapsed) {
    d->measured++;
    if (rows == 1) {
        if (!d->first_row_seconds) d->first_row_seconds = elapsed;
        d->first_row_seconds += (fmin(elapsed, 4 * d->first_row_seconds) - d->first_row_seconds) / 16;
    } else {
        double each = fmax(elapsed - d->first_row_seconds, 0) / (rows - 1);
        d->extra_row_seconds += (fmin(each, 4 * d->extra_row_seconds + d->first_row_seconds / 16) - d->extra_row_seconds) / 8;
    }
}
