/* A worker pool: threads spin for some microseconds between parallel loops, then sleep on a condition variable. */

enum { MAX_WORKERS = 31, SPIN_LIMIT = 4000 }; /* SPIN_LIMIT: pauses before a worker sleeps, some 50 to 150 microseconds */

typedef void (*Work)(void *context, int begin, int end);

/* The state of a task: published by the caller under a growing ticket, claimed by its worker, or reclaimed by the caller. */
enum { OFFERED, TAKEN, DONE };
typedef struct { /* one cache line (two, for the adjacent-line prefetcher): no false sharing */
    _Alignas(128) _Atomic uint64_t state; /* ticket * 4 + OFFERED, TAKEN or DONE */
    Work work;
    void *context;
    int begin, end;
    struct Pool *pool;
} Task;

typedef struct Pool {
    int n_workers, n_created; /* n_created: threads started so far */
    pthread_t threads[MAX_WORKERS];
    Task tasks[MAX_WORKERS];
    uint64_t ticket;
    _Alignas(128) _Atomic bool stopping;
    _Atomic int sleeping;
    _Atomic uint64_t generation;
    double woken_at;
    bool wake_workers; /* the next loop is long enough to be worth waking sleeping workers for */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
} Pool;

INLINE void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

INLINE void run_task(const Task *task) {
    if (task->begin < task->end) task->work(task->context, task->begin, task->end);
}

static void *worker_main(void *argument) {
    Task *task = argument;
    Pool *pool = task->pool;
    _Atomic uint64_t *state = &task->state;
    int idle = 0;
    while (!atomic_load_explicit(&pool->stopping, memory_order_relaxed)) {
        uint64_t seen = atomic_load_explicit(state, memory_order_acquire);
        if (seen && seen % 4 == OFFERED) {
            if (atomic_compare_exchange_strong(state, &seen, seen - OFFERED + TAKEN)) {
                run_task(task);
                atomic_store_explicit(state, seen - OFFERED + DONE, memory_order_release);
            }
            idle = 0;
        } else if (++idle < SPIN_LIMIT) {
            cpu_relax();
        } else {
            pthread_mutex_lock(&pool->mutex);
            uint64_t generation = pool->generation;
            pool->sleeping++;
            bool offered = atomic_load(state) != seen; /* published since */
            while (!offered && pool->generation == generation && !pool->stopping) pthread_cond_wait(&pool->wake, &pool->mutex);
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
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

/* Wake sleeping workers, at most every 2 ms: on a busy machine, where they are preempted and sleep again, waking costs more than
   it gains. Workers are created here, at the first use. */
static void ensure_awake(Pool *pool) {
    for (; pool->n_created < pool->n_workers; pool->n_created++) {
        Task *task = &pool->tasks[pool->n_created];
        task->pool = pool;
        if (pthread_create(&pool->threads[pool->n_created], NULL, worker_main, task)) pool->n_workers = pool->n_created;
    }
    if (atomic_load(&pool->sleeping) && seconds() - pool->woken_at > 2e-3) {
        pool->woken_at = seconds();
        notify_all(pool);
    }
}

/* Split jobs 0 ... jobs - 1 into one static chunk per thread, run `work(context, begin, end)` on each, and join. Without a pool
   the caller runs all. */
static void parallel_for(Pool *pool, int jobs, Work work, void *context) {
    if (!pool || !pool->n_workers || jobs < 2) {
        work(context, 0, jobs);
        return;
    }
    int parts = pool->n_workers + 1;
    uint64_t ticket = ++pool->ticket;
    for (int i = 0; i < pool->n_workers; i++) {
        Task *task = &pool->tasks[i];
        task->work = work, task->context = context;
        task->begin = (int)((int64_t)jobs * (i + 1) / parts), task->end = (int)((int64_t)jobs * (i + 2) / parts);
        atomic_store_explicit(&task->state, ticket * 4 + OFFERED, memory_order_release);
    }
    if (pool->wake_workers) notify_all(pool);
    work(context, 0, jobs / parts);
    for (int i = 0; i < pool->n_workers; i++) {
        Task *task = &pool->tasks[i];
        uint64_t offered = ticket * 4 + OFFERED;
        if (atomic_compare_exchange_strong(&task->state, &offered, ticket * 4 + DONE)) {
            run_task(task);
        } else {
            int spins = 0;
            while (atomic_load_explicit(&task->state, memory_order_acquire) != ticket * 4 + DONE) {
                cpu_relax();
                if (++spins > 20000) sched_yield(), spins = 0; /* the worker was preempted: yield this core to it */
            }
        }
    }
}

/* The thread, 0 the caller's, to which parallel_for gives the chunk of `jobs` that starts at `begin`. */
INLINE int thread_of(const Pool *pool, int begin, int jobs) { return (int)(((int64_t)begin * (pool->n_workers + 1) + jobs - 1) / jobs); }
