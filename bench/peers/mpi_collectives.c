/*
 * Open MPI: one collective call again and again, among all ranks.
 *
 * The calls are made in batches, with nothing between them; after a batch rank 0 says by a broadcast whether there is
 * another. The first and the last word of each rank's data follow from the number of the call, and each result is
 * checked in these words. One call in 16 is timed, on all ranks.
 *
 * An operation is a call of all ranks. Bytes are those that one rank sends to another: of its whole data, or of the part
 * for each rank (all_to_all). Reductions add unsigned words in place, as Farfield's benchmark does.
 *
 * Build: mpicc -O2 -o mpi_collectives mpi_collectives.c
 * Run:   mpirun -n N ./mpi_collectives [--seconds S] [--call NAME] [--size BYTES]
 */
#include <mpi.h>

#include "peer.h"

enum { BATCH = 256, TIMED = 16 };

enum call { BROADCAST, REDUCE, ALL_REDUCE, GATHER, ALL_GATHER, ALL_TO_ALL, CALLS };
static const char *const names[CALLS] = {"broadcast", "reduce", "all_reduce", "gather", "all_gather", "all_to_all"};

static int rank, ranks;
static size_t words;

/* What a rank sends in a call: in the first and the last word, for each rank if there are parts. */
static uint64_t stamp(uint64_t number, int from, int to)
{
	return number * 1000003 + (uint64_t)from * 1009 + (uint64_t)to;
}

static void mark(uint64_t *part, uint64_t value)
{
	part[0] = value;
	part[words - 1] = value;
}

static void check(const uint64_t *part, uint64_t value, uint64_t number)
{
	if (part[0] != value || part[words - 1] != value)
		peer_fail("rank %d has %llu and %llu in call %llu, instead of %llu", rank, (unsigned long long)part[0],
			  (unsigned long long)part[words - 1], (unsigned long long)number, (unsigned long long)value);
}

static uint64_t sum_of(uint64_t number)
{
	uint64_t sum = 0;
	for (int from = 0; from < ranks; from++)
		sum += stamp(number, from, 0);
	return sum;
}

static void make(enum call call, uint64_t number, uint64_t *data, uint64_t *into)
{
	int count = (int)words;
	for (int to = 0; to < (call == ALL_TO_ALL ? ranks : 1); to++)
		mark(data + (size_t)to * words, stamp(number, rank, to));
	switch (call) {
	case BROADCAST:
		MPI_Bcast(data, count, MPI_UINT64_T, 0, MPI_COMM_WORLD);
		check(data, stamp(number, 0, 0), number);
		break;
	case REDUCE:
		MPI_Reduce(rank ? data : MPI_IN_PLACE, data, count, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
		if (rank == 0)
			check(data, sum_of(number), number);
		break;
	case ALL_REDUCE:
		MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
		check(data, sum_of(number), number);
		break;
	case GATHER:
		MPI_Gather(data, count, MPI_UINT64_T, into, count, MPI_UINT64_T, 0, MPI_COMM_WORLD);
		for (int from = 0; rank == 0 && from < ranks; from++)
			check(into + (size_t)from * words, stamp(number, from, 0), number);
		break;
	case ALL_GATHER:
		MPI_Allgather(data, count, MPI_UINT64_T, into, count, MPI_UINT64_T, MPI_COMM_WORLD);
		for (int from = 0; from < ranks; from++)
			check(into + (size_t)from * words, stamp(number, from, 0), number);
		break;
	default:
		MPI_Alltoall(data, count, MPI_UINT64_T, into, count, MPI_UINT64_T, MPI_COMM_WORLD);
		for (int from = 0; from < ranks; from++)
			check(into + (size_t)from * words, stamp(number, from, rank), number);
	}
}

int main(int argc, char **argv)
{
	static struct peer_latencies latencies;

	MPI_Init(&argc, &argv);
	peer_arguments(argc, argv, (const char *const[]){"--seconds", "--call", "--size", NULL});
	double seconds = peer_real(argc, argv, "--seconds", 1, 0.001, 3600);
	uint64_t size = peer_number(argc, argv, "--size", 8, 8, 1 << 24);
	const char *name = peer_text(argc, argv, "--call", names[0]);
	enum call call = 0;
	peer_limit(seconds);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks < 2)
		peer_fail("run it with two ranks or more: mpirun -n 2");
	if (size % 8)
		peer_fail("--size: a multiple of 8 is needed");
	while (call < CALLS && strcmp(name, names[call]))
		call++;
	if (call == CALLS)
		peer_fail("--call %s: there is no such call", name);

	words = size / 8;
	uint64_t *data = calloc(words * (size_t)ranks, sizeof *data);
	uint64_t *into = calloc(words * (size_t)ranks, sizeof *into);
	if (!data || !into)
		peer_fail("no memory for %d parts of %llu bytes", ranks, (unsigned long long)size);

	MPI_Barrier(MPI_COMM_WORLD);
	uint64_t start = peer_now_ns(), end = start + (uint64_t)(seconds * 1e9), number = 0;
	for (uint64_t more = 1; more;) {
		for (int at = 0; at < BATCH; at++, number++) {
			uint64_t before = at % TIMED ? 0 : peer_now_ns();
			make(call, number, data, into);
			if (before)
				peer_record(&latencies, peer_now_ns() - before, 1);
		}
		more = peer_now_ns() < end;
		MPI_Bcast(&more, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
	}
	double spent = (double)(peer_now_ns() - start) / 1e9;

	uint64_t each[ranks];
	peer_mpi_gather(&latencies, number, each, &spent);
	if (rank == 0)
		peer_print(&(struct peer_result){
			.system = "mpi",
			.version = peer_mpi_version(),
			.bench = "collectives",
			.which = name,
			.processes = (unsigned)ranks,
			.seconds = spent,
			.operations = number,
			.latencies = &latencies,
		});
	free(data);
	free(into);
	MPI_Finalize();
	return 0;
}
