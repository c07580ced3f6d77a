/*
 * Open MPI: MPI_Ibcast from rank 0 to all, with a window of outstanding broadcasts that slides.
 *
 * Every rank keeps W broadcasts of S bytes posted, and waits for them in their order. The first and the last word of a
 * message are its number, and every receiver checks both. In one of 64 messages it checks all words, in a buffer that
 * it has cleared before. When the time is over, rank 0 marks a message: the ranks post no more after it.
 *
 * An operation is a message that all have received. Its latency is not measured: at rank 0 a broadcast is complete when
 * its buffer may be used again, which says nothing about the receivers.
 *
 * Build: mpicc -O2 -o mpi_broadcast mpi_broadcast.c
 * Run:   mpirun -n N ./mpi_broadcast [--seconds S] [--window W] [--size BYTES]
 */
#include <mpi.h>

#include "peer.h"

#define LAST (UINT64_C(1) << 63)

enum { CHECK_ALL_EVERY = 64 };

static int rank, ranks;
static uint64_t window, words;

static uint64_t filler(uint64_t slot, uint64_t word)
{
	return slot * 1000003 + word;
}

static int is_checked_whole(uint64_t number)
{
	return number % CHECK_ALL_EVERY == 0;
}

/* Fills the buffer that the sender, or the receiver, posts for a message. */
static void prepare(uint64_t *buffer, uint64_t number, uint64_t mark)
{
	if (rank == 0) {
		buffer[0] = number | mark;
		buffer[words - 1] = number | mark;
	} else if (is_checked_whole(number)) {
		memset(buffer, 0, words * sizeof *buffer);
	}
}

/* Checks a message, and says whether it is the last. */
static int check(const uint64_t *buffer, uint64_t number)
{
	if ((buffer[0] & ~LAST) != number || buffer[words - 1] != buffer[0])
		peer_fail("message %llu has arrived as %llu and %llu", (unsigned long long)number,
			  (unsigned long long)(buffer[0] & ~LAST), (unsigned long long)(buffer[words - 1] & ~LAST));
	if (rank && is_checked_whole(number))
		for (uint64_t word = 1; word + 1 < words; word++)
			if (buffer[word] != filler(number % window, word))
				peer_fail("word %llu of message %llu is wrong", (unsigned long long)word,
					  (unsigned long long)number);
	return (buffer[0] & LAST) != 0;
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	peer_arguments(argc, argv, (const char *const[]){"--seconds", "--window", "--size", NULL});
	double seconds = peer_real(argc, argv, "--seconds", 1, 0.001, 3600);
	window = peer_number(argc, argv, "--window", 16, 1, 4096);
	uint64_t size = peer_number(argc, argv, "--size", 64, 8, 1 << 24);
	peer_limit(seconds);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks < 2)
		peer_fail("run it with two ranks or more: mpirun -n 2");
	if (size % 8)
		peer_fail("--size: a multiple of 8 is needed");

	words = size / 8;
	/* A slot begins on a cache line of its own. */
	uint64_t stride = (words + 7) / 8 * 8;
	uint64_t *buffers = aligned_alloc(64, window * stride * sizeof *buffers);
	MPI_Request *requests = malloc(window * sizeof *requests);
	if (!buffers || !requests)
		peer_fail("no memory for %llu messages of %llu bytes", (unsigned long long)window,
			  (unsigned long long)size);
	for (uint64_t slot = 0; slot < window; slot++)
		for (uint64_t word = 0; word < words; word++)
			buffers[slot * stride + word] = filler(slot, word);

	MPI_Barrier(MPI_COMM_WORLD);
	uint64_t start = peer_now_ns(), end = start + (uint64_t)(seconds * 1e9), mark = 0, number = 0, posted = 0;
	for (;; number++) {
		for (; posted < number + window; posted++) {
			uint64_t *buffer = buffers + posted % window * stride;
			prepare(buffer, posted, mark);
			MPI_Ibcast(buffer, (int)words, MPI_UINT64_T, 0, MPI_COMM_WORLD, &requests[posted % window]);
		}
		MPI_Wait(&requests[number % window], MPI_STATUS_IGNORE);
		if (check(buffers + number % window * stride, number))
			break;
		/* The clock costs as much as a small message: it is read once for several. */
		if (rank == 0 && number % 16 == 0 && peer_now_ns() >= end)
			mark = LAST;
	}
	/* All have posted as many: the messages after the marked one are marked, too. */
	for (uint64_t after = number + 1; after < posted; after++) {
		MPI_Wait(&requests[after % window], MPI_STATUS_IGNORE);
		if (!check(buffers + after % window * stride, after))
			peer_fail("message %llu follows the last one", (unsigned long long)after);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	double spent = (double)(peer_now_ns() - start) / 1e9;

	if (rank == 0)
		peer_print(&(struct peer_result){
			.system = "mpi",
			.version = peer_mpi_version(),
			.bench = "broadcast",
			.which = "ring",
			.processes = (unsigned)ranks,
			.seconds = spent,
			.operations = posted,
		});
	free(requests);
	free(buffers);
	MPI_Finalize();
	return 0;
}
