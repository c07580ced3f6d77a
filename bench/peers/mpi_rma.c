/*
 * Open MPI, one-sided: waited-for operations of 8 bytes between two ranks.
 *
 * Rank 0 times put, get, compare-and-swap and fetch-and-op on rank 1's window, one at a time, each completed at the
 * target by MPI_Win_flush before the next is issued. The window comes from MPI_Win_allocate, so that Open MPI may place
 * it in shared memory, and is opened once with MPI_Win_lock_all (passive target). Rank 1 takes no part: it waits in a
 * barrier. Each operation is measured in batches for a quarter of the time. The throughput is that of the median batch,
 * since one operation is too short for the clock. Every returned value is checked, and every word is read back.
 *
 * Build: mpicc -O2 -o mpi_rma mpi_rma.c
 * Run:   mpirun -n 2 ./mpi_rma [--seconds S]
 */
#include <mpi.h>

#include "peer.h"

enum { BATCH = 2000, BATCHES_MIN = 5, BATCHES_MAX = 100000, TARGET = 1, LANES = 8 };

/* One 8-byte word for each kind of operation, each on a cache line of its own (LANES words). */
enum { PUT = 0, GET = 1, CAS = 2, FAA = 3, KINDS = 4 };
static const char *const KIND_NAMES[KINDS] = {"put", "get", "cas", "faa"};

/* The next value of each word, so that every result can be checked. */
static uint64_t issued[KINDS];

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Issues one operation, waits for it at the target and checks what it returned. */
static inline void operate(int kind, MPI_Win win)
{
	uint64_t old = issued[kind], new = old + 1, one = 1, result = old;
	MPI_Aint at = (MPI_Aint)kind * LANES;

	switch (kind) {
	case PUT:
		MPI_Put(&new, 1, MPI_UINT64_T, TARGET, at, 1, MPI_UINT64_T, win);
		break;
	case GET:
		new = old;
		result = ~old;
		MPI_Get(&result, 1, MPI_UINT64_T, TARGET, at, 1, MPI_UINT64_T, win);
		break;
	case CAS:
		result = ~old;
		MPI_Compare_and_swap(&new, &old, &result, MPI_UINT64_T, TARGET, at, win);
		break;
	case FAA:
		result = ~old;
		MPI_Fetch_and_op(&one, &result, MPI_UINT64_T, TARGET, at, MPI_SUM, win);
		break;
	}
	MPI_Win_flush(TARGET, win);
	if (result != old)
		peer_fail("%s returned %llu instead of %llu", KIND_NAMES[kind], (unsigned long long)result,
			  (unsigned long long)old);
	issued[kind] = new;
}

static void measure(int kind, double seconds, MPI_Win win)
{
	static double batch_ns[BATCHES_MAX];
	int batches = 0;

	for (long i = 0; i < BATCH; i++)
		operate(kind, win);
	uint64_t start = peer_now_ns(), now = start;
	while (batches < BATCHES_MIN || ((double)(now - start) < seconds * 1e9 && batches < BATCHES_MAX)) {
		uint64_t before = now;
		for (long i = 0; i < BATCH; i++)
			operate(kind, win);
		now = peer_now_ns();
		batch_ns[batches++] = (double)(now - before) / BATCH;
	}
	qsort(batch_ns, (size_t)batches, sizeof batch_ns[0], compare_doubles);
	peer_print(&(struct peer_result){
		.system = "mpi",
		.version = peer_mpi_version(),
		.bench = "fabric",
		.which = KIND_NAMES[kind],
		.processes = 2,
		.seconds = (double)(now - start) / 1e9,
		.operations = (uint64_t)batches * BATCH,
		.throughput = 1e9 / batch_ns[batches / 2],
	});
}

/* Reads every word back through the window: the last put, swap and addition must be there. */
static void check_target(MPI_Win win)
{
	for (int kind = 0; kind < KINDS; kind++) {
		uint64_t word = ~issued[kind];
		MPI_Get(&word, 1, MPI_UINT64_T, TARGET, (MPI_Aint)kind * LANES, 1, MPI_UINT64_T, win);
		MPI_Win_flush(TARGET, win);
		if (word != issued[kind])
			peer_fail("the target does not hold the last value written by %s", KIND_NAMES[kind]);
	}
}

int main(int argc, char **argv)
{
	int rank, ranks;
	uint64_t *memory;
	MPI_Win win;

	MPI_Init(&argc, &argv);
	peer_arguments(argc, argv, (const char *const[]){"--seconds", NULL});
	double seconds = peer_real(argc, argv, "--seconds", 1, 0.001, 3600);
	peer_limit(seconds);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks != 2)
		peer_fail("run it with exactly two ranks: mpirun -n 2");

	MPI_Win_allocate((MPI_Aint)(KINDS * LANES * sizeof *memory), sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD,
			 &memory, &win);
	memset(memory, 0, KINDS * LANES * sizeof *memory);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
	if (rank == 0) {
		for (int kind = 0; kind < KINDS; kind++)
			measure(kind, seconds / KINDS, win);
		check_target(win);
	}
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_free(&win);
	MPI_Finalize();
	return 0;
}
