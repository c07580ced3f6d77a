//! The directory in which the nodes of a session find each other, and what earlier sessions left in it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farfield::fabric::shm::rendezvous_directory;
use serde_json::json;

use super::{Check, MIB, read, size};

/// The rendezvous directory holds only small files and sockets.
const RENDEZVOUS_BYTES_COMFORTABLE: u64 = MIB;

/// Where the nodes of a session find each other, and why there.
pub(super) struct Base {
    path: PathBuf,
    why: &'static str,
}

impl Base {
    /// The user's own directory in it.
    fn own(&self) -> PathBuf {
        self.path.join(format!("farfield-{}", rustix::process::geteuid().as_raw()))
    }
}

pub(super) fn base() -> Base {
    let path = rendezvous_directory();
    let why = if std::env::var_os("FARFIELD_DIR").is_some_and(|path| !path.is_empty()) {
        "FARFIELD_DIR"
    } else if path == Path::new("/dev/shm") {
        "the default"
    } else {
        why_not(Path::new("/dev/shm"))
    };
    Base { path, why }
}

/// Why nodes use the directory for temporary files in place of `/dev/shm`.
fn why_not(shm: &Path) -> &'static str {
    let access = rustix::fs::access(shm, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK);
    match access {
        _ if !shm.is_dir() => "the temporary directory, as there is no directory /dev/shm",
        Err(rustix::io::Errno::ROFS) => "the temporary directory, as /dev/shm is mounted read-only",
        _ => "the temporary directory, as this user cannot write to /dev/shm",
    }
}

pub(super) fn directory(base: &Base) -> Check {
    let name = "directory";
    let shown = base.path.display();
    let mut data = json!({ "path": base.path.to_string_lossy(), "why": base.why });
    if let Err(problem) = try_directory(base) {
        let advice = "make it a directory that this user may write to, or name another one: export FARFIELD_DIR=/path";
        return Check::lack(name, format!("{shown} ({}): {problem}", base.why), advice).vital().data(data);
    }
    let Ok(space) = rustix::fs::statvfs(&base.path) else {
        return Check::ok(name, format!("{shown} ({}), writable", base.why)).vital().data(data);
    };
    let (total, free) = (space.f_blocks.saturating_mul(space.f_frsize), space.f_bavail.saturating_mul(space.f_frsize));
    data["total_bytes"] = json!(total);
    data["free_bytes"] = json!(free);
    let value = format!("{shown} ({}), writable, {} free of {}", base.why, size(free), size(total));
    // A file system that counts no blocks or no inodes reports 0 in all.
    let full = (total > 0 && free < RENDEZVOUS_BYTES_COMFORTABLE) || (space.f_files > 0 && space.f_favail == 0);
    if full {
        let advice = format!("it is full: remove files from {shown}, or name another one: export FARFIELD_DIR=/path");
        return Check::note(name, value, advice).vital().data(data);
    }
    Check::ok(name, value).vital().data(data)
}

/// The directory, and the bytes that are free in it, if it counts any.
pub(crate) fn free_directory() -> Option<(String, u64)> {
    let path = rendezvous_directory();
    let space = rustix::fs::statvfs(&path).ok().filter(|space| space.f_blocks > 0)?;
    Some((path.display().to_string(), space.f_bavail.saturating_mul(space.f_frsize)))
}

/// Creates and removes a file where the fabric would.
fn try_directory(base: &Base) -> Result<(), String> {
    let about = base.path.metadata().map_err(|error| error.to_string())?;
    if !about.is_dir() {
        return Err("not a directory".into());
    }
    let own = base.own();
    let folder = match own.symlink_metadata() {
        Ok(about) if !about.is_dir() => return Err(format!("{} is in the way", own.display())),
        Ok(about) if about.uid() != rustix::process::geteuid().as_raw() => {
            return Err(format!("{} belongs to user {}", own.display(), about.uid()));
        }
        Ok(_) => &own,
        Err(_) => &base.path,
    };
    // Hidden, so that it never passes for a session.
    let probe = folder.join(format!(".farfield-doctor-{}", std::process::id()));
    fs::File::create_new(&probe).and_then(|_| fs::remove_file(&probe)).map_err(|error| format!("not writable: {error}"))
}

pub(super) fn leftovers(base: &Base) -> Check {
    let name = "sessions";
    let own = base.own();
    let mut entries: Vec<PathBuf> =
        fs::read_dir(&own).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default();
    entries.retain(|path| !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")));
    entries.sort();
    let sockets = read("/proc/net/unix").unwrap_or_default();
    let locks = read("/proc/locks").unwrap_or_default();
    let (running, left): (Vec<_>, Vec<_>) = entries.iter().partition(|path| is_in_use(path, &sockets, &locks));
    let names = |paths: &[&PathBuf]| -> Vec<String> {
        paths.iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect()
    };
    let (running, left) = (names(&running), names(&left));
    let data = json!({ "path": own.to_string_lossy(), "in_use": running, "left_over": left });
    let value = format!("{} in use, {} left over in {}", running.len(), left.len(), own.display());
    if left.is_empty() {
        return Check::ok(name, value).data(data);
    }
    const NAMES_SHOWN: usize = 8;
    let more = if left.len() > NAMES_SHOWN { format!(" and {} more", left.len() - NAMES_SHOWN) } else { String::new() };
    let value = format!("{value}: {}{more}", left[..left.len().min(NAMES_SHOWN)].join(", "));
    let advice =
        format!("left by sessions that ended badly; if no program of yours uses them: rm -r {}/NAME", own.display());
    Check::note(name, value, advice).data(data)
}

/// Whether a socket is bound at or below a path, or a lock is held on a file there.
fn is_in_use(path: &Path, sockets: &str, locks: &str) -> bool {
    // A socket's path is the last field of its line; it holds no spaces here, or the entry merely counts as left over.
    let bound = sockets.lines().filter_map(|line| line.split_ascii_whitespace().nth(7));
    if bound.map(Path::new).any(|socket| socket.starts_with(path)) {
        return true;
    }
    // "1: FLOCK ADVISORY WRITE 4711 00:1b:567 0 EOF": the sixth field ends in the inode. The device is not compared: it
    // is not reliable across file systems, and a chance hit only keeps an entry from being called left over.
    let locked = |inode: u64| {
        locks.lines().any(|line| {
            let file = line.split_ascii_whitespace().nth(5).and_then(|field| field.rsplit(':').next());
            file.and_then(|number| number.parse().ok()) == Some(inode)
        })
    };
    let mut files = vec![path.to_path_buf()];
    if path.symlink_metadata().is_ok_and(|about| about.is_dir()) {
        files.extend(fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()));
    }
    files.iter().any(|file| file.symlink_metadata().is_ok_and(|about| locked(about.ino())))
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::*;
    use crate::doctor::Mark;

    #[test]
    fn bad_rendezvous_directories_are_vital() {
        let scratch = tempdir().expect("a directory");
        fs::write(scratch.path().join("file"), "").expect("a file");
        for path in ["missing", "file"] {
            let check = directory(&Base { path: scratch.path().join(path), why: "FARFIELD_DIR" });
            assert!(check.vital && check.mark == Mark::Lack, "{check:?}");
        }
        let base = Base { path: scratch.path().to_owned(), why: "FARFIELD_DIR" };
        assert_ne!(directory(&base).mark, Mark::Lack);
        fs::write(base.own(), "").expect("a file");
        assert_eq!(directory(&base).mark, Mark::Lack, "a file where the user's directory belongs");
    }

    #[test]
    fn leftovers_are_told_from_sessions_in_use() {
        let scratch = tempdir().expect("a directory");
        let base = Base { path: scratch.path().to_owned(), why: "FARFIELD_DIR" };
        fs::create_dir_all(base.own().join("dead")).expect("a directory");
        fs::create_dir_all(base.own().join("live")).expect("a directory");
        let _socket = std::os::unix::net::UnixListener::bind(base.own().join("live/node0")).expect("a socket");
        let check = leftovers(&base);
        assert_eq!(check.data["left_over"], json!(["dead"]));
        assert_eq!(check.data["in_use"], json!(["live"]));
        assert_eq!(check.mark, Mark::Note);
        drop(scratch);
        assert_eq!(leftovers(&base).mark, Mark::Ok, "no directory, no leftovers");
    }
}
