/* Muon's orthogonalisation (gpt_cli.training.muon.orthogonalise), each matrix by one thread. */
#include "real.h"
#include "threads.h"

typedef struct {
    const float *matrix; /* (rows, columns), rows <= columns, or its transpose in memory if `tall` */
    float *out;
    int rows, columns, tall;
    float scale; /* of what is written */
} Job;

typedef struct {
    const Blas *blas;
    const Job *jobs;
    int first, step, n_job;
    const float *coefficients; /* (iterations, 3) */
    int iterations;
    char *room;
} Worker;

static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* Bytes that one thread needs for matrices of at most so many rows (the smaller side) and columns. */
size_t orthogonalise_bytes(long rows, long columns) {
    return 2 * aligned(sizeof(float) * rows * columns) + aligned(sizeof(real) * rows * columns) +
           aligned(sizeof(float) * rows * rows) + 2 * aligned(sizeof(real) * rows * rows);
}

static void orthogonalise_one(const Worker *worker, const Job *job) {
    const Blas *blas = worker->blas;
    int m = job->rows, n = job->columns;
    long size = (long)m * n, square = (long)m * m;
    char *at = worker->room;
    float *x = (float *)at, *next = (float *)(at += aligned(sizeof(float) * size));
    real *x_read = (real *)(at += aligned(sizeof(float) * size));
    float *gram = (float *)(at += aligned(sizeof(real) * size));
    real *gram_read = (real *)(at += aligned(sizeof(float) * square));
    real *mix_read = (real *)(at + aligned(sizeof(real) * square));
    double squares = 0.0;
    for (long i = 0; i < size; i += n) {
        float part = 0.0f;
        SIMD_SUM(part)
        for (int j = 0; j < n; j++) part += job->matrix[i + j] * job->matrix[i + j];
        squares += part;
    }
    float shrink = (float)(1.0 / (sqrt(squares) * 1.02 + 1e-6));
    if (job->tall) {
        for (int i = 0; i < n; i++)
            for (int j = 0; j < m; j++) x[(long)j * n + i] = job->matrix[(long)i * m + j] * shrink;
    } else {
        SIMD
        for (long i = 0; i < size; i++) x[i] = job->matrix[i] * shrink;
    }
    for (int iteration = 0; iteration < worker->iterations; iteration++) { /* x <- a x + (b G + c G G) x, G = x x^T */
        const float *abc = worker->coefficients + 3 * iteration;
        narrow_all(size, x, x_read);
        product(blas, PLAIN, TRANSPOSED, m, m, n, 1.0f, x_read, n, x_read, n, 0.0f, gram, m);
        narrow_all(square, gram, gram_read);
        product(blas, PLAIN, PLAIN, m, m, m, abc[2], gram_read, m, gram_read, m, abc[1], gram, m);
        narrow_all(square, gram, mix_read);
        memcpy(next, x, sizeof(float) * size);
        product(blas, PLAIN, PLAIN, m, n, m, 1.0f, mix_read, m, x_read, n, abc[0], next, n);
        float *swap = x;
        x = next, next = swap;
    }
    if (job->tall) {
        for (int j = 0; j < m; j++)
            for (int i = 0; i < n; i++) job->out[(long)i * m + j] = job->scale * x[(long)j * n + i];
    } else {
        SIMD
        for (long i = 0; i < size; i++) job->out[i] = job->scale * x[i];
    }
}

static void work_through(void *argument) {
    const Worker *worker = argument;
    int threads_before = worker->blas->set_threads(1);
    for (int i = worker->first; i < worker->n_job; i += worker->step) orthogonalise_one(worker, &worker->jobs[i]);
    worker->blas->set_threads(threads_before);
}

/* `room`: `bytes` for each thread. */
void orthogonalise(const Blas *blas, const Job *jobs, int n_job, const float *coefficients, int iterations, char *room,
                   size_t bytes, int threads) {
    Worker workers[threads];
    for (int i = 0; i < threads; i++)
        workers[i] = (Worker){blas, jobs, i, threads, n_job, coefficients, iterations, room + bytes * (size_t)i};
    in_threads(work_through, workers, sizeof *workers, threads);
}
