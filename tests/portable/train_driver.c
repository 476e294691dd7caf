/* The training code without Python: a model and a batch from the input, losses, gradients and orthogonalised matrices to the
   output; see engines.py. Products in fp32 are plain loops. */

#include "network.c"

#include "blocks.h"

typedef struct { /* of muon.c */
    const float *matrix;
    float *out;
    int rows, columns, tall;
    float scale;
} Job;
size_t orthogonalise_bytes(long rows, long columns);
void orthogonalise(const Backend *backend, const Job *jobs, int n_job, const float *coefficients, int iterations, char *room,
                   size_t bytes, int threads);

/* Fortran's SGEMM: c (m, n) <- alpha a b + beta c, all by columns. */
static void plain_sgemm(const char *turn_a, const char *turn_b, const int *m, const int *n, const int *k, const float *alpha,
                        const float *a, const int *lda, const float *b, const int *ldb, const float *beta, float *c,
                        const int *ldc) {
    for (int j = 0; j < *n; j++)
        for (int i = 0; i < *m; i++) {
            float sum = 0.0f, *to = c + (long)j * *ldc + i;
            for (int p = 0; p < *k; p++)
                sum += a[*turn_a == 'N' ? (long)p * *lda + i : (long)i * *lda + p]
                    * b[*turn_b == 'N' ? (long)j * *ldb + p : (long)p * *ldb + j];
            *to = *alpha * sum + (*beta == 0.0f ? 0.0f : *beta * *to);
        }
}
static int one_thread(int threads) { return threads; }

static void *room_of(size_t size) {
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
    net.matrices = room_of(sizeof(elem_t) * (size_t)sizes[2]);
    net.backend = (Backend){plain_sgemm, one_thread, tiles_available()};
    int batch = (int)sizes[3], length = (int)sizes[4], chunk = (int)sizes[5], threads = (int)sizes[6], jobs = (int)sizes[7];
    char *rooms = room_of(room_bytes(&net, chunk, length, 1) * (size_t)threads);
    float *gradients = room_of(sizeof(float) * (size_t)(threads * sizes[1]));
    pack_weights(&net, threads);
    double losses[2];
    losses[0] = loss_and_gradients(&net, inputs, targets, batch, length, length, chunk, *weight, 7, rooms, gradients, threads);
    losses[1] = loss_and_gradients(&net, inputs, targets, batch, length, length, chunk, 0.0f, 7, rooms, NULL, threads);
    give_block(losses, sizeof losses);
    give_block(gradients, sizeof(float) * (size_t)sizes[1]);

    float *coefficients = block(), *matrices[jobs];
    int *iterations = block();
    Job each[jobs];
    size_t most = 0;
    for (int i = 0; i < jobs; i++) {
        int *shape = block(), rows = smaller(shape[0], shape[1]), columns = larger(shape[0], shape[1]);
        matrices[i] = block();
        each[i] = (Job){matrices[i], room_of(sizeof(float) * (size_t)(rows * columns)), rows, columns, shape[0] > shape[1], 0.5f};
        size_t bytes = orthogonalise_bytes(rows, columns);
        most = bytes > most ? bytes : most;
        free(shape);
    }
    char *room = room_of(most * (size_t)threads);
    orthogonalise(&net.backend, each, jobs, coefficients, *iterations, room, most, threads);
    for (int i = 0; i < jobs; i++) {
        give_block(each[i].out, sizeof(float) * (size_t)(each[i].rows * each[i].columns));
        free(each[i].out), free(matrices[i]);
    }
    for (int i = 0; i < sizes[0]; i++) free(parameters[i]);
    free(room), free(rooms), free(gradients), free(net.matrices), free(coefficients), free(iterations), free(integers), free(floats);
    free(positions), free(cosines), free(sines), free(sizes), free(offsets), free(places), free(weight), free(inputs), free(targets);
    return 0;
}
