/* Muon's update (gpt_cli.training.muon), each matrix by one thread: momentum, orthogonalisation, weight decay and the step. */
#include "numeric.h"
#include "../common/arena.h"
#include "threads.h"
#include "dropout.h"
#include "gemm.h"

typedef struct {
    float *parameter, *gradient, *momentum; /* (rows, columns), rows <= columns, or their transposes in memory if `tall` */
    int rows, columns, tall;
    float scale; /* of the orthogonalised matrix that is added to the parameter */
} MuonJob;

typedef struct {
    const Backend *backend;
    const MuonJob *jobs;
    int first, step, n_job;
    const float *coefficients; /* (iterations, 3) */
    int iterations;
    float momentum, gradient_share, keep; /* gradient_share: 1 - momentum; keep: what weight decay leaves of a parameter */
    char *ws;
} Worker;

/* The buffers of a thread (see arena.h), for a matrix of `rows` (the smaller side) and `columns`. */
#define WORKSPACE_BUFFERS(X)                                                                                       \
    X(elem_t, x, rows * columns) X(elem_t, next, rows * columns) /* an iteration's input and output, which swap */ \
    X(float, direction, rows * columns)                          /* of the update */                               \
    X(elem_t, gram, rows * rows) X(elem_t, mixed, rows * rows)   /* G = x x^T, and b G + c G G */

typedef struct {
    WORKSPACE_BUFFERS(BUFFER_FIELD)
    GemmContext gemm_ctx;
} Workspace;

/* Set the buffers of `to` to parts of `memory`; returns the bytes needed (with NULL only that). */
static size_t layout_workspace(const Backend *backend, long rows, long columns, char *memory, Workspace *to) {
    Arena whole = {memory, 0}, *arena = &whole;
    WORKSPACE_BUFFERS(TAKE_BUFFER)
    to->gemm_ctx = gemm_context(backend, arena, rows, columns, columns);
    return arena->used;
}

typedef struct { const elem_t *from; elem_t *to; int ld; float alpha, beta; } Axpby; /* to <- alpha block + beta from */

INLINE void axpby_block(const Axpby *p, int row, int column, int rows, int columns, const float *restrict block, int ld) {
    long at = (long)row * p->ld + column;
    float alpha = p->alpha, beta = p->beta;
    for (int i = 0; i < rows; i++, at += p->ld, block += ld) {
        const elem_t *restrict from = p->from + at;
        float sum[columns];
        SIMD
        for (int j = 0; j < columns; j++) sum[j] = alpha * block[j] + beta * to_float(from[j]);
        to_elems(columns, sum, p->to + at);
    }
}
EPILOGUE(axpby, axpby_block)

/* Bytes that one thread needs for a matrix of `rows` (the smaller side) and `columns`. */
size_t muon_workspace_bytes(long rows, long columns) {
    Workspace ws;
    return layout_workspace(NULL, rows, columns, NULL, &ws);
}

/* to (n, m) <- the transpose of from (m, n), both at most 16 x 16, of leading dimension `ld` and 16. */
static void transpose(int m, int n, const float *from, long ld, float *to) {
#ifdef BF16
    if (m == LANES && n == LANES) {
        Row rows[LANES];
        for (int i = 0; i < LANES; i++) rows[i] = row_of(from + i * ld);
        transpose_words(rows);
        for (int i = 0; i < LANES; i++) store_row(to + i * LANES, rows[i]);
        return;
    }
#endif
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) to[j * LANES + i] = from[i * ld + j];
}

/* The gradient times `factor` -> x, transposed if tall. */
static void load_scaled(const MuonJob *job, float factor, elem_t *x) {
    int m = job->rows, n = job->columns;
    float piece[LANES * LANES], row[n];
    if (!job->tall)
        for (int i = 0; i < m; i++) {
            SIMD
            for (int j = 0; j < n; j++) row[j] = factor * job->gradient[(long)i * n + j];
            to_elems(n, row, x + (long)i * n);
        }
    else
        for (int j = 0; j < n; j += LANES)
            for (int i = 0; i < m; i += LANES) {
                int rows = min_int(LANES, m - i), columns = min_int(LANES, n - j);
                transpose(columns, rows, job->gradient + (long)j * m + i, m, piece);
                SIMD
                for (int p = 0; p < LANES * LANES; p++) piece[p] *= factor;
                for (int p = 0; p < rows; p++) to_elems(columns, piece + p * LANES, x + (long)(i + p) * n + j);
            }
}

/* x times the job's scale -> direction, transposed back if tall. */
static void store_scaled(const MuonJob *job, const elem_t *x, float *direction) {
    int m = job->rows, n = job->columns;
    float piece[LANES * LANES], transposed[LANES * LANES];
    if (!job->tall) {
        SIMD
        for (long i = 0; i < (long)m * n; i++) direction[i] = job->scale * to_float(x[i]);
    } else
        for (int j = 0; j < n; j += LANES)
            for (int i = 0; i < m; i += LANES) {
                int rows = min_int(LANES, m - i), columns = min_int(LANES, n - j);
                for (int p = 0; p < rows; p++)
                    for (int q = 0; q < columns; q++) piece[p * LANES + q] = job->scale * to_float(x[(long)(i + p) * n + j + q]);
                transpose(rows, columns, piece, LANES, transposed);
                for (int q = 0; q < columns; q++)
                    memcpy(direction + (long)(j + q) * m + i, transposed + q * LANES, sizeof(float) * (size_t)rows);
            }
}

/* The gradient, orthogonalised and scaled -> ws->direction. */
static void newton_schulz(const Worker *worker, const MuonJob *job, const Workspace *ws) {
    int m = job->rows, n = job->columns;
    long size = (long)m * n;
    const GemmContext *gemm_ctx = &ws->gemm_ctx;
    elem_t *x = ws->x, *next = ws->next, *gram = ws->gram, *packed_b = gemm_ctx->packed_b;
    double squares = 0.0;
    for (long i = 0; i < size; i += n) {
        float part = 0.0f;
        SIMD_SUM(part)
        for (int j = 0; j < n; j++) part += job->gradient[i + j] * job->gradient[i + j];
        squares += part;
    }
    load_scaled(job, (float)(1.0 / (sqrt(squares) * 1.02 + 1e-6)), x);
    for (int iteration = 0; iteration < worker->iterations; iteration++) { /* x <- a x + (b G + c G G) x, G = x x^T */
        const float *abc = worker->coefficients + 3 * iteration;
        gemm(gemm_ctx, m, m, n, (MatrixA){x, n, 0}, pack_bt(n, m, x, n, packed_b), store_elem, &(StoreElem){gram, m, NULL});
        gemm(gemm_ctx, m, m, m, (MatrixA){gram, m, 0}, pack_b(m, m, gram, m, packed_b), axpby,
                 &(Axpby){gram, ws->mixed, m, abc[2], abc[1]});
        gemm(gemm_ctx, m, n, m, (MatrixA){ws->mixed, m, 0}, pack_b(m, n, x, n, packed_b), axpby, &(Axpby){x, next, n, 1.0f, abc[0]});
        elem_t *swap = x;
        x = next, next = swap;
    }
    store_scaled(job, x, ws->direction);
}

/* a + weight (b - a), rounded as torch.lerp rounds it. */
INLINE float lerp(float a, float b, float weight) {
    return fabsf(weight) < 0.5f ? a + weight * (b - a) : b + (weight - 1.0f) * (b - a);
}

/* The gradient -> Nesterov's look-ahead, in place; its momentum is updated, and the parameter decays. */
NOINLINE void apply_momentum(const Worker *worker, const MuonJob *job) {
    float momentum = worker->momentum, share = worker->gradient_share, keep = worker->keep;
    float *restrict gradient = job->gradient, *restrict buffer = job->momentum, *restrict parameter = job->parameter;
    SIMD
    for (long i = 0; i < (long)job->rows * job->columns; i++) {
        buffer[i] = lerp(buffer[i], gradient[i], share);
        gradient[i] = lerp(gradient[i], buffer[i], momentum);
        parameter[i] *= keep;
    }
}

static void muon_worker(void *argument) {
    const Worker *worker = argument;
    int before = gemm_begin(worker->backend);
    for (int i = worker->first; i < worker->n_job; i += worker->step) {
        const MuonJob *job = &worker->jobs[i];
        float *parameter = job->parameter;
        Workspace ws;
        layout_workspace(worker->backend, job->rows, job->columns, worker->ws, &ws);
        apply_momentum(worker, job);
        newton_schulz(worker, job, &ws);
        SIMD /* a loop of its own, so that products are rounded before they are added, as by torch */
        for (long p = 0; p < (long)job->rows * job->columns; p++) parameter[p] += ws.direction[p];
    }
    gemm_end(worker->backend, before);
}

/* `workspaces`: `bytes` for each thread. */
void muon_update(const Backend *backend, const MuonJob *jobs, int n_job, const float *coefficients, int iterations, float momentum,
                 float gradient_share, float keep, char *workspaces, size_t bytes, int threads) {
    Worker workers[threads];
    for (int i = 0; i < threads; i++)
        workers[i] = (Worker){backend, jobs, i, threads, n_job, coefficients, iterations, momentum, gradient_share, keep,
                              workspaces + bytes * (size_t)i};
    parallel_run(muon_worker, workers, sizeof *workers, threads);
}
