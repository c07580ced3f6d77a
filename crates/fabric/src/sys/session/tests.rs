use std::fs::File;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use tempfile::TempDir;

use super::super::session_error::START_MAX;
use super::*;

/// A base directory that is removed with the test.
pub(crate) struct Base(TempDir);

impl Base {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn open(&self, session: &str) -> SessionDir {
        SessionDir::open_in(self.0.path(), session).unwrap()
    }

    fn user(&self) -> PathBuf {
        self.0.path().join(format!("farfield-{}", geteuid().as_raw()))
    }
}

/// Stands for the fabric's liveness word.
fn word(card: &CardMapping) -> &AtomicU32 {
    // SAFETY: aligned, within the cards of these tests, which have at least 128 bytes, and only accessed so.
    unsafe { AtomicU32::from_ptr(card.base().add(64).cast()) }
}

pub(crate) fn is_alive(card: &CardMapping) -> bool {
    word(card).load(Ordering::Relaxed) == 1
}

fn take(
    session: &SessionDir,
    node: u32,
    card_len: usize,
    is_alive: impl Fn(&CardMapping) -> bool,
) -> Result<Claim, SessionError> {
    let file = CardFile { bytes: card_len, there: card_len.min(4096) };
    session.claim(&session.lock()?, node, file, is_alive)
}

fn start(session: &SessionDir, node: u32) -> Claim {
    let claim = take(session, node, 4096, is_alive).unwrap();
    raise(&claim);
    claim
}

#[test]
fn parts_of_a_card_are_there_when_they_are_reserved() {
    let base = Base::new();
    let session = base.open("s");
    let claim = take(&session, 0, 1 << 20, is_alive).unwrap();
    raise(&claim);
    let blocks = || fs::metadata(session.card_path(0)).unwrap().blocks() * 512;
    assert_eq!((claim.card().len(), blocks()), (1 << 20, 4096));
    claim.reserve(700_000..700_256).unwrap();
    assert!((4096 + 256..=4096 + 8192).contains(&blocks()), "{} bytes", blocks());
    let peer = session.open_peer(0).unwrap().expect("a card");
    // SAFETY: inside the card, which has the part, by atomics only.
    let [own, theirs] =
        [claim.card(), &peer].map(|card| unsafe { AtomicU32::from_ptr(card.base().add(700_004).cast()) });
    own.store(5, Ordering::Relaxed);
    assert_eq!(theirs.load(Ordering::Relaxed), 5);
}

/// It lives from here on.
pub(crate) fn raise(claim: &Claim) {
    word(claim.card()).store(1, Ordering::Relaxed);
    claim.started().unwrap();
}

/// Leaves the traces of a crashed node: its files and a word that says it is dead.
pub(crate) fn crash(claim: Claim) {
    drop(UnixListener::bind(claim.socket_path()).unwrap());
    word(claim.card()).store(0x4000_0000, Ordering::Relaxed);
    std::mem::forget(claim);
}

#[test]
fn names_are_checked() {
    let base = Base::new();
    for name in ["", ".hidden", "..", "a/b", "a b", "ä", &"x".repeat(65)] {
        let error = SessionDir::open_in(base.0.path(), name).unwrap_err();
        assert!(matches!(error, SessionError::BadName { .. }), "{name:?}");
    }
    assert!(base.open("A-z_0.9").path().ends_with("A-z_0.9"));
    assert!(!base.user().join("a b").exists());
}

#[test]
fn directories_are_private_or_refused_with_advice() {
    let base = Base::new();
    let session = base.open("s");
    assert_eq!(fs::metadata(session.path()).unwrap().mode() & 0o777, 0o700);
    fs::set_permissions(session.path(), fs::Permissions::from_mode(0o750)).unwrap();
    let text = SessionDir::open_in(base.0.path(), "s").unwrap_err().to_string();
    assert!(text.contains("chmod 700") && text.contains("750"), "{text}");
    let other = Base::new();
    symlink(base.user(), other.user()).unwrap();
    let text = SessionDir::open_in(other.0.path(), "s").unwrap_err().to_string();
    assert!(text.contains("no directory"), "{text}");
    if geteuid().is_root() {
        let stranger = Base::new();
        fs::create_dir(stranger.user()).unwrap();
        std::os::unix::fs::chown(stranger.user(), Some(12_345), None).unwrap();
        let text = SessionDir::open_in(stranger.0.path(), "s").unwrap_err().to_string();
        assert!(text.contains("user 12345") && text.contains("FARFIELD_DIR"), "{text}");
    }
    assert!(matches!(SessionDir::open_in(Path::new("/nonexistent"), "s"), Err(SessionError::System { .. })));
}

#[test]
fn long_paths_are_refused_early() {
    let base = Base::new();
    let deep = base.0.path().join("d".repeat(90));
    fs::create_dir(&deep).unwrap();
    let error = SessionDir::open_in(&deep, "s").unwrap_err();
    assert!(matches!(error, SessionError::PathTooLong { .. }) && error.to_string().contains("FARFIELD_DIR"));
    assert_eq!(fs::read_dir(&deep).unwrap().count(), 0);
}

#[test]
fn a_place_is_claimed_shared_and_given_up() {
    let base = Base::new();
    let session = base.open("s");
    assert!(session.open_peer(3).unwrap().is_none());
    let claim = start(&session, 3);
    let card = session.open_peer(3).unwrap().unwrap();
    assert_eq!((card.len(), card.pid(), card.boot_id()), (4096, std::process::id(), boot_id().unwrap()));
    assert!(is_alive(&card));
    assert_eq!((claim.node(), session.nodes().unwrap()), (3, vec![3]));
    let error = take(&session, 3, 4096, is_alive).unwrap_err();
    assert!(matches!(error, SessionError::AlreadyRunning { node: 3, pid } if pid == std::process::id()));
    let _socket = UnixListener::bind(claim.socket_path()).unwrap();
    drop(claim);
    assert!(!session.path().exists(), "the last one out removes the directory");
    assert!(!base.user().exists(), "and that of the user");
    assert_eq!(session.nodes().unwrap(), []);
    assert!(session.open_peer(3).unwrap().is_none());
    drop(start(&session, 3));
}

#[test]
fn leftovers_of_the_dead_are_replaced() {
    let base = Base::new();
    let session = base.open("s");
    crash(start(&session, 0));
    crash(start(&session, 1));
    let _alive = start(&session, 2);
    let again = start(&session, 0);
    assert!(!again.socket_path().exists());
    assert_eq!(session.nodes().unwrap(), [0, 1, 2]);
    assert_eq!(session.sweep(is_alive).unwrap(), 1);
    assert_eq!(session.nodes().unwrap(), [0, 2]);
    assert!(!session.socket_path(1).exists());
}

#[test]
fn a_starting_process_keeps_its_place_while_it_holds_the_lock() {
    let base = Base::new();
    let session = base.open("s");
    let starting = take(&session, 0, 128, is_alive).unwrap();
    assert!(matches!(take(&session, 0, 128, is_alive), Err(SessionError::AlreadyRunning { .. })));
    assert_eq!(session.sweep(is_alive).unwrap(), 0);
    // It dies before its word is set.
    flock(&starting.fd, FlockOperation::Unlock).unwrap();
    std::mem::forget(starting);
    let slow = take(&session, 0, 128, is_alive).unwrap();
    // Eleven seconds pass.
    let card = File::options().write(true).open(session.card_path(0)).unwrap();
    card.set_modified(SystemTime::now() - START_MAX - Duration::from_secs(1)).unwrap();
    let next = start(&session, 0);
    assert!(matches!(slow.started(), Err(SessionError::Replaced { node: 0 })));
    drop(slow);
    assert!(session.open_peer(0).unwrap().is_some(), "the slow one leaves its successor's files alone");
    drop(next);
}

#[test]
fn cards_of_another_boot_and_broken_ones() {
    let base = Base::new();
    let session = base.open("s");
    let claim = start(&session, 0);
    claim.card().u64_at(24).fetch_xor(1, Ordering::Relaxed);
    std::mem::forget(claim);
    let claim = start(&session, 0);
    claim.card().u32_at(8).store(VERSION + 1, Ordering::Relaxed);
    let error = take(&session, 0, 128, is_alive).unwrap_err();
    assert!(matches!(error, SessionError::OtherVersion { .. }), "{error}");
    assert!(matches!(session.open_peer(0), Err(SessionError::OtherVersion { .. })));
    // The creator died before the header was written, before the file had its length.
    claim.card().u64_at(0).store(0, Ordering::Relaxed);
    assert!(session.open_peer(0).unwrap().is_none());
    assert_eq!(session.sweep(is_alive).unwrap(), 1);
    session.make().unwrap();
    let path = session.path().join("1.card");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    drop(start(&session, 1));
    let bad = |why: &str| match session.open_peer(9) {
        Err(SessionError::BadCard { why: found, .. }) => assert!(found.contains(why), "{found}"),
        other => panic!("{other:?}"),
    };
    session.make().unwrap();
    let path = session.path().join("9.card");
    fs::write(&path, [7; 100]).unwrap();
    bad("mode");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    bad("starts with");
    fs::remove_file(&path).unwrap();
    symlink("/dev/null", &path).unwrap();
    bad("symbolic link");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(session.open_peer(9).is_err());
}

#[test]
fn sweeping_clears_other_sessions_and_spares_the_living() {
    let base = Base::new();
    let (own, dead, mixed) = (base.open("own"), base.open("dead"), base.open("mixed"));
    crash(start(&dead, 0));
    crash(start(&dead, 1));
    crash(start(&mixed, 0));
    let _alive = start(&mixed, 1);
    let _own = start(&own, 0);
    drop(UnixListener::bind(mixed.socket_path(7)).unwrap());
    fs::write(mixed.path().join("notes.txt"), "").unwrap();
    assert_eq!(own.sweep(is_alive).unwrap(), 3);
    assert!(!dead.path().exists());
    assert_eq!(mixed.nodes().unwrap(), [1]);
    assert!(!mixed.socket_path(7).exists());
    assert!(mixed.path().join("notes.txt").exists(), "files of others are left alone");
    // A session that is locked is passed over.
    crash(start(&dead, 0));
    let lock = dead.lock().unwrap();
    assert_eq!(own.sweep(is_alive).unwrap(), 0);
    drop(lock);
    assert_eq!(own.sweep(is_alive).unwrap(), 1);
}

#[test]
fn starters_leavers_and_sweepers_do_not_disturb_each_other() {
    let base = Base::new();
    std::thread::scope(|scope| {
        for node in 0..3 {
            let session = base.open("s");
            scope.spawn(move || {
                for _ in 0..60 {
                    let claim = take(&session, node, 128, is_alive).unwrap();
                    word(claim.card()).store(1, Ordering::Relaxed);
                    claim.started().unwrap();
                    assert!(session.open_peer(node).unwrap().is_some_and(|card| is_alive(&card)));
                    session.sweep(is_alive).unwrap();
                    assert!(session.nodes().unwrap().contains(&node));
                }
            });
        }
    });
    assert!(!base.user().exists());
}

#[test]
fn one_of_many_gets_the_place() {
    let base = Base::new();
    let session = base.open("s");
    crash(start(&session, 0));
    let claims: Vec<_> = std::thread::scope(|scope| {
        let starters = [0; 4].map(|_| scope.spawn(|| take(&session, 0, 128, is_alive)));
        starters.into_iter().map(|starter| starter.join().unwrap()).collect()
    });
    assert_eq!(claims.iter().filter(|claim| claim.is_ok()).count(), 1);
}

#[test]
fn files_of_nodes_have_one_name() {
    let node = |name: &str| node_of(OsStr::new(name), ".card");
    assert_eq!((node("0.card"), node("4294967295.card")), (Some(0), Some(u32::MAX)));
    for name in ["07.card", "+7.card", ".card", "7.sock", "4294967296.card", "-1.card", "lock"] {
        assert_eq!(node(name), None, "{name}");
    }
}
