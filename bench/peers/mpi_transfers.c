/*
 * Open MPI: transfers between accounts under two RMA locks, as `farfield bench transfers` does them.
 *
 * MPI has a lock for each window and rank, so the accounts are spread over many windows: account c is on rank c mod N,
 * and of that rank's accounts the i-th is in window i mod W. LOCO's authors could open 341 windows, which is the most
 * here, too. Each rank repeats: draw two accounts and an amount, lock both in ascending order (window, then rank), read
 * both, write both, and unlock. Locks of the same window and rank are one. A transfer from an account that holds too
 * little is aborted, and counted apart. At the end all accounts together must hold what they held at the start. A
 * latency runs from the end of one transfer to the end of the next, so it includes the drawing.
 *
 * Build: mpicc -O2 -o mpi_transfers mpi_transfers.c
 * Run:   mpirun -n N ./mpi_transfers [--seconds S] [--accounts COUNT] [--windows W]
 */
#include <mpi.h>

#include "peer.h"

enum { WINDOWS_MAX = 341, AMOUNT = 1000, TRANSFER_MAX = 100 };

static int rank, ranks;
static uint64_t windows;
static MPI_Win wins[WINDOWS_MAX];
static uint64_t *memories[WINDOWS_MAX], lengths[WINDOWS_MAX];

/* The position of an account. */
struct place {
	MPI_Win win;
	int rank;
	MPI_Aint at;
	/* Locks are taken in the order of these. */
	uint64_t order;
};

static struct place place_of(uint64_t account)
{
	uint64_t owner = account % (uint64_t)ranks, index = account / (uint64_t)ranks, window = index % windows;
	return (struct place){
		.win = wins[window],
		.rank = (int)owner,
		.at = (MPI_Aint)(index / windows),
		.order = window * (uint64_t)ranks + owner,
	};
}

/* Moves an amount. Returns whether the account had enough. */
static int transfer(struct place from, struct place to, uint64_t amount)
{
	int is_one = from.order == to.order;
	struct place first = from.order < to.order ? from : to, second = from.order < to.order ? to : from;
	MPI_Win_lock(MPI_LOCK_EXCLUSIVE, first.rank, 0, first.win);
	if (!is_one)
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, second.rank, 0, second.win);

	uint64_t left = 0, held = 0;
	MPI_Get(&left, 1, MPI_UINT64_T, from.rank, from.at, 1, MPI_UINT64_T, from.win);
	MPI_Get(&held, 1, MPI_UINT64_T, to.rank, to.at, 1, MPI_UINT64_T, to.win);
	MPI_Win_flush(from.rank, from.win);
	if (!is_one)
		MPI_Win_flush(to.rank, to.win);
	int is_enough = left >= amount;
	if (is_enough) {
		left -= amount;
		held += amount;
		MPI_Put(&left, 1, MPI_UINT64_T, from.rank, from.at, 1, MPI_UINT64_T, from.win);
		MPI_Put(&held, 1, MPI_UINT64_T, to.rank, to.at, 1, MPI_UINT64_T, to.win);
	}
	if (!is_one)
		MPI_Win_unlock(second.rank, second.win);
	MPI_Win_unlock(first.rank, first.win);
	return is_enough;
}

/* What the accounts of this rank hold, or, with an amount, sets each to it first. */
static uint64_t sum(uint64_t amount)
{
	uint64_t all = 0;
	for (uint64_t window = 0; window < windows; window++) {
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, wins[window]);
		for (uint64_t at = 0; at < lengths[window]; at++) {
			if (amount)
				memories[window][at] = amount;
			all += memories[window][at];
		}
		MPI_Win_unlock(rank, wins[window]);
	}
	return all;
}

int main(int argc, char **argv)
{
	static struct peer_latencies latencies;

	MPI_Init(&argc, &argv);
	peer_arguments(argc, argv, (const char *const[]){"--seconds", "--accounts", "--windows", NULL});
	double seconds = peer_real(argc, argv, "--seconds", 1, 0.001, 3600);
	uint64_t accounts = peer_number(argc, argv, "--accounts", 1000000, 2, UINT64_C(1) << 40);
	windows = peer_number(argc, argv, "--windows", WINDOWS_MAX, 1, WINDOWS_MAX);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	/* Setting and adding up many accounts takes time, too. */
	peer_limit(seconds + (double)accounts / 1e6);

	uint64_t own = (accounts + (uint64_t)(ranks - 1 - rank)) / (uint64_t)ranks;
	for (uint64_t window = 0; window < windows; window++) {
		lengths[window] = (own + windows - 1 - window) / windows;
		MPI_Win_allocate((MPI_Aint)(lengths[window] * 8), 8, MPI_INFO_NULL, MPI_COMM_WORLD, &memories[window],
				 &wins[window]);
	}
	if (sum(AMOUNT) != own * AMOUNT)
		peer_fail("rank %d has lost accounts", rank);
	MPI_Barrier(MPI_COMM_WORLD);

	uint64_t state = (uint64_t)rank, transfers = 0, aborted = 0;
	uint64_t start = peer_now_ns(), now = start, end = start + (uint64_t)(seconds * 1e9);
	while (now < end) {
		uint64_t from = peer_below(&state, accounts);
		uint64_t to = (from + 1 + peer_below(&state, accounts - 1)) % accounts;
		uint64_t amount = 1 + peer_below(&state, TRANSFER_MAX), before = now;
		int is_done = transfer(place_of(from), place_of(to), amount);
		now = peer_now_ns();
		if (is_done) {
			transfers++;
			peer_record(&latencies, now - before, 1);
		} else {
			aborted++;
		}
	}
	double spent = (double)(now - start) / 1e9;
	MPI_Barrier(MPI_COMM_WORLD);

	uint64_t each[ranks], mine[2] = {sum(0), aborted}, all[2] = {0, 0};
	MPI_Reduce(mine, all, 2, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	peer_mpi_gather(&latencies, transfers, each, &spent);
	if (rank == 0) {
		if (all[0] != accounts * AMOUNT)
			peer_fail("%llu accounts hold %llu together, and held %llu at the start",
				  (unsigned long long)accounts, (unsigned long long)all[0],
				  (unsigned long long)(accounts * AMOUNT));
		uint64_t done = 0;
		for (int other = 0; other < ranks; other++)
			done += each[other];
		char more[64];
		snprintf(more, sizeof more, ",\"locks\":%llu", (unsigned long long)(windows * (uint64_t)ranks));
		peer_print(&(struct peer_result){
			.system = "mpi",
			.version = peer_mpi_version(),
			.bench = "transfers",
			.which = "transfer",
			.processes = (unsigned)ranks,
			.seconds = spent,
			.operations = done,
			.aborted = all[1],
			.each = each,
			.latencies = &latencies,
			.more = more,
		});
	}
	for (uint64_t window = 0; window < windows; window++)
		MPI_Win_free(&wins[window]);
	MPI_Finalize();
	return 0;
}
