/* What a driver reads from its input and writes to its output: blocks, each after its size in bytes (int64). */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* The next block, at a cache line; NULL for an empty one. */
static void *block(void) {
    int64_t size;
    if (fread(&size, sizeof size, 1, stdin) != 1) abort();
    if (!size) return NULL;
    void *at = aligned_alloc(64, ((size_t)size + 63) / 64 * 64);
    if (!at || fread(at, 1, (size_t)size, stdin) != (size_t)size) abort();
    return at;
}

static void give_block(const void *from, size_t bytes_) {
    int64_t size = (int64_t)bytes_;
    if (fwrite(&size, sizeof size, 1, stdout) != 1 || fwrite(from, 1, bytes_, stdout) != bytes_) abort();
}
