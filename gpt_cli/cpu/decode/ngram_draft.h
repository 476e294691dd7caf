/* Guesses of what a text goes on with, cheap enough to be wrong: the network then looks at several of them in one pass
   over its weights, and keeps those that it would have written itself.

   Two sources: what followed the same last tokens before, in this text or in another that was fed (n-grams; the idea of
   prompt lookup decoding, Saxena, 2023), and a smaller model, see `draft_with_model` in decode.c. How far ahead it pays to guess
   is worked out from how often such guesses were right and how long passes took. None of this changes the text. */

#define MOST_GUESSES 15 /* with the token that they follow, two blocks of rows */

enum { ORDERS = 6, BUCKETS = 4, LONGEST = 16 };
static const int order_of[ORDERS] = {16, 10, 7, 5, 4, 3}; /* tokens that must have stood there before */

typedef struct { /* what followed some n-gram: the majority, by a vote of all (Boyer and Moore, 1981) */
    uint32_t tag, votes;
    int32_t token;
} Slot;

typedef struct {
    float right, tried;
} Record;

typedef struct {
    bool ngrams;
    int bits, always; /* always: the number of guesses in a pass, 0: as many as pay */
    Slot *slots[ORDERS];
    int32_t recent[LONGEST];       /* the last tokens of the text, the newest last */
    int known;                     /* how many of them there are */
    Record records[ORDERS][BUCKETS], of_model;
    double one_row, more_rows;     /* seconds: of a pass with one row, and of each further row */
    double one_guess;              /* seconds of a guess by the model */
    int measured;
    int64_t passes, guessed, right; /* told to who asks */
} DraftState;

typedef struct {
    int32_t token;
    Record *record; /* whom to tell whether it was right */
} DraftToken;

static uint32_t hash_of(const int32_t *tokens, int n) { /* FNV-1a, mixed once more */
    uint32_t h = 2166136261u;
    for (int i = 0; i < n; i++) h = (h ^ (uint32_t)tokens[i]) * 16777619u;
    h ^= h >> 15, h *= 2246822519u;
    return h ^ h >> 13;
}

static Slot *slot_of(const DraftState *d, int order, const int32_t *end, uint32_t *tag) {
    *tag = hash_of(end - order_of[order], order_of[order]);
    return &d->slots[order][*tag >> (32 - d->bits)];
}

/* The text goes on with `token`. */
static void ngram_insert(DraftState *d, int32_t token) {
    for (int o = 0; d->ngrams && o < ORDERS; o++) {
        if (d->known < order_of[o]) continue;
        uint32_t tag;
        Slot *slot = slot_of(d, o, d->recent + LONGEST, &tag);
        if (slot->votes && slot->tag == tag && slot->token == token) slot->votes += slot->votes < 255;
        else if (slot->votes > 1) slot->votes--;
        else *slot = (Slot){tag, 1, token};
    }
    memmove(d->recent, d->recent + 1, (LONGEST - 1) * sizeof *d->recent);
    d->recent[LONGEST - 1] = token;
    d->known += d->known < LONGEST;
}

/* What followed the longest n-gram that is known to end at `end`, of which `known` tokens stand before it. */
static bool ngram_lookup(DraftState *d, const int32_t *end, int known, DraftToken *draft_with_model) {
    for (int o = 0; o < ORDERS; o++) {
        if (known < order_of[o]) continue;
        uint32_t tag;
        Slot *slot = slot_of(d, o, end, &tag);
        if (!slot->votes || slot->tag != tag) continue;
        int bucket = slot->votes < 2 ? 0 : slot->votes < 4 ? 1 : slot->votes < 16 ? 2 : 3;
        *draft_with_model = (DraftToken){slot->token, &d->records[o][bucket]};
        return true;
    }
    return false;
}

/* How often such guesses are right, presumed to be as good as not before they have been tried. */
static double acceptance_rate(const Record *r) { return (r->right + 1) / (r->tried + 2); }

static void update_acceptance(Record *r, bool right) {
    if (r->tried >= 64) r->right /= 2, r->tried /= 2; /* what is long past counts less */
    r->right += right, r->tried += 1;
}

/* How many of n guesses to have looked at: as many as make for the most tokens a second. */
static int best_draft_length(const DraftState *d, const DraftToken *guesses, int n) {
    double all_right = 1, tokens = 1, best = tokens / d->one_row;
    int most = 0;
    if (d->always) return n < d->always ? n : d->always;
    for (int k = 1; k <= n; k++) {
        tokens += all_right *= acceptance_rate(guesses[k - 1].record);
        double rate = tokens / (d->one_row + k * d->more_rows);
        if (rate > best) best = rate, most = k;
    }
    return most;
}

/* A pass of `rows` rows took so long. A pass that the system interrupted does not count for more than four. */
static void update_cost_model(DraftState *d, int rows, double took) {
    d->measured++;
    if (rows == 1) {
        if (!d->one_row) d->one_row = took;
        d->one_row += (fmin(took, 4 * d->one_row) - d->one_row) / 16;
    } else {
        double each = fmax(took - d->one_row, 0) / (rows - 1);
        d->more_rows += (fmin(each, 4 * d->more_rows + d->one_row / 16) - d->more_rows) / 8;
    }
}
