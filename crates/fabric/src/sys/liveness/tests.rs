use super::*;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::{NamedTempFile, TempPath};

/// A cell in a file that is mapped shared, and stays mapped for the test's life.
struct SharedCell(*const LifeCell);

// SAFETY: the mapping is never undone and a cell consists of atomics.
unsafe impl Send for SharedCell {}
// SAFETY: as above.
unsafe impl Sync for SharedCell {}

impl AsRef<LifeCell> for SharedCell {
    fn as_ref(&self) -> &LifeCell {
        // SAFETY: mapped for ever, page-aligned, one page long.
        unsafe { &*self.0 }
    }
}

impl SharedCell {
    fn map(file: &File) -> Arc<Self> {
        // SAFETY: the kernel chooses a free range.
        let page =
            unsafe { mmap(ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0) };
        Arc::new(Self(page.unwrap().cast()))
    }

    fn new() -> Arc<Self> {
        let file = rustix::fs::memfd_create("cell", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(file);
        file.set_len(4096).unwrap();
        Self::map(&file)
    }

    fn value(&self) -> u32 {
        self.as_ref().word().load(Ordering::Acquire)
    }
}

const ROLE: &str = "FARFIELD_TEST_LIVENESS_ROLE";
const FILE: &str = "FARFIELD_TEST_LIVENESS_FILE";
const HEAP: &str = "FARFIELD_TEST_HEAP_MIB";

/// This test binary, run with [`child`] alone.
fn re_exec(role: &str, file: &Path) -> Command {
    let this = module_path!().split_once("::").unwrap().1;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("{this}::child"), "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(FILE, file);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Not a test: the other process of the tests below.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let path = std::env::var_os(FILE).unwrap();
    let cell = SharedCell::map(&OpenOptions::new().read(true).write(true).open(path).unwrap());
    let _guard = hold(cell).unwrap();
    if role == "fork" {
        // SAFETY: the child calls async-signal-safe functions only.
        let grandchild = unsafe { libc::fork() };
        if grandchild == 0 {
            // SAFETY: as above; it lives until it is killed, and not for ever if the test fails.
            unsafe {
                libc::alarm(60);
                libc::pause();
                libc::_exit(0)
            }
        }
        say(&format!("grandchild {grandchild}"));
    }
    let heap_mib = std::env::var(HEAP).map_or(0, |mib| mib.parse::<usize>().unwrap());
    let mut heap = vec![0u8; heap_mib << 20];
    heap.chunks_mut(4096).for_each(|page| page[0] = 1);
    say("ready");
    std::hint::black_box(&heap);
    loop {
        std::thread::park();
    }
}

/// Leaves a process of the outer namespace behind, which names the inner one and will be killed; continues as the
/// first process of a new PID namespace.
fn enter_new_namespace() -> io::Result<()> {
    // SAFETY: the kernel calls take integers and nothing here allocates; this process has one thread.
    unsafe {
        if libc::unshare(libc::CLONE_NEWPID) < 0 && libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID) < 0 {
            return Err(io::Error::last_os_error());
        }
        let inner = libc::fork();
        if inner == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            return Ok(());
        }
        let mut line = [b' '; 32];
        let _ = write!(&mut line[..], "\n> inner {inner}\n");
        libc::write(1, line.as_ptr().cast(), line.len());
        // The parent waits until no copy of its pipe is left.
        libc::close_range(3, u32::MAX, 0);
        libc::waitpid(inner, ptr::null_mut(), 0);
        libc::_exit(0)
    }
}

/// A line to the parent, which skips the output of the test harness.
fn say(line: &str) {
    println!("\n> {line}");
    std::io::stdout().flush().unwrap();
}

/// A running child and the cell it holds; killed and reaped at the end.
struct Other {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    cell: Arc<SharedCell>,
    _path: TempPath,
}

impl Other {
    fn start(role: &str, prepare: impl FnOnce(&mut Command)) -> std::io::Result<Self> {
        let (file, path) = NamedTempFile::new()?.into_parts();
        file.set_len(4096)?;
        let cell = SharedCell::map(&file);
        let mut command = re_exec(role, &path);
        prepare(&mut command);
        let mut child = command.spawn()?;
        let lines = BufReader::new(child.stdout.take().unwrap());
        Ok(Self { child, lines, cell, _path: path })
    }

    /// Waits until the child has printed `word`; returns the rest of the line.
    fn heard(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            if let Some(rest) = line.strip_prefix("> ").and_then(|line| line.strip_prefix(word)) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("the child ended without saying {word:?}");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Kills `victim` and returns how long the word took to show it.
    fn kill(&self, victim: Pid) -> Duration {
        assert!(is_alive(self.cell.value()));
        let start = Instant::now();
        kill_process(victim, Signal::KILL).unwrap();
        while is_alive(self.cell.value()) {
            assert!(start.elapsed() < Duration::from_secs(60), "{:#x}", self.cell.value());
            std::hint::spin_loop();
        }
        let elapsed = start.elapsed();
        assert_eq!(self.cell.value(), FUTEX_OWNER_DIED);
        elapsed
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// On a quiet machine 0.1 to 2 ms; tests share theirs with others.
const SOON: Duration = Duration::from_millis(100);

#[test]
fn alive_is_a_thread_id_and_nothing_else() {
    for alive in [1, 2, 4_194_304, 0x3fff_ffff] {
        assert!(is_alive(alive), "{alive:#x}");
    }
    for dead in [0, FUTEX_OWNER_DIED, FUTEX_OWNER_DIED | 1, 0x8000_0001, 0xffff_ffff] {
        assert!(!is_alive(dead), "{dead:#x}");
    }
}

#[test]
fn leaving_gracefully_clears_the_word() {
    let cell = SharedCell::new();
    let guard = hold(Arc::clone(&cell)).unwrap();
    assert!(is_alive(cell.value()));
    assert!(matches!(hold(Arc::clone(&cell)), Err(LivenessError::InUse { .. })));
    drop(guard);
    assert_eq!(cell.value(), 0);
    drop(hold(Arc::clone(&cell)).unwrap());
}

#[test]
fn kill_shows_soon() {
    let mut other = Other::start("hold", |_| {}).unwrap();
    other.heard("ready");
    let elapsed = other.kill(other.pid());
    assert!(elapsed < SOON, "{elapsed:?}");
    assert!(matches!(hold(Arc::clone(&other.cell)), Err(LivenessError::InUse { value: FUTEX_OWNER_DIED })));
}

#[test]
fn kill_shows_soon_with_a_large_heap() {
    // 4096 for the larger variant.
    let mib = std::env::var(HEAP).unwrap_or_else(|_| "1024".to_owned());
    let mut other = Other::start("hold", |command| {
        command.env(HEAP, &mib);
    });
    let other = other.as_mut().unwrap();
    other.heard("ready");
    let elapsed = other.kill(other.pid());
    println!("{mib} MiB: {elapsed:?}");
    assert!(elapsed < SOON, "{elapsed:?}");
}

#[test]
fn kill_shows_soon_although_a_forked_child_lives_on() {
    let mut other = Other::start("fork", |_| {}).unwrap();
    let grandchild = Pid::from_raw(other.heard("grandchild").parse().unwrap()).unwrap();
    other.heard("ready");
    let elapsed = other.kill(other.pid());
    let lives = rustix::process::test_kill_process(grandchild);
    let killed = kill_process(grandchild, Signal::KILL);
    assert!(elapsed < SOON, "{elapsed:?}");
    assert_eq!((lives, killed), (Ok(()), Ok(())));
}

#[test]
fn a_stopped_process_is_alive() {
    let mut other = Other::start("hold", |_| {}).unwrap();
    other.heard("ready");
    kill_process(other.pid(), Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_millis(150));
    assert!(is_alive(other.cell.value()));
    let elapsed = other.kill(other.pid());
    assert!(elapsed < SOON, "{elapsed:?}");
}

#[test]
fn death_in_another_pid_namespace_shows() {
    let started = Other::start("hold", |command| {
        // SAFETY: between fork and exec only async-signal-safe calls are made.
        unsafe { command.pre_exec(enter_new_namespace) };
    });
    let mut other = match started {
        Ok(other) => other,
        Err(error) => {
            println!("NOT TESTED: this machine permits no new PID namespace: {error}");
            return;
        }
    };
    let inner = Pid::from_raw(other.heard("inner").parse().unwrap()).unwrap();
    other.heard("ready");
    assert!(other.cell.value() < 10_000, "an id of a young namespace: {}", other.cell.value());
    let elapsed = other.kill(inner);
    assert!(elapsed < SOON, "{elapsed:?}");
}

#[test]
fn a_thread_that_ends_without_leaving_has_died() {
    let cell = SharedCell::new();
    let held = Arc::clone(&cell);
    std::thread::spawn(move || std::mem::forget(hold(held).unwrap())).join().unwrap();
    let start = Instant::now();
    while is_alive(cell.value()) {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(cell.value(), FUTEX_OWNER_DIED);
}

#[test]
fn a_panic_is_a_death() {
    let cell = SharedCell::new();
    let held = Arc::clone(&cell);
    let thread = std::thread::spawn(move || {
        let _guard = hold(held).unwrap();
        std::panic::resume_unwind(Box::new("as if by panic"));
    });
    assert!(thread.join().is_err());
    assert_eq!(cell.value(), FUTEX_OWNER_DIED);
}

#[test]
fn a_forked_child_cannot_sign_off_its_parent() {
    let cell = SharedCell::new();
    let guard = hold(Arc::clone(&cell)).unwrap();
    // SAFETY: the child only drops the guard (a system call and, at most, atomics) and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(guard);
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the status is written to a local.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
    assert!(is_alive(cell.value()));
    drop(guard);
    assert_eq!(cell.value(), 0);
}

/// A robust mutex of the C library, never freed.
fn robust_mutex() -> usize {
    let mutex = Box::into_raw(Box::new(libc::PTHREAD_MUTEX_INITIALIZER));
    // SAFETY: mutex and attributes are ours and initialised before use.
    unsafe {
        let mut attributes = std::mem::zeroed();
        assert_eq!(libc::pthread_mutexattr_init(&raw mut attributes), 0);
        assert_eq!(libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST), 0);
        assert_eq!(libc::pthread_mutex_init(mutex, &raw const attributes), 0);
    }
    mutex as usize
}

fn lock(mutex: usize) -> i32 {
    // SAFETY: made by `robust_mutex` and never freed.
    unsafe { libc::pthread_mutex_lock(mutex as *mut _) }
}

fn unlock(mutex: usize) -> i32 {
    // SAFETY: as above; the calling thread holds it.
    unsafe { libc::pthread_mutex_unlock(mutex as *mut _) }
}

/// Links of the list from its head on, without the head.
fn list() -> Vec<usize> {
    let head = get_robust_list().unwrap();
    let mut found = Vec::new();
    // SAFETY: this thread's own list, which does not change meanwhile.
    unsafe {
        let mut entry = (*head).list.load(Ordering::Relaxed);
        while entry != head as usize {
            found.push(entry);
            entry = (*(entry as *const AtomicUsize)).load(Ordering::Relaxed);
        }
    }
    found
}

#[test]
fn robust_mutexes_of_the_c_library_go_on_working() {
    let mutexes: Vec<usize> = (0..4).map(|_| robust_mutex()).collect();
    // Every order of unlocking around a guard's life: mutexes 0 and 1 are locked before it, 2 and 3 during it; the
    // bits are those unlocked before the guard is dropped.
    for early in 0..16u32 {
        let mutexes = mutexes.clone();
        std::thread::spawn(move || {
            let cell = SharedCell::new();
            assert_eq!((lock(mutexes[0]), lock(mutexes[1])), (0, 0));
            let guard = hold(Arc::clone(&cell)).unwrap();
            assert_eq!((lock(mutexes[2]), lock(mutexes[3])), (0, 0));
            assert_eq!(list().len(), 5);
            assert!(list().contains(&(*cell).as_ref().entry()));
            let is_early = |at: &usize| early >> at & 1 == 1;
            (0..4).filter(is_early).for_each(|at| assert_eq!(unlock(mutexes[at]), 0));
            drop(guard);
            assert_eq!(list().len() as u32, 4 - early.count_ones());
            (0..4).filter(|at| !is_early(at)).for_each(|at| assert_eq!(unlock(mutexes[at]), 0));
            assert_eq!(list(), []);
        })
        .join()
        .unwrap();
    }
    // And a thread that dies leaves both the word and the mutexes marked.
    let cell = SharedCell::new();
    let (held, first, second) = (Arc::clone(&cell), mutexes[0], mutexes[1]);
    std::thread::spawn(move || {
        assert_eq!(lock(first), 0);
        std::mem::forget(hold(held).unwrap());
        assert_eq!(lock(second), 0);
    })
    .join()
    .unwrap();
    assert_eq!((lock(first), lock(second)), (libc::EOWNERDEAD, libc::EOWNERDEAD));
    assert_eq!(cell.value(), FUTEX_OWNER_DIED);
}

#[test]
fn a_foreign_list_is_replaced_and_put_back() {
    std::thread::spawn(|| {
        let glibc = get_robust_list().unwrap();
        let foreign =
            Box::leak(Box::new(Head { list: AtomicUsize::new(0), futex_offset: -28, pending: AtomicUsize::new(0) }));
        let foreign = ptr::from_mut(foreign);
        // SAFETY: leaked just above.
        unsafe { (*foreign).list.store(foreign as usize, Ordering::Relaxed) };
        for old in [foreign, ptr::null_mut()] {
            set_robust_list(old).unwrap();
            let (first, second) = (SharedCell::new(), SharedCell::new());
            let first_guard = hold(Arc::clone(&first)).unwrap();
            assert_ne!(get_robust_list().unwrap(), old);
            let second_guard = hold(Arc::clone(&second)).unwrap();
            assert_eq!(list().len(), 2);
            drop(second_guard);
            assert_eq!(list(), [(*first).as_ref().entry()]);
            drop(first_guard);
            assert_eq!(get_robust_list().unwrap(), old);
        }
        // Dropped in the other order, our list stays in place and still guards the second cell.
        set_robust_list(foreign).unwrap();
        let cells = [SharedCell::new(), SharedCell::new()];
        let guards = cells.clone().map(|cell| hold(cell).unwrap());
        let [first_guard, second_guard] = guards;
        drop(first_guard);
        assert_eq!(list(), [(*cells[1]).as_ref().entry()]);
        drop(second_guard);
        set_robust_list(glibc).unwrap();
    })
    .join()
    .unwrap();
}

#[test]
fn a_replaced_list_tells_of_death_too() {
    let cell = SharedCell::new();
    let held = Arc::clone(&cell);
    std::thread::spawn(move || {
        set_robust_list(ptr::null_mut()).unwrap();
        std::mem::forget(hold(held).unwrap());
    })
    .join()
    .unwrap();
    let start = Instant::now();
    while is_alive(cell.value()) {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(cell.value(), FUTEX_OWNER_DIED);
}
