/*
 * Open MPI: MPI_Barrier of all ranks, one after the other.
 *
 * First, every rank writes the number of the round into shared memory before a barrier, and after it looks for that
 * number in the words of all others: a barrier that lets a rank through early is found. Then the ranks only meet, in
 * batches, for three quarters of the time: this gives the throughput. In the last quarter each barrier is timed: this
 * gives the latencies, which include the reading of the clock.
 *
 * Build: mpicc -O2 -o mpi_barrier mpi_barrier.c
 * Run:   mpirun -n N ./mpi_barrier [--seconds S]
 */
#include <mpi.h>

#include "peer.h"

enum { CHECKED = 2000, BATCH = 500, LANES = 8 };

static int rank, ranks;

static void check_rounds(void)
{
	volatile uint64_t *words;
	MPI_Win win;
	MPI_Win_allocate_shared(rank ? 0 : (MPI_Aint)(LANES * sizeof *words) * ranks, sizeof *words, MPI_INFO_NULL,
				MPI_COMM_WORLD, (void *)&words, &win);
	MPI_Aint size;
	int unit;
	MPI_Win_shared_query(win, 0, &size, &unit, (void *)&words);
	words[rank * LANES] = 0;
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
	for (uint64_t round = 1; round <= CHECKED; round++) {
		words[rank * LANES] = round;
		MPI_Win_sync(win);
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Win_sync(win);
		for (int other = 0; other < ranks; other++) {
			uint64_t seen = words[other * LANES];
			if (seen != round && seen != round + 1)
				peer_fail("rank %d passed barrier %llu while rank %d was at %llu", rank,
					  (unsigned long long)round, other, (unsigned long long)seen);
		}
	}
	MPI_Win_unlock_all(win);
	MPI_Win_free(&win);
}

/* Meets in batches for so long; returns the time in nanoseconds, and counts the barriers. */
static uint64_t meet(double seconds, struct peer_latencies *latencies, uint64_t *barriers)
{
	uint64_t spent = 0;
	for (int more = 1; more;) {
		MPI_Barrier(MPI_COMM_WORLD);
		uint64_t start = peer_now_ns(), now = start;
		for (int i = 0; i < BATCH; i++) {
			MPI_Barrier(MPI_COMM_WORLD);
			if (latencies) {
				uint64_t before = now;
				now = peer_now_ns();
				peer_record(latencies, now - before, 1);
			}
		}
		spent += peer_now_ns() - start;
		*barriers += BATCH;
		more = (double)spent < seconds * 1e9;
		MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
	}
	return spent;
}

int main(int argc, char **argv)
{
	static struct peer_latencies latencies;

	MPI_Init(&argc, &argv);
	peer_arguments(argc, argv, (const char *const[]){"--seconds", NULL});
	double seconds = peer_real(argc, argv, "--seconds", 1, 0.001, 3600);
	peer_limit(seconds);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks < 2)
		peer_fail("run it with two ranks or more: mpirun -n 2");

	check_rounds();
	uint64_t barriers = 0, timed = 0, each[ranks];
	double spent = (double)meet(seconds * 0.75, NULL, &barriers) / 1e9;
	meet(seconds * 0.25, &latencies, &timed);
	peer_mpi_gather(&latencies, barriers, each, &spent);
	if (rank == 0)
		peer_print(&(struct peer_result){
			.system = "mpi",
			.version = peer_mpi_version(),
			.bench = "barrier",
			.which = "barrier",
			.processes = (unsigned)ranks,
			.seconds = spent,
			.operations = barriers,
			.latencies = &latencies,
		});
	MPI_Finalize();
	return 0;
}
