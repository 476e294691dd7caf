/* The decoder without Python: a model and texts from the input, logits and tokens to the output; see engines.py. */

#include "decode.c"

#include "blocks.h"

static void *taken[4096]; /* blocks that the model points into */
static int n_taken;

static void *keep_block(void) {
    if (n_taken == 4096) abort();
    return taken[n_taken++] = block();
}

/* Write the texts that the next blocks begin. */
static void write_texts(Model *model) {
    int32_t *sizes = block(), *prompts = block(), *lengths = block();
    uint32_t *seeds = block();
    int n = sizes[0], steps = sizes[1], v = model->net.vocab_size;
    Sampling how = {.temperature = 0.8f, .top_k = v - 1, .top_p = 0.95};
    Session *session = gpt_begin(model, n, prompts, lengths, seeds, &how);
    int32_t *tokens = calloc((size_t)(n * steps), sizeof *tokens);
    float *logits = calloc((size_t)(n * steps) * (size_t)v, sizeof *logits);
    if (!session || !tokens || !logits) abort();
    if (gpt_write(session, steps, tokens, logits) != steps) abort();
    give_block(tokens, (size_t)(n * steps) * sizeof *tokens);
    give_block(logits, (size_t)(n * steps) * (size_t)v * sizeof *logits);
    gpt_end(session);
    free(sizes), free(prompts), free(lengths), free(seeds), free(tokens), free(logits);
}

int main(void) {
    Network net;
    memset(&net, 0, sizeof net);
    int32_t *integers = keep_block();
    float *floats = keep_block();
    int32_t *settings = keep_block();
    memcpy(&net, integers, offsetof(Network, norm_eps));
    net.norm_eps = floats[0], net.softcap = floats[1], net.embedding_scale = floats[2];
    net.post_norm = settings[0], net.format = settings[1], net.threads = settings[2], net.use_amx = settings[3];
    const float **tables[] = {&net.tokens, &net.positions, &net.norm, &net.norm_bias, &net.head, &net.cosines, &net.sines};
    for (int i = 0; i < 7; i++) *tables[i] = keep_block();
    Layer layers[net.n_layer];
    for (int l = 0; l < net.n_layer; l++) {
        const float **parts = (const float **)&layers[l];
        for (size_t i = 0; i < sizeof(Layer) / sizeof *parts; i++) parts[i] = keep_block();
    }
    Model *model = gpt_open(&net, layers);
    int32_t *n_scored = keep_block(), *scored = keep_block(), one = 1;
    uint32_t seed = 0;
    float *logits = calloc((size_t)*n_scored * (size_t)net.vocab_size, sizeof *logits);
    Session *session = model ? gpt_begin(model, 1, scored, &one, &seed, &(Sampling){.temperature = 0}) : NULL;
    if (!session || !logits) abort();
    gpt_score(session, scored, *n_scored, logits);
    give_block(logits, (size_t)*n_scored * (size_t)net.vocab_size * sizeof *logits);
    gpt_end(session);
    for (int i = 0; i < 3; i++) write_texts(model);
    gpt_close(model);
    free(logits);
    for (int i = 0; i < n_taken; i++) free(taken[i]);
    return 0;
}
