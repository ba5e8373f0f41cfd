/*
 * The IPv4 lookup libraries of DPDK, on the tables and traces of `sweepd-bench lookup`, which
 * builds and runs this program and alternates its own measurements with these.
 *
 *   lookup [EAL arguments] -- PREFIXES TRACE...
 *
 * PREFIXES is a table as table.h reads it. A TRACE holds addresses, 4 bytes each, host order. After loading it prints one line for each
 * library, "table NAME BYTES BUILD_MS UPDATE_P50_NS UPDATE_P99_NS" (0: not measured), then "ready".
 * Then each line "NAME LIBRARY TRACE_NUMBER" on standard input is answered by a line with the
 * median rate in lookups per second and the sum of all next hops found.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_eal.h>
#include <rte_fib.h>
#include <rte_lpm.h>
#include <rte_malloc.h>
#include <rte_rib.h>

#include "table.h"

#define SLICE 16384
#define BULK 32
#define UPDATES 2000

struct trace {
	uint32_t *addresses;
	size_t count;
};

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* Bytes that DPDK's heap has given out. */
static size_t heap(void)
{
	struct rte_malloc_socket_stats stats;

	return rte_malloc_get_socket_stats(0, &stats) == 0 ? stats.heap_allocsz_bytes : 0;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static struct rte_lpm *build_lpm(const struct prefix *prefixes, size_t n, uint32_t tbl8s)
{
	struct rte_lpm_config config = { .max_rules = n, .number_tbl8s = tbl8s + 1 };
	struct rte_lpm *lpm = rte_lpm_create("lpm", 0, &config);

	if (lpm == NULL)
		die("rte_lpm_create");
	fill_lpm(lpm, prefixes, n);
	return lpm;
}

static struct rte_fib *build_fib(const struct prefix *prefixes, size_t n, uint32_t tbl8s)
{
	struct rte_fib_conf config = {
		.type = RTE_FIB_DIR24_8,
		.default_nh = 0,
		.max_routes = n + UPDATES + 16,
		.dir24_8 = { .nh_sz = RTE_FIB_DIR24_8_4B, .num_tbl8 = tbl8s + 1024 },
	};
	struct rte_fib *fib = rte_fib_create("fib", 0, &config);

	if (fib == NULL)
		die("rte_fib_create");
	for (size_t i = 0; i < n; i++)
		if (rte_fib_add(fib, prefixes[i].address, prefixes[i].length, prefixes[i].next_hop) != 0)
			die("rte_fib_add");
	return fib;
}

/* Takes prefixes out and puts them back; gives the median and the 99th percentile. */
static void update_fib(struct rte_fib *fib, const struct prefix *prefixes, size_t n, uint64_t *out)
{
	static uint64_t times[UPDATES];
	uint64_t state = 1;

	for (int i = 0; i < UPDATES; i += 2) {
		const struct prefix *p;
		uint64_t start;

		state = state * 6364136223846793005ull + 1442695040888963407ull;
		p = &prefixes[(state >> 32) % n];
		start = now();
		rte_fib_delete(fib, p->address, p->length);
		times[i] = now() - start;
		start = now();
		rte_fib_add(fib, p->address, p->length, p->next_hop);
		times[i + 1] = now() - start;
	}
	qsort(times, UPDATES, sizeof(times[0]), by_value);
	out[0] = times[UPDATES / 2];
	out[1] = times[UPDATES * 99 / 100];
}

static struct rte_lpm *lpm;
static struct rte_fib *fib;

static uint64_t lpm_single(const uint32_t *a)
{
	uint64_t sum = 0;

	for (int i = 0; i < SLICE; i++) {
		uint32_t next_hop = 0;

		sum += rte_lpm_lookup(lpm, a[i], &next_hop) == 0 ? next_hop : 0;
	}
	return sum;
}

static uint64_t lpm_bulk(const uint32_t *a)
{
	uint32_t out[BULK];
	uint64_t sum = 0;

	for (int i = 0; i < SLICE; i += BULK) {
		rte_lpm_lookup_bulk(lpm, a + i, out, BULK);
		for (int k = 0; k < BULK; k++)
			sum += out[k] & RTE_LPM_LOOKUP_SUCCESS ? out[k] & 0xffffff : 0;
	}
	return sum;
}

static uint64_t fib_bulk(const uint32_t *a)
{
	uint64_t out[BULK];
	uint64_t sum = 0;

	for (int i = 0; i < SLICE; i += BULK) {
		rte_fib_lookup_bulk(fib, (uint32_t *)(uintptr_t)(a + i), out, BULK);
		for (int k = 0; k < BULK; k++)
			sum += out[k];
	}
	return sum;
}

/* The median rate over the slices of a trace, and the sum of all next hops found. */
static void measure(const char *library, const struct trace *trace)
{
	uint64_t (*run)(const uint32_t *) = fib_bulk;
	size_t slices = trace->count / SLICE;
	uint64_t *times = malloc(slices * sizeof(*times)), sum = 0;

	if (times == NULL || slices == 0)
		die("a trace is too short");
	if (strcmp(library, "rte_lpm") == 0)
		run = lpm_single;
	else if (strcmp(library, "rte_lpm_bulk") == 0)
		run = lpm_bulk;
	else if (rte_fib_select_lookup(fib, strcmp(library, "rte_fib_avx512") == 0 ?
				       RTE_FIB_LOOKUP_DIR24_8_VECTOR_AVX512 :
				       RTE_FIB_LOOKUP_DIR24_8_SCALAR_MACRO) != 0) {
		printf("0 0\n");
		free(times);
		return;
	}
	for (size_t i = 0; i < slices; i++) {
		uint64_t start = now();

		sum += run(trace->addresses + i * SLICE);
		times[i] = now() - start;
	}
	qsort(times, slices, sizeof(*times), by_value);
	printf("%.0f %" PRIu64 "\n", SLICE * 1e9 / times[slices / 2], sum);
	free(times);
}

int main(int argc, char **argv)
{
	int taken = rte_eal_init(argc, argv), traces_count;
	struct prefix *prefixes;
	struct trace traces[16];
	size_t n, before;
	uint32_t tbl8s;
	uint64_t start, built, update[2] = { 0, 0 };
	char library[32];
	int number;

	if (taken < 0)
		die("rte_eal_init");
	argc -= taken + 1;
	argv += taken + 1;
	traces_count = argc - 1;
	if (traces_count < 1 || traces_count > 16)
		die("usage: lookup [EAL arguments] -- PREFIXES TRACE...");
	prefixes = load_table(argv[0], &n);
	for (int i = 0; i < traces_count; i++)
		traces[i].addresses = load(argv[1 + i], sizeof(uint32_t), &traces[i].count);
	tbl8s = groups(prefixes, n);

	before = heap();
	start = now();
	lpm = build_lpm(prefixes, n, tbl8s);
	built = now() - start;
	printf("table rte_lpm %zu %.1f 0 0\n", heap() - before, built / 1e6);
	before = heap();
	start = now();
	fib = build_fib(prefixes, n, tbl8s);
	built = now() - start;
	printf("table rte_fib %zu %.1f ", heap() - before, built / 1e6);
	update_fib(fib, prefixes, n, update);
	printf("%" PRIu64 " %" PRIu64 "\nready\n", update[0], update[1]);
	fflush(stdout);

	while (scanf("%31s %d", library, &number) == 2) {
		if (number < 0 || number >= traces_count)
			die("no such trace");
		measure(library, &traces[number]);
		fflush(stdout);
	}
	return 0;
}
