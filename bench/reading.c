/* How fast threads read memory again and again, each its own: what the decoder's step is bound by, see docs/sampling_speed.md.

       reading MEGABYTES THREADS

   prints, for lines asked for 0 (none), 8, 32 and 128 KB ahead, GB/s of each thread, the median of seven. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { LINE = 64, ROUNDS = 7, MAX_THREADS = 64 };
typedef long long vec __attribute__((vector_size(LINE)));

static size_t size, distance;
static pthread_barrier_t barrier;
static double rates[ROUNDS * MAX_THREADS];
static volatile long long kept; /* what was read, so that reading is not left out */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *read_all(void *argument) {
    size_t thread = (size_t)argument, room = (size + distance + (1 << 21)) >> 21 << 21;
    char *memory = aligned_alloc(1 << 21, room);
    if (!memory) exit(1);
    madvise(memory, room, MADV_HUGEPAGE);
    memset(memory, 1, room);
    size_t passes = ((size_t)400 << 20) / size + 1;
    vec sum = {0};
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&barrier);
        double started = seconds();
        for (size_t pass = 0; pass < passes; pass++)
            for (size_t i = 0; i < size; i += LINE) {
                if (distance) __builtin_prefetch(memory + i + distance, 0, 2);
                sum ^= *(const vec *)(memory + i);
            }
        rates[round * MAX_THREADS + thread] = (double)(passes * size) / (seconds() - started) / 1e9;
    }
    kept = sum[0] ^ sum[7];
    free(memory);
    return NULL;
}

static int by_size(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

int main(int n, char **arguments) {
    static const size_t distances[] = {0, 8 << 10, 32 << 10, 128 << 10};
    int threads = n > 2 ? atoi(arguments[2]) : 1;
    size = (size_t)(n > 1 ? atoi(arguments[1]) : 20) << 20;
    if (threads < 1 || threads > MAX_THREADS || !size) return 2;
    for (int d = 0; d < 4; d++) {
        pthread_t others[MAX_THREADS];
        double median[ROUNDS];
        distance = distances[d];
        pthread_barrier_init(&barrier, NULL, (unsigned)threads);
        for (size_t t = 0; t < (size_t)threads; t++) pthread_create(&others[t], NULL, read_all, (void *)t);
        for (int t = 0; t < threads; t++) pthread_join(others[t], NULL);
        for (int round = 0; round < ROUNDS; round++) {
            median[round] = 0;
            for (int t = 0; t < threads; t++) median[round] += rates[round * MAX_THREADS + t] / threads;
        }
        qsort(median, ROUNDS, sizeof *median, by_size);
        printf("%zu %.1f\n", distance, median[ROUNDS / 2]);
    }
    return 0;
}
