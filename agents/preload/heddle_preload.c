/* Gives each QP of a program the UDP source port that its path was planned for.
 *
 * Preloaded, it wraps three functions: ibv_modify_qp, ibv_destroy_qp, and dlvsym, by which NCCL
 * finds the other two. When a QP becomes ready to receive, both its addresses are known. It then
 * takes the least used place among the ports of these two addresses, which are read from a file.
 * When it becomes ready to send, mlx5dv_modify_qp_udp_sport sets the port of that place. The place
 * is released when the QP is reset or destroyed.
 *
 * Nothing here ever makes a program fail. The program's request is done first, and its result is
 * returned, errno included. If anything is missing (file, memory, addresses, library) or the NIC
 * refuses, the QP keeps the port that the driver chose.
 */

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef __OPTIMIZE__
#error "build it with -O2: dlvsym has to leave by a jump, see below"
#endif

#define EXPORTED __attribute__((visibility("default")))
#define EARLY __attribute__((no_sanitize("thread"))) /* runs before a sanitizer is ready */
#define VERBS "IBVERBS_1.1"
#define LARGEST_FILE ((off_t)64 << 20)
#define BUCKETS 4096

typedef int modify_fn(struct ibv_qp *, struct ibv_qp_attr *, int);
typedef int destroy_fn(struct ibv_qp *);
typedef int set_port_fn(struct ibv_qp *, uint16_t);
typedef int query_gid_fn(struct ibv_context *, uint32_t, uint32_t, struct ibv_gid_entry *, uint32_t,
                         size_t);
typedef void *dlvsym_fn(void *, const char *, const char *);

/* Turns the result of dlsym into a function pointer, for which ISO C has no cast. */
union symbol {
    void *found;
    modify_fn *modify;
    destroy_fn *destroy;
    set_port_fn *set_port;
    query_gid_fn *query_gid;
    dlvsym_fn *dlvsym;
};

/* Both addresses of a QP, source first. IPv4 is ::ffff:a.b.c.d, as in RoCEv2. */
struct ends {
    uint8_t address[2][16];
};

/* The ports of two addresses. */
struct pair {
    struct ends ends;
    uint32_t first; /* in ports.of_place and ports.users */
    uint32_t count;
};

struct ports {
    struct pair *pairs; /* sorted by their ends */
    size_t pair_count;
    uint16_t *of_place;
    uint32_t *users; /* number of QPs that have each place */
    struct stat read; /* of the file when it was read; all 0 before that */
};

/* A QP that has a place. */
struct held {
    struct held *next;
    const struct ibv_qp *qp;
    struct ends ends;
    uint32_t place; /* among the ports of its ends */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ports ports;            /* under the lock */
static struct held *buckets[BUCKETS]; /* under the lock */
static pthread_once_t settings_read = PTHREAD_ONCE_INIT;
static const char *ports_file;
static int log_file = -1;

/* ---- the log ------------------------------------------------------------------------------ */

/* A child of fork has only the forking thread, so no other thread may hold the lock then. */
static void before_fork(void) { (void)pthread_mutex_lock(&lock); }
static void after_fork(void) { (void)pthread_mutex_unlock(&lock); }

static void read_settings(void)
{
    const char *path = secure_getenv("HEDDLE_PRELOAD_LOG");

    if (path != NULL && *path != '\0')
        log_file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
                        0644);
    ports_file = secure_getenv("HEDDLE_PRELOAD_PORTS");
    (void)pthread_atfork(before_fork, after_fork, after_fork);
}

/* Write a line. A full pipe must not block the program, and one without readers must not end it. */
static void write_line(const char *line, size_t length)
{
    sigset_t broken, blocked, waiting;
    const struct timespec now = {0, 0};
    ssize_t written;

    (void)sigemptyset(&broken);
    (void)sigaddset(&broken, SIGPIPE);
    (void)sigpending(&waiting);
    (void)pthread_sigmask(SIG_BLOCK, &broken, &blocked);
    written = write(log_file, line, length);
    if (written < 0 && errno == EPIPE && !sigismember(&waiting, SIGPIPE))
        (void)sigtimedwait(&broken, NULL, &now);
    (void)pthread_sigmask(SIG_SETMASK, &blocked, NULL);
}

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    char line[512];
    va_list given;
    int begun, more;

    if (log_file < 0)
        return;
    begun = snprintf(line, sizeof line, "heddle-preload[%ld]: ", (long)getpid());
    va_start(given, format);
    more = vsnprintf(line + begun, sizeof line - (size_t)begun - 1, format, given);
    va_end(given);
    if (begun < 0 || more < 0)
        return;
    begun = (int)strlen(line);
    line[begun] = '\n';
    write_line(line, (size_t)begun + 1);
}

/* An address as text. */
static const char *written(const uint8_t address[16], char text[INET6_ADDRSTRLEN])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    const char *done;

    if (memcmp(address, mapped, sizeof mapped) == 0)
        done = inet_ntop(AF_INET, address + sizeof mapped, text, INET6_ADDRSTRLEN);
    else
        done = inet_ntop(AF_INET6, address, text, INET6_ADDRSTRLEN);
    return done == NULL ? "?" : done;
}

static void say_of(const struct ibv_qp *qp, const struct ends *ends, const char *what)
{
    char source[INET6_ADDRSTRLEN], destination[INET6_ADDRSTRLEN];

    say("QP %u, %s to %s: %s", qp->qp_num, written(ends->address[0], source),
        written(ends->address[1], destination), what);
}

/* ---- the file of ports -------------------------------------------------------------------- */

static int compared(const void *one, const void *other)
{
    return memcmp(one, other, sizeof(struct ends));
}

/* Order pairs by their ends, and those with the same ends by their order in the file. */
static int compared_lines(const void *one, const void *other)
{
    uint32_t first = ((const struct pair *)one)->first;
    int by_ends = compared(one, other);

    return by_ends != 0 ? by_ends : first < ((const struct pair *)other)->first ? -1 : 1;
}

static void release(struct ports *these)
{
    free(these->pairs);
    free(these->of_place);
    free(these->users);
}

/* Parse a word as an address; false if it is none. */
static bool address_of(const char *word, uint8_t address[16])
{
    memset(address, 0, 16);
    if (inet_pton(AF_INET, word, address + 12) == 1) {
        address[10] = address[11] = 0xff;
        return true;
    }
    return inet_pton(AF_INET6, word, address) == 1;
}

/* Parse a port from 1 to 65535; -1 if the word is none. Port 0 would mean "any". */
static long port_of(const char *word)
{
    char *end;
    long port;

    if (*word < '0' || *word > '9')
        return -1;
    port = strtol(word, &end, 10);
    return *end == '\0' && port > 0 && port <= UINT16_MAX ? port : -1;
}

/* Add a line "SOURCE DESTINATION PORT..." as a pair; false, adding nothing, if it is malformed. */
static bool take_line(struct ports *these, size_t *place_count, char *line)
{
    char *rest, *word = strtok_r(line, " \t\r", &rest);
    struct pair *pair = &these->pairs[these->pair_count];
    size_t before = *place_count;

    memset(pair, 0, sizeof *pair);
    for (int end = 0; end < 2; end++, word = strtok_r(NULL, " \t\r", &rest))
        if (word == NULL || !address_of(word, pair->ends.address[end]))
            return false;
    for (; word != NULL; word = strtok_r(NULL, " \t\r", &rest)) {
        long port = port_of(word);

        if (port < 0) {
            *place_count = before;
            return false;
        }
        these->of_place[(*place_count)++] = (uint16_t)port;
    }
    pair->first = (uint32_t)before;
    pair->count = (uint32_t)(*place_count - before);
    if (pair->count > 0)
        these->pair_count++;
    return pair->count > 0;
}

/* Join pairs with the same ends into one, whose ports are in the order of the file. */
static bool join_lines(struct ports *these, size_t place_count)
{
    size_t pair_count = 0, placed = 0;
    uint16_t *of_place = calloc(place_count + 1, sizeof *of_place);

    if (of_place == NULL)
        return false;
    qsort(these->pairs, these->pair_count, sizeof *these->pairs, compared_lines);
    for (size_t i = 0; i < these->pair_count; i++) {
        struct pair one = these->pairs[i];

        memcpy(of_place + placed, these->of_place + one.first, one.count * sizeof *of_place);
        if (pair_count > 0 && compared(&these->pairs[pair_count - 1], &one) == 0) {
            these->pairs[pair_count - 1].count += one.count;
        } else {
            these->pairs[pair_count] = one;
            these->pairs[pair_count++].first = (uint32_t)placed;
        }
        placed += one.count;
    }
    these->pair_count = pair_count;
    free(these->of_place);
    these->of_place = of_place;
    return true;
}

/* Parse the text of a file; false if memory runs out. Malformed lines are left out. */
static bool understand(struct ports *these, char *text)
{
    size_t lines = 1, words = 1, place_count = 0;
    char *rest;

    for (const char *c = text; *c != '\0'; c++) {
        lines += *c == '\n';
        words += *c == ' ' || *c == '\t' || *c == '\n';
    }
    these->pairs = calloc(lines + 1, sizeof *these->pairs);
    these->of_place = calloc(words, sizeof *these->of_place);
    these->users = calloc(words, sizeof *these->users);
    if (these->pairs == NULL || these->of_place == NULL || these->users == NULL)
        return false;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        if (*line != '#' && !take_line(these, &place_count, line))
            say("a line of %s is not \"ADDRESS ADDRESS PORT...\": left out", ports_file);
    return join_lines(these, place_count);
}

/* Return the text of a file, to be freed by the caller; on failure NULL, with errno set. */
static char *text_of(int file, const struct stat *about)
{
    size_t size = (size_t)about->st_size, got = 0;
    char *text;

    if (!S_ISREG(about->st_mode) || about->st_size > LARGEST_FILE) {
        errno = EFBIG;
        return NULL;
    }
    text = malloc(size + 1);
    if (text == NULL)
        return NULL;
    while (got < size) {
        ssize_t more = read(file, text + got, size - got);

        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0)
            break;
        got += (size_t)more;
    }
    text[got] = '\0';
    return text;
}

static struct pair *pair_of(const struct ports *these, const struct ends *ends)
{
    if (these->pair_count == 0)
        return NULL;
    return bsearch(ends, these->pairs, these->pair_count, sizeof *these->pairs, compared);
}

/* Use new ports. QPs keep their places if the new ports have that many. */
static void replace_ports(const struct ports *these)
{
    release(&ports);
    ports = *these;
    for (size_t bucket = 0; bucket < BUCKETS; bucket++)
        for (const struct held *one = buckets[bucket]; one != NULL; one = one->next) {
            const struct pair *pair = pair_of(&ports, &one->ends);

            if (pair != NULL && one->place < pair->count)
                ports.users[pair->first + one->place]++;
        }
}

/* Whether both are the same file, not written to in between. */
static bool same_file(const struct stat *one, const struct stat *other)
{
    return one->st_dev == other->st_dev && one->st_ino == other->st_ino &&
           one->st_size == other->st_size && one->st_mtim.tv_sec == other->st_mtim.tv_sec &&
           one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

/* Read the file if it has changed. If it cannot be read, the ports in use stay. */
static void refresh_ports(void)
{
    struct ports these = {0};
    char *text, why[64];
    int file;

    if (ports_file == NULL || *ports_file == '\0')
        return;
    file = open(ports_file, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file < 0 || fstat(file, &these.read) != 0) {
        say("%s cannot be read: %s", ports_file, strerror_r(errno, why, sizeof why));
    } else if (!same_file(&these.read, &ports.read)) {
        text = text_of(file, &these.read);
        if (text == NULL || !understand(&these, text)) {
            say("%s cannot be taken: %s", ports_file, strerror_r(errno, why, sizeof why));
            release(&these);
        } else {
            say("%s has ports of %zu pairs of addresses", ports_file, these.pair_count);
            replace_ports(&these);
        }
        free(text);
    }
    if (file >= 0)
        (void)close(file);
}

/* ---- places ------------------------------------------------------------------------------- */

static struct held **bucket_of(const struct ibv_qp *qp)
{
    return &buckets[((uintptr_t)qp >> 4) % BUCKETS];
}

static struct held *held_of(const struct ibv_qp *qp)
{
    struct held *one = *bucket_of(qp);

    while (one != NULL && one->qp != qp)
        one = one->next;
    return one;
}

/* Count one QP more, or one fewer, at a place. */
static void count_user(const struct held *one, bool more)
{
    const struct pair *pair = pair_of(&ports, &one->ends);
    uint32_t *users;

    if (pair == NULL || one->place >= pair->count)
        return;
    users = &ports.users[pair->first + one->place];
    if (more)
        ++*users;
    else if (*users > 0)
        --*users;
}

static void put(struct held *one)
{
    struct held **bucket = bucket_of(one->qp);

    one->next = *bucket;
    *bucket = one;
    count_user(one, true);
}

/* Remove a QP from the table, to be freed or put back by the caller; NULL if it has no place. */
static struct held *taken(const struct ibv_qp *qp)
{
    for (struct held **at = bucket_of(qp); *at != NULL; at = &(*at)->next)
        if ((*at)->qp == qp) {
            struct held *one = *at;

            *at = one->next;
            count_user(one, false);
            return one;
        }
    return NULL;
}

/* The first of the places that the fewest QPs have. */
static uint32_t free_place(const struct pair *pair)
{
    const uint32_t *users = ports.users + pair->first;
    uint32_t best = 0;

    for (uint32_t place = 1; place < pair->count && users[best] > 0; place++)
        if (users[place] < users[best])
            best = place;
    return best;
}

/* ---- the two libraries -------------------------------------------------------------------- */

/* The dlvsym of libc. */
EARLY static dlvsym_fn *real_dlvsym(void)
{
    static _Atomic(dlvsym_fn *) known;
    dlvsym_fn *real = atomic_load(&known);

    if (real == NULL) {
        union symbol next = {.found = dlsym(RTLD_NEXT, "dlvsym")};

        real = next.dlvsym;
        atomic_store(&known, real);
    }
    return real;
}

/* A function of a loaded library; NULL if the library is not loaded or has no such function. */
static void *function_of(const char *library, const char *name, const char *version)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    dlvsym_fn *find = real_dlvsym();

    return handle == NULL || find == NULL ? NULL : find(handle, name, version);
}

static modify_fn *real_modify(void)
{
    static _Atomic(modify_fn *) known;
    modify_fn *real = atomic_load(&known);

    if (real == NULL) {
        union symbol one = {.found = function_of("libibverbs.so.1", "ibv_modify_qp", VERBS)};

        real = one.modify;
        atomic_store(&known, real);
    }
    return real;
}

static destroy_fn *real_destroy(void)
{
    static _Atomic(destroy_fn *) known;
    destroy_fn *real = atomic_load(&known);

    if (real == NULL) {
        union symbol one = {.found = function_of("libibverbs.so.1", "ibv_destroy_qp", VERBS)};

        real = one.destroy;
        atomic_store(&known, real);
    }
    return real;
}

/* Get the GID of a QP's own end; false unless it is of RoCEv2, as only that has a UDP port. */
static bool own_address(struct ibv_context *context, const struct ibv_ah_attr *to, uint8_t own[16])
{
    union symbol one = {
        .found = function_of("libibverbs.so.1", "_ibv_query_gid_ex", "IBVERBS_1.11")};
    struct ibv_gid_entry entry = {0};

    if (one.found == NULL || one.query_gid(context, to->port_num, to->grh.sgid_index, &entry, 0,
                                           sizeof entry) != 0)
        return false;
    memcpy(own, entry.gid.raw, 16);
    return entry.gid_type == IBV_GID_TYPE_ROCE_V2;
}

static int set_port(struct ibv_qp *qp, uint16_t port)
{
    union symbol one = {
        .found = function_of("libmlx5.so.1", "mlx5dv_modify_qp_udp_sport", "MLX5_1.17")};

    return one.found == NULL ? ENOSYS : one.set_port(qp, port);
}

/* ---- what happens to a QP ----------------------------------------------------------------- */

static void forget(const struct ibv_qp *qp)
{
    (void)pthread_mutex_lock(&lock);
    free(taken(qp));
    (void)pthread_mutex_unlock(&lock);
}

/* A QP knows both its ends: give it a place. */
static void connected(const struct ibv_qp *qp, const struct ibv_ah_attr *to)
{
    struct ends ends = {0};
    const struct pair *pair;
    struct held *one;

    forget(qp); /* drop a QP that was at this address, whose end was missed */
    if (qp->qp_type != IBV_QPT_RC && qp->qp_type != IBV_QPT_UC)
        return;
    if (!to->is_global || !own_address(qp->context, to, ends.address[0])) {
        say("QP %u: no address of RoCEv2, left alone", qp->qp_num);
        return;
    }
    memcpy(ends.address[1], to->grh.dgid.raw, 16);
    one = calloc(1, sizeof *one);
    if (one == NULL)
        return;
    (void)pthread_mutex_lock(&lock);
    refresh_ports();
    pair = pair_of(&ports, &ends);
    if (pair != NULL) {
        one->qp = qp;
        one->ends = ends;
        one->place = free_place(pair);
        put(one);
        one = NULL;
    }
    (void)pthread_mutex_unlock(&lock);
    if (one != NULL)
        say_of(qp, &ends, "no port is known, left alone");
    free(one);
}

/* A QP may send: set its port. */
static void ready(struct ibv_qp *qp)
{
    const struct held *one;
    struct ends ends = {0};
    uint16_t port = 0;
    char what[128], why[64];
    int failed;

    (void)pthread_mutex_lock(&lock);
    one = held_of(qp);
    if (one != NULL) {
        const struct pair *pair = pair_of(&ports, &one->ends);

        ends = one->ends;
        if (pair != NULL && one->place < pair->count)
            port = ports.of_place[pair->first + one->place];
    }
    (void)pthread_mutex_unlock(&lock);
    if (port == 0)
        return;
    failed = set_port(qp, port);
    (void)snprintf(what, sizeof what, "port %u%s%s", port, failed == 0 ? "" : " is refused: ",
                   failed == 0 ? "" : strerror_r(failed, why, sizeof why));
    say_of(qp, &ends, what);
}

EXPORTED int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    modify_fn *real = real_modify();
    int result, as_it_was;

    if (real == NULL)
        return ENOSYS;
    result = real(qp, attr, mask);
    if (result != 0 || (mask & IBV_QP_STATE) == 0)
        return result;
    as_it_was = errno;
    (void)pthread_once(&settings_read, read_settings);
    if (attr->qp_state == IBV_QPS_RTR && (mask & IBV_QP_AV) != 0) {
        connected(qp, &attr->ah_attr);
    } else if (attr->qp_state == IBV_QPS_RTS) {
        ready(qp);
    } else if (attr->qp_state == IBV_QPS_RESET) {
        forget(qp);
    }
    errno = as_it_was;
    return result;
}

/* Release its place first, since another QP may be at its address once it is destroyed. */
EXPORTED int ibv_destroy_qp(struct ibv_qp *qp)
{
    destroy_fn *real = real_destroy();
    struct held *one;
    int result;

    if (real == NULL)
        return ENOSYS;
    (void)pthread_mutex_lock(&lock);
    one = taken(qp);
    (void)pthread_mutex_unlock(&lock);
    result = real(qp);
    if (result != 0 && one != NULL) {
        (void)pthread_mutex_lock(&lock);
        put(one);
        (void)pthread_mutex_unlock(&lock);
    } else {
        int as_it_was = errno;

        free(one);
        errno = as_it_was;
    }
    return result;
}

/* NCCL opens libibverbs by itself and looks up each function with its version. If it looks up one
 * that we wrap and finds that of libibverbs, it gets ours instead. All other calls leave by a jump:
 * what dlvsym finds for RTLD_NEXT depends on its caller, which must still be the program. */
EXPORTED EARLY void *dlvsym(void *restrict handle, const char *restrict name,
                      const char *restrict version)
{
    dlvsym_fn *real = real_dlvsym();
    union symbol ours = {.found = NULL}, theirs = {.found = NULL};

    if (real == NULL)
        return NULL;
    if (strcmp(version, VERBS) == 0 && strcmp(name, "ibv_modify_qp") == 0) {
        ours.modify = ibv_modify_qp;
        theirs.modify = real_modify();
    } else if (strcmp(version, VERBS) == 0 && strcmp(name, "ibv_destroy_qp") == 0) {
        ours.destroy = ibv_destroy_qp;
        theirs.destroy = real_destroy();
    }
    if (theirs.found == NULL)
        return real(handle, name, version);
    return real(handle, name, version) == theirs.found ? ours.found : real(handle, name, version);
}
