/*
 * What DPDK's example l3fwd is given to be measured: the table of the file in $TABLE, and a thread
 * that prints, every $EVERY milliseconds,
 *
 *   STAMP CPU RECEIVED SENT_1 SENT_2 ...
 *
 * the time-stamp counter, nanoseconds of processor time of the forwarding thread, packets received
 * on port 0, packets sent by each other port. Before that "sum SUM": the next hops found for the
 * addresses in $DESTINATIONS (4 bytes each, host order) added up.
 */
#include "l3fwd.h"

/* Here the real ones are meant. */
#undef rte_pktmbuf_pool_create
#undef rte_lpm_create
#undef rte_fib_create
#undef rte_eth_dev_configure
#undef rte_eth_rx_queue_setup

#include "table.h"

#include <inttypes.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <rte_cycles.h>

static pthread_t forwarder;

static const char *setting(const char *name)
{
	const char *value = getenv(name);

	if (value == NULL)
		die(name);
	return value;
}

static void *report(void *unused)
{
	unsigned int every = atoi(setting("EVERY")) * 1000;
	clockid_t clock;

	if (pthread_getcpuclockid(forwarder, &clock) != 0)
		die("pthread_getcpuclockid");
	for (;;) {
		struct rte_eth_stats stats;
		struct timespec cpu;
		uint16_t port;

		usleep(every);
		clock_gettime(clock, &cpu);
		printf("at %" PRIu64 " %" PRIu64, rte_rdtsc(), cpu.tv_sec * 1000000000ull + cpu.tv_nsec);
		RTE_ETH_FOREACH_DEV(port) {
			rte_eth_stats_get(port, &stats);
			printf(" %" PRIu64, port == 0 ? stats.ipackets : stats.opackets);
		}
		printf("\n");
		fflush(stdout);
	}
	return unused;
}

static void start_report(void)
{
	pthread_t thread;

	forwarder = pthread_self();
	if (pthread_create(&thread, NULL, report, NULL) != 0)
		die("pthread_create");
}

struct rte_lpm *bench_lpm_create(const char *name, int socket, const struct rte_lpm_config *config)
{
	struct rte_lpm_config larger = *config;
	size_t n, count;
	struct prefix *prefixes = load_table(setting("TABLE"), &n);
	uint32_t *addresses = load(setting("DESTINATIONS"), 4, &count);
	uint64_t sum = 0;
	struct rte_lpm *lpm;

	larger.max_rules = n + 1024;
	larger.number_tbl8s = groups(prefixes, n) + 256;
	lpm = rte_lpm_create(name, socket, &larger);
	if (lpm == NULL)
		return NULL;
	fill_lpm(lpm, prefixes, n);
	for (size_t i = 0; i < count; i++) {
		uint32_t next_hop = 0;

		sum += rte_lpm_lookup(lpm, addresses[i], &next_hop) == 0 ? next_hop : 0;
	}
	printf("sum %" PRIu64 "\n", sum);
	fflush(stdout);
	free(prefixes);
	free(addresses);
	start_report();
	return lpm;
}

struct rte_fib *bench_fib_create(const char *name, int socket, struct rte_fib_conf *config)
{
	size_t n, count;
	struct prefix *prefixes = load_table(setting("TABLE"), &n);
	uint32_t *addresses = load(setting("DESTINATIONS"), 4, &count);
	uint64_t sum = 0, next_hop;
	struct rte_fib *fib;

	config->max_routes = n + 1024;
	config->dir24_8.num_tbl8 = groups(prefixes, n) + 256;
	fib = rte_fib_create(name, socket, config);
	if (fib == NULL)
		return NULL;
	for (size_t i = 0; i < n; i++)
		if (rte_fib_add(fib, prefixes[i].address, prefixes[i].length, prefixes[i].next_hop) != 0)
			die("rte_fib_add");
	for (size_t i = 0; i < count; i++)
		if (rte_fib_lookup_bulk(fib, &addresses[i], &next_hop, 1) == 0)
			sum += next_hop;
	printf("sum %" PRIu64 "\n", sum);
	fflush(stdout);
	free(prefixes);
	free(addresses);
	start_report();
	return fib;
}

int bench_configure(uint16_t port, uint16_t rx, uint16_t tx, const struct rte_eth_conf *config)
{
	struct rte_eth_conf plain = *config;

	plain.rxmode.offloads = 0;
	plain.txmode.offloads = 0;
	plain.rxmode.mq_mode = RTE_ETH_MQ_RX_NONE;
	plain.rx_adv_conf.rss_conf.rss_hf = 0;
	return rte_eth_dev_configure(port, rx, tx, &plain);
}

int bench_rx_setup(uint16_t port, uint16_t queue, uint16_t slots, unsigned int socket,
		   const struct rte_eth_rxconf *config, struct rte_mempool *pool)
{
	struct rte_eth_rxconf plain = *config;

	plain.offloads = 0;
	return rte_eth_rx_queue_setup(port, queue, slots, socket, &plain, pool);
}

/* A replayed capture stays in buffers of the pool. */
struct rte_mempool *bench_pool_create(const char *name, unsigned int n, unsigned int cache,
				      uint16_t private_size, uint16_t room, int socket)
{
	size_t replayed;

	free(load(setting("DESTINATIONS"), 4, &replayed));
	return rte_pktmbuf_pool_create(name, n + replayed, cache, private_size, room, socket);
}
