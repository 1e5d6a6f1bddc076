/* Declarations shared by the two simulated libraries and the program that uses them. */

#ifndef PLAYED_H
#define PLAYED_H

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdint.h>

struct played_qp {
    struct ibv_qp qp; /* first, so that a pointer to either is valid */
    uint16_t port;    /* 0 until it is set */
};

struct ibv_qp *played_create_qp(enum ibv_qp_type type);

#endif
