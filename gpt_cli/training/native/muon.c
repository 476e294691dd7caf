/* Muon's orthogonalisation (gpt_cli.training.muon.orthogonalise), each matrix by one thread. */
#include "real.h"
#include "threads.h"
#include "noise.h"
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
    real *x, *next, *gram, *mix;
    Products products;
} Room;

static size_t furnish(long rows, long columns, char *base, Room *room) {
    char *at = base;
    size_t size = (size_t)(rows * columns), square = (size_t)(rows * rows);
    room->x = take(&at, sizeof(real) * size), room->next = take(&at, sizeof(real) * size);
    room->gram = take(&at, sizeof(real) * square), room->mix = take(&at, sizeof(real) * square);
#ifdef BF16
    room->products.left = take(&at, sizeof(real) * STRIP * whole_strips(columns));
    room->products.panels = take(&at, sizeof(real) * whole_strips(rows) * whole_strips(columns));
#else
    room->products.out = take(&at, sizeof(float) * size);
#endif
    return (size_t)(at - base);
}

typedef struct { const real *from; real *to; int ld; float alpha, beta; } Mixed; /* to <- alpha block + beta from */

ALWAYS void mix_block(const Mixed *p, int row, int column, int rows, int columns, const float *restrict block, int ld) {
    long at = (long)row * p->ld + column;
    float alpha = p->alpha, beta = p->beta;
    for (int i = 0; i < rows; i++, at += p->ld, block += ld) {
        const real *restrict from = p->from + at;
        float sum[columns];
        SIMD
        for (int j = 0; j < columns; j++) sum[j] = alpha * block[j] + beta * wide(from[j]);
        narrow_all(columns, sum, p->to + at);
    }
}
FINISH(mix, mix_block)

/* Bytes that one thread needs for a matrix of so many rows (the smaller side) and columns. */
size_t orthogonalise_bytes(long rows, long columns) {
    Room room;
    return furnish(rows, columns, NULL, &room);
}

/* to (n, m) <- the transpose of from (m, n), both at most 16 x 16, rows `ld` apart in from and 16 in to. */
static void turn(int m, int n, const float *from, long ld, float *to) {
#ifdef BF16
    if (m == LANES && n == LANES) {
        Row rows[LANES];
        for (int i = 0; i < LANES; i++) rows[i] = row_of(from + i * ld);
        turn_words(rows);
        for (int i = 0; i < LANES; i++) store_row(to + i * LANES, rows[i]);
        return;
    }
#endif
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) to[j * LANES + i] = from[i * ld + j];
}

/* The matrix times a factor -> x, the smaller side first. */
static void read_in(const Job *job, float factor, real *x) {
    int m = job->rows, n = job->columns;
    float piece[LANES * LANES], row[n];
    if (!job->tall)
        for (int i = 0; i < m; i++) {
            SIMD
            for (int j = 0; j < n; j++) row[j] = factor * job->matrix[(long)i * n + j];
            narrow_all(n, row, x + (long)i * n);
        }
    else
        for (int j = 0; j < n; j += LANES)
            for (int i = 0; i < m; i += LANES) {
                int rows = smaller(LANES, m - i), columns = smaller(LANES, n - j);
                turn(columns, rows, job->matrix + (long)j * m + i, m, piece);
                SIMD
                for (int p = 0; p < LANES * LANES; p++) piece[p] *= factor;
                for (int p = 0; p < rows; p++) narrow_all(columns, piece + p * LANES, x + (long)(i + p) * n + j);
            }
}

/* x times the job's scale -> its result. */
static void write_out(const Job *job, const real *x) {
    int m = job->rows, n = job->columns;
    float piece[LANES * LANES], turned[LANES * LANES];
    if (!job->tall) {
        SIMD
        for (long i = 0; i < (long)m * n; i++) job->out[i] = job->scale * wide(x[i]);
    } else
        for (int j = 0; j < n; j += LANES)
            for (int i = 0; i < m; i += LANES) {
                int rows = smaller(LANES, m - i), columns = smaller(LANES, n - j);
                for (int p = 0; p < rows; p++)
                    for (int q = 0; q < columns; q++) piece[p * LANES + q] = job->scale * wide(x[(long)(i + p) * n + j + q]);
                turn(rows, columns, piece, LANES, turned);
                for (int q = 0; q < columns; q++)
                    memcpy(job->out + (long)(j + q) * m + i, turned + q * LANES, sizeof(float) * (size_t)rows);
            }
}

static void orthogonalise_one(const Worker *worker, const Job *job) {
    int m = job->rows, n = job->columns;
    long size = (long)m * n;
    Room room;
    furnish(m, n, worker->room, &room);
    room.products.backend = worker->backend;
    const Products *products = &room.products;
    real *x = room.x, *next = room.next, *gram = room.gram, *panels = products->panels;
    double squares = 0.0;
    for (long i = 0; i < size; i += n) {
        float part = 0.0f;
        SIMD_SUM(part)
        for (int j = 0; j < n; j++) part += job->matrix[i + j] * job->matrix[i + j];
        squares += part;
    }
    read_in(job, (float)(1.0 / (sqrt(squares) * 1.02 + 1e-6)), x);
    for (int iteration = 0; iteration < worker->iterations; iteration++) { /* x <- a x + (b G + c G G) x, G = x x^T */
        const float *abc = worker->coefficients + 3 * iteration;
        multiply(products, m, m, n, (Left){x, n, 0}, by_columns(n, m, x, n, panels), put_narrowed, &(Narrowed){gram, m, NULL});
        multiply(products, m, m, m, (Left){gram, m, 0}, by_rows(m, m, gram, m, panels), mix,
                 &(Mixed){gram, room.mix, m, abc[2], abc[1]});
        multiply(products, m, n, m, (Left){room.mix, m, 0}, by_rows(m, n, x, n, panels), mix, &(Mixed){x, next, n, 1.0f, abc[0]});
        real *swap = x;
        x = next, next = swap;
    }
    write_out(job, x);
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
