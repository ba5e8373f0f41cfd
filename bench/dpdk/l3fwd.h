/*
 * Put in front of every file of DPDK's example l3fwd, whose source is not touched: its tables are
 * made as large as the benchmark needs and filled from the benchmark's file, and what software
 * devices cannot offload is not asked of them.
 */
#ifndef L3FWD_SHIM_H
#define L3FWD_SHIM_H

#include <rte_ethdev.h>
#include <rte_fib.h>
#include <rte_lpm.h>
#include <rte_mbuf.h>

struct rte_lpm *bench_lpm_create(const char *name, int socket, const struct rte_lpm_config *config);
struct rte_fib *bench_fib_create(const char *name, int socket, struct rte_fib_conf *config);
int bench_configure(uint16_t port, uint16_t rx, uint16_t tx, const struct rte_eth_conf *config);
int bench_rx_setup(uint16_t port, uint16_t queue, uint16_t slots, unsigned int socket,
		   const struct rte_eth_rxconf *config, struct rte_mempool *pool);
struct rte_mempool *bench_pool_create(const char *name, unsigned int n, unsigned int cache,
				      uint16_t private_size, uint16_t room, int socket);

#define rte_pktmbuf_pool_create bench_pool_create
#define rte_lpm_create bench_lpm_create
#define rte_fib_create bench_fib_create
#define rte_eth_dev_configure bench_configure
#define rte_eth_rx_queue_setup bench_rx_setup

#endif
