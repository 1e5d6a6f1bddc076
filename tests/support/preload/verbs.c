/* Simulates libibverbs as far as the preload library and program.c use it.
 *
 * GID index i is 10.0.i.1, and from 100 on fd00::i. Index 99 is of RoCEv1. As in libibverbs, there
 * are also functions of version IBVERBS_1.0, which must never be found for another version.
 */

#include "played.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index,
                      struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size)
{
    (void)context;
    (void)flags;
    if (port_num != 1 || entry_size != sizeof *entry || gid_index > 200)
        return ENODATA;
    memset(entry, 0, sizeof *entry);
    entry->gid_type = gid_index == 99 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
    if (gid_index >= 100) {
        entry->gid.raw[0] = 0xfd;
        entry->gid.raw[15] = (uint8_t)gid_index;
    } else {
        entry->gid.raw[10] = entry->gid.raw[11] = 0xff;
        entry->gid.raw[12] = 10;
        entry->gid.raw[14] = (uint8_t)gid_index;
        entry->gid.raw[15] = 1;
    }
    return 0;
}

struct ibv_qp *played_create_qp(enum ibv_qp_type type)
{
    static _Atomic uint32_t number;
    struct played_qp *played = calloc(1, sizeof *played);

    if (played == NULL)
        abort();
    played->qp.qp_num = ++number;
    played->qp.qp_type = type;
    return &played->qp;
}

/* As in libibverbs, the state changes if the attributes are complete, and errno is not touched. */
int modify_1_1(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    if ((mask & IBV_QP_STATE) == 0)
        return 0;
    if (attr->qp_state == IBV_QPS_RTR && (mask & IBV_QP_AV) == 0)
        return EINVAL;
    qp->state = attr->qp_state;
    return 0;
}

int destroy_1_1(struct ibv_qp *qp)
{
    if (qp->events_completed != 0) /* set by the program's "busy" */
        return EBUSY;
    free(qp);
    return 0;
}

int modify_1_0(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    (void)qp;
    (void)attr;
    (void)mask;
    abort();
}

int destroy_1_0(struct ibv_qp *qp)
{
    (void)qp;
    abort();
}

__asm__(".symver modify_1_1,ibv_modify_qp@@IBVERBS_1.1");
__asm__(".symver destroy_1_1,ibv_destroy_qp@@IBVERBS_1.1");
__asm__(".symver modify_1_0,ibv_modify_qp@IBVERBS_1.0");
__asm__(".symver destroy_1_0,ibv_destroy_qp@IBVERBS_1.0");
