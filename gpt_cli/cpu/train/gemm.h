/* Matrix products: out (m, n) = left (m, k) right (k, n), each block of which is handed on while it is in the cache.

   In bf16 the products are ours. The right matrix lies in panels of 32 columns, pairs of rows side by side, as the
   processor's instructions read it: (panel, k / 2, 32, 2). Of the left one, 32 rows at a time are used against every panel.
   A block of 32 x 32 sums stays in registers for the whole of k: in AMX's tiles, or in AVX512's or NEON's registers where there
   are none (rows.h). k is filled up with zeros to a multiple of 32. In fp32 the BLAS that torch brings computes. */

enum { STRIP = 32 }; /* rows, columns and depths of a block */

static inline long round_up_tile(long n) { return (n + STRIP - 1) / STRIP * STRIP; }

typedef struct {
    void (*sgemm)(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                  const int *, const float *, const int *, const float *, float *, const int *); /* Fortran's, for fp32 */
    int (*set_threads)(int); /* of that BLAS, for the calling thread; gives the number before */
    int tiles;               /* whether AMX may be used */
} Backend;

/* The next bytes of a workspace, in whole lines of the cache; counts them where there is none yet. */
static void *arena_alloc(char **at, size_t bytes) {
    char *here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

typedef struct {
    const Backend *backend;
    elem_t *left;   /* bf16: a strip of the left matrix, 32 rows of the largest k */
    elem_t *panels; /* bf16: a right matrix that is used once */
    float *out;   /* fp32: a product that is handed on */
} Products;

/* What becomes of a block of the product: its place in it, its sizes, its elements with rows `ld` apart. */
typedef void (*Epilogue)(const void *to, int row, int column, int rows, int columns, const float *block, int ld);

typedef struct { const elem_t *at; int ld, transposed; } MatrixA; /* (m, k) with rows `ld` apart; transposed: (k, m) in memory */

/* Most blocks are as wide as a strip: their loops are compiled for that width. */
#define EPILOGUE(name, body) \
    static inline void name(const void *to, int row, int column, int rows, int columns, const float *block, int ld) { \
        if (columns == STRIP) \
            body(to, row, column, rows, STRIP, block, ld); \
        else \
            body(to, row, column, rows, columns, block, ld); \
    }

typedef struct { float *to; int ld; float alpha, beta; } StoreF32; /* to <- alpha block + beta to */

INLINE void put_block(const StoreF32 *p, int row, int column, int rows, int columns, const float *restrict block, int ld) {
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
EPILOGUE(put, put_block)

typedef struct { elem_t *to; int ld; const float *bias; } StoreBf16; /* to <- block + bias; bias may be NULL */

INLINE void put_narrowed_block(const StoreBf16 *p, int row, int column, int rows, int columns, const float *restrict block,
                               int ld) {
    elem_t *restrict out = p->to + (long)row * p->ld + column;
    for (int i = 0; i < rows; i++, out += p->ld, block += ld) {
        if (p->bias) {
            float sum[columns];
            SIMD
            for (int j = 0; j < columns; j++) sum[j] = block[j] + p->bias[column + j];
            narrow_all(columns, sum, out);
        } else
            narrow_all(columns, block, out);
    }
}
EPILOGUE(put_narrowed, put_narrowed_block)

typedef struct { /* to <- from + factors (block + bias) */
    const float *from;
    float *to;
    int ld;
    const float *bias; /* or NULL */
    const Noise *noise;
    int stream_id;
} ResidualAdd;

INLINE void put_added_block(const ResidualAdd *p, int row, int column, int rows, int columns, const float *restrict block, int ld) {
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
        if (p->noise->limit) {
            dropout_scale(p->noise, p->stream_id, row + i, column, columns, factor);
            SIMD
            for (int j = 0; j < columns; j++) sum[j] = term[j] * factor[j];
            term = sum;
        }
        SIMD
        for (int j = 0; j < columns; j++) out[j] = from[j] + term[j];
    }
}
EPILOGUE(put_added, put_added_block)

#ifdef BF16

typedef struct { const elem_t *at; long panel; } PackedB; /* panels, and how far apart they begin */

#include "rows.h"

/* At most 32 x 32 of a matrix, the rest of `square` zero. */
static void copy_square(const elem_t *from, int ld, int rows, int columns, elem_t *square) {
    memset(square, 0, sizeof(elem_t) * STRIP * STRIP);
    for (int i = 0; i < rows; i++) memcpy(square + i * STRIP, from + (long)i * ld, sizeof(elem_t) * (size_t)columns);
}

/* 32 rows of the left matrix, from row `i` on: (k / 32, 32, 32). */
static void pack_a(MatrixA left, int i, int rows, int k, elem_t *strip) {
    _Alignas(64) elem_t square[STRIP * STRIP];
    for (int p = 0; p < k; p += STRIP, strip += STRIP * STRIP) {
        int depth = smaller(STRIP, k - p), whole = rows == STRIP && depth == STRIP;
        if (!left.transposed) {
            const elem_t *from = left.at + (long)i * left.ld + p;
            if (!whole)
                copy_square(from, left.ld, rows, depth, strip);
            else
                for (int r = 0; r < STRIP; r++, from += left.ld)
                    store_row(strip + r * STRIP, row_of(from));
            continue;
        }
        const elem_t *from = left.at + (long)p * left.ld + i;
        int ld = left.ld;
        if (!whole) copy_square(from, ld, depth, rows, square), from = square, ld = STRIP;
        Row first[16], second[16];
#pragma GCC unroll 16
        for (int q = 0; q < 16; q++, from += 2 * ld) interleave(row_of(from), row_of(from + ld), &first[q], &second[q]);
        turn_words(first), turn_words(second);
#pragma GCC unroll 16
        for (int q = 0; q < 16; q++) {
            store_row(strip + q * STRIP, first[q]);
            store_row(strip + (16 + q) * STRIP, second[q]);
        }
    }
}

/* The right matrix (k, n) as panels in `room`: b, rows `ld` apart, or the transpose of b (n, k). */
INLINE PackedB pack_panels(const bool TRANSPOSED, int k, int n, const elem_t *b, int ld, elem_t *room) {
    _Alignas(64) elem_t square[STRIP * STRIP];
    long panel = round_up_tile(k) * STRIP;
    for (int j = 0; j < n; j += STRIP) {
        elem_t *to = room + j / STRIP * panel;
        for (int p = 0; p < k; p += STRIP, to += STRIP * STRIP) {
            int depth = smaller(STRIP, k - p), columns = smaller(STRIP, n - j), apart = ld;
            const elem_t *from = TRANSPOSED ? b + (long)j * ld + p : b + (long)p * ld + j;
            if (depth < STRIP || columns < STRIP) {
                copy_square(from, ld, TRANSPOSED ? columns : depth, TRANSPOSED ? depth : columns, square);
                from = square, apart = STRIP;
            }
            if (!TRANSPOSED) {
                for (int q = 0; q < 16; q++, from += 2 * apart) {
                    Row first, second;
                    interleave(row_of(from), row_of(from + apart), &first, &second);
                    store_row(to + q * 64, first);
                    store_row(to + q * 64 + 32, second);
                }
                continue;
            }
            for (int half = 0; half < 2; half++) {
                Row words[16];
#pragma GCC unroll 16
                for (int q = 0; q < 16; q++, from += apart) words[q] = row_of(from);
                turn_words(words);
#pragma GCC unroll 16
                for (int q = 0; q < 16; q++) store_row(to + q * 64 + half * 32, words[q]);
            }
        }
    }
    return (PackedB){room, panel};
}

static PackedB pack_b(int k, int n, const elem_t *b, int ld, elem_t *room) { return pack_panels(false, k, n, b, ld, room); }
static PackedB pack_bt(int k, int n, const elem_t *b, int ld, elem_t *room) { return pack_panels(true, k, n, b, ld, room); }

static inline PackedB from_row(PackedB right, int row) { return (PackedB){right.at + (long)row * STRIP, right.panel}; }
static inline PackedB from_column(PackedB right, int column) { /* a multiple of 32, as is the row above */
    return (PackedB){right.at + column / STRIP * right.panel, right.panel};
}

#ifdef __AMX_BF16__
#include "../common/amx.h"

/* Before and after the products of a thread. */
static int begin_products(const Backend *backend) {
    if (backend->tiles) amx_configure();
    return 0;
}
static void end_products(const Backend *backend, int before) {
    (void)before;
    if (backend->tiles) _tile_release();
}

static void kernel_amx(const elem_t *a, const elem_t *b, int k, float *block) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int p = 0; p < k; p += STRIP, a += STRIP * STRIP, b += STRIP * STRIP) {
        for (int i = 0; i < 32; i++) _mm_prefetch((const char *)(b + 2 * STRIP * STRIP + i * 32), _MM_HINT_T0);
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 128);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 32, 128);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + 16 * STRIP, 64);
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
static int begin_products(const Backend *backend) { return (void)backend, 0; }
static void end_products(const Backend *backend, int before) { (void)backend, (void)before; }
static void kernel_amx(const elem_t *a, const elem_t *b, int k, float *block) { (void)a, (void)b, (void)k, (void)block; }
#endif

/* Fetch what a sum is added to, while the sum is computed: rows that lie far apart are not guessed by the processor. */
static void prefetch_c(const StoreF32 *put, int row, int column, int rows) {
    const char *at = (const char *)(put->to + (long)row * put->ld + column);
    for (int i = 0; i < rows; i++, at += put->ld * sizeof(float)) __builtin_prefetch(at), __builtin_prefetch(at + 64);
}

static void multiply(const Products *products, int m, int n, int k, MatrixA left, PackedB right, Epilogue finish, const void *to) {
    _Alignas(64) float block[STRIP * STRIP];
    for (int i = 0; i < m; i += STRIP) {
        int rows = smaller(STRIP, m - i);
        pack_a(left, i, rows, k, products->left);
        for (int j = 0; j < n; j += STRIP) {
            if (finish == put) prefetch_c(to, i, j, rows);
            const elem_t *panel = right.at + j / STRIP * right.panel;
            (products->backend->tiles ? kernel_amx : kernel_avx512)(products->left, panel, k, block);
            finish(to, i, j, rows, smaller(STRIP, n - j), block, STRIP);
        }
    }
}

#else /* fp32 */

typedef struct { const elem_t *at; int ld, transposed; } PackedB;

static PackedB pack_b(int k, int n, const elem_t *b, int ld, elem_t *room) {
    (void)k, (void)n, (void)room;
    return (PackedB){b, ld, 0};
}
static PackedB pack_bt(int k, int n, const elem_t *b, int ld, elem_t *room) {
    (void)k, (void)n, (void)room;
    return (PackedB){b, ld, 1};
}
static inline PackedB from_row(PackedB r, int row) { return (PackedB){r.at + (r.transposed ? row : (long)row * r.ld), r.ld, r.transposed}; }
static inline PackedB from_column(PackedB r, int column) {
    return (PackedB){r.at + (r.transposed ? (long)column * r.ld : column), r.ld, r.transposed};
}

static inline bool amx_request(void) { return false; }

/* Before and after the products of a thread. */
static int begin_products(const Backend *backend) { return backend->set_threads(1); }
static void end_products(const Backend *backend, int before) { backend->set_threads(before); }

static void multiply(const Products *products, int m, int n, int k, MatrixA left, PackedB right, Epilogue finish, const void *to) {
    const StoreF32 plain = {products->out, n, 1.0f, 0.0f}, *p = finish == put ? to : &plain;
    /* a stored row is Fortran's column: out^T = right^T left^T */
    products->backend->sgemm(right.transposed ? "T" : "N", left.transposed ? "T" : "N", &n, &m, &k, &p->alpha, right.at, &right.ld,
                             left.at, &left.ld, &p->beta, p->to, &p->ld);
    if (finish != put) finish(to, 0, 0, m, n, products->out, n);
}

#endif
