/*
 * Data checks for MPI benchmarks that have none.
 *
 * Loaded with LD_PRELOAD under the Intel MPI Benchmarks (which PyPI ships built without checks), this library
 * stands between the program and MPI. Where the program moves bytes (MPI_BYTE, MPI_CHAR, and MPI_FLOAT sums) it
 * sends stamped bytes of its own instead and looks at every byte that arrives: from the right sender, in
 * order, whole, unaltered. Other calls pass untouched, since the benchmarks exchange their timings with them.
 * At the end each rank writes one line to $USB4_CHECK_REPORT.RANK, which `cargo xtask mpi` reads. With
 * USB4_CHECK_FAULT set every hundredth message and block that arrives gets one bit flipped first: the checker's
 * own check.
 *
 * C, because it defines MPI's C functions against the header of an installed MPI (MPICH's ABI).
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t messages, collectives, bytes, plain, errors;

/* ---- buffers: kept by power of two, so that they stay registered with the network ---- */

struct shadow {
    struct shadow *next;
    int size_class;
};

static struct shadow *idle[40];

static void *take(size_t len)
{
    int c = 6;
    while (((size_t)1 << c) < len)
        c++;
    struct shadow *s = idle[c];
    if (s)
        idle[c] = s->next;
    else if (posix_memalign((void **)&s, 64, 64 + ((size_t)1 << c)))
        abort();
    s->size_class = c;
    return (char *)s + 64;
}

static void give(void *buf)
{
    struct shadow *s = (struct shadow *)((char *)buf - 64);
    s->next = idle[s->size_class];
    idle[s->size_class] = s;
}

/* ---- patterns ---- */

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a + 0x9e3779b97f4a7c15u) ^ (b * 0xbf58476d1ce4e5b9u);
    x ^= x >> 31;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 29);
}

static void fill(void *buf, size_t len, uint64_t seed)
{
    unsigned char *p = buf;
    size_t i = 0;
    for (; i + 8 <= len; i += 8, seed += 0x9e3779b97f4a7c15u)
        memcpy(p + i, &seed, 8);
    memcpy(p + i, &seed, len - i);
}

/* Offset of the first wrong byte, or -1. */
static long wrong(const void *buf, size_t len, uint64_t seed)
{
    const unsigned char *p = buf;
    for (size_t i = 0; i < len; i += 8, seed += 0x9e3779b97f4a7c15u) {
        size_t n = len - i < 8 ? len - i : 8;
        if (memcmp(p + i, &seed, n)) {
            size_t k = 0;
            while (p[i + k] == ((unsigned char *)&seed)[k])
                k++;
            return (long)(i + k);
        }
    }
    return -1;
}

static int fault_due(void)
{
    static int wanted = -1;
    static unsigned n;
    if (wanted < 0)
        wanted = getenv("USB4_CHECK_FAULT") != NULL;
    return wanted && ++n % 100 == 0;
}

static void bad(const char *call, const char *what, long a, long b)
{
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (++errors <= 5)
        fprintf(stderr, "usb4-check: rank %d: %s: %s (%ld, %ld)\n", rank, call, what, a, b);
}

/* ---- counters per (communicator, peer, tag, direction) ---- */

struct count {
    MPI_Comm comm;
    int peer, tag, kind, used;
    uint64_t next;
};

enum { SENT = 1, RECEIVED, COLLECTIVE };
static struct count counts[1 << 14];

static uint64_t *count(MPI_Comm comm, int peer, int tag, int kind)
{
    size_t at = mix(mix((uint64_t)comm, (uint64_t)(uint32_t)peer), mix((uint64_t)(uint32_t)tag, (uint64_t)kind));
    for (size_t i = 0; i < 1 << 14; i++) {
        struct count *c = &counts[(at + i) & ((1 << 14) - 1)];
        if (!c->used)
            *c = (struct count){comm, peer, tag, kind, 1, 0};
        if (c->comm == comm && c->peer == peer && c->tag == tag && c->kind == kind)
            return &c->next;
    }
    abort();
}

/* A communicator's handle may be used again for another one. */
static void forget(MPI_Comm comm)
{
    for (size_t i = 0; i < 1 << 14; i++)
        if (counts[i].used && counts[i].comm == comm)
            counts[i].next = 0;
}

static int stamped(MPI_Datatype type)
{
    if (type == MPI_BYTE || type == MPI_CHAR)
        return 1;
    plain++;
    return 0;
}

static int rank_in(MPI_Comm comm)
{
    int rank;
    PMPI_Comm_rank(comm, &rank);
    return rank;
}

static int size_of(MPI_Comm comm)
{
    int size;
    PMPI_Comm_size(comm, &size);
    return size;
}

/* ---- point to point ---- */

static uint64_t seed_of(int src, int dst, int tag, uint64_t number)
{
    return mix(mix((uint64_t)src << 32 | (uint32_t)dst, (uint64_t)(uint32_t)tag), number);
}

/* A message of 8 bytes or more begins with its number; a shorter one has no room to be told from its like. */
static void *stamp(int len, int dst, int tag, MPI_Comm comm)
{
    int src = rank_in(comm);
    uint64_t number = (*count(comm, dst, tag, SENT))++;
    char *buf = take((size_t)len);
    if (len < 8) {
        fill(buf, (size_t)len, seed_of(src, dst, tag, 0));
    } else {
        memcpy(buf, &number, 8);
        fill(buf + 8, (size_t)len - 8, seed_of(src, dst, tag, number));
    }
    return buf;
}

static void inspect(const char *call, char *buf, int room, const MPI_Status *status, MPI_Comm comm)
{
    int len, src = status->MPI_SOURCE, tag = status->MPI_TAG, dst = rank_in(comm);
    if (src == MPI_PROC_NULL)
        return;
    PMPI_Get_count(status, MPI_BYTE, &len);
    uint64_t expected = (*count(comm, src, tag, RECEIVED))++, number = 0;
    long at;
    if (len < 0 || len > room) {
        bad(call, "impossible length", len, room);
        return;
    }
    if (len > 0 && fault_due())
        buf[len / 2] ^= 4;
    if (len < 8) {
        at = wrong(buf, (size_t)len, seed_of(src, dst, tag, 0));
    } else {
        memcpy(&number, buf, 8);
        if (number != expected)
            bad(call, "message out of order", (long)number, (long)expected);
        at = wrong(buf + 8, (size_t)len - 8, seed_of(src, dst, tag, expected));
    }
    if (at >= 0)
        bad(call, "wrong byte", at, len);
    messages++;
    bytes += (uint64_t)len;
}

struct pending {
    MPI_Request request;
    MPI_Comm comm;
    char *buf;
    int room, receive;
    uint64_t serial;
    struct pending *next;
};

static struct pending *pendings;
static uint64_t serial;

static void remember(MPI_Request request, char *buf, int room, int receive, MPI_Comm comm)
{
    struct pending *p = malloc(sizeof *p);
    if (!p)
        abort();
    *p = (struct pending){request, comm, buf, room, receive, serial++, pendings};
    pendings = p;
}

static struct pending *recall(MPI_Request request)
{
    for (struct pending **at = &pendings; *at; at = &(*at)->next)
        if ((*at)->request == request) {
            struct pending *p = *at;
            *at = p->next;
            return p;
        }
    return NULL;
}

static void finish(struct pending *p, const MPI_Status *status)
{
    if (p->receive)
        inspect("receive", p->buf, p->room, status, p->comm);
    give(p->buf);
    free(p);
}

int MPI_Send(const void *buf, int n, MPI_Datatype type, int dst, int tag, MPI_Comm comm)
{
    if (!stamped(type))
        return PMPI_Send(buf, n, type, dst, tag, comm);
    void *mine = stamp(n, dst, tag, comm);
    int rc = PMPI_Send(mine, n, type, dst, tag, comm);
    give(mine);
    return rc;
}

int MPI_Isend(const void *buf, int n, MPI_Datatype type, int dst, int tag, MPI_Comm comm, MPI_Request *request)
{
    if (!stamped(type))
        return PMPI_Isend(buf, n, type, dst, tag, comm, request);
    void *mine = stamp(n, dst, tag, comm);
    int rc = PMPI_Isend(mine, n, type, dst, tag, comm, request);
    remember(*request, mine, n, 0, comm);
    return rc;
}

int MPI_Recv(void *buf, int n, MPI_Datatype type, int src, int tag, MPI_Comm comm, MPI_Status *status)
{
    if (!stamped(type))
        return PMPI_Recv(buf, n, type, src, tag, comm, status);
    MPI_Status own;
    if (status == MPI_STATUS_IGNORE)
        status = &own;
    char *mine = take((size_t)n);
    int rc = PMPI_Recv(mine, n, type, src, tag, comm, status);
    inspect("MPI_Recv", mine, n, status, comm);
    give(mine);
    return rc;
}

int MPI_Irecv(void *buf, int n, MPI_Datatype type, int src, int tag, MPI_Comm comm, MPI_Request *request)
{
    if (!stamped(type))
        return PMPI_Irecv(buf, n, type, src, tag, comm, request);
    char *mine = take((size_t)n);
    int rc = PMPI_Irecv(mine, n, type, src, tag, comm, request);
    remember(*request, mine, n, 1, comm);
    return rc;
}

int MPI_Sendrecv(const void *sbuf, int sn, MPI_Datatype stype, int dst, int stag, void *rbuf, int rn,
                 MPI_Datatype rtype, int src, int rtag, MPI_Comm comm, MPI_Status *status)
{
    if (!stamped(stype) || !stamped(rtype))
        return PMPI_Sendrecv(sbuf, sn, stype, dst, stag, rbuf, rn, rtype, src, rtag, comm, status);
    MPI_Status own;
    if (status == MPI_STATUS_IGNORE)
        status = &own;
    void *out = stamp(sn, dst, stag, comm);
    char *in = take((size_t)rn);
    int rc = PMPI_Sendrecv(out, sn, stype, dst, stag, in, rn, rtype, src, rtag, comm, status);
    inspect("MPI_Sendrecv", in, rn, status, comm);
    give(out);
    give(in);
    return rc;
}

int MPI_Sendrecv_replace(void *buf, int n, MPI_Datatype type, int dst, int stag, int src, int rtag, MPI_Comm comm,
                         MPI_Status *status)
{
    if (!stamped(type))
        return PMPI_Sendrecv_replace(buf, n, type, dst, stag, src, rtag, comm, status);
    MPI_Status own;
    if (status == MPI_STATUS_IGNORE)
        status = &own;
    char *mine = stamp(n, dst, stag, comm);
    int rc = PMPI_Sendrecv_replace(mine, n, type, dst, stag, src, rtag, comm, status);
    inspect("MPI_Sendrecv_replace", mine, n, status, comm);
    give(mine);
    return rc;
}

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
    MPI_Status own;
    struct pending *p = recall(*request);
    if (status == MPI_STATUS_IGNORE)
        status = &own;
    int rc = PMPI_Wait(request, status);
    if (p)
        finish(p, status);
    return rc;
}

int MPI_Waitall(int n, MPI_Request *requests, MPI_Status *statuses)
{
    struct pending **list = calloc((size_t)n + 1, sizeof *list);
    MPI_Status *own = calloc((size_t)n + 1, sizeof *own);
    if (!list || !own)
        abort();
    for (int i = 0; i < n; i++)
        list[i] = requests[i] == MPI_REQUEST_NULL ? NULL : recall(requests[i]);
    int rc = PMPI_Waitall(n, requests, own);
    /* MPI promises order of matching by order of posting, so look in that order. */
    for (;;) {
        int first = -1;
        for (int i = 0; i < n; i++)
            if (list[i] && (first < 0 || list[i]->serial < list[first]->serial))
                first = i;
        if (first < 0)
            break;
        finish(list[first], &own[first]);
        list[first] = NULL;
    }
    if (statuses != MPI_STATUSES_IGNORE)
        memcpy(statuses, own, (size_t)n * sizeof *own);
    free(list);
    free(own);
    return rc;
}

/* ---- collectives: blocks are stamped with the call's number, the sender and the receiver ---- */

static uint64_t call_number(MPI_Comm comm)
{
    return (*count(comm, 0, 0, COLLECTIVE))++;
}

static uint64_t block(uint64_t call, int src, int dst)
{
    return mix(call, (uint64_t)src << 32 | (uint32_t)dst);
}

static void inspect_block(const char *call, char *buf, size_t len, uint64_t seed, int src)
{
    if (len > 0 && fault_due())
        buf[len / 2] ^= 4;
    long at = wrong(buf, len, seed);
    if (at >= 0)
        bad(call, "wrong byte from rank", at, src);
    bytes += len;
}

enum { ALL = -1 };

int MPI_Bcast(void *buf, int n, MPI_Datatype type, int root, MPI_Comm comm)
{
    if (!stamped(type))
        return PMPI_Bcast(buf, n, type, root, comm);
    uint64_t call = call_number(comm);
    char *mine = take((size_t)n);
    if (rank_in(comm) == root)
        fill(mine, (size_t)n, block(call, root, ALL));
    int rc = PMPI_Bcast(mine, n, type, root, comm);
    inspect_block("MPI_Bcast", mine, (size_t)n, block(call, root, ALL), root);
    give(mine);
    collectives++;
    return rc;
}

/* Extent of a receive buffer with these counts and displacements. */
static size_t extent(const int *counts_, const int *displs, int size)
{
    size_t end = 0;
    for (int r = 0; r < size; r++) {
        size_t last = (size_t)displs[r] + (size_t)counts_[r];
        end = last > end ? last : end;
    }
    return end;
}

int MPI_Allgatherv(const void *sbuf, int sn, MPI_Datatype stype, void *rbuf, const int *rn, const int *displs,
                   MPI_Datatype rtype, MPI_Comm comm)
{
    if (sbuf == MPI_IN_PLACE || !stamped(stype) || !stamped(rtype))
        return PMPI_Allgatherv(sbuf, sn, stype, rbuf, rn, displs, rtype, comm);
    uint64_t call = call_number(comm);
    int size = size_of(comm);
    char *out = take((size_t)sn), *in = take(extent(rn, displs, size));
    fill(out, (size_t)sn, block(call, rank_in(comm), ALL));
    int rc = PMPI_Allgatherv(out, sn, stype, in, rn, displs, rtype, comm);
    for (int r = 0; r < size; r++)
        inspect_block("MPI_Allgatherv", in + displs[r], (size_t)rn[r], block(call, r, ALL), r);
    give(out);
    give(in);
    collectives++;
    return rc;
}

int MPI_Allgather(const void *sbuf, int sn, MPI_Datatype stype, void *rbuf, int rn, MPI_Datatype rtype, MPI_Comm comm)
{
    if (sbuf == MPI_IN_PLACE || !stamped(stype) || !stamped(rtype))
        return PMPI_Allgather(sbuf, sn, stype, rbuf, rn, rtype, comm);
    uint64_t call = call_number(comm);
    int size = size_of(comm);
    char *out = take((size_t)sn), *in = take((size_t)rn * (size_t)size);
    fill(out, (size_t)sn, block(call, rank_in(comm), ALL));
    int rc = PMPI_Allgather(out, sn, stype, in, rn, rtype, comm);
    for (int r = 0; r < size; r++)
        inspect_block("MPI_Allgather", in + (size_t)r * (size_t)rn, (size_t)rn, block(call, r, ALL), r);
    give(out);
    give(in);
    collectives++;
    return rc;
}

int MPI_Gatherv(const void *sbuf, int sn, MPI_Datatype stype, void *rbuf, const int *rn, const int *displs,
                MPI_Datatype rtype, int root, MPI_Comm comm)
{
    if (sbuf == MPI_IN_PLACE || !stamped(stype))
        return PMPI_Gatherv(sbuf, sn, stype, rbuf, rn, displs, rtype, root, comm);
    uint64_t call = call_number(comm);
    int size = size_of(comm), at_root = rank_in(comm) == root;
    char *out = take((size_t)sn), *in = at_root ? take(extent(rn, displs, size)) : NULL;
    fill(out, (size_t)sn, block(call, rank_in(comm), root));
    int rc = PMPI_Gatherv(out, sn, stype, in, rn, displs, rtype, root, comm);
    for (int r = 0; at_root && r < size; r++)
        inspect_block("MPI_Gatherv", in + displs[r], (size_t)rn[r], block(call, r, root), r);
    give(out);
    if (in)
        give(in);
    collectives++;
    return rc;
}

int MPI_Gather(const void *sbuf, int sn, MPI_Datatype stype, void *rbuf, int rn, MPI_Datatype rtype, int root,
               MPI_Comm comm)
{
    if (sbuf == MPI_IN_PLACE || !stamped(stype))
        return PMPI_Gather(sbuf, sn, stype, rbuf, rn, rtype, root, comm);
    uint64_t call = call_number(comm);
    int size = size_of(comm), at_root = rank_in(comm) == root;
    char *out = take((size_t)sn), *in = at_root ? take((size_t)rn * (size_t)size) : NULL;
    fill(out, (size_t)sn, block(call, rank_in(comm), root));
    int rc = PMPI_Gather(out, sn, stype, in, rn, rtype, root, comm);
    for (int r = 0; at_root && r < size; r++)
        inspect_block("MPI_Gather", in + (size_t)r * (size_t)rn, (size_t)rn, block(call, r, root), r);
    give(out);
    if (in)
        give(in);
    collectives++;
    return rc;
}

int MPI_Scatterv(const void *sbuf, const int *sn, const int *displs, MPI_Datatype stype, void *rbuf, int rn,
                 MPI_Datatype rtype, int root, MPI_Comm comm)
{
    if (rbuf == MPI_IN_PLACE || !stamped(rtype))
        return PMPI_Scatterv(sbuf, sn, displs, stype, rbuf, rn, rtype, root, comm);
    uint64_t call = call_number(comm);
    int size = size_of(comm), me = rank_in(comm);
    char *in = take((size_t)rn), *out = me == root ? take(extent(sn, displs, size)) : NULL;
    for (int r = 0; out && r < size; r++)
        fill(out + displs[r], (size_t)sn[r], block(call, root, r));
    int rc = PMPI_Scatterv(out, sn, displs, stype, in, rn, rtype, root, comm);
    inspect_block("MPI_Scatterv", in, (size_t)rn, block(call, root, me), root);
    give(in);
    if (out)
        give(out);
    collectives++;
    return rc;
}

int MPI_Scatter(const void *sbuf, int sn, MPI_Datatype stype, void *rbuf, int rn, MPI_Datatype rtype, int root,
                MPI_Comm comm)
{
    if (rbuf == MPI_IN_PLACE || !stamped(rtype))
        return PMPI_Scatter(sbuf, sn, stype, rbuf, rn, rtype, root, comm);
    uint64_t call = call_number(comm);
    int size = size_of(comm), me = rank_in(comm);
    char *in = take((size_t)rn), *out = me == root ? take((size_t)sn * (size_t)size) : NULL;
    for (int r = 0; out && r < size; r++)
        fill(out + (size_t)r * (size_t)sn, (size_t)sn, block(call, root, r));
    int rc = PMPI_Scatter(out, sn, stype, in, rn, rtype, root, comm);
    inspect_block("MPI_Scatter", in, (size_t)rn, block(call, root, me), root);
    give(in);
    if (out)
        give(out);
    collectives++;
    return rc;
}

int MPI_Alltoall(const void *sbuf, int sn, MPI_Datatype stype, void *rbuf, int rn, MPI_Datatype rtype, MPI_Comm comm)
{
    if (sbuf == MPI_IN_PLACE || !stamped(stype) || !stamped(rtype))
        return PMPI_Alltoall(sbuf, sn, stype, rbuf, rn, rtype, comm);
    uint64_t call = call_number(comm);
    int size = size_of(comm), me = rank_in(comm);
    char *out = take((size_t)sn * (size_t)size), *in = take((size_t)rn * (size_t)size);
    for (int r = 0; r < size; r++)
        fill(out + (size_t)r * (size_t)sn, (size_t)sn, block(call, me, r));
    int rc = PMPI_Alltoall(out, sn, stype, in, rn, rtype, comm);
    for (int r = 0; r < size; r++)
        inspect_block("MPI_Alltoall", in + (size_t)r * (size_t)rn, (size_t)rn, block(call, r, me), r);
    give(out);
    give(in);
    collectives++;
    return rc;
}

int MPI_Alltoallv(const void *sbuf, const int *sn, const int *sdispls, MPI_Datatype stype, void *rbuf, const int *rn,
                  const int *rdispls, MPI_Datatype rtype, MPI_Comm comm)
{
    if (sbuf == MPI_IN_PLACE || !stamped(stype) || !stamped(rtype))
        return PMPI_Alltoallv(sbuf, sn, sdispls, stype, rbuf, rn, rdispls, rtype, comm);
    uint64_t call = call_number(comm);
    int size = size_of(comm), me = rank_in(comm);
    char *out = take(extent(sn, sdispls, size)), *in = take(extent(rn, rdispls, size));
    for (int r = 0; r < size; r++)
        fill(out + sdispls[r], (size_t)sn[r], block(call, me, r));
    int rc = PMPI_Alltoallv(out, sn, sdispls, stype, in, rn, rdispls, rtype, comm);
    for (int r = 0; r < size; r++)
        inspect_block("MPI_Alltoallv", in + rdispls[r], (size_t)rn[r], block(call, r, me), r);
    give(out);
    give(in);
    collectives++;
    return rc;
}

/* ---- sums of floats: small whole numbers, so that every order of adding gives the same ---- */

static int summed(const void *sbuf, MPI_Datatype type, MPI_Op op)
{
    if (type == MPI_FLOAT && op == MPI_SUM && sbuf != MPI_IN_PLACE)
        return 1;
    plain++;
    return 0;
}

static float term(uint64_t call, size_t i, int rank)
{
    return (float)((call + i) % 251 + 1) * (float)(rank + 1);
}

static float *terms(uint64_t call, size_t n, int rank)
{
    float *buf = take(n * sizeof *buf);
    for (size_t i = 0; i < n; i++)
        buf[i] = term(call, i, rank);
    return buf;
}

static void inspect_sum(const char *call_name, float *buf, size_t n, uint64_t call, size_t first, int size)
{
    if (n > 0 && fault_due())
        buf[n / 2] += 1;
    float all = (float)(size * (size + 1) / 2);
    for (size_t i = 0; i < n; i++)
        if (buf[i] != term(call, first + i, 0) * all) {
            bad(call_name, "wrong sum at element", (long)i, (long)n);
            break;
        }
    bytes += n * sizeof *buf;
}

int MPI_Allreduce(const void *sbuf, void *rbuf, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    if (!summed(sbuf, type, op))
        return PMPI_Allreduce(sbuf, rbuf, n, type, op, comm);
    uint64_t call = call_number(comm);
    float *out = terms(call, (size_t)n, rank_in(comm)), *in = take((size_t)n * sizeof *in);
    memset(in, 0xff, (size_t)n * sizeof *in);
    int rc = PMPI_Allreduce(out, in, n, type, op, comm);
    inspect_sum("MPI_Allreduce", in, (size_t)n, call, 0, size_of(comm));
    give(out);
    give(in);
    collectives++;
    return rc;
}

int MPI_Reduce(const void *sbuf, void *rbuf, int n, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm)
{
    if (!summed(sbuf, type, op))
        return PMPI_Reduce(sbuf, rbuf, n, type, op, root, comm);
    uint64_t call = call_number(comm);
    float *out = terms(call, (size_t)n, rank_in(comm)), *in = take((size_t)n * sizeof *in);
    memset(in, 0xff, (size_t)n * sizeof *in);
    int rc = PMPI_Reduce(out, in, n, type, op, root, comm);
    if (rank_in(comm) == root)
        inspect_sum("MPI_Reduce", in, (size_t)n, call, 0, size_of(comm));
    give(out);
    give(in);
    collectives++;
    return rc;
}

int MPI_Reduce_scatter(const void *sbuf, void *rbuf, const int *n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    if (!summed(sbuf, type, op))
        return PMPI_Reduce_scatter(sbuf, rbuf, n, type, op, comm);
    uint64_t call = call_number(comm);
    int me = rank_in(comm), size = size_of(comm);
    size_t first = 0, total = 0;
    for (int r = 0; r < size; r++) {
        first += r < me ? (size_t)n[r] : 0;
        total += (size_t)n[r];
    }
    float *out = terms(call, total, me), *in = take((size_t)n[me] * sizeof *in);
    int rc = PMPI_Reduce_scatter(out, in, n, type, op, comm);
    inspect_sum("MPI_Reduce_scatter", in, (size_t)n[me], call, first, size);
    give(out);
    give(in);
    collectives++;
    return rc;
}

int MPI_Reduce_scatter_block(const void *sbuf, void *rbuf, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    if (!summed(sbuf, type, op))
        return PMPI_Reduce_scatter_block(sbuf, rbuf, n, type, op, comm);
    uint64_t call = call_number(comm);
    int me = rank_in(comm), size = size_of(comm);
    float *out = terms(call, (size_t)n * (size_t)size, me), *in = take((size_t)n * sizeof *in);
    int rc = PMPI_Reduce_scatter_block(out, in, n, type, op, comm);
    inspect_sum("MPI_Reduce_scatter_block", in, (size_t)n, call, (size_t)n * (size_t)me, size);
    give(out);
    give(in);
    collectives++;
    return rc;
}

/* ---- communicators and the end ---- */

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *made)
{
    int rc = PMPI_Comm_split(comm, color, key, made);
    forget(*made);
    return rc;
}

int MPI_Comm_free(MPI_Comm *comm)
{
    forget(*comm);
    return PMPI_Comm_free(comm);
}

int MPI_Finalize(void)
{
    int rank = rank_in(MPI_COMM_WORLD);
    const char *report = getenv("USB4_CHECK_REPORT");
    char path[4096];
    if (report && snprintf(path, sizeof path, "%s.%d", report, rank) < (int)sizeof path) {
        FILE *f = fopen(path, "w");
        if (f) {
            fprintf(f, "messages %llu collectives %llu bytes %llu plain %llu errors %llu\n",
                    (unsigned long long)messages, (unsigned long long)collectives, (unsigned long long)bytes,
                    (unsigned long long)plain, (unsigned long long)errors);
            fclose(f);
        }
    }
    return PMPI_Finalize();
}
