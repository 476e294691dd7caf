/* Fork-join: threads live as long as one call. Starting them costs some tens of microseconds, and nothing spins between calls. */

typedef struct {
    void (*work)(void *);
    void *argument;
} ThreadArg;

/* With FTZ and DAZ: denormals mean nothing here, and cost a hundred times as much as other floats. */
static void *thread_main(void *argument) {
    ThreadArg *arg = argument;
#ifdef __SSE2__
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    arg->work(arg->argument);
    _mm_setcsr(before);
#else
    arg->work(arg->argument);
#endif
    return NULL;
}

/* work(arguments[i]) for every i, each in a thread; what cannot be started runs on the caller, with the same result. */
static void parallel_run(void (*work)(void *), void *arguments, size_t size, int n) {
    pthread_t threads[n];
    ThreadArg args[n];
    int started[n];
    for (int i = n - 1; i >= 0; i--) {
        args[i] = (ThreadArg){work, (char *)arguments + size * (size_t)i};
        started[i] = i > 0 && pthread_create(&threads[i], NULL, thread_main, &args[i]) == 0;
        if (!started[i]) thread_main(&args[i]);
    }
    for (int i = 1; i < n; i++)
        if (started[i]) pthread_join(threads[i], NULL);
}
