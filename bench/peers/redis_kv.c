/*
 * Redis: YCSB's mixes of GET and SET by several client processes, over a UNIX socket or TCP, with hiredis.
 *
 * The program starts one redis-server of its own, with persistence off, and stops it at the end. Over TCP it listens
 * on a free port of the loopback interface, and otherwise on no port. The clients load the keys 0 to K-1 (8 bytes
 * each), and then keep a window of W requests outstanding, each on its one connection. The window slides: what a
 * client reads from its socket at once it replaces at once, so requests and replies travel in groups, as with the
 * pipeline of redis-benchmark.
 *
 * A value begins with its key, so every GET is checked; a SET must be answered with OK. A latency runs from the write
 * of a request to the read that brings its reply.
 *
 * Build: gcc -O2 -o redis_kv redis_kv.c $(pkg-config --cflags --libs hiredis) -lm
 * Run:   ./redis_kv [--seconds S] [--clients C] [--window W] [--keys K] [--value-size BYTES] [--read-percent P]
 *                   [--distribution uniform|zipfian] [--network unix|tcp] [--bench kv|fabric] [--server PROGRAM]
 *                   [--directory FOR_THE_SOCKET]
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <hiredis.h>
#include <math.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "peer.h"

enum { CLIENTS_MAX = 64, WINDOW_MAX = 4096, VALUE_MAX = 65536, KEY_BYTES = 5, LOAD_WINDOW = 128, START_S = 15 };

static uint64_t clients, window, keys, value_size, read_percent;
static double seconds;
static int is_zipfian;
static char directory[64], socket_path[80];
/* 0: over the UNIX socket. */
static int port;
static pid_t server;

/* What the clients share with the parent. */
struct client {
	uint64_t reads, updates;
	double seconds;
	struct peer_latencies latencies;
};
struct shared {
	/* How many clients have reached the phases: loading done, measuring done. */
	uint32_t arrived[2];
	struct client clients[CLIENTS_MAX];
};
static struct shared *shared;

/* --- Which key: uniform, or by YCSB's generator (Gray et al., SIGMOD 1994), scattered by a hash. --- */

static const double THETA = 0.99;
static double zeta, eta;

static void prepare_zipf(void)
{
	for (uint64_t rank = 1; rank <= keys; rank++)
		zeta += pow((double)rank, -THETA);
	eta = (1 - pow(2.0 / (double)keys, 1 - THETA)) / (1 - (1 + pow(0.5, THETA)) / zeta);
}

static uint64_t draw_key(uint64_t *state)
{
	if (!is_zipfian || keys < 3)
		return peer_below(state, keys);
	double u = (double)(peer_random(state) >> 11) * 0x1p-53, scaled = u * zeta;
	uint64_t rank = 1;
	if (scaled < 1)
		rank = 0;
	else if (scaled >= 1 + pow(0.5, THETA))
		rank = (uint64_t)((double)keys * pow(eta * u - eta + 1, 1 / (1 - THETA)));
	return peer_below(&rank, keys); /* one step of the generator is the hash */
}

/* --- The server --- */

static redisContext *connect_once(void)
{
	redisContext *to = port ? redisConnect("127.0.0.1", port) : redisConnectUnix(socket_path);
	if (!to || to->err) {
		redisFree(to);
		return NULL;
	}
	return to;
}

static redisContext *connect_or_fail(void)
{
	redisContext *to = connect_once();
	if (!to)
		peer_fail("no connection to redis-server");
	redisSetTimeout(to, (struct timeval){.tv_sec = 30});
	return to;
}

/* Another process may take it before the server does: then the server ends, and so does this program. */
static int free_port(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof address;
	int probe = socket(AF_INET, SOCK_STREAM, 0);
	if (probe < 0 || bind(probe, (struct sockaddr *)&address, length) ||
	    getsockname(probe, (struct sockaddr *)&address, &length))
		peer_fail("no port for redis-server");
	close(probe);
	return ntohs(address.sin_port);
}

static void start_server(const char *program)
{
	char port_text[8];
	snprintf(port_text, sizeof port_text, "%d", port);
	server = fork();
	if (server < 0)
		peer_fail("no process for redis-server");
	if (server == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int nowhere = open("/dev/null", O_RDWR);
		dup2(nowhere, STDIN_FILENO);
		dup2(nowhere, STDOUT_FILENO);
		execlp(program, program, "--port", port_text, "--bind", "127.0.0.1", "--unixsocket", socket_path, "--save", "",
		       "--appendonly", "no", "--daemonize", "no", "--dir", directory, (char *)NULL);
		fprintf(stderr, "%s: cannot start %s\n", peer_name, program);
		_exit(127);
	}
	for (uint64_t end = peer_now_ns() + START_S * UINT64_C(1000000000);;) {
		redisContext *to = connect_once();
		if (to) {
			redisFree(to);
			return;
		}
		if (waitpid(server, NULL, WNOHANG) == server)
			peer_fail("redis-server has ended at once");
		if (peer_now_ns() > end)
			peer_fail("redis-server does not listen within %d s", START_S);
		usleep(10000);
	}
}

static void stop_server(void)
{
	kill(server, SIGKILL); /* nothing is to be saved */
	waitpid(server, NULL, 0);
	unlink(socket_path);
}

/* The version that the server gives. */
static const char *server_version(redisContext *to)
{
	static char version[32] = "unknown";
	redisReply *reply = redisCommand(to, "INFO server");
	const char *at = reply && reply->type == REDIS_REPLY_STRING ? strstr(reply->str, "redis_version:") : NULL;
	if (at)
		sscanf(at, "redis_version:%31[0-9.]", version);
	freeReplyObject(reply);
	return version;
}

/* --- Requests and replies --- */

struct request {
	uint64_t key, issued_ns;
	int is_read;
};

/* Puts a text into a command. */
static char *put_text(char *at, const char *text, size_t length)
{
	memcpy(at, text, length);
	return at + length;
}

#define PUT(at, text) put_text(at, text, sizeof text - 1)

static void append(redisContext *to, const struct request *request, uint64_t content)
{
	static char command[VALUE_MAX + 64], length[32];
	static size_t length_bytes;
	char *at = command;
	at = request->is_read ? PUT(at, "*2\r\n$3\r\nGET\r\n$8\r\n") : PUT(at, "*3\r\n$3\r\nSET\r\n$8\r\n");
	at = put_text(at, (const char *)&request->key, 8);
	if (!request->is_read) {
		if (!length_bytes)
			length_bytes = (size_t)snprintf(length, sizeof length, "\r\n$%llu\r\n",
							(unsigned long long)value_size);
		at = put_text(at, length, length_bytes);
		/* The low bytes are the key's, the others differ from write to write. */
		uint64_t word = request->key | content << (8 * KEY_BYTES);
		for (uint64_t byte = 0; byte < value_size; byte += 8)
			memcpy(at + byte, &word, value_size - byte < 8 ? value_size - byte : 8);
		at += value_size;
	}
	at = PUT(at, "\r\n");
	if (redisAppendFormattedCommand(to, command, (size_t)(at - command)) != REDIS_OK)
		peer_fail("a request: %s", to->errstr);
}

/*
 * The reply that was read last. The clients share the cores with the server, so they save what they can: hiredis would
 * allocate an object for each reply.
 */
static struct reply {
	int type;
	size_t length;
	/* The beginning of the text, and a zero. */
	char start[64];
} last;

static void *take_text(const redisReadTask *task, char *text, size_t length)
{
	size_t kept = length < sizeof last.start - 1 ? length : sizeof last.start - 1;
	last.type = task->type;
	last.length = length;
	memcpy(last.start, text, kept);
	last.start[kept] = '\0';
	return &last;
}

static void *take_nil(const redisReadTask *task)
{
	last = (struct reply){.type = task->type};
	return &last;
}

static void drop_reply(void *reply)
{
	(void)reply;
}

/* Neither GET nor SET is answered with anything else. */
static redisReplyObjectFunctions reply_functions = {
	.createString = take_text, .createNil = take_nil, .freeObject = drop_reply};

static void check(const struct reply *reply, const struct request *request)
{
	if (reply->type == REDIS_REPLY_ERROR)
		peer_fail("redis-server answers: %s", reply->start);
	if (!request->is_read) {
		if (reply->type != REDIS_REPLY_STATUS || strcmp(reply->start, "OK"))
			peer_fail("a SET is not answered with OK");
		return;
	}
	uint64_t compared = value_size < KEY_BYTES ? value_size : KEY_BYTES;
	if (reply->type != REDIS_REPLY_STRING || reply->length != value_size)
		peer_fail("key %llu, which was loaded, is not there", (unsigned long long)request->key);
	if (memcmp(reply->start, &request->key, compared))
		peer_fail("key %llu has the value of another", (unsigned long long)request->key);
}

/* Issues requests, `outstanding_max` at a time, until `next` has no more; `next` fills in a request. */
static void run_window(redisContext *to, uint64_t outstanding_max, int (*next)(struct request *, void *), void *state,
		       struct client *result)
{
	static struct request ring[WINDOW_MAX];
	uint64_t issued = 0, done = 0, now = peer_now_ns();
	for (int more = 1; more || done < issued;) {
		while (more && issued - done < outstanding_max) {
			struct request *request = &ring[issued % outstanding_max];
			if (!(more = next(request, state)))
				break;
			request->issued_ns = now;
			append(to, request, issued);
			issued++;
		}
		for (int is_written = 0; !is_written;)
			if (redisBufferWrite(to, &is_written) != REDIS_OK)
				peer_fail("writing requests: %s", to->errstr);
		if (done == issued)
			break;
		if (redisBufferRead(to) != REDIS_OK)
			peer_fail("reading replies: %s", to->errstr);
		now = peer_now_ns();
		void *reply = NULL;
		while (done < issued && redisGetReplyFromReader(to, &reply) == REDIS_OK && reply) {
			const struct request *request = &ring[done % outstanding_max];
			check(reply, request);
			reply = NULL;
			if (result) {
				*(request->is_read ? &result->reads : &result->updates) += 1;
				peer_record(&result->latencies, now - request->issued_ns, 1);
			}
			done++;
		}
		if (to->err)
			peer_fail("a reply: %s", to->errstr);
	}
}

/* --- The clients --- */

static int next_to_load(struct request *request, void *state)
{
	uint64_t *key = state;
	if (*key >= keys)
		return 0;
	*request = (struct request){.key = *key};
	*key += clients;
	return 1;
}

struct draws {
	uint64_t random, end_ns, count;
	int is_over;
};

static int next_of_mix(struct request *request, void *state)
{
	struct draws *draws = state;
	/* Read once for a few requests, the clock costs little. */
	if (draws->count++ % 8 == 0)
		draws->is_over = peer_now_ns() >= draws->end_ns;
	if (draws->is_over)
		return 0;
	request->key = draw_key(&draws->random);
	request->is_read = read_percent == 100 || peer_below(&draws->random, 100) < read_percent;
	return 1;
}

/* Waits for all clients. The parent ends them all if one of them fails. */
static void meet(int phase)
{
	__atomic_add_fetch(&shared->arrived[phase], 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&shared->arrived[phase], __ATOMIC_SEQ_CST) < clients)
		usleep(200);
}

static void be_client(uint64_t number)
{
	struct client *result = &shared->clients[number];
	redisContext *to = connect_or_fail();
	to->reader->fn = &reply_functions;
	uint64_t first = number;
	run_window(to, LOAD_WINDOW, next_to_load, &first, NULL);
	meet(0);
	uint64_t start = peer_now_ns();
	struct draws draws = {.random = number, .end_ns = start + (uint64_t)(seconds * 1e9)};
	run_window(to, window, next_of_mix, &draws, result);
	result->seconds = (double)(peer_now_ns() - start) / 1e9;
	meet(1);
	redisFree(to);
}

static void start_clients(void)
{
	for (uint64_t number = 0; number < clients; number++) {
		pid_t client = fork();
		if (client < 0)
			peer_fail("no process for a client");
		if (client == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			peer_limit(seconds + (double)keys / 1e5);
			be_client(number);
			_exit(0);
		}
	}
	for (uint64_t ended = 0; ended < clients; ended++) {
		int status;
		pid_t which = waitpid(-1, &status, 0);
		/* The others end with this process. */
		if (which == server)
			peer_fail("redis-server has ended");
		if (which < 0 || status)
			peer_fail("a client has failed");
	}
}

int main(int argc, char **argv)
{
	peer_arguments(argc, argv,
		       (const char *const[]){"--seconds", "--clients", "--window", "--keys", "--value-size",
					     "--read-percent", "--distribution", "--network", "--bench", "--server",
					     "--directory", NULL});
	seconds = peer_real(argc, argv, "--seconds", 1, 0.001, 3600);
	clients = peer_number(argc, argv, "--clients", 3, 1, CLIENTS_MAX);
	window = peer_number(argc, argv, "--window", 32, 1, WINDOW_MAX);
	keys = peer_number(argc, argv, "--keys", 500000, 1, 1000000000);
	value_size = peer_number(argc, argv, "--value-size", 8, 1, VALUE_MAX);
	read_percent = peer_number(argc, argv, "--read-percent", 100, 0, 100);
	const char *distribution = peer_text(argc, argv, "--distribution", "uniform");
	is_zipfian = !strcmp(distribution, "zipfian");
	if (!is_zipfian && strcmp(distribution, "uniform"))
		peer_fail("--distribution %s: uniform or zipfian", distribution);
	const char *network = peer_text(argc, argv, "--network", "unix");
	if (strcmp(network, "unix") && strcmp(network, "tcp"))
		peer_fail("--network %s: unix or tcp", network);
	port = strcmp(network, "tcp") ? 0 : free_port();
	const char *bench = peer_text(argc, argv, "--bench", "kv");
	int is_fabric = !strcmp(bench, "fabric");
	if (!is_fabric && strcmp(bench, "kv"))
		peer_fail("--bench %s: kv or fabric", bench);
	const char *given = peer_text(argc, argv, "--directory", NULL);
	if (given && strlen(given) >= sizeof directory)
		peer_fail("--directory: a path for a socket has at most %zu bytes", sizeof directory - 1);
	strcpy(directory, given ? given : "/tmp/redis_kv-XXXXXX");
	if (!given && !mkdtemp(directory))
		peer_fail("no directory for the socket");
	snprintf(socket_path, sizeof socket_path, "%s/redis.sock", directory);
	peer_limit(seconds + (double)keys / 1e5);
	signal(SIGPIPE, SIG_IGN);
	if (is_zipfian)
		prepare_zipf();

	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		peer_fail("no memory to share with the clients");
	start_server(peer_text(argc, argv, "--server", "redis-server"));
	start_clients();

	redisContext *to = connect_or_fail();
	const char *version = server_version(to);
	redisReply *reply = redisCommand(to, "DBSIZE");
	if (!reply || reply->type != REDIS_REPLY_INTEGER || (uint64_t)reply->integer != keys)
		peer_fail("redis-server does not hold the keys that were loaded");
	freeReplyObject(reply);
	redisFree(to);
	stop_server();
	if (!given)
		rmdir(directory);

	static struct peer_latencies latencies;
	uint64_t reads = 0, updates = 0, each[CLIENTS_MAX];
	double longest = 0;
	for (uint64_t number = 0; number < clients; number++) {
		struct client *client = &shared->clients[number];
		each[number] = client->reads + client->updates;
		reads += client->reads;
		updates += client->updates;
		longest = client->seconds > longest ? client->seconds : longest;
		for (unsigned at = 0; at < PEER_BUCKETS; at++)
			latencies.counts[at] += client->latencies.counts[at];
	}
	const char *which = read_percent == 100 ? "c" : read_percent == 95 ? "b" : read_percent == 50 ? "a" : "mix";
	if (is_fabric)
		which = read_percent == 100 ? "get" : "put";
	char more[96];
	snprintf(more, sizeof more, ",\"reads\":%llu,\"updates\":%llu", (unsigned long long)reads,
		 (unsigned long long)updates);
	peer_print(&(struct peer_result){
		.system = "redis",
		.version = version,
		.bench = bench,
		.which = which,
		.processes = (unsigned)clients,
		.seconds = longest,
		.operations = reads + updates,
		.each = each,
		.latencies = &latencies,
		.more = more,
	});
	return 0;
}
