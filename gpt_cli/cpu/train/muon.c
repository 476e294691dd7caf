/* Muon's orthogonalisation (gpt_cli.training.muon.orthogonalise), each matrix by one thread. */
#include "numeric.h"
#include "threads.h"
#include "dropout.h"
#include "gemm.h"

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

typedef struct {
    elem_t *x, *next, *gram, *mixed;
    Products products;
} Workspace;

static size_t layout_workspace(long rows, long columns, char *base, Workspace *room) {
    char *at = base;
    size_t size = (size_t)(rows * columns), square = (size_t)(rows * rows);
    room->x = arena_alloc(&at, sizeof(elem_t) * size), room->next = arena_alloc(&at, sizeof(elem_t) * size);
    room->gram = arena_alloc(&at, sizeof(elem_t) * square), room->mixed = arena_alloc(&at, sizeof(elem_t) * square);
#ifdef BF16
    room->products.left = arena_alloc(&at, sizeof(elem_t) * STRIP * round_up_tile(columns));
    room->products.panels = arena_alloc(&at, sizeof(elem_t) * round_up_tile(rows) * round_up_tile(columns));
#else
    room->products.out = arena_alloc(&at, sizeof(float) * size);
#endif
    return (size_t)(at - base);
}

typedef struct { const elem_t *from; elem_t *to; int ld; float alpha, beta; } Mixed; /* to <- alpha block + beta from */

INLINE void mix_block(const Mixed *p, int row, int column, int rows, int columns, const float *restrict block, int ld) {
    long at = (long)row * p->ld + column;
    float alpha = p->alpha, beta = p->beta;
    for (int i = 0; i < rows; i++, at += p->ld, block += ld) {
        const elem_t *restrict from = p->from + at;
        float sum[columns];
        SIMD
        for (int j = 0; j < columns; j++) sum[j] = alpha * block[j] + beta * to_float(from[j]);
        narrow_all(columns, sum, p->to + at);
    }
}
EPILOGUE(axpby, mix_block)

/* Bytes that one thread needs for a matrix of so many rows (the smaller side) and columns. */
size_t orthogonalise_bytes(long rows, long columns) {
    Workspace room;
    return layout_workspace(rows, columns, NULL, &room);
}

/* to (n, m) <- the transpose of from (m, n), both at most 16 x 16, rows `ld` apart in from and 16 in to. */
static void transpose(int m, int n, const float *from, long ld, float *to) {
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
static void read_in(const Job *job, float factor, elem_t *x) {
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
                transpose(columns, rows, job->matrix + (long)j * m + i, m, piece);
                SIMD
                for (int p = 0; p < LANES * LANES; p++) piece[p] *= factor;
                for (int p = 0; p < rows; p++) narrow_all(columns, piece + p * LANES, x + (long)(i + p) * n + j);
            }
}

/* x times the job's scale -> its result. */
static void write_out(const Job *job, const elem_t *x) {
    int m = job->rows, n = job->columns;
    float piece[LANES * LANES], transposed[LANES * LANES];
    if (!job->tall) {
        SIMD
        for (long i = 0; i < (long)m * n; i++) job->out[i] = job->scale * to_float(x[i]);
    } else
        for (int j = 0; j < n; j += LANES)
            for (int i = 0; i < m; i += LANES) {
                int rows = smaller(LANES, m - i), columns = smaller(LANES, n - j);
                for (int p = 0; p < rows; p++)
                    for (int q = 0; q < columns; q++) piece[p * LANES + q] = job->scale * to_float(x[(long)(i + p) * n + j + q]);
                transpose(rows, columns, piece, LANES, transposed);
                for (int q = 0; q < columns; q++)
                    memcpy(job->out + (long)(j + q) * m + i, transposed + q * LANES, sizeof(float) * (size_t)rows);
            }
}

static void orthogonalise_one(const Worker *worker, const Job *job) {
    int m = job->rows, n = job->columns;
    long size = (long)m * n;
    Workspace room;
    layout_workspace(m, n, worker->room, &room);
    room.products.backend = worker->backend;
    const Products *products = &room.products;
    elem_t *x = room.x, *next = room.next, *gram = room.gram, *panels = products->panels;
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
        multiply(products, m, m, n, (MatrixA){x, n, 0}, pack_bt(n, m, x, n, panels), put_narrowed, &(StoreBf16){gram, m, NULL});
        multiply(products, m, m, m, (MatrixA){gram, m, 0}, pack_b(m, m, gram, m, panels), axpby,
                 &(Mixed){gram, room.mixed, m, abc[2], abc[1]});
        multiply(products, m, n, m, (MatrixA){room.mixed, m, 0}, pack_b(m, n, x, n, panels), axpby, &(Mixed){x, next, n, 1.0f, abc[0]});
        elem_t *swap = x;
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
    parallel_run(work_through, workers, sizeof *workers, threads);
}
