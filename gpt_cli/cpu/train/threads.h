/* Threads that live as long as one call: starting them costs some tens of microseconds, and between calls nothing spins. */

typedef struct {
    void (*work)(void *);
    void *share;
} ThreadArg;

/* Numbers below 1e-38 are taken for zero: they mean nothing here, and cost a hundred times as much as others. */
static void *thread_main(void *argument) {
    ThreadArg *errand = argument;
#ifdef __SSE2__
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    errand->work(errand->share);
    _mm_setcsr(before);
#else
    errand->work(errand->share);
#endif
    return NULL;
}

/* work(shares[i]) for every i, each in a thread; one that cannot be started is done here, with the same result. */
static void parallel_run(void (*work)(void *), void *shares, size_t size, int n) {
    pthread_t threads[n];
    ThreadArg errands[n];
    int started[n];
    for (int i = n - 1; i >= 0; i--) {
        errands[i] = (ThreadArg){work, (char *)shares + size * (size_t)i};
        started[i] = i > 0 && pthread_create(&threads[i], NULL, thread_main, &errands[i]) == 0;
        if (!started[i]) thread_main(&errands[i]);
    }
    for (int i = 1; i < n; i++)
        if (started[i]) pthread_join(threads[i], NULL);
}
