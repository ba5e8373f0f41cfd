// The express program: forwards plain packets in the driver, from the very tables that the workers
// read. The program of an `xdp:` port calls it for what would go to a worker; what is not plain goes
// on to the port's socket, untouched. For every packet that it forwards, a worker would have made the
// same choice and sent the same bytes: the rules are those of src/forward/{parse,route,way_out,
// rewrite}.rs, and tests/express.rs compares the two.
//
// Sizes and places are those of src/tables/shown.rs and src/express/layout.rs. There are two
// instances of everything that a publication changes; `control` says which one is in force, if one is.
// The other one is changed by the keeper, once every program that may have begun with it has ended.
//
// `make bpf` makes express.bpf.bin of it: bare instructions; and, with STEPS defined, for kernels that
// do not tell a frame's length (before Linux 5.18), express-steps.bpf.bin. Where a map or a number is to be put
// that is known only when the program is loaded, stands a mark (PLACE); the loader replaces it.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed long long s64;

struct xdp_md {
	u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index;
};

#define PASS 2
#define REDIRECT 4
static u32 (*const this_cpu)(void) = (void *)8;
static long (*const redirect_map)(void *map, u64 key, u64 otherwise) = (void *)51;
static long (*const adjust_tail)(struct xdp_md *, int by) = (void *)65;
#ifndef STEPS
static u64 (*const ask_length)(struct xdp_md *) = (void *)188;
#endif

// What the loader puts in. The upper half marks the place, the lower one says for what.
#define PLACE(n) ({ u64 it; asm("%0 = 0x65787072" n " ll" : "=r"(it)); it; })
#define CONTROL (u32 *)PLACE("00000000")
#define VIEWS (struct view *)PLACE("00000001")
#define DIRECTORY4 (u32 *)PLACE("00000002")
#define BLOCKS4 (u64 *)PLACE("00000003")
#define DIRECTORY6 (u32 *)PLACE("00000004")
#define TREES6 (u64 *)PLACE("00000005")
#define HOPS (struct hop *)PLACE("00000006")
#define GROUPS (struct groups *)PLACE("00000007")
#define USED (u8 *)PLACE("00000008")
#define COUNTS (struct count *)PLACE("00000009")
#define DEVICES (void *)PLACE("0000000a")
#define SOCKETS (void *)PLACE("0000000b")
#define THIS_PORT PLACE("0000000c")
#define LAST_CPU PLACE("0000000d")

#define PORTS 256u
#define WORDS4 (1u << 18)
#define UNITS4 (1u << 20)
#define WORDS6 ((1u << 17) + (1u << 12))
#define LINES6 (1u << 17)
#define MAX_HOPS (1u << 15)
#define MAX_GROUPS 1024u
// A block that begins so many units before the end of the memory is not looked at: no load below
// goes further.
#define REACH 72

// The mark of a leaf that leads on, in either family.
#define DIVIDED 0x8000u
// A next hop that takes nothing.
#define NOWHERE 0u

#define ETHERNET 14
// Above the MAC address in a view: the port's packets may be forwarded here.
#define ON (1ull << 48)

struct view {
	u64 watched[64];
	u64 seed;
	u64 reserved[7];
	u64 ports[PORTS];
	u64 filler[184];
};

struct hop {
	u64 macs;
	u32 more_macs;
	u16 port, max_len;
};

struct groups {
	u16 of[MAX_HOPS];
	u16 buckets[MAX_GROUPS][256];
};

struct count {
	u64 rx_packets, rx_bytes, tx_packets, tx_bytes;
};

#define ONCE(x) (*(volatile typeof(x) *)&(x))
#define INLINE static inline __attribute__((always_inline))

INLINE u16 load16(const void *at) { return *(const u16 *)at; }
INLINE u32 load32(const void *at) { return *(const u32 *)at; }
INLINE u64 load64(const void *at) { return *(const u64 *)at; }
INLINE u16 net16(const void *at) { return __builtin_bswap16(load16(at)); }
INLINE u32 net32(const void *at) { return __builtin_bswap32(load32(at)); }
INLINE u64 net64(const void *at) { return __builtin_bswap64(load64(at)); }

#ifdef STEPS
// Bytes of the frame, counted in steps: to subtract one address from another takes CAP_PERFMON.
INLINE u64 count_length(struct xdp_md *ctx)
{
	u8 *at = (u8 *)(u64)ctx->data, *end = (u8 *)(u64)ctx->data_end;
	u64 length = 0;
#pragma clang loop unroll(full)
	for (int step = 2048; step > 0; step >>= 1) {
		if (at + step <= end) {
			at += step;
			length += step;
		}
		// Sums of several steps would be registers added to an address.
		asm("" : "+r"(at), "+r"(length));
	}
	return length;
}
#endif

// Bits set in a word: BPF has no instruction for that.
INLINE u32 ones(u64 word)
{
	word -= word >> 1 & 0x5555555555555555;
	word = (word & 0x3333333333333333) + (word >> 2 & 0x3333333333333333);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0f;
	return word * 0x0101010101010101 >> 56;
}

// The number of the leaf of place `n` of 64, and one: bits 0 to `n` that are set.
INLINE u32 up_to(u64 bitmap, u32 n)
{
	return ones(bitmap << (~n & 63));
}

// src/tables/fib4.rs. `to` is in host order.
INLINE u32 route4(u32 to, u32 instance)
{
	u32 word = ONCE((DIRECTORY4)[instance * WORDS4 + (to >> 14)]);
	if (word >= UNITS4 - REACH)
		return NOWHERE;
	const u64 *block = BLOCKS4 + ((u64)instance * UNITS4 + word) * 2;
	u32 leaf = ((const u16 *)block)[3 + up_to(block[0], to >> 8)];
	if (!(leaf & DIVIDED))
		return leaf;
	u32 inside = word + (leaf & ~DIVIDED);
	if (inside >= UNITS4 - REACH)
		return NOWHERE;
	block = BLOCKS4 + ((u64)instance * UNITS4 + inside) * 2;
	// All four words are read, and what is behind the host masked out without a jump: an address
	// that depends on one would take CAP_PERFMON.
	u32 number = 0;
#pragma clang loop unroll(full)
	for (int k = 0; k < 4; k++) {
		s64 last = (s64)(to & 255) - 64 * k;
		u64 whole = (62 - last) >> 63, none = last >> 63;
		// The compiler is not to see that these are all ones or none.
		asm("" : "+r"(whole), "+r"(none));
		number += ones(block[k] & (whole | ~0ull >> (~last & 63)) & ~none);
	}
	return ((const u16 *)block)[15 + (number & 511)] & ~DIVIDED;
}

// 1 when a < b, as signed numbers, without a jump: which way it goes nobody could guess.
INLINE u32 less(u64 a, u64 b)
{
	return ((a & ~b) | (~(a ^ b) & (a - b))) >> 63;
}

// How many of a line's first `n` bounds are below `key`.
INLINE u32 below(const u64 *line, int n, u64 key)
{
	u32 count = 0;
#pragma clang loop unroll(full)
	for (int i = 0; i < n; i++)
		count += less(line[i], key);
	return count;
}

// The line of the leaf for `key` below `word`: its number, or LINES6 when that is not to be seen
// from here. src/tables/tree6.rs.
INLINE u32 descend6(u32 word, u64 key, const u64 *trees)
{
	u32 line = word & 0x1fffffff;
	u32 depth = word >> 29;
	for (int level = 0; level < 7; level++) {
		if (line >= LINES6)
			return LINES6;
		if (depth <= 1)
			return line;
		const u64 *at = trees + (u64)line * 8;
		line += (u32)at[7] + below(at, 7, key);
		depth--;
	}
	return LINES6;
}

INLINE u32 leaf6(const u64 *line, u64 key)
{
	return ((const u16 *)(line + 6))[below(line, 6, key) & 7];
}

// src/tables/fib6.rs. Both halves are in host order.
INLINE u32 route6(u64 high, u64 low, u32 instance)
{
	// Fine chunks inside 2000::/3, coarse ones elsewhere; chosen without a jump, as above.
	u64 other = high >> 61 ^ 1, coarse = -((other | -other) >> 63);
	asm("" : "+r"(coarse));
	u32 place = (high >> 44 & ((1u << 17) - 1) & ~coarse) | ((1u << 17 | high >> 52) & coarse);
	if (place >= WORDS6)
		return NOWHERE;
	u32 word = ONCE((DIRECTORY6)[instance * WORDS6 + place]);
	if (word >> 29 == 0)
		return word & ~DIVIDED;
	const u64 *trees = TREES6 + (u64)instance * LINES6 * 8;
	u64 key = high ^ 1ull << 63;
	u32 line = descend6(word, key, trees);
	if (line >= LINES6)
		return NOWHERE;
	const u64 *at = trees + (u64)line * 8;
	u32 leaf = leaf6(at, key);
	if (!(leaf & DIVIDED))
		return leaf;
	// A /64 that longer prefixes divide: on to a tree over the lower half.
	u32 distance = (u32)((const u16 *)at)[31] << 15 | (leaf & ~DIVIDED);
	u32 reference = line * 16 + distance;
	if (distance >= LINES6 * 16 || reference >= LINES6 * 16)
		return NOWHERE;
	word = ((const u32 *)trees)[reference] + line;
	key = low ^ 1ull << 63;
	line = descend6(word, key, trees);
	if (line >= LINES6)
		return NOWHERE;
	return leaf6(trees + (u64)line * 8, key) & ~DIVIDED;
}

// The upper half of a product.
INLINE u64 high_of(u64 a, u64 b)
{
	u64 a0 = (u32)a, a1 = a >> 32, b0 = (u32)b, b1 = b >> 32;
	u64 one = a1 * b0 + (a0 * b0 >> 32);
	u64 other = a0 * b1 + (u32)one;
	return a1 * b1 + (one >> 32) + (other >> 32);
}

// src/forward/flow_hash.rs.
INLINE u64 mix(u64 hash, u64 word)
{
	const u64 upper = 0x9e3779b97f4a7c15, lower = 0xf39cc0605cedc835;
	u64 x = hash ^ word;
	return (high_of(x, lower) + x * upper) ^ x * lower;
}

INLINE u32 finish(u64 hash)
{
	return mix(hash, 0x2545f4914f6cdd1d) >> 32;
}

INLINE u32 hash4(u64 seed, const u8 *ip, const u8 *end, u32 length)
{
	u32 protocol = ip[9], ports = 0;
	// Only the first fragment has ports: none of a datagram's counts them.
	u32 fragment = load16(ip + 6) & 0xff3f;
	if ((protocol == 6 || protocol == 17) && !fragment && length >= 24 && ip + 24 <= end)
		ports = net32(ip + 20);
	return finish(mix(mix(seed, net64(ip + 12)), (u64)protocol << 32 | ports));
}

INLINE u32 hash6(u64 seed, const u8 *ip)
{
	u64 hash = mix(mix(seed, net64(ip + 8)), net64(ip + 16));
	hash = mix(mix(hash, net64(ip + 24)), net64(ip + 32));
	return finish(mix(hash, net32(ip) & 0xfffff));
}

INLINE u32 folded(u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

// Whether a bit of the filter is set: bits 0 to 11 of `bit` tell which. src/tables/local.rs.
INLINE int is_watched(const struct view *view, u32 bit)
{
	return view->watched[bit >> 6 & 63] >> (bit & 63) & 1;
}

// Whether the source may be forwarded, as far as that can be said at once.
INLINE int is_plain_source4(u32 from, const struct view *view)
{
	u32 first = from >> 24, mixed = from * 0x9e3779b9u;
	return first - 1 < 223 && first != 127 && from >> 16 != 0xa9fe &&
	       !(is_watched(view, mixed >> 20) && is_watched(view, mixed >> 8));
}

INLINE int is_plain_source6(u64 high, u64 low, const struct view *view)
{
	u32 upper = high >> 48;
	u64 mixed = (high ^ (low << 23 | low >> 41)) * 0x9e3779b97f4a7c15;
	return upper != 0 && (upper & 0xffc0) != 0xfe80 && upper < 0xff00 &&
	       !(is_watched(view, mixed >> 52) && is_watched(view, mixed >> 40));
}

__attribute__((section("xdp"), used)) int express(struct xdp_md *ctx)
{
#ifdef STEPS
	// First of all, while the verifier knows of one way only: it goes every way through the steps.
	u64 frame = count_length(ctx);
#endif
	u8 *head = (u8 *)(u64)ONCE(ctx->data), *end = (u8 *)(u64)ONCE(ctx->data_end);
	u8 *ip = head + ETHERNET;
	u32 instance = ONCE(*CONTROL);
	u32 length, next_hop, four;

	// 2: a stage has to see packets of which this one's tables do not know yet.
	if (instance > 1 || ip + 20 > end)
		goto worker;
	const struct view *view = VIEWS + instance;
	if ((load64(head) << 16 >> 16 | ON) != ONCE(view->ports[THIS_PORT]))
		goto worker;
	u32 kind = load32(head + 12);
	if ((kind & 0xffffff) == 0x450008) {
		four = 1;
		u32 from = net32(ip + 12);
		length = net16(ip + 2);
		u64 sum = (u64)load32(ip) + load32(ip + 4) + load32(ip + 8) + load32(ip + 12) + load32(ip + 16);
		if (length < 20 || ip[8] <= 1 || folded(sum) != 0xffff || !is_plain_source4(from, view))
			goto worker;
		next_hop = route4(net32(ip + 16), instance);
	} else if ((kind & 0xf0ffff) == 0x60dd86) {
		four = 0;
		if (ip + 40 > end)
			goto worker;
		u64 high = net64(ip + 8), low = net64(ip + 16);
		length = net16(ip + 4) + 40;
		if (ip[7] <= 1 || !is_plain_source6(high, low, view))
			goto worker;
		next_hop = route6(net64(ip + 24), net64(ip + 32), instance);
	} else {
		goto worker;
	}
#ifndef STEPS
	u64 frame = ask_length(ctx);
#endif
	if (next_hop == NOWHERE || length + ETHERNET > frame)
		goto worker;

	const struct hop *hops = HOPS + instance * MAX_HOPS;
	const struct hop *hop = hops + (next_hop & (MAX_HOPS - 1));
	if (length > hop->max_len) {
		const struct groups *groups = GROUPS + instance;
		u32 group = groups->of[next_hop & (MAX_HOPS - 1)];
		if (group == 0)
			goto worker;
		u32 hash;
		if (four)
			hash = hash4(view->seed, ip, end, length);
		else if (ip + 40 <= end)
			hash = hash6(view->seed, ip);
		else
			goto worker;
		next_hop = groups->buckets[(group - 1) & (MAX_GROUPS - 1)][hash >> 24];
		hop = hops + (next_hop & (MAX_HOPS - 1));
		if (length > hop->max_len)
			goto worker;
	}
	u32 port = hop->port;
	if (redirect_map(DEVICES, port, 0) != REDIRECT)
		goto worker;
	if (frame > length + ETHERNET) {
		// What pads the frame is not sent on.
		if (adjust_tail(ctx, (int)(length + ETHERNET) - (int)frame))
			goto worker;
		head = (u8 *)(u64)ctx->data;
		end = (u8 *)(u64)ctx->data_end;
		ip = head + ETHERNET;
		if (ip + 20 > end)
			goto worker;
	}
	*(u64 *)head = hop->macs;
	*(u32 *)(head + 8) = hop->more_macs;
	if (four) {
		// RFC 1624 equation 3 for a TTL less by one: HC' = ~(~HC + ~0x0100). TTL, protocol and
		// checksum are stored together: were the TTL stored like the hop limit, the compiler might
		// make one of the two and add to the packet's address, which takes CAP_PERFMON.
		u32 old = load32(ip + 8), sum = (u16)~__builtin_bswap16(old >> 16) + 0xfeff;
		u32 new_sum = __builtin_bswap16((u16)~((sum & 0xffff) + (sum >> 16)));
		*(u32 *)(ip + 8) = (old & 0xffff) - 1 | new_sum << 16;
	} else {
		ip[7]--;
	}
	struct count *counts = COUNTS + (this_cpu() & LAST_CPU) * PORTS;
	counts[THIS_PORT].rx_packets++;
	counts[THIS_PORT].rx_bytes += frame;
	counts[port & (PORTS - 1)].tx_packets++;
	counts[port & (PORTS - 1)].tx_bytes += length + ETHERNET;
	u8 *used = USED + (next_hop & (MAX_HOPS - 1));
	if (!*used)
		*used = 1;
	return REDIRECT;
worker:
	return redirect_map(SOCKETS, ctx->rx_queue_index, PASS);
}
