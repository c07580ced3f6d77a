/*
 * The Open MPI peer of `farfield bench fabric`: waited-for one-sided operations between two ranks.
 *
 * Rank 0 times 8-byte put, get, compare-and-swap and fetch-and-op on rank 1's window, one at a time, each completed at
 * the target by MPI_Win_flush before the next is issued. The window comes from MPI_Win_allocate, so that Open MPI may
 * place it in shared memory, and is opened once with MPI_Win_lock_all (passive target). Rank 1 takes no part: it waits
 * in a barrier. Each operation is measured in BATCHES batches; the median batch is printed, as one line of JSON.
 *
 * Build: mpicc -O2 -o mpi_rma mpi_rma.c
 * Run:   mpirun --allow-run-as-root --oversubscribe -n 2 ./mpi_rma [ITERS]
 *
 * ITERS is the number of operations in a batch (default 20000).
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 21, TARGET = 1, LANES = 8 };

/* One 8-byte word per kind of operation, each on a cache line of its own (LANES words). */
enum { PUT = 0, GET = 1, CAS = 2, FAA = 3, KINDS = 4 };
static const char *const KIND_NAMES[KINDS] = {"put", "get", "cas", "faa"};

static void fail(const char *what)
{
	fprintf(stderr, "mpi_rma: %s\n", what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* The next value of each word, so that every result can be checked. */
static uint64_t issued[KINDS];

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
		fail("an operation returned the wrong value");
	issued[kind] = new;
}

/* The median over the batches of the mean time of one operation, in nanoseconds. */
static double median_ns(int kind, long iters, MPI_Win win)
{
	double batch_ns[BATCHES];

	for (long i = 0; i < iters; i++)
		operate(kind, win);
	for (int b = 0; b < BATCHES; b++) {
		double start_s = MPI_Wtime();
		for (long i = 0; i < iters; i++)
			operate(kind, win);
		batch_ns[b] = (MPI_Wtime() - start_s) * 1e9 / (double)iters;
	}
	qsort(batch_ns, BATCHES, sizeof batch_ns[0], compare_doubles);
	return batch_ns[BATCHES / 2];
}

/* Reads every word back through the window: the last put, swap and addition must be there. */
static void check_target(MPI_Win win)
{
	for (int kind = 0; kind < KINDS; kind++) {
		uint64_t word = 0;
		MPI_Get(&word, 1, MPI_UINT64_T, TARGET, (MPI_Aint)kind * LANES, 1, MPI_UINT64_T, win);
		MPI_Win_flush(TARGET, win);
		if (word != issued[kind])
			fail("the target does not hold the last value written");
	}
}

int main(int argc, char **argv)
{
	int rank, ranks, length;
	uint64_t *memory;
	MPI_Win win;
	char version[MPI_MAX_LIBRARY_VERSION_STRING];
	long iters = argc > 1 ? strtol(argv[1], NULL, 10) : 20000;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks != 2)
		fail("run with exactly two ranks: mpirun -n 2");
	if (iters < 1)
		fail("ITERS must be a positive number");

	MPI_Win_allocate((MPI_Aint)(KINDS * LANES * sizeof *memory), sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD,
			 &memory, &win);
	memset(memory, 0, KINDS * LANES * sizeof *memory);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(MPI_MODE_NOCHECK, win);

	if (rank == 0) {
		double ns[KINDS];
		for (int kind = 0; kind < KINDS; kind++)
			ns[kind] = median_ns(kind, iters, win);
		check_target(win);

		/* "Open MPI v4.1.4, package: …": the number is enough. */
		MPI_Get_library_version(version, &length);
		version[strcspn(version, ",\n")] = '\0';
		const char *number = strchr(version, 'v');
		printf("{\"peer\":\"openmpi\",\"version\":\"%s\"", number ? number + 1 : version);
		for (int kind = 0; kind < KINDS; kind++)
			printf(",\"%s_ns\":%.1f", KIND_NAMES[kind], ns[kind]);
		printf("}\n");
		fflush(stdout);
	}

	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_free(&win);
	MPI_Finalize();
	return 0;
}
