/* A verbs program that runs commands from standard input, one per line, and prints their results.
 *
 *     rtr NAME GID_INDEX ADDRESS     move a QP to ready to receive, creating it if necessary
 *     rts NAME | reset NAME | destroy NAME | busy NAME | port NAME
 *     ud NAME                        create a QP of datagrams
 *     next                           print whether a library loaded later finds itself by RTLD_NEXT
 *     threads COUNT EACH GID_INDEX ADDRESS   open and close EACH QPs in each of COUNT threads; then
 *                                    keep one in each, and print their ports
 *     forks COUNT EACH GID_INDEX ADDRESS     the same in two threads, with COUNT forks meanwhile,
 *                                    where each child opens QPs
 *
 * With the argument "direct" it calls the functions of libibverbs that it is linked to, as most
 * programs do. With "dlvsym" it looks them up, as NCCL does.
 */

#include "played.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int found_itself(void);

static int (*modify)(struct ibv_qp *, struct ibv_qp_attr *, int);
static int (*destroy)(struct ibv_qp *);

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "program: %s\n", what);
        exit(1);
    }
}

static int move(struct ibv_qp *qp, enum ibv_qp_state state, int gid_index, const char *address)
{
    struct ibv_qp_attr attr = {.qp_state = state};
    int mask = IBV_QP_STATE;

    if (state == IBV_QPS_RTR) {
        mask |= IBV_QP_AV;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.sgid_index = (uint8_t)gid_index;
        if (inet_pton(AF_INET6, address, attr.ah_attr.grh.dgid.raw) != 1) {
            attr.ah_attr.grh.dgid.raw[10] = attr.ah_attr.grh.dgid.raw[11] = 0xff;
            check(inet_pton(AF_INET, address, attr.ah_attr.grh.dgid.raw + 12) == 1, address);
        }
    }
    errno = ENOTTY;
    state = (enum ibv_qp_state)modify(qp, &attr, mask);
    check(errno == ENOTTY, "errno was changed");
    return (int)state;
}

struct task {
    pthread_t thread;
    int each, gid_index;
    const char *address;
    struct ibv_qp *kept;
};

static void *open_and_close(void *given)
{
    struct task *task = given;

    for (int i = 0; i <= task->each; i++) {
        struct ibv_qp *qp = played_create_qp(IBV_QPT_RC);

        check(move(qp, IBV_QPS_RTR, task->gid_index, task->address) == 0, "rtr");
        check(move(qp, IBV_QPS_RTS, 0, NULL) == 0, "rts");
        check(((struct played_qp *)qp)->port != 0, "a QP got no port");
        task->kept = qp;
        if (i < task->each)
            check(destroy(qp) == 0, "destroy");
    }
    return NULL;
}

static void run_threads(int count, int each, int gid_index, const char *address)
{
    struct task *tasks = calloc((size_t)count, sizeof *tasks);

    check(tasks != NULL, "memory");
    for (int i = 0; i < count; i++) {
        tasks[i] = (struct task){.each = each, .gid_index = gid_index, .address = address};
        check(pthread_create(&tasks[i].thread, NULL, open_and_close, &tasks[i]) == 0, "thread");
    }
    for (int i = 0; i < count; i++)
        pthread_join(tasks[i].thread, NULL);
    for (int i = 0; i < count; i++) {
        printf("%u\n", ((struct played_qp *)tasks[i].kept)->port);
        check(destroy(tasks[i].kept) == 0, "destroy");
    }
    free(tasks);
}

static void run_forks(int count, int each, int gid_index, const char *address)
{
    struct task tasks[2], child = {.gid_index = gid_index, .address = address};
    int status;

    for (int i = 0; i < 2; i++) {
        tasks[i] = (struct task){.each = each, .gid_index = gid_index, .address = address};
        check(pthread_create(&tasks[i].thread, NULL, open_and_close, &tasks[i]) == 0, "thread");
    }
    for (int i = 0; i < count; i++) {
        pid_t pid = fork();

        check(pid >= 0, "fork");
        if (pid == 0) {
            open_and_close(&child);
            _exit(0);
        }
        check(waitpid(pid, &status, 0) == pid && status == 0, "child");
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(tasks[i].thread, NULL);
        check(destroy(tasks[i].kept) == 0, "destroy");
    }
    printf("%d\n", count);
}

int main(int count, char **words)
{
    static struct ibv_qp *qps[1000];
    static char line[256], verb[32], address[64];

    check(count == 2, "say direct or dlvsym");
    if (strcmp(words[1], "dlvsym") == 0) {
        void *verbs = dlopen("libibverbs.so.1", RTLD_NOW);

        check(verbs != NULL, "libibverbs");
        *(void **)&modify = dlvsym(verbs, "ibv_modify_qp", "IBVERBS_1.1");
        *(void **)&destroy = dlvsym(verbs, "ibv_destroy_qp", "IBVERBS_1.1");
        check(modify != NULL && destroy != NULL, "functions");
        check(dlvsym(verbs, "ibv_modify_qp", "IBVERBS_1.7") == NULL, "a version that is not there");
    } else {
        modify = ibv_modify_qp;
        destroy = ibv_destroy_qp;
    }
    while (fgets(line, sizeof line, stdin) != NULL) {
        int name = 0, gid_index = 0, each = 0;

        check(sscanf(line, "%31s %d", verb, &name) >= 1, line);
        check(name >= 0 && name < 1000, "name");
        if (strcmp(verb, "rtr") == 0) {
            check(sscanf(line, "%*s %*d %d %63s", &gid_index, address) == 2, line);
            if (qps[name] == NULL)
                qps[name] = played_create_qp(IBV_QPT_RC);
            printf("%d\n", move(qps[name], IBV_QPS_RTR, gid_index, address));
        } else if (strcmp(verb, "ud") == 0) {
            qps[name] = played_create_qp(IBV_QPT_UD);
        } else if (strcmp(verb, "rts") == 0) {
            printf("%d\n", move(qps[name], IBV_QPS_RTS, 0, NULL));
        } else if (strcmp(verb, "reset") == 0) {
            printf("%d\n", move(qps[name], IBV_QPS_RESET, 0, NULL));
        } else if (strcmp(verb, "busy") == 0) {
            qps[name]->events_completed = !qps[name]->events_completed;
        } else if (strcmp(verb, "destroy") == 0) {
            int result = destroy(qps[name]);

            printf("%d\n", result);
            if (result == 0)
                qps[name] = NULL;
        } else if (strcmp(verb, "port") == 0) {
            printf("%u\n", ((struct played_qp *)qps[name])->port);
        } else if (strcmp(verb, "threads") == 0) {
            check(sscanf(line, "%*s %*d %d %d %63s", &each, &gid_index, address) == 3, line);
            run_threads(name, each, gid_index, address);
        } else if (strcmp(verb, "forks") == 0) {
            check(sscanf(line, "%*s %*d %d %d %63s", &each, &gid_index, address) == 3, line);
            run_forks(name, each, gid_index, address);
        } else if (strcmp(verb, "next") == 0) {
            printf("%d\n", found_itself());
        } else {
            check(0, line);
        }
        fflush(stdout);
    }
    for (int name = 0; name < 1000; name++)
        if (qps[name] != NULL)
            destroy(qps[name]);
    return 0;
}
