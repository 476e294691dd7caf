/* GEMM: C (m, n) = A (m, k) B (k, n), with an epilogue that consumes each block of C while it is in the cache.

   In bf16 the kernels are our own. B is packed in panels of 32 columns, pairs of rows interleaved (VNNI layout), as the
   instructions read it: (panel, k / 2, 32, 2). A is packed 32 rows at a time, and those are multiplied by every panel.
   A 32 x 32 block of C stays in registers for the whole of k: in AMX tiles, or where there are none in AVX-512's or NEON's
   vector registers (gemm_vector.h). k is zero-padded to a multiple of 32. In fp32 the BLAS that torch ships computes. */

enum { TILE = 32 }; /* rows, columns and depth (k) of a block */

static inline long round_up_tile(long n) { return (n + TILE - 1) / TILE * TILE; }

typedef struct {
    void (*sgemm)(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                  const int *, const float *, const int *, const float *, float *, const int *); /* Fortran's, for fp32 */
    int (*set_threads)(int); /* of that BLAS, for the calling thread; returns the number before */
    int amx;                 /* AMX may be used */
} Backend;

/* The buffers of a thread (see arena.h), for a B or C of at most rows x columns elements and a k of at most `depth`: in bf16 32 rows
   of A, packed, and a B that is used once (weights are packed once a step); in fp32 a product on its way to an epilogue. */
enum { PACKED = sizeof(elem_t) == sizeof(uint16_t) }; /* bf16 */
#define GEMM_BUFFERS(X)                                                            \
    X(elem_t, packed_a, PACKED ? TILE * round_up_tile(depth) : 0)                  \
    X(elem_t, packed_b, PACKED ? round_up_tile(rows) * round_up_tile(columns) : 0) \
    X(float, out, PACKED ? 0 : rows * columns)

typedef struct {
    const Backend *backend;
    GEMM_BUFFERS(BUFFER_FIELD)
} GemmContext;

static GemmContext gemm_context(const Backend *backend, Arena *arena, long rows, long columns, long depth) {
    GemmContext context = {.backend = backend}, *to = &context;
    GEMM_BUFFERS(TAKE_BUFFER)
    return context;
}

/* Consumes one block of C: its first row and column, its sizes, and its elements, of leading dimension `ld`. */
typedef void (*Epilogue)(const void *to, int row, int column, int rows, int columns, const float *block, int ld);

typedef struct { const elem_t *at; int ld, transposed; } MatrixA; /* (m, k), leading dimension `ld`; transposed: (k, m) in memory */

/* Most blocks are TILE columns wide: the loops are compiled for that width, too. */
#define EPILOGUE(name, body) \
    static inline void name(const void *to, int row, int column, int rows, int columns, const float *block, int ld) { \
        if (columns == TILE) \
            body(to, row, column, rows, TILE, block, ld); \
        else \
            body(to, row, column, rows, columns, block, ld); \
    }

typedef struct { float *to; int ld; float alpha, beta; } StoreF32; /* to <- alpha block + beta to */

INLINE void store_f32_block(const StoreF32 *p, int row, int column, int rows, int columns, const float *restrict block, int ld) {
    float *restrict out = p->to + (long)row * p->ld + column;
    float alpha = p->alpha, beta = p->beta;
    for (int i = 0; i < rows; i++, out += p->ld, block += ld) {
        if (beta == 0.0f) {
            SIMD
            for (int j = 0; j < columns; j++) out[j] = alpha * block[j];
        } else {
            SIMD
            for (int j = 0; j < columns; j++) out[j] = alpha * block[j] + beta * out[j];
        }
    }
}
EPILOGUE(store_f32, store_f32_block)

typedef struct { elem_t *to; int ld; const float *bias; } StoreElem; /* to <- block + bias; bias may be NULL */

INLINE void store_elem_block(const StoreElem *p, int row, int column, int rows, int columns, const float *restrict block,
                               int ld) {
    elem_t *restrict out = p->to + (long)row * p->ld + column;
    for (int i = 0; i < rows; i++, out += p->ld, block += ld) {
        if (p->bias) {
            float sum[columns];
            SIMD
            for (int j = 0; j < columns; j++) sum[j] = block[j] + p->bias[column + j];
            to_elems(columns, sum, out);
        } else
            to_elems(columns, block, out);
    }
}
EPILOGUE(store_elem, store_elem_block)

typedef struct { /* to <- from + dropout mask * (block + bias) */
    const float *from;
    float *to;
    int ld;
    const float *bias; /* or NULL */
    const Dropout *dropout;
    int stream_id;
} ResidualAdd;

INLINE void add_residual_block(const ResidualAdd *p, int row, int column, int rows, int columns, const float *restrict block, int ld) {
    long at = (long)row * p->ld + column;
    float sum[columns], factor[columns];
    for (int i = 0; i < rows; i++, at += p->ld, block += ld) {
        const float *restrict from = p->from + at, *term = block;
        float *restrict out = p->to + at;
        if (p->bias) {
            SIMD
            for (int j = 0; j < columns; j++) sum[j] = block[j] + p->bias[column + j];
            term = sum;
        }
        if (p->dropout->limit) {
            dropout_scale(p->dropout, p->stream_id, row + i, column, columns, factor);
            SIMD
            for (int j = 0; j < columns; j++) sum[j] = term[j] * factor[j];
            term = sum;
        }
        SIMD
        for (int j = 0; j < columns; j++) out[j] = from[j] + term[j];
    }
}
EPILOGUE(add_residual, add_residual_block)

#ifdef BF16

typedef struct { const elem_t *at; long panel; } PackedB; /* panels, `panel` elements apart */

#include "gemm_vector.h"

/* At most 32 x 32 of a matrix, zero-padded to 32 x 32. */
static void copy_padded(const elem_t *from, int ld, int rows, int columns, elem_t *square) {
    memset(square, 0, sizeof(elem_t) * TILE * TILE);
    for (int i = 0; i < rows; i++) memcpy(square + i * TILE, from + (long)i * ld, sizeof(elem_t) * (size_t)columns);
}

/* Pack 32 rows of A, from row `i` on: (k / 32, 32, 32). */
static void pack_a(MatrixA a, int i, int rows, int k, elem_t *a_tile) {
    _Alignas(64) elem_t square[TILE * TILE];
    for (int p = 0; p < k; p += TILE, a_tile += TILE * TILE) {
        int depth = min_int(TILE, k - p), whole = rows == TILE && depth == TILE;
        if (!a.transposed) {
            const elem_t *from = a.at + (long)i * a.ld + p;
            if (!whole)
                copy_padded(from, a.ld, rows, depth, a_tile);
            else
                for (int r = 0; r < TILE; r++, from += a.ld)
                    store_row(a_tile + r * TILE, row_of(from));
            continue;
        }
        const elem_t *from = a.at + (long)p * a.ld + i;
        int ld = a.ld;
        if (!whole) copy_padded(from, ld, depth, rows, square), from = square, ld = TILE;
        Row first[16], second[16];
#pragma GCC unroll 16
        for (int q = 0; q < 16; q++, from += 2 * ld) interleave(row_of(from), row_of(from + ld), &first[q], &second[q]);
        transpose_words(first), transpose_words(second);
#pragma GCC unroll 16
        for (int q = 0; q < 16; q++) {
            store_row(a_tile + q * TILE, first[q]);
            store_row(a_tile + (16 + q) * TILE, second[q]);
        }
    }
}

/* Pack B (k, n) into panels at `packed`: b with leading dimension `ld`, or the transpose of b (n, k). */
INLINE PackedB pack_panels(const bool TRANSPOSED, int k, int n, const elem_t *b, int ld, elem_t *packed) {
    _Alignas(64) elem_t square[TILE * TILE];
    long panel = round_up_tile(k) * TILE;
    for (int j = 0; j < n; j += TILE) {
        elem_t *to = packed + j / TILE * panel;
        for (int p = 0; p < k; p += TILE, to += TILE * TILE) {
            int depth = min_int(TILE, k - p), columns = min_int(TILE, n - j), row_stride = ld;
            const elem_t *from = TRANSPOSED ? b + (long)j * ld + p : b + (long)p * ld + j;
            if (depth < TILE || columns < TILE) {
                copy_padded(from, ld, TRANSPOSED ? columns : depth, TRANSPOSED ? depth : columns, square);
                from = square, row_stride = TILE;
            }
            if (!TRANSPOSED) {
                for (int q = 0; q < 16; q++, from += 2 * row_stride) {
                    Row first, second;
                    interleave(row_of(from), row_of(from + row_stride), &first, &second);
                    store_row(to + q * 64, first);
                    store_row(to + q * 64 + 32, second);
                }
                continue;
            }
            for (int half = 0; half < 2; half++) {
                Row words[16];
#pragma GCC unroll 16
                for (int q = 0; q < 16; q++, from += row_stride) words[q] = row_of(from);
                transpose_words(words);
#pragma GCC unroll 16
                for (int q = 0; q < 16; q++) store_row(to + q * 64 + half * 32, words[q]);
            }
        }
    }
    return (PackedB){packed, panel};
}

static PackedB pack_b(int k, int n, const elem_t *b, int ld, elem_t *packed) { return pack_panels(false, k, n, b, ld, packed); }
static PackedB pack_bt(int k, int n, const elem_t *b, int ld, elem_t *packed) { return pack_panels(true, k, n, b, ld, packed); }

static inline PackedB b_from_row(PackedB b, int row) { return (PackedB){b.at + (long)row * TILE, b.panel}; }
static inline PackedB b_from_column(PackedB b, int column) { /* `column` and `row` are multiples of 32 */
    return (PackedB){b.at + column / TILE * b.panel, b.panel};
}

#ifdef __AMX_BF16__
#include "../common/amx.h"

/* Called by each thread before its first GEMM and after its last. */
static int gemm_begin(const Backend *backend) {
    if (backend->amx) amx_configure();
    return 0;
}
static void gemm_end(const Backend *backend, int before) {
    (void)before;
    if (backend->amx) _tile_release();
}

static void kernel_amx(const elem_t *a, const elem_t *b, int k, float *block) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int p = 0; p < k; p += TILE, a += TILE * TILE, b += TILE * TILE) {
        for (int i = 0; i < 32; i++) _mm_prefetch((const char *)(b + 2 * TILE * TILE + i * 32), _MM_HINT_T0);
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 128);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 32, 128);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + 16 * TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, block, 128);
    _tile_stored(1, block + 16, 128);
    _tile_stored(2, block + 512, 128);
    _tile_stored(3, block + 528, 128);
}
#else
static inline bool amx_request(void) { return false; }
static int gemm_begin(const Backend *backend) { return (void)backend, 0; }
static void gemm_end(const Backend *backend, int before) { (void)backend, (void)before; }
static void kernel_amx(const elem_t *a, const elem_t *b, int k, float *block) { (void)a, (void)b, (void)k, (void)block; }
#endif

/* Prefetch the block of C that is accumulated into while it is computed: the hardware prefetcher misses strides this large. */
static void prefetch_c(const StoreF32 *out, int row, int column, int rows) {
    const char *at = (const char *)(out->to + (long)row * out->ld + column);
    for (int i = 0; i < rows; i++, at += out->ld * sizeof(float)) __builtin_prefetch(at), __builtin_prefetch(at + 64);
}

/* Prefetch 32 rows of A from row `i` on, which are packed next; of their k cache lines the share of columns [j, j + 32) of n. */
static void prefetch_a(MatrixA a, int i, int k, int j, int n) {
    long to = (long)k * min_int(n, j + TILE) / n;
    for (long line = (long)k * j / n; line < to; line++)
        __builtin_prefetch(a.at + (a.transposed ? line * a.ld + i : (i + line % TILE) * a.ld + line / TILE * TILE), 0, 2);
}

static void gemm(const GemmContext *gemm_ctx, int m, int n, int k, MatrixA a, PackedB b, Epilogue epilogue, const void *to) {
    _Alignas(64) float block[TILE * TILE];
    for (int i = 0; i < m; i += TILE) {
        int rows = min_int(TILE, m - i);
        pack_a(a, i, rows, k, gemm_ctx->packed_a);
        for (int j = 0; j < n; j += TILE) {
            if (epilogue == store_f32) prefetch_c(to, i, j, rows);
            if (i + TILE < m) prefetch_a(a, i + TILE, k, j, n);
            const elem_t *panel = b.at + j / TILE * b.panel;
            (gemm_ctx->backend->amx ? kernel_amx : kernel_vector)(gemm_ctx->packed_a, panel, k, block);
            epilogue(to, i, j, rows, min_int(TILE, n - j), block, TILE);
        }
    }
}

#else /* fp32 */

typedef struct { const elem_t *at; int ld, transposed; } PackedB;

static PackedB pack_b(int k, int n, const elem_t *b, int ld, elem_t *packed) {
    (void)k, (void)n, (void)packed;
    return (PackedB){b, ld, 0};
}
static PackedB pack_bt(int k, int n, const elem_t *b, int ld, elem_t *packed) {
    (void)k, (void)n, (void)packed;
    return (PackedB){b, ld, 1};
}
static inline PackedB b_from_row(PackedB r, int row) { return (PackedB){r.at + (r.transposed ? row : (long)row * r.ld), r.ld, r.transposed}; }
static inline PackedB b_from_column(PackedB r, int column) {
    return (PackedB){r.at + (r.transposed ? (long)column * r.ld : column), r.ld, r.transposed};
}

static inline bool amx_request(void) { return false; }

/* Called by each thread before its first GEMM and after its last. */
static int gemm_begin(const Backend *backend) { return backend->set_threads(1); }
static void gemm_end(const Backend *backend, int before) { backend->set_threads(before); }

static void gemm(const GemmContext *gemm_ctx, int m, int n, int k, MatrixA a, PackedB b, Epilogue epilogue, const void *to) {
    const StoreF32 whole_product = {gemm_ctx->out, n, 1.0f, 0.0f}, *p = epilogue == store_f32 ? to : &whole_product;
    /* Fortran is column-major: C^T = B^T A^T */
    gemm_ctx->backend->sgemm(b.transposed ? "T" : "N", a.transposed ? "T" : "N", &n, &m, &k, &p->alpha, b.at, &b.ld,
                             a.at, &a.ld, &p->beta, p->to, &p->ld);
    if (epilogue != store_f32) epilogue(to, 0, 0, m, n, gemm_ctx->out, n);
}

#endif
