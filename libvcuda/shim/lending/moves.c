/* Moves: pieces leave the GPU for their places in host memory, and come back to the same addresses. The barrier is closed
 * and the lock held: no call and no work knows of it. */
#include "lending.h"

#include "account.h"

#define BATCH 64

struct move {
    CUdeviceptr at;
    struct piece *piece;
    CUevent copied;
};

/* Find the piece that came to where it is first (`out` 0) or last (`out` 1) among those that the moves do not have yet. */
static struct move next_move(const struct move *moves, int n, int out)
{
    struct move best = {0};
    for (struct block *b = lending_blocks; b; b = b->next) {
        CUdeviceptr at = b->at;
        for (unsigned i = 0; i < b->count; at += b->piece[i++].bytes) {
            struct piece *piece = &b->piece[i];
            int taken = piece->out != out;
            for (int k = 0; k < n && !taken; k++)
                taken = moves[k].piece == piece;
            int better =
                !best.piece || (out ? piece->moved_ns > best.piece->moved_ns : piece->moved_ns < best.piece->moved_ns);
            if (!taken && better)
                best = (struct move){at, piece, NULL};
        }
    }
    return best;
}

static int choose(struct move *moves, int out, uint64_t bytes)
{
    int n = 0;
    for (uint64_t sum = 0; n < BATCH && sum < bytes; sum += moves[n++].piece->bytes) {
        moves[n] = next_move(moves, n, out);
        if (!moves[n].piece)
            break;
    }
    return n;
}

/* The address keeps a meaning at every moment at which a call may fail. */
static int leave(const struct move *m)
{
    struct piece *p = m->piece;
    if (real.cuMemUnmap(m->at, p->bytes))
        return 0;
    if (p->host && piece_map(m->at, p, p->host)) {
        piece_map(m->at, p, p->device);
        return 0;
    }
    /* Counted as out before it is no longer counted as in: both are held to the limit. */
    __atomic_fetch_add(&shim.self->out_bytes, p->bytes, __ATOMIC_SEQ_CST);
    piece_end_device(p);
    p->out = 1;
    p->moved_ns = shim_now();
    __atomic_fetch_add(&shim.self->moved_out_bytes, p->bytes, __ATOMIC_SEQ_CST);
    return 1;
}

/* While one piece is unmapped, the next ones are copied. */
static uint64_t copy_out(struct move *moves, int n, CUstream stream)
{
    uint64_t moved = 0;
    int copied = 0;
    for (; copied < n; copied++) {
        struct move *m = &moves[copied];
        if (real.cuEventCreate(&m->copied, CU_EVENT_DISABLE_TIMING))
            break;
        if (real.cuMemcpyAsync(m->piece->shadow, m->at, m->piece->bytes, stream) ||
            real.cuEventRecord(m->copied, stream)) {
            real.cuEventDestroy_v2(m->copied);
            break;
        }
    }
    for (int i = 0; i < copied; i++) {
        if (!real.cuEventSynchronize(moves[i].copied) && leave(&moves[i]))
            moved += moves[i].piece->bytes;
        real.cuEventDestroy_v2(moves[i].copied);
    }
    return moved;
}

/* The stream of the moves, and its context; NULL: there is none. */
static CUcontext stream_context;
static CUstream own_stream;

void moves_forget_context(CUcontext context)
{
    if (!context || context == stream_context)
        stream_context = NULL;
}

/* In the context, which is the current one. */
static CUstream stream_of(CUcontext context)
{
    if (stream_context != context) {
        if (stream_context) /* it lives: else it was forgotten */
            real.cuStreamDestroy_v2(own_stream);
        stream_context = NULL;
        if (real.cuStreamCreate(&own_stream, CU_STREAM_NON_BLOCKING))
            return NULL;
        stream_context = context;
    }
    return own_stream;
}

uint64_t moves_out(uint64_t bytes)
{
    struct move moves[BATCH];
    uint64_t moved = 0;
    CUstream on = lending_blocks ? stream_of(lending_blocks->context) : NULL;
    while (on && moved < bytes) {
        int n = choose(moves, 0, bytes - moved);
        uint64_t now = n ? copy_out(moves, n, on) : 0;
        moved += now;
        if (!now)
            break;
    }
    return moved;
}

uint64_t moves_left(void)
{
    uint64_t bytes = 0;
    for (const struct block *b = lending_blocks; b; b = b->next)
        for (unsigned i = 0; i < b->count; i++)
            bytes += b->piece[i].out ? 0 : b->piece[i].bytes;
    return bytes;
}

/* Take memory of the GPU for the piece; it stops counting as out first, because the sum of both is held to the limit. */
static int has_room(struct piece *p)
{
    __atomic_fetch_sub(&shim.self->out_bytes, p->bytes, __ATOMIC_SEQ_CST);
    if (!piece_make_device(p))
        return 1;
    p->device = 0;
    __atomic_fetch_add(&shim.self->out_bytes, p->bytes, __ATOMIC_SEQ_CST);
    return 0;
}

static int stay_out(const struct move *m)
{
    struct piece *p = m->piece;
    if (p->host)
        piece_map(m->at, p, p->host);
    piece_end_device(p);
    __atomic_fetch_add(&shim.self->out_bytes, p->bytes, __ATOMIC_SEQ_CST);
    return 0;
}

static int come_back(const struct move *m, CUstream stream)
{
    struct piece *p = m->piece;
    if (!has_room(p))
        return 0;
    if ((p->host && real.cuMemUnmap(m->at, p->bytes)) || piece_map(m->at, p, p->device))
        return stay_out(m);
    if (real.cuMemcpyAsync(m->at, p->shadow, p->bytes, stream) || real.cuStreamSynchronize(stream)) {
        real.cuMemUnmap(m->at, p->bytes);
        return stay_out(m);
    }
    p->out = 0;
    p->moved_ns = shim_now();
    __atomic_fetch_add(&shim.self->moved_in_bytes, p->bytes, __ATOMIC_SEQ_CST);
    return 1;
}

uint64_t moves_in(uint64_t bytes)
{
    uint64_t moved = 0;
    CUstream on = lending_blocks ? stream_of(lending_blocks->context) : NULL;
    while (on && moved < bytes) {
        struct move m = next_move(NULL, 0, 1);
        if (!m.piece || moved + m.piece->bytes > bytes || !come_back(&m, on))
            break;
        moved += m.piece->bytes;
    }
    return moved;
}

uint64_t moves_next_in(void)
{
    struct move m = next_move(NULL, 0, 1);
    return m.piece ? m.piece->bytes : 0;
}
