/*
 * Open MPI: a read-modify-write of one word under an exclusive RMA lock, by all ranks.
 *
 * The word is in rank 0's window. Each rank, rank 0 among them, repeats until its time is over: MPI_Win_lock (exclusive),
 * get, flush, put of the next number, MPI_Win_unlock, which completes the put. At the end the word must hold the number
 * of all operations, and the line says how evenly the ranks got on. A latency runs from the end of one operation to the
 * end of the next.
 *
 * Build: mpicc -O2 -o mpi_lock mpi_lock.c
 * Run:   mpirun -n N ./mpi_lock [--seconds S] [--work-ns NS]     NS: time for which the lock is held in addition
 */
#include <mpi.h>

#include "peer.h"

int main(int argc, char **argv)
{
	static struct peer_latencies latencies;
	int rank, ranks;
	uint64_t *memory;
	MPI_Win win;

	MPI_Init(&argc, &argv);
	peer_arguments(argc, argv, (const char *const[]){"--seconds", "--work-ns", NULL});
	double seconds = peer_real(argc, argv, "--seconds", 1, 0.001, 3600);
	uint64_t work_ns = peer_number(argc, argv, "--work-ns", 0, 0, 1000000000);
	peer_limit(seconds);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);

	MPI_Win_allocate(rank ? 0 : 64, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
		*memory = 0;
		MPI_Win_unlock(0, win);
	}
	MPI_Barrier(MPI_COMM_WORLD);

	uint64_t operations = 0, start = peer_now_ns(), now = start, end = start + (uint64_t)(seconds * 1e9);
	while (now < end) {
		uint64_t before = now, word = 0;
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
		MPI_Get(&word, 1, MPI_UINT64_T, 0, 0, 1, MPI_UINT64_T, win);
		MPI_Win_flush(0, win);
		word++;
		peer_work(work_ns);
		MPI_Put(&word, 1, MPI_UINT64_T, 0, 0, 1, MPI_UINT64_T, win);
		MPI_Win_unlock(0, win);
		operations++;
		now = peer_now_ns();
		peer_record(&latencies, now - before, 1);
	}
	double spent = (double)(now - start) / 1e9;

	uint64_t each[ranks], all = 0;
	peer_mpi_gather(&latencies, operations, each, &spent);
	if (rank == 0) {
		uint64_t word = 0;
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
		MPI_Get(&word, 1, MPI_UINT64_T, 0, 0, 1, MPI_UINT64_T, win);
		MPI_Win_unlock(0, win);
		for (int other = 0; other < ranks; other++)
			all += each[other];
		if (word != all)
			peer_fail("the word holds %llu after %llu operations: the lock does not exclude",
				  (unsigned long long)word, (unsigned long long)all);
		peer_print(&(struct peer_result){
			.system = "mpi",
			.version = peer_mpi_version(),
			.bench = "locks",
			.which = "rma_lock",
			.processes = (unsigned)ranks,
			.seconds = spent,
			.operations = all,
			.each = each,
			.latencies = &latencies,
		});
	}
	MPI_Win_free(&win);
	MPI_Finalize();
	return 0;
}
