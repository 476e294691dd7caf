/* Helper threads, which wait spinning for the next few microseconds of work. */

#define MAX_HELPERS 31

typedef void (*Work)(void *context, int begin, int end);

/* A share is offered to a helper under a number that grows; it is taken by the helper, or back by who offered it. */
enum { OFFERED, TAKEN, DONE };
typedef struct { /* in one line of the cache, which is what it costs to hand it over */
    _Alignas(128) _Atomic uint64_t state; /* number * 4 + what became of it */
    Work work;
    void *context;
    int begin, end;
} Task;

typedef struct Pool {
    int helpers, begun; /* begun: threads that have been created */
    pthread_t threads[MAX_HELPERS];
    Task shares[MAX_HELPERS];
    uint64_t number;
    _Alignas(128) _Atomic bool ending;
    _Atomic int sleeping, spin_limit; /* patience: pauses before a helper falls asleep */
    _Atomic uint64_t generation;
    double woken_at;
    bool lengthy; /* what is shared out takes long enough to wait for a helper that sleeps */
    pthread_mutex_t mutex;
    pthread_cond_t woken;
} Pool;

typedef struct {
    Pool *pool;
    int index;
} Place;

INLINE void pause_a_moment(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

INLINE void do_share(const Task *share) {
    if (share->begin < share->end) share->work(share->context, share->begin, share->end);
}

static void *worker_main(void *argument) {
    Place *place = argument;
    Pool *pool = place->pool;
    int index = place->index;
    Task *share = &pool->shares[index];
    _Atomic uint64_t *state = &share->state;
    free(place);
    int idle = 0;
    while (!atomic_load_explicit(&pool->ending, memory_order_relaxed)) {
        uint64_t seen = atomic_load_explicit(state, memory_order_acquire);
        if (seen && seen % 4 == OFFERED) {
            if (atomic_compare_exchange_strong(state, &seen, seen - OFFERED + TAKEN)) {
                do_share(share);
                atomic_store_explicit(state, seen - OFFERED + DONE, memory_order_release);
            }
            idle = 0;
        } else if (++idle < atomic_load_explicit(&pool->spin_limit, memory_order_relaxed)) {
            pause_a_moment();
        } else {
            pthread_mutex_lock(&pool->mutex);
            uint64_t generation = pool->generation;
            pool->sleeping++;
            bool offered = atomic_load(state) != seen; /* meanwhile */
            while (!offered && pool->generation == generation && !pool->ending) pthread_cond_wait(&pool->woken, &pool->mutex);
            pool->sleeping--;
            pthread_mutex_unlock(&pool->mutex);
            idle = 0;
        }
    }
    return NULL;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void notify_all(Pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    pool->generation++;
    pthread_cond_broadcast(&pool->woken);
    pthread_mutex_unlock(&pool->mutex);
}

/* Have the helpers awake for what comes now, but on a busy machine, where they lose their turn and fall asleep, not
   all the time. They are created here, at the first use. */
static void ensure_awake(Pool *pool) {
    for (; pool->begun < pool->helpers; pool->begun++) {
        Place *place = malloc(sizeof *place);
        if (place) *place = (Place){pool, pool->begun};
        if (!place || pthread_create(&pool->threads[pool->begun], NULL, worker_main, place)) {
            free(place);
            pool->helpers = pool->begun;
        }
    }
    if (atomic_load(&pool->sleeping) && seconds() - pool->woken_at > 2e-3) {
        pool->woken_at = seconds();
        notify_all(pool);
    }
}

/* Do jobs 0 ... n - 1, `work(context, begin, end)` by `work(context, begin, end)`, and return when all are done. Without
   a pool the caller does all. */
static void parallel_for(Pool *pool, int jobs, Work work, void *context) {
    if (!pool || !pool->helpers || jobs < 2) {
        work(context, 0, jobs);
        return;
    }
    int parts = pool->helpers + 1;
    uint64_t number = ++pool->number;
    for (int i = 0; i < pool->helpers; i++) {
        Task *share = &pool->shares[i];
        share->work = work, share->context = context;
        share->begin = (int)((int64_t)jobs * (i + 1) / parts), share->end = (int)((int64_t)jobs * (i + 2) / parts);
        atomic_store_explicit(&share->state, number * 4 + OFFERED, memory_order_release);
    }
    if (pool->lengthy) notify_all(pool);
    work(context, 0, jobs / parts);
    for (int i = 0; i < pool->helpers; i++) {
        Task *share = &pool->shares[i];
        uint64_t offered = number * 4 + OFFERED;
        if (atomic_compare_exchange_strong(&share->state, &offered, number * 4 + DONE)) {
            do_share(share);
        } else {
            int spins = 0;
            while (atomic_load_explicit(&share->state, memory_order_acquire) != number * 4 + DONE) {
                pause_a_moment();
                if (++spins > 20000) sched_yield(), spins = 0; /* the helper was put aside: let it have this core */
            }
        }
    }
}
