/*
 * libmpi.so.12, the MPICH ABI, on top of Open MPI's libmpi.so.40.
 *
 * The Intel MPI Benchmarks come as binaries for the MPICH ABI only. This library lets the same binaries, and the
 * checker in check.c, run on Open MPI: it translates handles, constants and statuses, and forwards. It has the
 * functions those programs use and no others. Open MPI is loaded with RTLD_DEEPBIND, so that its own calls do
 * not come back here.
 *
 * C, because it is written against Open MPI's header. The numbers of the MPICH ABI are from its public mpi.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef MPI_COMM_WORLD
#undef MPI_COMM_SELF

enum {
    M_COMM_WORLD = 0x44000000, M_COMM_SELF = 0x44000001, M_COMM_NULL = 0x04000000,
    M_GROUP_NULL = 0x08000000, M_GROUP_EMPTY = 0x48000000, M_DATATYPE_NULL = 0x0c000000,
    M_OP_NULL = 0x18000000, M_REQUEST_NULL = 0x2c000000,
    M_ANY_SOURCE = -2, M_PROC_NULL = -1, M_ROOT = -3,
    /* Handles made at run time: kind bits with a table index. Far above the predefined ones of the kind. */
    M_COMM = (int)0x84000000, M_GROUP = (int)0x88000000, M_TYPE = (int)0x8c000000,
    M_OP = (int)0x98000000, M_REQUEST = (int)0xac000000, INDEX = 0x00ffffff,
};

struct m_status {
    int count_lo, count_hi_and_cancelled, source, tag, error;
};

#define M_STATUS_IGNORE ((struct m_status *)1)
#define M_IN_PLACE ((void *)-1)

static void *library;

static void *symbol(const char *name)
{
    if (!library)
        library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL | RTLD_DEEPBIND);
    void *at = library ? dlsym(library, name) : NULL;
    if (!at) {
        fprintf(stderr, "openmpi-abi: %s\n", dlerror());
        abort();
    }
    return at;
}

/* CALL(Send)(args): Open MPI's function, looked up once. */
#define CALL(name) (*({ static __typeof__(&MPI_##name) f; if (!f) f = symbol("PMPI_" #name); f; }))

/* Defines MPI_x and PMPI_x of the MPICH ABI in one. */
#define EXPORT(ret, name, args)                                                                                \
    ret m_##name args __asm__("MPI_" #name);                                                                   \
    ret pm_##name args __asm__("PMPI_" #name) __attribute__((alias("MPI_" #name)));                            \
    ret m_##name args

/* ---- handles ---- */

struct table {
    void **slots;
    size_t len, hint;
};

static int put(struct table *t, int kind, void *value)
{
    for (size_t n = 0; n < t->len; n++) {
        size_t i = (t->hint + n) % t->len;
        if (!t->slots[i]) {
            t->slots[i] = value;
            t->hint = i + 1;
            return kind | (int)i;
        }
    }
    size_t len = t->len ? 2 * t->len : 64;
    t->slots = realloc(t->slots, len * sizeof *t->slots);
    if (!t->slots)
        abort();
    memset(t->slots + t->len, 0, (len - t->len) * sizeof *t->slots);
    t->hint = t->len;
    t->len = len;
    return put(t, kind, value);
}

static void *get(const struct table *t, int handle)
{
    size_t i = (size_t)(handle & INDEX);
    if (i >= t->len || !t->slots[i]) {
        fprintf(stderr, "openmpi-abi: unknown handle %#x\n", (unsigned)handle);
        abort();
    }
    return t->slots[i];
}

static struct table comms, groups, types, ops, requests;

static MPI_Comm comm(int m)
{
    switch (m) {
    case M_COMM_WORLD: return symbol("ompi_mpi_comm_world");
    case M_COMM_SELF: return symbol("ompi_mpi_comm_self");
    case M_COMM_NULL: return symbol("ompi_mpi_comm_null");
    default: return get(&comms, m);
    }
}

static MPI_Group group(int m)
{
    switch (m) {
    case M_GROUP_NULL: return symbol("ompi_mpi_group_null");
    case M_GROUP_EMPTY: return symbol("ompi_mpi_group_empty");
    default: return get(&groups, m);
    }
}

static MPI_Datatype type(int m)
{
    static const struct { int m; const char *name; } known[] = {
        {M_DATATYPE_NULL, "ompi_mpi_datatype_null"}, {0x4c000101, "ompi_mpi_char"},
        {0x4c000102, "ompi_mpi_unsigned_char"}, {0x4c000118, "ompi_mpi_signed_char"},
        {0x4c000203, "ompi_mpi_short"}, {0x4c000405, "ompi_mpi_int"}, {0x4c000406, "ompi_mpi_unsigned"},
        {0x4c000807, "ompi_mpi_long"}, {0x4c000808, "ompi_mpi_unsigned_long"},
        {0x4c000809, "ompi_mpi_long_long_int"}, {0x4c00040a, "ompi_mpi_float"}, {0x4c00080b, "ompi_mpi_double"},
        {0x4c00010d, "ompi_mpi_byte"}, {0x4c00010f, "ompi_mpi_packed"},
    };
    static void *at[sizeof known / sizeof known[0]];
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].m == m)
            return at[i] ? at[i] : (at[i] = symbol(known[i].name));
    return get(&types, m);
}

static MPI_Op op(int m)
{
    static const char *const known[] = {
        "ompi_mpi_op_max", "ompi_mpi_op_min", "ompi_mpi_op_sum", "ompi_mpi_op_prod",
        "ompi_mpi_op_land", "ompi_mpi_op_band",
    };
    if (m == M_OP_NULL)
        return symbol("ompi_mpi_op_null");
    if (m >= 0x58000001 && m <= 0x58000006)
        return symbol(known[m - 0x58000001]);
    return get(&ops, m);
}

static int rank_to(int m)
{
    return m == M_ANY_SOURCE ? MPI_ANY_SOURCE : m == M_PROC_NULL ? MPI_PROC_NULL : m == M_ROOT ? MPI_ROOT : m;
}

static void *buffer(const void *m)
{
    return m == M_IN_PLACE ? MPI_IN_PLACE : (void *)m;
}

static void status_from(struct m_status *m, const MPI_Status *s)
{
    if (m == M_STATUS_IGNORE)
        return;
    m->count_lo = (int)(uint32_t)s->_ucount;
    m->count_hi_and_cancelled = (int)(s->_ucount >> 32 << 1) | (s->_cancelled != 0);
    m->source = s->MPI_SOURCE == MPI_PROC_NULL ? M_PROC_NULL : s->MPI_SOURCE == MPI_ANY_SOURCE ? M_ANY_SOURCE : s->MPI_SOURCE;
    m->tag = s->MPI_TAG;
    m->error = s->MPI_ERROR;
}

/* ---- environment ---- */

EXPORT(int, Init, (int *argc, char ***argv)) { return CALL(Init)(argc, argv); }
EXPORT(int, Init_thread, (int *argc, char ***argv, int want, int *got)) { return CALL(Init_thread)(argc, argv, want, got); }
EXPORT(int, Finalize, (void)) { return CALL(Finalize)(); }
EXPORT(int, Abort, (int c, int code)) { return CALL(Abort)(comm(c), code); }
EXPORT(int, Get_version, (int *major, int *minor)) { return CALL(Get_version)(major, minor); }
EXPORT(double, Wtime, (void)) { return CALL(Wtime)(); }
EXPORT(int, Error_string, (int code, char *text, int *len)) { return CALL(Error_string)(code, text, len); }
EXPORT(int, Alloc_mem, (ptrdiff_t size, int info, void *at))
{
    (void)info;
    return CALL(Alloc_mem)(size, symbol("ompi_mpi_info_null"), at);
}
EXPORT(int, Free_mem, (void *at)) { return CALL(Free_mem)(at); }

/* ---- communicators and groups ---- */

EXPORT(int, Comm_rank, (int c, int *rank)) { return CALL(Comm_rank)(comm(c), rank); }
EXPORT(int, Comm_size, (int c, int *size)) { return CALL(Comm_size)(comm(c), size); }
EXPORT(int, Comm_compare, (int a, int b, int *result)) { return CALL(Comm_compare)(comm(a), comm(b), result); }
EXPORT(int, Comm_split, (int c, int color, int key, int *made))
{
    MPI_Comm out;
    int rc = CALL(Comm_split)(comm(c), color, key, &out);
    *made = rc || out == symbol("ompi_mpi_comm_null") ? M_COMM_NULL : put(&comms, M_COMM, out);
    return rc;
}
EXPORT(int, Comm_free, (int *c))
{
    MPI_Comm old = comm(*c);
    if (*c != M_COMM_WORLD && *c != M_COMM_SELF)
        comms.slots[*c & INDEX] = NULL;
    *c = M_COMM_NULL;
    return CALL(Comm_free)(&old);
}
EXPORT(int, Comm_group, (int c, int *made))
{
    MPI_Group out;
    int rc = CALL(Comm_group)(comm(c), &out);
    *made = rc ? M_GROUP_NULL : put(&groups, M_GROUP, out);
    return rc;
}
EXPORT(int, Group_translate_ranks, (int a, int n, const int *from, int b, int *to))
{
    return CALL(Group_translate_ranks)(group(a), n, from, group(b), to);
}

/* ---- datatypes and operations ---- */

EXPORT(int, Type_size, (int t, int *size)) { return CALL(Type_size)(type(t), size); }
EXPORT(int, Type_get_extent, (int t, ptrdiff_t *low, ptrdiff_t *span)) { return CALL(Type_get_extent)(type(t), low, span); }
EXPORT(int, Type_commit, (int *t))
{
    MPI_Datatype it = type(*t);
    return CALL(Type_commit)(&it);
}
EXPORT(int, Type_free, (int *t))
{
    MPI_Datatype old = get(&types, *t);
    types.slots[*t & INDEX] = NULL;
    *t = M_DATATYPE_NULL;
    return CALL(Type_free)(&old);
}
EXPORT(int, Type_vector, (int n, int len, int stride, int t, int *made))
{
    MPI_Datatype out;
    int rc = CALL(Type_vector)(n, len, stride, type(t), &out);
    *made = rc ? M_DATATYPE_NULL : put(&types, M_TYPE, out);
    return rc;
}
EXPORT(int, Type_create_resized, (int t, ptrdiff_t low, ptrdiff_t span, int *made))
{
    MPI_Datatype out;
    int rc = CALL(Type_create_resized)(type(t), low, span, &out);
    *made = rc ? M_DATATYPE_NULL : put(&types, M_TYPE, out);
    return rc;
}
/* A user's reduction would be handed Open MPI's datatypes; the benchmarks use none unless asked to. */
EXPORT(int, Op_create, (void *f, int commutes, int *made))
{
    (void)f;
    (void)commutes;
    fprintf(stderr, "openmpi-abi: MPI_Op_create is not translated\n");
    *made = M_OP_NULL;
    return MPI_ERR_OP;
}
EXPORT(int, Get_count, (const struct m_status *s, int t, int *n))
{
    int size;
    int rc = CALL(Type_size)(type(t), &size);
    uint64_t len = (uint32_t)s->count_lo | (uint64_t)(s->count_hi_and_cancelled >> 1) << 32;
    *n = rc || size == 0 ? 0 : len % (unsigned)size ? MPI_UNDEFINED : (int)(len / (unsigned)size);
    return rc;
}

/* ---- point to point ---- */

EXPORT(int, Send, (const void *b, int n, int t, int dst, int tag, int c))
{
    return CALL(Send)(b, n, type(t), rank_to(dst), tag, comm(c));
}
EXPORT(int, Recv, (void *b, int n, int t, int src, int tag, int c, struct m_status *s))
{
    MPI_Status own;
    int rc = CALL(Recv)(b, n, type(t), rank_to(src), tag, comm(c), &own);
    status_from(s, &own);
    return rc;
}
EXPORT(int, Isend, (const void *b, int n, int t, int dst, int tag, int c, int *request))
{
    MPI_Request out;
    int rc = CALL(Isend)(b, n, type(t), rank_to(dst), tag, comm(c), &out);
    *request = rc ? M_REQUEST_NULL : put(&requests, M_REQUEST, out);
    return rc;
}
EXPORT(int, Irecv, (void *b, int n, int t, int src, int tag, int c, int *request))
{
    MPI_Request out;
    int rc = CALL(Irecv)(b, n, type(t), rank_to(src), tag, comm(c), &out);
    *request = rc ? M_REQUEST_NULL : put(&requests, M_REQUEST, out);
    return rc;
}
EXPORT(int, Sendrecv, (const void *sb, int sn, int st, int dst, int stag, void *rb, int rn, int rt, int src, int rtag,
                       int c, struct m_status *s))
{
    MPI_Status own;
    int rc = CALL(Sendrecv)(sb, sn, type(st), rank_to(dst), stag, rb, rn, type(rt), rank_to(src), rtag, comm(c), &own);
    status_from(s, &own);
    return rc;
}
EXPORT(int, Sendrecv_replace, (void *b, int n, int t, int dst, int stag, int src, int rtag, int c, struct m_status *s))
{
    MPI_Status own;
    int rc = CALL(Sendrecv_replace)(b, n, type(t), rank_to(dst), stag, rank_to(src), rtag, comm(c), &own);
    status_from(s, &own);
    return rc;
}
EXPORT(int, Waitall, (int n, int *r, struct m_status *s))
{
    MPI_Request *own = calloc((size_t)n + 1, sizeof *own);
    MPI_Status *got = calloc((size_t)n + 1, sizeof *got);
    if (!own || !got)
        abort();
    for (int i = 0; i < n; i++)
        own[i] = r[i] == M_REQUEST_NULL ? symbol("ompi_request_null") : get(&requests, r[i]);
    int rc = CALL(Waitall)(n, own, got);
    for (int i = 0; i < n; i++) {
        if (r[i] != M_REQUEST_NULL)
            requests.slots[r[i] & INDEX] = NULL;
        r[i] = M_REQUEST_NULL;
        if (s != M_STATUS_IGNORE)
            status_from(&s[i], &got[i]);
    }
    free(own);
    free(got);
    return rc;
}
EXPORT(int, Wait, (int *r, struct m_status *s)) { return m_Waitall(1, r, s); }

/* ---- collectives ---- */

EXPORT(int, Barrier, (int c)) { return CALL(Barrier)(comm(c)); }
EXPORT(int, Bcast, (void *b, int n, int t, int root, int c)) { return CALL(Bcast)(b, n, type(t), root, comm(c)); }
EXPORT(int, Allgather, (const void *sb, int sn, int st, void *rb, int rn, int rt, int c))
{
    return CALL(Allgather)(buffer(sb), sn, type(st), rb, rn, type(rt), comm(c));
}
EXPORT(int, Allgatherv, (const void *sb, int sn, int st, void *rb, const int *rn, const int *at, int rt, int c))
{
    return CALL(Allgatherv)(buffer(sb), sn, type(st), rb, rn, at, type(rt), comm(c));
}
EXPORT(int, Gather, (const void *sb, int sn, int st, void *rb, int rn, int rt, int root, int c))
{
    return CALL(Gather)(buffer(sb), sn, type(st), rb, rn, type(rt), root, comm(c));
}
EXPORT(int, Gatherv, (const void *sb, int sn, int st, void *rb, const int *rn, const int *at, int rt, int root, int c))
{
    return CALL(Gatherv)(buffer(sb), sn, type(st), rb, rn, at, type(rt), root, comm(c));
}
EXPORT(int, Scatter, (const void *sb, int sn, int st, void *rb, int rn, int rt, int root, int c))
{
    return CALL(Scatter)(sb, sn, type(st), buffer(rb), rn, type(rt), root, comm(c));
}
EXPORT(int, Scatterv, (const void *sb, const int *sn, const int *at, int st, void *rb, int rn, int rt, int root, int c))
{
    return CALL(Scatterv)(sb, sn, at, type(st), buffer(rb), rn, type(rt), root, comm(c));
}
EXPORT(int, Alltoall, (const void *sb, int sn, int st, void *rb, int rn, int rt, int c))
{
    return CALL(Alltoall)(buffer(sb), sn, type(st), rb, rn, type(rt), comm(c));
}
EXPORT(int, Alltoallv, (const void *sb, const int *sn, const int *sat, int st, void *rb, const int *rn, const int *rat,
                        int rt, int c))
{
    return CALL(Alltoallv)(buffer(sb), sn, sat, type(st), rb, rn, rat, type(rt), comm(c));
}
EXPORT(int, Reduce, (const void *sb, void *rb, int n, int t, int o, int root, int c))
{
    return CALL(Reduce)(buffer(sb), rb, n, type(t), op(o), root, comm(c));
}
EXPORT(int, Allreduce, (const void *sb, void *rb, int n, int t, int o, int c))
{
    return CALL(Allreduce)(buffer(sb), rb, n, type(t), op(o), comm(c));
}
EXPORT(int, Reduce_local, (const void *a, void *b, int n, int t, int o)) { return CALL(Reduce_local)(a, b, n, type(t), op(o)); }
EXPORT(int, Reduce_scatter, (const void *sb, void *rb, const int *n, int t, int o, int c))
{
    return CALL(Reduce_scatter)(buffer(sb), rb, n, type(t), op(o), comm(c));
}
EXPORT(int, Reduce_scatter_block, (const void *sb, void *rb, int n, int t, int o, int c))
{
    return CALL(Reduce_scatter_block)(buffer(sb), rb, n, type(t), op(o), comm(c));
}
