/* What the two played libraries and the program that uses them share. */

#ifndef PLAYED_H
#define PLAYED_H

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdint.h>

struct played_qp {
    struct ibv_qp qp; /* first: one pointer is both */
    uint16_t port;    /* 0 until somebody sets it */
};

struct ibv_qp *played_create_qp(enum ibv_qp_type type);

#endif
