/* Simulates libmlx5: a port can only be set on an RC or UC QP in state RTS, and may be refused. */

#include "played.h"

#include <errno.h>
#include <stdlib.h>

int mlx5dv_modify_qp_udp_sport(struct ibv_qp *qp, uint16_t udp_sport)
{
    struct played_qp *played = (struct played_qp *)qp;

    if (getenv("PLAYED_REFUSES") != NULL)
        return EPERM;
    if (qp->state != IBV_QPS_RTS || (qp->qp_type != IBV_QPT_RC && qp->qp_type != IBV_QPT_UC))
        return EOPNOTSUPP;
    played->port = udp_sport;
    errno = EPERM; /* the program must not see this */
    return 0;
}
