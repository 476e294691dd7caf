/* Vector GEMM kernel, by bf16 dot products of pairs: AVX512-BF16 or ARMv8.6's BF16; and registers of 64 bytes (a row of 32 bf16). */

#if defined(__AVX512BF16__)
typedef __m512i Row;

static inline Row row_of(const void *at) { return _mm512_loadu_si512(at); }
static inline void store_row(void *at, Row row) { _mm512_storeu_si512(at, row); }

/* Interleave the elements of rows a and b (32): of the first 16 columns, and of the last. */
static inline void interleave(Row a, Row b, Row *first, Row *second) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5,
                                         36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    *first = _mm512_permutex2var_epi16(a, low, b);
    *second = _mm512_permutex2var_epi16(a, _mm512_add_epi16(low, _mm512_set1_epi16(16)), b);
}

/* A 16 x 16 matrix of 32-bit words, transposed in place: by words, pairs of words, then 128-bit lanes. */
static inline void transpose_words(Row r[16]) {
    Row s[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        s[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        s[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        s[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        s[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        s[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(s[i], s[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(s[i], s[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(s[i + 4], s[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(s[i + 4], s[i + 12], 0xdd);
    }
}

static void kernel_vector(const elem_t *a, const elem_t *b, int k, float *block) {
    enum { ROWS = 8 };
    for (int i = 0; i < TILE; i += ROWS) {
        __m512 sums[ROWS][2];
        for (int r = 0; r < ROWS; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
        const elem_t *left = a + i * TILE, *right = b;
        for (int p = 0; p < k; p += TILE, left += TILE * TILE)
            for (int q = 0; q < TILE; q += 2, right += 64) {
                __m512bh first = (__m512bh)row_of(right), second = (__m512bh)row_of(right + 32);
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++) {
                    int pair;
                    memcpy(&pair, left + r * TILE + q, sizeof pair);
                    __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
                    sums[r][0] = _mm512_dpbf16_ps(sums[r][0], both, first);
                    sums[r][1] = _mm512_dpbf16_ps(sums[r][1], both, second);
                }
            }
        for (int r = 0; r < ROWS; r++) {
            _mm512_storeu_ps(block + (i + r) * TILE, sums[r][0]);
            _mm512_storeu_ps(block + (i + r) * TILE + 16, sums[r][1]);
        }
    }
}

#else
typedef struct { uint32x4_t of[4]; } Row;

static inline Row row_of(const void *at) {
    Row row;
    memcpy(&row, at, sizeof row);
    return row;
}
static inline void store_row(void *at, Row row) { memcpy(at, &row, sizeof row); }

static inline uint32x4_t side_by_side(uint32x4_t a, uint32x4_t b, int which) {
    uint16x8_t x = vreinterpretq_u16_u32(a), y = vreinterpretq_u16_u32(b);
    return vreinterpretq_u32_u16(which ? vzip2q_u16(x, y) : vzip1q_u16(x, y));
}

static inline void interleave(Row a, Row b, Row *first, Row *second) {
    for (int i = 0; i < 4; i++) {
        first->of[i] = side_by_side(a.of[i / 2], b.of[i / 2], i % 2);
        second->of[i] = side_by_side(a.of[2 + i / 2], b.of[2 + i / 2], i % 2);
    }
}

static inline uint32x4_t halves(uint32x4_t a, uint32x4_t b, int which) {
    uint64x2_t x = vreinterpretq_u64_u32(a), y = vreinterpretq_u64_u32(b);
    return vreinterpretq_u32_u64(which ? vtrn2q_u64(x, y) : vtrn1q_u64(x, y));
}

static inline void transpose_words(Row r[16]) {
    Row s[16];
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 4; j++) {
            uint32x4_t a = vtrn1q_u32(r[i].of[j], r[i + 1].of[j]), b = vtrn2q_u32(r[i].of[j], r[i + 1].of[j]);
            uint32x4_t c = vtrn1q_u32(r[i + 2].of[j], r[i + 3].of[j]), d = vtrn2q_u32(r[i + 2].of[j], r[i + 3].of[j]);
            s[4 * j].of[i / 4] = halves(a, c, 0), s[4 * j + 1].of[i / 4] = halves(b, d, 0);
            s[4 * j + 2].of[i / 4] = halves(a, c, 1), s[4 * j + 3].of[i / 4] = halves(b, d, 1);
        }
    memcpy(r, s, sizeof s);
}

static void kernel_vector(const elem_t *a, const elem_t *b, int k, float *block) {
    enum { ROWS = 2, QUARTERS = TILE / 4 };
    for (int i = 0; i < TILE; i += ROWS) {
        float32x4_t sums[ROWS][QUARTERS];
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < QUARTERS; j++) sums[r][j] = vdupq_n_f32(0);
        const elem_t *left = a + i * TILE, *right = b;
        for (int p = 0; p < k; p += TILE, left += TILE * TILE)
            for (int q = 0; q < TILE; q += 2, right += 64) {
                bfloat16x8_t both[ROWS];
#pragma GCC unroll 2
                for (int r = 0; r < ROWS; r++) {
                    uint32_t pair;
                    memcpy(&pair, left + r * TILE + q, sizeof pair);
                    both[r] = vreinterpretq_bf16_u32(vdupq_n_u32(pair));
                }
#pragma GCC unroll 8
                for (int j = 0; j < QUARTERS; j++) {
                    bfloat16x8_t columns = vreinterpretq_bf16_u16(vld1q_u16(right + 8 * j));
#pragma GCC unroll 2
                    for (int r = 0; r < ROWS; r++) sums[r][j] = vbfdotq_f32(sums[r][j], columns, both[r]);
                }
            }
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < QUARTERS; j++) vst1q_f32(block + (i + r) * TILE + 4 * j, sums[r][j]);
    }
}
#endif
