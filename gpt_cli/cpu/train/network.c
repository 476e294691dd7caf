/* What the training library exports: the loss of a decoder-only transformer and its gradient, for a CPU. It is the same function as
   gpt_cli.model.GPT followed by a mean cross-entropy, with its backward pass written out in forward_backward.h.

   Data parallel over threads: each runs its own sequences, a chunk at a time so that the working set stays in the cache, and
   accumulates its own gradients; these are reduced once a step, in a fixed order. There is no other synchronisation, which
   is what makes small models fast. */
#include "numeric.h"
#include "../common/arena.h"
#include "threads.h"
#include "dropout.h"
#include "gemm.h"
#include "layers.h"
#include "attention.h"
#include "model.h"
#include "workspace.h"
#include "forward_backward.h"

typedef struct {
    const Network *net;
    const int64_t *tokens, *targets;        /* (sequences, length), row stride `stride` */
    int first, last, length, stride, chunk; /* sequences of this thread, and how many in a chunk */
    float weight;
    uint64_t seed;
    Workspace ws;
    float *gradients; /* of this thread; NULL: loss only */
    double loss;
} LossTask;

static void loss_worker(void *argument) {
    LossTask *task = argument;
    const Network *net = task->net;
    Workspace *ws = &task->ws;
    int length = task->length, before = gemm_begin(&net->backend);
    bool training = task->gradients;
    if (training) memset(task->gradients, 0, sizeof(float) * (size_t)net->n_parameters);
    for (int first = task->first; first < task->last; first += task->chunk) {
        int sequences = min_int(task->chunk, task->last - first);
        for (int i = 0; i < sequences; i++) {
            long at = (long)(first + i) * task->stride;
            memcpy(ws->inputs + (long)i * length, task->tokens + at, sizeof *ws->inputs * length);
            memcpy(ws->targets + (long)i * length, task->targets + at, sizeof *ws->targets * length);
        }
        ws->dropout = dropout_begin(training ? net->dropout : 0.0f, task->seed, (long)first * length);
        ws->attention_dropout = dropout_begin(training ? net->attention_dropout : 0.0f, task->seed, (long)first * length);
        task->loss += run_chunk(net, sequences * length, length, task->weight, ws, task->gradients);
    }
    gemm_end(&net->backend, before);
}

typedef struct {
    float *gradients; /* (threads, n_parameters) */
    long n_parameters, from, to;
    int threads;
} ReduceTask;

static void reduce_gradients(void *argument) { /* into row 0, in the order of the threads */
    const ReduceTask *sum = argument;
    for (int other = 1; other < sum->threads; other++) {
        const float *more = sum->gradients + sum->n_parameters * other;
        SIMD
        for (long i = sum->from; i < sum->to; i++) sum->gradients[i] += more[i];
    }
}

#ifdef BF16
typedef struct {
    const Network *net;
    int first, step; /* packs matrices first, first + step, ... */
} PackTask;

NOINLINE void pack_worker(void *argument) {
    const PackTask *task = argument;
    const Network *net = task->net;
    int matrix = 0;
    for (int layer = 0; layer <= net->n_layer; layer++)
        for (int which = 0; which < (layer < net->n_layer ? (int)PER_BLOCK : (int)PER_NETWORK); which++)
            if (matrix_shape(net, layer, which).out && matrix++ % task->step == task->first) pack_matrix(net, layer, which);
}
#endif

/* Repack all weights; to be called after every update. */
void pack_weights(const Network *net, int threads) {
#ifdef BF16
    PackTask tasks[threads];
    for (int i = 0; i < threads; i++) tasks[i] = (PackTask){net, i, threads};
    parallel_run(pack_worker, tasks, sizeof *tasks, threads);
#else
    (void)net, (void)threads;
#endif
}

/* 1 if the processor has AMX and the system grants it. */
int amx_available(void) { return amx_request(); }

/* Bytes of workspace that `loss_and_gradients` needs for each thread: whole cache lines, so that the next thread's is aligned, too. */
size_t workspace_bytes(const Network *net, int chunk, int length, int with_backward) {
    Workspace ws;
    return layout_workspace(net, chunk * length, length, with_backward, NULL, &ws);
}

/* The summed loss of (sequences, length) tokens, of row stride `stride`. Row 0 of `gradients` (threads, n_parameters), unless NULL,
   becomes the gradient of `weight` times that loss, with the dropout of `seed`. `workspaces`: workspace_bytes for each thread. */
double loss_and_gradients(const Network *net, const int64_t *tokens, const int64_t *targets, int sequences, int length,
                          int stride, int chunk, float weight, uint64_t seed, char *workspaces, float *gradients, int threads) {
    LossTask tasks[threads];
    ReduceTask sums[threads];
    size_t bytes = workspace_bytes(net, chunk, length, gradients != NULL);
    long n_parameters = net->n_parameters;
    double loss = 0.0;
    for (int i = 0; i < threads; i++) {
        tasks[i] = (LossTask){
            .net = net, .tokens = tokens, .targets = targets, .length = length, .stride = stride, .chunk = chunk,
            .first = (int)((long)sequences * i / threads), .last = (int)((long)sequences * (i + 1) / threads),
            .weight = weight, .seed = seed, .gradients = gradients ? gradients + n_parameters * i : NULL,
        };
        layout_workspace(net, chunk * length, length, gradients != NULL, workspaces + bytes * (size_t)i, &tasks[i].ws);
        sums[i] = (ReduceTask){gradients, n_parameters, n_parameters * i / threads, n_parameters * (i + 1) / threads, threads};
    }
    parallel_run(loss_worker, tasks, sizeof *tasks, threads);
    if (gradients && threads > 1) parallel_run(reduce_gradients, sums, sizeof *sums, threads);
    for (int i = 0; i < threads; i++) loss += tasks[i].loss;
    return loss;
}

/* The dropout masks of `seed` for a batch: (rows, C) of the embedding's, then of the two in each block. */
void draw_dropout(const Network *net, uint64_t seed, int rows, float *out) {
    Dropout dropout = dropout_begin(net->dropout, seed, 0);
    for (int stream_id = 0; stream_id <= 2 * net->n_layer; stream_id++)
        for (int t = 0; t < rows; t++, out += net->n_embd) dropout_scale(&dropout, stream_id, t, 0, net->n_embd, out);
}

/* The masks of the attention weights of `seed` for a batch: (n_layer, sequences, H, key, query). */
void draw_attention_dropout(const Network *net, uint64_t seed, int sequences, int length, float *out) {
    Dropout dropout = dropout_begin(net->attention_dropout, seed, 0);
    for (int layer = 0; layer < net->n_layer; layer++)
        for (long row = 0; row < (long)sequences * length; row += length) {
            AttnDropout drop = weight_dropout(net, layer, &dropout, row);
            for (int head = 0; head < net->n_head; head++)
                for (int key = 0; key < length; key++, out += length)
                    dropout_scale(&dropout, drop.stream_id + head, row + key, 0, length, out);
        }
}
