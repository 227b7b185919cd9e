/* The plain loops that Forebay is measured against.
 *
 * Each does one thing and nothing else: no index, no order, no hand-over. Work is dealt to threads by number (item i
 * belongs to thread i mod threads), every thread has its own part of the pool and walks through it again and again, so the
 * pool is as large, and as hot in the caches, as the loader's own memory. Called through ctypes, which releases the
 * interpreter's lock. All return 0, or an errno. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define MAX_THREADS 64

struct job {
    int fd;                  /* pread, or -1: copy from `mapping` */
    const uint8_t *mapping;
    const uint64_t *offsets; /* of the records; NULL: consecutive pieces of `length` up to `bytes` */
    uint64_t count, length, bytes;
    uint64_t per_slot;       /* pieces that stand side by side in one slot of the pool: a batch */
    uint8_t *pool;
    uint64_t pool_bytes;
    unsigned thread, threads;
    int error;
};

static int fetch(const struct job *job, uint64_t offset, uint64_t length, uint8_t *into) {
    if (job->fd < 0) {
        memcpy(into, job->mapping + offset, length);
        return 0;
    }
    while (length > 0) {
        ssize_t got = pread(job->fd, into, length, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        if (got == 0) return EIO;
        into += got, offset += (uint64_t)got, length -= (uint64_t)got;
    }
    return 0;
}

static void *work(void *argument) {
    struct job *job = argument;
    const uint64_t slot_bytes = job->length * job->per_slot;
    const uint64_t part = job->pool_bytes / job->threads;
    const uint64_t slots = part / slot_bytes;
    uint8_t *own = job->pool + part * job->thread;
    uint64_t turn = 0;
    if (slots == 0) {
        job->error = ENOMEM;
        return NULL;
    }
    for (uint64_t batch = job->thread; batch * job->per_slot < job->count; batch += job->threads, turn++) {
        uint8_t *slot = own + turn % slots * slot_bytes;
        for (uint64_t i = 0; i < job->per_slot; i++) {
            const uint64_t piece = batch * job->per_slot + i;
            if (piece >= job->count) break;
            const uint64_t offset = job->offsets ? job->offsets[piece] : piece * job->length;
            const uint64_t left = job->offsets ? job->length : job->bytes - offset;
            job->error = fetch(job, offset, left < job->length ? left : job->length, slot + i * job->length);
            if (job->error) return NULL;
        }
    }
    return NULL;
}

static int run(const struct job *model, unsigned threads) {
    struct job jobs[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    int error = 0;
    unsigned started = 0;
    if (threads == 0 || threads > MAX_THREADS) return EINVAL;
    for (unsigned t = 0; t < threads; t++) {
        jobs[t] = *model;
        jobs[t].thread = t, jobs[t].threads = threads, jobs[t].error = 0;
    }
    for (unsigned t = 1; t < threads && error == 0; t++) {
        error = pthread_create(&ids[t], NULL, work, &jobs[t]);
        if (error == 0) started = t;
    }
    if (error == 0) work(&jobs[0]);
    for (unsigned t = 1; t <= started; t++) pthread_join(ids[t], NULL);
    for (unsigned t = 0; t < threads && error == 0; t++) error = jobs[t].error;
    return error;
}

/* Copies records of one length from a mapping into batches. */
int copy_records(const uint8_t *mapping, const uint64_t *offsets, uint64_t count, uint64_t length, uint64_t batch,
                 uint8_t *pool, uint64_t pool_bytes, unsigned threads) {
    struct job job = {.fd = -1, .mapping = mapping, .offsets = offsets, .count = count, .length = length,
                      .per_slot = batch, .pool = pool, .pool_bytes = pool_bytes};
    return run(&job, threads);
}

/* One pread per record of one length, into batches. */
int read_records(int fd, const uint64_t *offsets, uint64_t count, uint64_t length, uint64_t batch, uint8_t *pool,
                 uint64_t pool_bytes, unsigned threads) {
    struct job job = {.fd = fd, .offsets = offsets, .count = count, .length = length, .per_slot = batch,
                      .pool = pool, .pool_bytes = pool_bytes};
    return run(&job, threads);
}

/* Reads a whole file in blocks. */
int read_file(int fd, uint64_t bytes, uint64_t block_bytes, uint8_t *pool, uint64_t pool_bytes, unsigned threads) {
    struct job job = {.fd = fd, .count = (bytes + block_bytes - 1) / block_bytes, .length = block_bytes,
                      .bytes = bytes, .per_slot = 1, .pool = pool, .pool_bytes = pool_bytes};
    return run(&job, threads);
}
