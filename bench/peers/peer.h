/*
 * What the peer programs share: arguments, a limit of time, random numbers, latencies, and the line of JSON that each
 * prints. Include <mpi.h> first in a program of MPI's, so that a failure ends all ranks.
 */
#ifndef PEER_H
#define PEER_H

#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *peer_name = "peer";

/* Says what is wrong, and ends the program with status 1. */
__attribute__((noreturn, format(printf, 1, 2))) static inline void peer_fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "%s: ", peer_name);
	vfprintf(stderr, format, arguments);
	fprintf(stderr, "\n");
	va_end(arguments);
#ifdef MPI_VERSION
	int is_running = 0, is_over = 1;
	MPI_Initialized(&is_running);
	MPI_Finalized(&is_over);
	if (is_running && !is_over)
		MPI_Abort(MPI_COMM_WORLD, 1);
#endif
	exit(1);
}

/* --- Arguments: `--name value`, all optional. --- */

/* Refuses arguments that are not among `names`, which ends with a null pointer. */
static inline void peer_arguments(int argc, char **argv, const char *const *names)
{
	const char *slash = strrchr(argv[0], '/');
	peer_name = slash ? slash + 1 : argv[0];
	for (int at = 1; at < argc; at += 2) {
		const char *const *name = names;
		while (*name && strcmp(*name, argv[at]))
			name++;
		if (!*name)
			peer_fail("unknown argument %s", argv[at]);
		if (at + 1 == argc)
			peer_fail("%s needs a value", argv[at]);
	}
}

static inline const char *peer_text(int argc, char **argv, const char *name, const char *otherwise)
{
	for (int at = 1; at + 1 < argc; at += 2)
		if (!strcmp(argv[at], name))
			return argv[at + 1];
	return otherwise;
}

static inline double peer_real(int argc, char **argv, const char *name, double otherwise, double min, double max)
{
	const char *text = peer_text(argc, argv, name, NULL);
	char *end;
	if (!text)
		return otherwise;
	double value = strtod(text, &end);
	if (*end || end == text || !(value >= min && value <= max))
		peer_fail("%s %s: a number from %g to %g is needed", name, text, min, max);
	return value;
}

static inline uint64_t peer_number(int argc, char **argv, const char *name, uint64_t otherwise, uint64_t min,
				   uint64_t max)
{
	double value = peer_real(argc, argv, name, (double)otherwise, (double)min, (double)max);
	if (value != (double)(uint64_t)value)
		peer_fail("%s: a whole number is needed", name);
	return (uint64_t)value;
}

/* --- Time --- */

static inline uint64_t peer_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void peer_is_late(int signal)
{
	static const char text[] = "a peer program took longer than it may: it ends here\n";
	(void)signal;
	if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
		_exit(125);
	_exit(124);
}

/* A program that measures for so many seconds ends, with status 124, if it has not ended long after them. */
static inline void peer_limit(double seconds)
{
	signal(SIGALRM, peer_is_late);
	alarm((unsigned)(2 * seconds) + 60);
}

/* Spends so many nanoseconds of processor time. */
static inline void peer_work(uint64_t ns)
{
	if (ns)
		for (uint64_t end = peer_now_ns() + ns; peer_now_ns() < end;)
			;
}

/* --- Random numbers (splitmix64), fast and different for each seed. --- */

static inline uint64_t peer_random(uint64_t *state)
{
	uint64_t mixed = *state += 0x9e3779b97f4a7c15u;
	mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
	mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
	return mixed ^ (mixed >> 31);
}

/* A random number below `range`. */
static inline uint64_t peer_below(uint64_t *state, uint64_t range)
{
	return (uint64_t)(((unsigned __int128)peer_random(state) * range) >> 64);
}

/* --- Latencies: 256 buckets for each power of two, so values are kept to within 0.4 %; one minute is the most. --- */

enum { PEER_SUB = 256, PEER_SUB_BITS = 8, PEER_OCTAVES = 28, PEER_BUCKETS = PEER_SUB * (PEER_OCTAVES + 1) };

struct peer_latencies {
	uint64_t counts[PEER_BUCKETS];
};

static inline void peer_record(struct peer_latencies *latencies, uint64_t ns, uint64_t operations)
{
	if (ns > 60000000000u)
		ns = 60000000000u;
	unsigned at = (unsigned)ns;
	if (ns >= PEER_SUB) {
		unsigned shift = 63 - (unsigned)__builtin_clzll(ns) - PEER_SUB_BITS;
		at = PEER_SUB * shift + (unsigned)(ns >> shift);
	}
	latencies->counts[at] += operations;
}

/* The middle of a bucket, in nanoseconds. */
static inline uint64_t peer_bucket_ns(unsigned at)
{
	if (at < 2 * PEER_SUB)
		return at;
	unsigned shift = at / PEER_SUB - 1;
	return ((uint64_t)(at - PEER_SUB * shift) << shift) + ((1u << shift) >> 1);
}

static inline uint64_t peer_quantile(const struct peer_latencies *latencies, uint64_t all, double share)
{
	uint64_t wanted = (uint64_t)(share * (double)all), seen = 0;
	if (wanted < 1)
		wanted = 1;
	for (unsigned at = 0; at < PEER_BUCKETS; at++)
		if ((seen += latencies->counts[at]) >= wanted)
			return peer_bucket_ns(at);
	return 0;
}

/* --- The line of JSON --- */

struct peer_result {
	const char *system, *version, *bench, *which;
	unsigned processes;
	double seconds;
	uint64_t operations;
	/* Operations by seconds, unless it is given. */
	double throughput;
	/* The operations of each process, or a null pointer. */
	const uint64_t *each;
	/* Operations that were tried and given up. */
	uint64_t aborted;
	const struct peer_latencies *latencies;
	/* More fields, each with a comma before it, or a null pointer. */
	const char *more;
};

static inline void peer_print(const struct peer_result *result)
{
	double throughput = result->throughput;
	if (throughput == 0 && result->seconds > 0)
		throughput = (double)result->operations / result->seconds;
	printf("{\"system\":\"%s\",\"version\":\"%s\",\"bench\":\"%s\",\"case\":\"%s\",\"processes\":%u,\"seconds\":%.6f,"
	       "\"operations\":%llu,\"throughput_ops_per_s\":%.3f",
	       result->system, result->version, result->bench, result->which, result->processes, result->seconds,
	       (unsigned long long)result->operations, throughput);
	if (result->aborted)
		printf(",\"aborted\":%llu", (unsigned long long)result->aborted);
	if (result->each) {
		uint64_t fewest = UINT64_MAX, most = 0;
		for (unsigned process = 0; process < result->processes; process++) {
			fewest = result->each[process] < fewest ? result->each[process] : fewest;
			most = result->each[process] > most ? result->each[process] : most;
		}
		printf(",\"fairness\":%.4f", most ? (double)fewest / (double)most : 0.0);
	}
	uint64_t all = 0, max = 0;
	for (unsigned at = 0; result->latencies && at < PEER_BUCKETS; at++)
		if (result->latencies->counts[at]) {
			all += result->latencies->counts[at];
			max = peer_bucket_ns(at);
		}
	if (all) {
		const struct peer_latencies *latencies = result->latencies;
		static const double shares[] = {0.5, 0.9, 0.99, 0.999};
		static const char *const names[] = {"p50", "p90", "p99", "p99_9"};
		printf(",\"latency_ns\":{");
		for (unsigned at = 0; at < 4; at++)
			printf("\"%s\":%llu,", names[at],
			       (unsigned long long)peer_quantile(latencies, all, shares[at]));
		printf("\"max\":%llu},\"samples\":[", (unsigned long long)max);
		const char *comma = "";
		for (unsigned at = 0; at < PEER_BUCKETS; at++)
			if (latencies->counts[at]) {
				printf("%s[%llu,%llu]", comma, (unsigned long long)peer_bucket_ns(at),
				       (unsigned long long)latencies->counts[at]);
				comma = ",";
			}
		printf("]");
	}
	printf("%s}\n", result->more ? result->more : "");
	if (fflush(stdout))
		peer_fail("standard output is closed");
}

#ifdef MPI_VERSION
/* "Open MPI v4.1.4, package: …": the number is enough. */
static inline const char *peer_mpi_version(void)
{
	static char version[MPI_MAX_LIBRARY_VERSION_STRING];
	int length;
	MPI_Get_library_version(version, &length);
	version[strcspn(version, ",\"\\\n")] = '\0';
	const char *number = strstr(version, " v");
	return number ? number + 2 : version;
}

/* Sums the latencies, and gathers the operations, of all ranks, on rank 0. */
static inline void peer_mpi_gather(struct peer_latencies *latencies, uint64_t operations, uint64_t *each, double *seconds)
{
	int rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Reduce(rank ? latencies->counts : MPI_IN_PLACE, latencies->counts, PEER_BUCKETS, MPI_UINT64_T, MPI_SUM, 0,
		   MPI_COMM_WORLD);
	MPI_Gather(&operations, 1, MPI_UINT64_T, each, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
	MPI_Reduce(rank ? seconds : MPI_IN_PLACE, seconds, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
}
#endif

#endif
