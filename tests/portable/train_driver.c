/* The training code without Python: a model and a batch from the input, losses, gradients and orthogonalised matrices to the
   output; see engines.py. Products in fp32 are plain loops. */

#include "network.c"

#include "blocks.h"

typedef struct { /* of muon.c */
    float *parameter, *gradient, *momentum;
    int rows, columns, tall;
    float scale;
} MuonJob;
size_t muon_workspace_bytes(long rows, long columns);
void muon_update(const Backend *backend, const MuonJob *jobs, int n_job, const float *coefficients, int iterations, float momentum,
                 float gradient_share, float keep, char *ws, size_t bytes, int threads);

/* Fortran's SGEMM: c (m, n) <- alpha a b + beta c, all by columns. */
static void plain_sgemm(const char *trans_a, const char *trans_b, const int *m, const int *n, const int *k, const float *alpha,
                        const float *a, const int *lda, const float *b, const int *ldb, const float *beta, float *c,
                        const int *ldc) {
    for (int j = 0; j < *n; j++)
        for (int i = 0; i < *m; i++) {
            float sum = 0.0f, *to = c + (long)j * *ldc + i;
            for (int p = 0; p < *k; p++)
                sum += a[*trans_a == 'N' ? (long)p * *lda + i : (long)i * *lda + p]
                    * b[*trans_b == 'N' ? (long)j * *ldb + p : (long)p * *ldb + j];
            *to = *alpha * sum + (*beta == 0.0f ? 0.0f : *beta * *to);
        }
}
static int one_thread(int threads) { return threads; }

static void *alloc_zeroed(size_t size) {
    void *at = aligned_alloc(64, (size + 63) / 64 * 64);
    return at ? memset(at, 0, size) : (abort(), NULL);
}

int main(void) {
    Network net;
    memset(&net, 0, sizeof net);
    int *integers = block();
    float *floats = block();
    memcpy(&net, integers, offsetof(Network, norm_eps));
    net.norm_eps = floats[0], net.softcap = floats[1], net.embedding_scale = floats[2], net.dropout = floats[3];
    float *positions = block(), *cosines = block(), *sines = block();
    net.positions = positions, net.cosines = cosines, net.sines = sines;
    int64_t *sizes = block(); /* slots, parameters, elements of matrices, sequences, their length, a chunk, threads, jobs */
    int64_t *offsets = block(), *places = block();
    float *parameters[sizes[0]], *weight = block();
    for (int i = 0; i < sizes[0]; i++) parameters[i] = block();
    int64_t *inputs = block(), *targets = block();
    net.parameters = (const float *const *)parameters;
    net.offsets = (const long *)offsets, net.packed_offsets = (const long *)places, net.n_parameters = sizes[1];
    net.matrices = alloc_zeroed(sizeof(elem_t) * (size_t)sizes[2]);
    net.backend = (Backend){plain_sgemm, one_thread, amx_available()};
    int batch = (int)sizes[3], length = (int)sizes[4], chunk = (int)sizes[5], threads = (int)sizes[6], jobs = (int)sizes[7];
    char *workspaces = alloc_zeroed(workspace_bytes(&net, chunk, length, 1) * (size_t)threads);
    float *gradients = alloc_zeroed(sizeof(float) * (size_t)(threads * sizes[1]));
    pack_weights(&net, threads);
    double losses[2];
    losses[0] = loss_and_gradients(&net, inputs, targets, batch, length, length, chunk, *weight, 7, workspaces, gradients, threads);
    losses[1] = loss_and_gradients(&net, inputs, targets, batch, length, length, chunk, 0.0f, 7, workspaces, NULL, threads);
    give_block(losses, sizeof losses);
    give_block(gradients, sizeof(float) * (size_t)sizes[1]);

    float *coefficients = block(), *matrices[jobs];
    int *iterations = block();
    MuonJob each[jobs]; /* of zeros, without momentum: the orthogonalised matrix becomes the parameter */
    size_t most = 0;
    for (int i = 0; i < jobs; i++) {
        int *shape = block(), rows = min_int(shape[0], shape[1]), columns = max_int(shape[0], shape[1]);
        matrices[i] = block();
        size_t size = sizeof(float) * (size_t)(rows * columns);
        each[i] = (MuonJob){alloc_zeroed(size), matrices[i], alloc_zeroed(size), rows, columns, shape[0] > shape[1], 0.5f};
        size_t bytes = muon_workspace_bytes(rows, columns);
        most = bytes > most ? bytes : most;
        free(shape);
    }
    char *ws = alloc_zeroed(most * (size_t)threads);
    muon_update(&net.backend, each, jobs, coefficients, *iterations, 0.0f, 1.0f, 1.0f, ws, most, threads);
    for (int i = 0; i < jobs; i++) {
        give_block(each[i].parameter, sizeof(float) * (size_t)(each[i].rows * each[i].columns));
        free(each[i].parameter), free(each[i].momentum), free(matrices[i]);
    }
    for (int i = 0; i < sizes[0]; i++) free(parameters[i]);
    free(ws), free(workspaces), free(gradients), free(net.matrices), free(coefficients), free(iterations), free(integers), free(floats);
    free(positions), free(cosines), free(sines), free(sizes), free(offsets), free(places), free(weight), free(inputs), free(targets);
    return 0;
}
