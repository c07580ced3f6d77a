/*
 * UCX (the ucp API): waited-for operations of 8 bytes between two processes, on shared memory or over TCP.
 *
 * The program forks. The child is the target: it maps memory that UCX allocates, and passes its worker's address and
 * the memory's key through a pipe. The parent times put, get, compare-and-swap and fetch-and-add, one at a time, each
 * for a quarter of the time, in batches. A put is complete at the target when ucp_ep_flush_nbx is; the others are when
 * their value is there. The throughput is that of the median batch, since one operation is too short for the clock.
 * Every returned value is checked, and the target compares its memory with the last values at the end.
 *
 * The target progresses its worker until the two are connected, and then only if an operation needs it: the line says
 * so in target_progresses. (On shared memory with atomics of the processor it does not.)
 *
 * Build: gcc -O2 -o ucx_rma ucx_rma.c $(pkg-config --cflags --libs ucx)
 * Run:   ./ucx_rma [--seconds S] [--tls TRANSPORTS]     TRANSPORTS: as in UCX_TLS (default: shm, all on shared memory)
 */
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>

#include "peer.h"

enum { BATCH = 2000, BATCH_OF_A_NETWORK = 100, BATCHES_MIN = 5, BATCHES_MAX = 100000, LANES = 8, BLOB_MAX = 1 << 16 };
/* How long anything may take that is no measurement, and an operation that the target may have to help with. */
enum { PATIENCE_S = 20, HELP_S = 1 };

enum { PUT = 0, GET = 1, CAS = 2, FAA = 3, KINDS = 4 };
static const char *const KIND_NAMES[KINDS] = {"put", "get", "cas", "faa"};
static uint64_t issued[KINDS];
/* Operations between two looks at the clock. */
static long batch = BATCH;

static ucp_worker_h worker;
static ucp_ep_h ep;
static ucp_rkey_h rkey;
static uint64_t remote;

static void check(ucs_status_t status, const char *what)
{
	if (status != UCS_OK)
		peer_fail("%s: %s", what, ucs_status_string(status));
}

static void send_all(int to, const void *bytes, size_t length)
{
	for (const char *at = bytes; length;) {
		ssize_t sent = write(to, at, length);
		if (sent <= 0)
			peer_fail("the other process is gone");
		at += sent;
		length -= (size_t)sent;
	}
}

static void receive_all(int from, void *bytes, size_t length)
{
	for (char *at = bytes; length;) {
		ssize_t received = read(from, at, length);
		if (received <= 0)
			peer_fail("the other process is gone");
		at += received;
		length -= (size_t)received;
	}
}

static void send_blob(int to, const void *bytes, uint64_t length)
{
	send_all(to, &length, sizeof length);
	send_all(to, bytes, length);
}

static void *receive_blob(int from)
{
	uint64_t length;
	receive_all(from, &length, sizeof length);
	if (length > BLOB_MAX)
		peer_fail("an address or key of %llu bytes is too long", (unsigned long long)length);
	void *bytes = malloc(length);
	if (!bytes)
		peer_fail("no memory");
	receive_all(from, bytes, length);
	return bytes;
}

static ucp_context_h open_worker(const char *transports)
{
	ucp_config_t *config;
	ucp_context_h context;
	check(ucp_config_read(NULL, NULL, &config), "ucp_config_read");
	check(ucp_config_modify(config, "TLS", transports), "--tls");
	check(ucp_init(&(ucp_params_t){.field_mask = UCP_PARAM_FIELD_FEATURES,
				       .features = UCP_FEATURE_RMA | UCP_FEATURE_AMO64},
		       config, &context),
	      "ucp_init");
	ucp_config_release(config);
	check(ucp_worker_create(context,
				&(ucp_worker_params_t){.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
						       .thread_mode = UCS_THREAD_MODE_SINGLE},
				&worker),
	      "ucp_worker_create");
	return context;
}

static int is_readable(int from, int wait_ms)
{
	return poll(&(struct pollfd){.fd = from, .events = POLLIN}, 1, wait_ms) > 0;
}

/* The process whose memory the other one reads and writes. */
static void serve(const char *transports, int from, int to)
{
	ucp_context_h context = open_worker(transports);
	ucp_mem_h memory;
	check(ucp_mem_map(context,
			  &(ucp_mem_map_params_t){.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH |
								UCP_MEM_MAP_PARAM_FIELD_FLAGS,
						  .length = 4096,
						  .flags = UCP_MEM_MAP_ALLOCATE},
			  &memory),
	      "ucp_mem_map");
	ucp_mem_attr_t attributes = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
	check(ucp_mem_query(memory, &attributes), "ucp_mem_query");
	volatile uint64_t *words = attributes.address;
	memset(attributes.address, 0, KINDS * LANES * sizeof *words);

	ucp_address_t *address;
	size_t length;
	void *key;
	check(ucp_worker_get_address(worker, &address, &length), "ucp_worker_get_address");
	send_blob(to, address, length);
	check(ucp_rkey_pack(context, memory, &key, &length), "ucp_rkey_pack");
	send_blob(to, key, length);
	send_all(to, &attributes.address, sizeof attributes.address);
	ucp_rkey_buffer_release(key);
	ucp_worker_release_address(worker, address);

	/* 'c': connected, from here on no progress. 'p': progress after all. 'e': the end. */
	char word = 0;
	for (int does_progress = 1; word != 'e';) {
		if (does_progress)
			for (int i = 0; i < 100; i++)
				ucp_worker_progress(worker);
		if (is_readable(from, does_progress ? 0 : -1)) {
			receive_all(from, &word, 1);
			does_progress = word == 'p';
		}
	}
	uint64_t expected[KINDS];
	receive_all(from, expected, sizeof expected);
	for (int kind = 0; kind < KINDS; kind++)
		if (words[kind * LANES] != expected[kind])
			peer_fail("the target holds %llu where %s wrote %llu", (unsigned long long)words[kind * LANES],
				  KIND_NAMES[kind], (unsigned long long)expected[kind]);
	send_all(to, "e", 1);
	/* The initiator closes its endpoint while this side progresses. */
	while (!is_readable(from, 0))
		ucp_worker_progress(worker);
	check(ucp_mem_unmap(context, memory), "ucp_mem_unmap");
	ucp_worker_destroy(worker);
	ucp_cleanup(context);
}

/* Where to ask the target for progress, if an operation does not end without it. */
static int help = -1;
static int is_helped;

/* Waits for a request. */
static inline void wait_for(ucs_status_ptr_t request, const char *what)
{
	if (request == NULL)
		return;
	if (UCS_PTR_IS_ERR(request))
		peer_fail("%s: %s", what, ucs_status_string(UCS_PTR_STATUS(request)));
	uint64_t since = 0;
	ucs_status_t status;
	for (uint32_t turns = 1; (status = ucp_request_check_status(request)) == UCS_INPROGRESS; turns++) {
		ucp_worker_progress(worker);
		if (turns % 1024)
			continue;
		uint64_t now = peer_now_ns();
		since = since ? since : now;
		if (!is_helped && help >= 0 && now - since > HELP_S * UINT64_C(1000000000)) {
			send_all(help, "p", 1);
			is_helped = 1;
		}
		if (now - since > PATIENCE_S * UINT64_C(1000000000))
			peer_fail("%s has not ended within %d s", what, PATIENCE_S);
	}
	ucp_request_free(request);
	check(status, what);
}

static void flush(void)
{
	wait_for(ucp_ep_flush_nbx(ep, &(ucp_request_param_t){.op_attr_mask = 0}), "a flush");
}

/* Issues one operation, waits for it and checks what it returned. */
static inline void operate(int kind)
{
	static const ucp_request_param_t plain = {.op_attr_mask = 0};
	uint64_t old = issued[kind], new = old + 1, one = 1, result = old, at = remote + (uint64_t)kind * LANES * 8;
	ucp_request_param_t fetch = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_REPLY_BUFFER | UCP_OP_ATTR_FIELD_DATATYPE,
		.reply_buffer = &result,
		.datatype = ucp_dt_make_contig(8),
	};

	switch (kind) {
	case PUT:
		wait_for(ucp_put_nbx(ep, &new, sizeof new, at, rkey, &plain), "a put");
		flush();
		break;
	case GET:
		new = old;
		result = ~old;
		wait_for(ucp_get_nbx(ep, &result, sizeof result, at, rkey, &plain), "a get");
		break;
	case CAS:
		/* The reply buffer holds what is swapped in, and then what was there. */
		result = new;
		wait_for(ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_CSWAP, &old, 1, at, rkey, &fetch), "a compare-and-swap");
		break;
	case FAA:
		result = ~old;
		wait_for(ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &one, 1, at, rkey, &fetch), "a fetch-and-add");
		break;
	}
	if (result != old)
		peer_fail("%s returned %llu instead of %llu", KIND_NAMES[kind], (unsigned long long)result,
			  (unsigned long long)old);
	issued[kind] = new;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void measure(int kind, double seconds)
{
	static double batch_ns[BATCHES_MAX];
	int batches = 0;

	/* An operation that needs the target shows here. */
	operate(kind);
	for (long i = 0; i < batch; i++)
		operate(kind);
	uint64_t start = peer_now_ns(), now = start;
	while (batches < BATCHES_MIN || ((double)(now - start) < seconds * 1e9 && batches < BATCHES_MAX)) {
		uint64_t before = now;
		for (long i = 0; i < batch; i++)
			operate(kind);
		now = peer_now_ns();
		batch_ns[batches++] = (double)(now - before) / (double)batch;
	}
	qsort(batch_ns, (size_t)batches, sizeof batch_ns[0], compare_doubles);
	peer_print(&(struct peer_result){
		.system = "ucx",
		.version = ucp_get_version_string(),
		.bench = "fabric",
		.which = KIND_NAMES[kind],
		.processes = 2,
		.seconds = (double)(now - start) / 1e9,
		.operations = (uint64_t)batches * (uint64_t)batch,
		.throughput = 1e9 / batch_ns[batches / 2],
		.more = is_helped ? ",\"target_progresses\":true" : ",\"target_progresses\":false",
	});
}

/* The process that issues the operations. */
static void operate_all(const char *transports, double seconds, int from, int to)
{
	ucp_context_h context = open_worker(transports);
	ucp_address_t *address = receive_blob(from);
	void *key = receive_blob(from);
	void *base;
	receive_all(from, &base, sizeof base);
	remote = (uint64_t)(uintptr_t)base;
	check(ucp_ep_create(worker,
			    &(ucp_ep_params_t){.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address},
			    &ep),
	      "ucp_ep_create");
	check(ucp_ep_rkey_unpack(ep, key, &rkey), "ucp_ep_rkey_unpack");
	for (int kind = 0; kind < KINDS; kind++)
		operate(kind);
	flush();
	send_all(to, "c", 1);
	help = to;

	for (int kind = 0; kind < KINDS; kind++)
		measure(kind, seconds / KINDS);
	flush();
	send_all(to, "e", 1);
	send_all(to, issued, sizeof issued);
	char ended;
	receive_all(from, &ended, 1);

	ucp_rkey_destroy(rkey);
	ucp_request_param_t close = {.op_attr_mask = 0};
	help = -1;
	wait_for(ucp_ep_close_nbx(ep, &close), "closing the endpoint");
	send_all(to, "e", 1);
	ucp_worker_destroy(worker);
	ucp_cleanup(context);
	free(address);
	free(key);
}

int main(int argc, char **argv)
{
	peer_arguments(argc, argv, (const char *const[]){"--seconds", "--tls", NULL});
	double seconds = peer_real(argc, argv, "--seconds", 1, 0.001, 3600);
	const char *transports = peer_text(argc, argv, "--tls", "shm");
	if (strcmp(transports, "shm"))
		batch = BATCH_OF_A_NETWORK;
	peer_limit(seconds);

	int there[2], back[2];
	if (pipe(there) || pipe(back))
		peer_fail("no pipes");
	signal(SIGPIPE, SIG_IGN);
	pid_t target = fork();
	if (target < 0)
		peer_fail("no second process");
	if (target == 0) {
		/* The target ends with its parent, and has an alarm of its own. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		peer_limit(seconds);
		close(there[1]);
		close(back[0]);
		serve(transports, there[0], back[1]);
		return 0;
	}
	close(there[0]);
	close(back[1]);
	operate_all(transports, seconds, back[0], there[1]);
	int status;
	if (waitpid(target, &status, 0) != target || status)
		peer_fail("the target has failed");
	return 0;
}
