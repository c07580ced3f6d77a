use super::super::pages::HugePages;
use super::*;

const MIB: usize = 1 << 20;

const ORDINARY: &[Pages] = &[Pages::Ordinary];

fn fds(arena: &Arena) -> Vec<OwnedFd> {
    arena.fds().map(|fd| fd.try_clone_to_owned().unwrap()).collect()
}

fn attach(arena: &Arena) -> Mapping {
    Mapping::attach(fds(arena), arena.reserve()).unwrap()
}

/// Writes to the last word below each 2 MiB of the one, and reads it in the others.
fn all_is_shared(arena: &Arena, peers: &[&Mapping]) {
    for end in (STEP_BYTES..=arena.len()).step_by(STEP_BYTES) {
        // SAFETY: both addresses are the last usable word of a step, in mappings that live; nothing else touches it.
        unsafe {
            arena.base().add(end - 8).cast::<usize>().write_volatile(end);
            for peer in peers {
                assert_eq!(peer.base().add(end - 8).cast::<usize>().read_volatile(), end);
            }
        }
    }
}

#[test]
fn grows_in_place_and_peers_see_it() {
    let arena = Arena::create("test", 1 << 30, 1 << 30, ORDINARY).unwrap();
    assert_eq!((arena.len(), arena.reserve(), arena.limit()), (0, 1 << 30, 1 << 30));
    assert_eq!(arena.base().align_offset(STEP_BYTES), 0);
    let peer = attach(&arena);
    assert_eq!(peer.len(), 0);
    let base = arena.base();
    arena.grow_to(1).unwrap();
    assert_eq!(arena.len(), 2 * MIB);
    arena.grow_to(3 * MIB).unwrap();
    assert_eq!((arena.len(), peer.len()), (4 * MIB, 0));
    assert_eq!(attach(&arena).len(), 4 * MIB);
    arena.grow_to(4 * MIB + 1).unwrap();
    assert_eq!(arena.len(), 8 * MIB, "doubled");
    assert_eq!((attach(&arena).len(), peer.len()), (8 * MIB, 0));
    assert_eq!(arena.base(), base);
    // SAFETY: both addresses are the last usable byte of mappings that live, and nothing else touches it.
    unsafe {
        arena.base().add(8 * MIB - 1).write_volatile(7);
        assert_eq!(peer.base().add(8 * MIB - 1).read_volatile(), 7);
    }
    drop(arena);
    // SAFETY: the peer's own mapping keeps the memory.
    assert_eq!(unsafe { peer.base().add(8 * MIB - 1).read_volatile() }, 7);
    assert_eq!(peer.reserve(), 1 << 30);
}

#[test]
fn the_limit_is_an_error_that_says_so() {
    let arena = Arena::create("test", 64 * MIB, 5 * MIB, ORDINARY).unwrap();
    arena.grow_to(4 * MIB).unwrap();
    let error = arena.grow_to(5 * MIB).unwrap_err();
    let MemoryError::Exhausted { asked, available, .. } = &error else { panic!("{error}") };
    assert_eq!((*asked, *available), (MIB as u64, 0));
    assert!(error.to_string().contains("memory limit"), "{error}");
    assert!(matches!(arena.grow_to(usize::MAX), Err(MemoryError::Exhausted { .. })));
    assert_eq!(arena.len(), 4 * MIB);
}

#[test]
fn more_than_the_machine_has_is_an_error_and_not_a_kill() {
    let arena = Arena::create("test", 1 << 46, 1 << 46, ORDINARY).unwrap();
    arena.grow_to(1).unwrap();
    let error = arena.grow_to(1 << 45).unwrap_err();
    let MemoryError::Exhausted { asked, available, what_limits, .. } = &error else { panic!("{error}") };
    assert!(asked > available && !what_limits.is_empty(), "{error}");
    assert_eq!(arena.len(), 2 * MIB, "nothing was taken");
    arena.grow_to(4 * MIB).unwrap();
}

#[test]
fn it_cannot_shrink_and_the_file_ends_where_the_arena_does() {
    let arena = Arena::create("test", 16 * MIB, 16 * MIB, ORDINARY).unwrap();
    arena.grow_to(2 * MIB).unwrap();
    assert_eq!(rustix::fs::ftruncate(&fds(&arena)[0], 0), Err(Errno::PERM));
    assert_eq!(fstat(&fds(&arena)[0]).unwrap().st_size, 2 << 20);
}

#[test]
fn unfit_files_are_refused() {
    let why = |fd: OwnedFd, reserve| match Mapping::attach(vec![fd], reserve) {
        Err(MemoryError::Rejected { why }) => why,
        other => panic!("{other:?}"),
    };
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(why(file.into(), STEP_BYTES).contains("no memfd"));
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    assert!(why(pipe, STEP_BYTES).contains("no memfd"));
    let open = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    assert!(why(open, STEP_BYTES).contains("shrinking"));
    let arena = Arena::create("test", 8 * MIB, 8 * MIB, ORDINARY).unwrap();
    arena.grow_to(4 * MIB).unwrap();
    let fd = || fds(&arena).remove(0);
    assert!(why(fd(), 2 * MIB).contains("exceed"));
    assert!(why(fd(), MIB).contains("multiple"));
    assert!(why(fd(), 0).contains("multiple"));
    let sealed = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    fcntl_add_seals(&sealed, SealFlags::SHRINK | SealFlags::WRITE).unwrap();
    assert!(why(sealed, STEP_BYTES).contains("writing"));
}

#[test]
fn impossible_reserves_are_errors() {
    for reserve_bytes in [0, 1 << 47, usize::MAX] {
        let answer = Arena::create("test", reserve_bytes, MIB, ORDINARY);
        assert!(matches!(answer, Err(MemoryError::BadReserve { .. })), "{reserve_bytes}");
    }
    assert_eq!(Arena::create("a\0b", 1, 1, ORDINARY).unwrap().reserve(), STEP_BYTES);
}

#[test]
fn threads_may_grow_it_together() {
    let arena = Arena::create("test", 64 * MIB, 64 * MIB, ORDINARY).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let arena = &arena;
            scope.spawn(move || (1..=8).for_each(|step| arena.grow_to(step * MIB * (thread + 1)).unwrap()));
        }
    });
    assert_eq!(arena.len() % STEP_BYTES, 0);
    assert!(arena.len() >= 32 * MIB);
}

#[test]
fn scarce_pages_come_first_and_ordinary_pages_follow() {
    const KINDS: &[Pages] = &[Pages::Scarce(4 * MIB), Pages::Scarce(6 * MIB), Pages::Ordinary];
    let arena = Arena::create("test", 64 * MIB, 64 * MIB, KINDS).unwrap();
    let early = attach(&arena);
    arena.grow_to(MIB).unwrap();
    let (before, base) = (attach(&arena), arena.base());
    early.reach().unwrap();
    assert_eq!(before.len(), 2 * MIB);
    all_is_shared(&arena, &[&early, &before]);
    // Into the second part, and through it into the third.
    arena.grow_to(5 * MIB).unwrap();
    assert_eq!((arena.len(), attach(&arena).len()), (6 * MIB, 6 * MIB));
    before.reach().unwrap();
    all_is_shared(&arena, &[&before, &attach(&arena)]);
    arena.grow_to(20 * MIB).unwrap();
    assert_eq!(arena.len(), 20 * MIB);
    let late = attach(&arena);
    [&early, &before, &late].into_iter().for_each(|peer| peer.reach().unwrap());
    assert_eq!(late.len(), 20 * MIB);
    all_is_shared(&arena, &[&early, &before, &late]);
    let taken = [4, 6, 10].map(|mib| mib * MIB);
    assert_eq!([KINDS[0], KINDS[1], KINDS[2]].map(|kind| arena.bytes_of(kind)), taken);
    // Parts that have ended grow no more, and no memory has moved.
    arena.grow_to(40 * MIB).unwrap();
    early.reach().unwrap();
    assert_eq!(arena.base(), base);
    all_is_shared(&arena, &[&early, &before, &late]);
    assert!(arena.grow_to(65 * MIB).unwrap_err().to_string().contains("memory limit"));
}

#[test]
fn pages_of_which_there_are_none_are_left_out() {
    let kinds = [Pages::Scarce(0), Pages::Scarce(128 * MIB), Pages::Ordinary];
    let arena = Arena::create("test", 64 * MIB, 64 * MIB, &kinds).unwrap();
    assert_eq!(arena.fds().count(), 2);
    arena.grow_to(64 * MIB).unwrap();
    assert_eq!(arena.bytes_of(kinds[1]), 64 * MIB, "all of it");
    assert_eq!(attach(&arena).len(), 64 * MIB);
    let small = Arena::create("test", STEP_BYTES, STEP_BYTES, HugePages::OneGib.kinds()).unwrap();
    assert!(small.fds().count() <= 2, "less than a page of 1 GiB");
}

/// On machines with huge pages: a part of the free ones, in several arenas at once, and more than are free.
#[test]
fn huge_pages_of_the_machine_are_taken_until_there_are_none() {
    if std::env::var_os("FARFIELD_NEED_HUGE_PAGES").is_some() {
        assert!(Pages::Huge.free_bytes(|| 0) >= 16 * MIB as u64, "huge pages are set aside");
    }
    let free = Pages::Huge.free_bytes(|| 0).min(1 << 30) as usize;
    let limit = free + 64 * MIB;
    let arenas = [(); 2].map(|()| Arena::create("test", limit, limit, HugePages::TwoMib.kinds()).unwrap());
    let early = arenas.each_ref().map(attach);
    for step in 1..=4 {
        for arena in &arenas {
            arena.grow_to(step * (free / 8 + MIB)).unwrap();
        }
    }
    let taken: usize = arenas.iter().map(|arena| arena.bytes_of(Pages::Huge)).sum();
    // Others may take some meanwhile.
    assert!(free == 0 || taken >= free / 2, "{taken} of {free}");
    for (arena, early) in arenas.iter().zip(&early) {
        early.reach().unwrap();
        assert_eq!(attach(arena).len(), arena.len());
        all_is_shared(arena, &[early, &attach(arena)]);
    }
    drop((arenas, early));
    assert!(Pages::Huge.free_bytes(|| 0) as usize >= free / 2, "they come back");
}
