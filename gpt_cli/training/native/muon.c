/* Muon's orthogonalisation (gpt_cli.training.muon.orthogonalise), each matrix by one thread. */
#include "real.h"
#include "threads.h"
#include "products.h"

typedef struct {
    const float *matrix; /* (rows, columns), rows <= columns, or its transpose in memory if `tall` */
    float *out;
    int rows, columns, tall;
    float scale; /* of what is written */
} Job;

typedef struct {
    const Backend *backend;
    const Job *jobs;
    int first, step, n_job;
    const float *coefficients; /* (iterations, 3) */
    int iterations;
    char *room;
} Worker;

static void *take(char **at, size_t bytes) {
    char *here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

typedef struct {
    float *x, *next, *gram;
    real *x_read, *gram_read;
    Products products;
} Room;

static size_t furnish(long rows, long columns, char *base, Room *room) {
    char *at = base;
    size_t size = (size_t)(rows * columns), square = (size_t)(rows * rows);
    room->x = take(&at, sizeof(float) * size), room->next = take(&at, sizeof(float) * size);
    room->x_read = take(&at, sizeof(real) * size);
    room->gram = take(&at, sizeof(float) * square), room->gram_read = take(&at, sizeof(real) * square);
#ifdef BF16
    room->products.left = take(&at, sizeof(real) * STRIP * whole_strips(columns));
    room->products.panels = take(&at, sizeof(real) * whole_strips(rows) * whole_strips(columns));
#endif
    return (size_t)(at - base);
}

/* Bytes that one thread needs for a matrix of so many rows (the smaller side) and columns. */
size_t orthogonalise_bytes(long rows, long columns) {
    Room room;
    return furnish(rows, columns, NULL, &room);
}

static void orthogonalise_one(const Worker *worker, const Job *job) {
    int m = job->rows, n = job->columns;
    long size = (long)m * n, square = (long)m * m;
    Room room;
    furnish(m, n, worker->room, &room);
    room.products.backend = worker->backend;
    const Products *products = &room.products;
    float *x = room.x, *next = room.next, *gram = room.gram;
    real *x_read = room.x_read, *gram_read = room.gram_read, *panels = products->panels;
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
        Left wide_left = {x_read, n, 0}, square_left = {gram_read, m, 0};
        narrow_all(size, x, x_read);
        multiply(products, m, m, n, wide_left, by_columns(n, m, x_read, n, panels), put, &(Put){gram, m, 1.0f, 0.0f});
        narrow_all(square, gram, gram_read);
        multiply(products, m, m, m, square_left, by_rows(m, m, gram_read, m, panels), put, &(Put){gram, m, abc[2], abc[1]});
        narrow_all(square, gram, gram_read);
        memcpy(next, x, sizeof(float) * size);
        multiply(products, m, n, m, square_left, by_rows(m, n, x_read, n, panels), put, &(Put){next, n, 1.0f, abc[0]});
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
    int before = begin_products(worker->backend);
    for (int i = worker->first; i < worker->n_job; i += worker->step) orthogonalise_one(worker, &worker->jobs[i]);
    end_products(worker->backend, before);
}

/* `room`: `bytes` for each thread. */
void orthogonalise(const Backend *backend, const Job *jobs, int n_job, const float *coefficients, int iterations, char *room,
                   size_t bytes, int threads) {
    Worker workers[threads];
    for (int i = 0; i < threads; i++)
        workers[i] = (Worker){backend, jobs, i, threads, n_job, coefficients, iterations, room + bytes * (size_t)i};
    in_threads(work_through, workers, sizeof *workers, threads);
}
