/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* R1 to R6: loading and initialisation. */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

/* Bytes of the data symbol, as its object file has them. */
static size_t symbol_bytes(void *symbol)
{
	const ElfW(Sym) *entry = NULL;
	Dl_info info;

	require(dladdr1(symbol, &info, (void **)&entry, RTLD_DL_SYMENT) && entry && info.dli_saddr == symbol,
		"the loader does not know the symbol");
	return entry->st_size;
}

/* Both names NCCL and RCCL look for are in the plugin's folder, and load. */
static void both_names(void *table)
{
	static const char *const names[] = { "libnccl-net-usb4.so", "librccl-net-usb4.so" };
	Dl_info info;
	char path[4096];

	require(dladdr(table, &info), "the loader does not know the plugin's file");
	const char *slash = strrchr(info.dli_fname, '/');
	int folder = slash ? (int)(slash - info.dli_fname) : 0;

	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%.*s%s%s", folder, info.dli_fname, slash ? "/" : "", names[i]);
		require(dlopen(path, RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
	}
}

static void r1_tables(struct side *side)
{
	void *library = net_library();
	struct net net;

	for (int version = NEWEST; version >= OLDEST; version--) {
		require(net_find(&net, library, version), "there is no ncclNetPlugin_v%d", version);
		size_t bytes = symbol_bytes((void *)net.table);

		require(bytes == net_table_bytes(version), "ncclNetPlugin_v%d has %zu bytes, not %zu", version, bytes,
			net_table_bytes(version));
		for (size_t slot = NAME; slot < bytes / sizeof(void *); slot++) {
			bool optional = slot == REG_MR_DMA_BUF || slot == GET_DEVICE_MR || slot == IRECV_CONSUMED ||
					slot == MAKE_VDEVICE || slot == SET_NET_ATTR;

			require(optional || net.table[slot], "member %zu of ncclNetPlugin_v%d is NULL", slot, version);
		}
	}
	both_names((void *)net.table);
	/* A message through each of them: a member in the wrong place would not survive it. */
	for (int version = NEWEST; version >= OLDEST; version--) {
		struct pair pair;

		net_find(&net, library, version);
		int result = net_init(&net);

		require(result == SUCCESS, "init of v%d gave %d: %s", version, result, last_warning());
		pair_open(side, &net, side->rank, &pair);
		exchange(&net, &pair, 100000, version);
		pair_close(&net, &pair);
		net_close(&net);
	}
}

static void check_props(int version, int dev, const uint8_t *raw, struct facts *facts)
{
	size_t bytes = net_props_bytes(version);
	/* Padding of each layout: between the list of members and the sizes behind it. */
	size_t gap = version >= 12 ? 100 : 84;

	for (size_t i = bytes; i < bytes + 64; i++)
		require(raw[i] == 0xaa, "getProperties of v%d wrote byte %zu of %zu", version, i, bytes);
	if (version >= 9)
		for (size_t i = gap; i < gap + 4; i++)
			require(raw[i] == 0, "getProperties of v%d left byte %zu unwritten", version, i);
	net_facts(version, raw, facts);
	require(facts->name && *facts->name, "v%d has no name", version);
	require(facts->ptr_support == POINTER_HOST, "v%d: ptrSupport is %d, not host alone", version, facts->ptr_support);
	require(facts->speed > 0 && facts->latency >= 0, "v%d: speed %d, latency %f", version, facts->speed,
		facts->latency);
	require(facts->max_comms == 65536, "v%d: maxComms is %d, not 65536", version, facts->max_comms);
	require(facts->max_recvs == 1, "v%d: maxRecvs is %d, not 1", version, facts->max_recvs);
	if (version >= 7)
		require(facts->device_type == 0, "v%d: netDeviceType is %d, not 0", version, facts->device_type);
	if (version >= 9) {
		require(facts->members == 1 && facts->member == dev, "v%d: vProps are {%d, [%d]}, not {1, [%d]}", version,
			facts->members, facts->member, dev);
		require(facts->max_p2p_bytes == 1LL << 40 && facts->max_coll_bytes == 1LL << 40,
			"v%d: maxP2pBytes is %lld and maxCollBytes %lld, not 1 << 40", version,
			(long long)facts->max_p2p_bytes, (long long)facts->max_coll_bytes);
	}
	if (version >= 11)
		require(facts->max_multi == 1, "v%d: maxMultiRequestSize is %d, not 1", version, facts->max_multi);
	if (version >= 12)
		require(facts->rail == -1 && facts->plane == -1, "v%d: railId is %d and planeId %d, not -1", version,
			facts->rail, facts->plane);
}

static void r2_properties(struct side *side)
{
	void *library = net_library();

	(void)side;
	for (int version = NEWEST; version >= OLDEST; version--) {
		struct facts first, second;
		struct net net;
		int count = 0;

		require(net_find(&net, library, version), "there is no ncclNetPlugin_v%d", version);
		int result = net_init(&net);

		require(result == SUCCESS, "init of v%d gave %d: %s", version, result, last_warning());
		require(net_devices(&net, &count) == SUCCESS && count >= 1, "v%d has %d devices", version, count);
		for (int dev = 0; dev < count; dev++) {
			uint8_t raw[256];

			memset(raw, 0xaa, sizeof(raw));
			result = net_properties(&net, dev, raw);
			require(result == SUCCESS, "getProperties of v%d gave %d", version, result);
			check_props(version, dev, raw, &first);
			memset(raw, 0xaa, sizeof(raw));
			result = net_properties(&net, dev, raw);
			require(result == SUCCESS, "a second getProperties of v%d gave %d", version, result);
			check_props(version, dev, raw, &second);
			require(first.name == second.name && first.pci_path == second.pci_path,
				"v%d: strings move from one getProperties to the next", version);
		}
		net_close(&net);
		require(strlen(first.name) > 0, "v%d: the name is gone after finalize", version);
	}
}

static int mappings(const char *file)
{
	char line[4352];
	int count = 0;
	FILE *maps = fopen("/proc/self/maps", "r");

	require(maps, "cannot read /proc/self/maps");
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, file) != NULL;
	fclose(maps);
	return count;
}

static void r3_stays_mapped(struct side *side)
{
	struct net net;
	struct pair pair;
	struct link_map *map = NULL;
	Dl_info info;
	char real[4096];

	net_load(&net);
	require(!dlinfo(net.library, RTLD_DI_LINKMAP, &map), "dlinfo: %s", dlerror());
	unsigned long flags = 0;

	for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag == DT_FLAGS_1)
			flags = entry->d_un.d_val;
	require(flags & DF_1_NODELETE, "it is not linked with -z nodelete");
	require(dladdr(net.table, &info) && realpath(info.dli_fname, real), "where is the plugin?");
	/* As NCCL 2.28 does after the last communicator; then a new one comes. */
	for (int i = 0; i < 3; i++) {
		int result = net_init(&net);

		require(result == SUCCESS, "init %d gave %d: %s", i, result, last_warning());
		pair_open(side, &net, side->rank, &pair);
		exchange(&net, &pair, 5000, i);
		pair_close(&net, &pair);
		net_close(&net);
		dlclose(net.library);
		require(mappings(real) > 0, "dlclose unmapped it");
		pause_ms(20);
		net_load(&net);
	}
	exit(0); /* runs what it has registered to run at exit */
}

static void r4_says_nothing(struct side *side)
{
	struct net net;
	struct pair pair;
	char raw[256], text[200] = "";
	int out[2], keep[2] = { dup(1), dup(2) };
	void *comm = NULL;

	require(!pipe(out), "pipe");
	dup2(out[1], 1), dup2(out[1], 2);
	net_open(&net);
	/* What NCCL would never ask gets an answer, not an abort. */
	static const int devices[] = { -1, 1000, 0x7fffffff };
	for (int i = 0; i < 3; i++) {
		require(net_properties(&net, devices[i], raw) != SUCCESS, "there is a device %d", devices[i]);
		net.dev = devices[i];
		memset(raw, 0, sizeof(raw));
		require(net_listen(&net, raw, &comm) != SUCCESS, "one can listen on device %d", devices[i]);
		require(net_connect(&net, raw, &comm) != SUCCESS, "one can connect by device %d", devices[i]);
	}
	net.dev = 0;
	pair_open(side, &net, side->rank, &pair);
	exchange(&net, &pair, 1000, 4);
	pair_close(&net, &pair);
	net_close(&net);
	int said = records();

	pause_ms(300);
	dlclose(net.library);
	require(records() == said, "it used the logger %d times after the last finalize", records() - said);
	dup2(keep[0], 1), dup2(keep[1], 2);
	close(out[1]);
	ssize_t got = read(out[0], text, sizeof(text) - 1);
	require(got == 0, "it wrote to standard output or error: %.150s", text);
	remark("panics cannot be caused from outside; the plugin's own tests cross its boundary with one");
}

static void *init_in_a_thread(void *count)
{
	struct net net;

	net_load(&net);
	for (int i = 0; i < 8; i++) {
		require(net_init(&net) == SUCCESS, "init in a thread: %s", last_warning());
		require(net.ctx || net.version < 11, "init gave no context");
		require(net_finalize(&net, net.ctx) == SUCCESS, "finalize in a thread");
		(*(int *)count)++;
	}
	return NULL;
}

static void r5_init_again(struct side *side)
{
	struct net net;
	struct pair pair;
	void *contexts[3];
	pthread_t threads[4];
	int counts[4] = { 0 };
	char good[256] = "";
	const char *given = getenv("USB4_DEVICE");

	if (given)
		snprintf(good, sizeof(good), "%s", given);
	net_load(&net);
	setenv("USB4_DEVICE", "soft:", 1);
	require(net_init(&net) != SUCCESS, "init with USB4_DEVICE=soft: succeeds");
	if (given)
		setenv("USB4_DEVICE", good, 1);
	else
		unsetenv("USB4_DEVICE");
	for (int i = 0; i < 3; i++) {
		int count = 0;

		require(net_init(&net) == SUCCESS, "init %d after a failure: %s", i, last_warning());
		contexts[i] = net.ctx;
		require(net_devices(&net, &count) == SUCCESS && count > 0, "no devices after init %d", i);
	}
	if (net.version >= 11)
		require(contexts[0] && contexts[0] != contexts[1] && contexts[1] != contexts[2],
			"communicators share a context");
	require(net_finalize(&net, contexts[0]) == SUCCESS, "finalize of the first");
	net.ctx = contexts[2];
	pair_open(side, &net, side->rank, &pair);
	exchange(&net, &pair, 3000, 5);
	require(net_finalize(&net, contexts[1]) == SUCCESS, "finalize of the second");
	exchange(&net, &pair, 3000, 6);
	pair_close(&net, &pair);
	for (int i = 0; i < 4; i++)
		require(!pthread_create(&threads[i], NULL, init_in_a_thread, &counts[i]), "no thread");
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		require(counts[i] == 8, "a thread did %d rounds of 8", counts[i]);
	}
	net_close(&net);
}

static void r6_fails_loudly(struct side *side)
{
	static const char *const nowhere[] = { "/dev/usb4ring-not-there", "soft:a/b", "nonsense" };
	struct net net;

	(void)side;
	net_load(&net);
	for (int i = 0; i < 3; i++) {
		int before = warnings();

		setenv("USB4_DEVICE", nowhere[i], 1);
		int result = net_init(&net);

		require(result != SUCCESS, "init succeeds with USB4_DEVICE=%s", nowhere[i]);
		require(warnings() - before == 1, "init with USB4_DEVICE=%s gave %d warnings, not one", nowhere[i],
			warnings() - before);
		require(warned_of(before, "usb4") && strlen(last_warning()) > 30, "the warning helps nobody: %s",
			last_warning());
	}
}

const struct rule load_rules[] = {
	{ 1, 1, 60, "all tables from v6 to v12, each of the right size and each carries a message", r1_tables },
	{ 2, 1, 20, "properties: right values, nothing unwritten, strings that stay", r2_properties },
	{ 3, 1, 30, "linked with -z nodelete; lives through dlclose and exit", r3_stays_mapped },
	{ 4, 1, 30, "bad arguments get errors; silent but for the logger, and that only until the last finalize",
	  r4_says_nothing },
	{ 5, 1, 30, "init again: after failure, side by side, in threads", r5_init_again },
	{ 6, 1, 30, "init fails with one warning where there is no device", r6_fails_loudly },
	{ 0 },
};
