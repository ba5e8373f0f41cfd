/*
 * A routing table in a file, and DPDK's rte_lpm filled from it: shared by the programs of the
 * benchmarks that put DPDK beside sweepd.
 *
 * The file holds records of 8 bytes: address (4, host order), length (1), 0 (1), next hop (2).
 */
#ifndef TABLE_H
#define TABLE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <rte_lpm.h>

struct prefix {
	uint32_t address;
	uint8_t length, zero;
	uint16_t next_hop;
};

static inline void die(const char *what)
{
	fprintf(stderr, "%s\n", what);
	exit(1);
}

/* Reads a file of records of `size` bytes. */
static inline void *load(const char *path, size_t size, size_t *count)
{
	FILE *file = fopen(path, "rb");
	void *data;
	long bytes;

	if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (bytes = ftell(file)) < 0)
		die(path);
	rewind(file);
	data = malloc(bytes + 64);
	if (data == NULL || fread(data, 1, bytes, file) != (size_t)bytes)
		die(path);
	fclose(file);
	*count = bytes / size;
	return data;
}

static inline int by_length(const void *a, const void *b)
{
	return ((const struct prefix *)a)->length - ((const struct prefix *)b)->length;
}

/* Reads a table, shortest prefixes first. */
static inline struct prefix *load_table(const char *path, size_t *n)
{
	struct prefix *prefixes = load(path, sizeof(struct prefix), n);

	qsort(prefixes, *n, sizeof(*prefixes), by_length);
	return prefixes;
}

/* How many groups of 256 entries the prefixes longer than /24 need. */
static inline uint32_t groups(const struct prefix *prefixes, size_t n)
{
	uint8_t *seen = calloc(1 << 24, 1);
	uint32_t count = 0;

	if (seen == NULL)
		die("no memory");
	for (size_t i = 0; i < n; i++) {
		uint8_t *at = &seen[prefixes[i].address >> 8];

		if (prefixes[i].length > 24 && *at == 0) {
			*at = 1;
			count++;
		}
	}
	free(seen);
	return count;
}

/*
 * Writes the two levels directly: rte_lpm_add() takes time that grows with the square of the
 * table. The sums of next hops show that the result is the same table.
 */
static inline void fill_lpm(struct rte_lpm *lpm, const struct prefix *prefixes, size_t n)
{
	uint32_t used = 0;

	for (size_t i = 0; i < n; i++) {
		const struct prefix *p = &prefixes[i];
		struct rte_lpm_tbl_entry entry = {
			.next_hop = p->next_hop, .valid = 1, .valid_group = 0, .depth = p->length
		};
		uint32_t first = p->address >> 8;

		if (p->length <= 24) {
			for (uint32_t k = 0; k < 1u << (24 - p->length); k++)
				lpm->tbl24[first + k] = entry;
			continue;
		}
		if (!lpm->tbl24[first].valid_group) {
			struct rte_lpm_tbl_entry below = lpm->tbl24[first];

			/* In a group "valid_group" marks the group itself as used. */
			below.valid_group = 1;
			for (int k = 0; k < 256; k++)
				lpm->tbl8[used * 256 + k] = below;
			lpm->tbl24[first] = (struct rte_lpm_tbl_entry){
				.next_hop = used++, .valid = 1, .valid_group = 1, .depth = 0
			};
		}
		entry.valid_group = 1;
		for (uint32_t k = 0; k < 1u << (32 - p->length); k++)
			lpm->tbl8[lpm->tbl24[first].next_hop * 256 + (p->address & 255) + k] = entry;
	}
}

#endif
