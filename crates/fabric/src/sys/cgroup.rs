//! The limits of this process's control groups, as files below the cgroup mounts state them (version 2, else 1).
//!
//! A limit holds for a whole subtree, so every level from the process's own group up to the mount is read and the
//! tightest one counts. A file that is missing or unreadable is no limit: these figures are for errors that come
//! early and read well, the kernel enforces the real ones.

use std::fs;
use std::path::{Path, PathBuf};

/// Room that one control group leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryRoom {
    /// Bytes that can still be allocated, counting page cache that the kernel would drop first.
    pub(crate) bytes: u64,
    /// The group's directory.
    pub(crate) group: PathBuf,
}

/// The tightest memory limit over all levels, or `None` where there is none.
pub(crate) fn memory_room() -> Option<MemoryRoom> {
    let v2 = levels("", "cgroup2").into_iter().filter_map(|group| room_v2(&group));
    let v1 = levels("memory", "cgroup").into_iter().filter_map(|group| room_v1(&group));
    v2.chain(v1).min_by_key(|room| room.bytes)
}

/// The tightest processor quota over all levels in whole cores, rounded down, or `None` where there is none.
pub(crate) fn cpu_quota() -> Option<usize> {
    let v2 = levels("", "cgroup2").into_iter().filter_map(|group| {
        let text = fs::read_to_string(group.join("cpu.max")).ok()?;
        parse_cpu_max(&text)
    });
    let v1 = levels("cpu", "cgroup").into_iter().filter_map(|group| {
        // A quota of -1 means none and fails to parse as unsigned.
        let quota = number(&group.join("cpu.cfs_quota_us"))?;
        let period = number(&group.join("cpu.cfs_period_us"))?;
        quota.checked_div(period)
    });
    v2.chain(v1).min().map(|cores| usize::try_from(cores).unwrap_or(usize::MAX))
}

/// `"150000 100000"` is one and a half cores, `"max 100000"` is no limit.
fn parse_cpu_max(text: &str) -> Option<u64> {
    let mut fields = text.split_whitespace();
    let quota: u64 = fields.next()?.parse().ok()?;
    let period: u64 = fields.next()?.parse().ok()?;
    quota.checked_div(period)
}

fn room_v2(group: &Path) -> Option<MemoryRoom> {
    // "max" fails to parse: no limit at this level.
    let limit = number(&group.join("memory.max"))?;
    let used = number(&group.join("memory.current"))?;
    let droppable = stat(&group.join("memory.stat"), "inactive_file").unwrap_or(0);
    Some(room(group, limit, used, droppable))
}

fn room_v1(group: &Path) -> Option<MemoryRoom> {
    // Version 1 writes "no limit" as the largest page-aligned number.
    let limit = number(&group.join("memory.limit_in_bytes")).filter(|&bytes| bytes < 1 << 62)?;
    let used = number(&group.join("memory.usage_in_bytes"))?;
    let droppable = stat(&group.join("memory.stat"), "total_inactive_file").unwrap_or(0);
    Some(room(group, limit, used, droppable))
}

fn room(group: &Path, limit: u64, used: u64, droppable: u64) -> MemoryRoom {
    let bytes = limit.saturating_sub(used.saturating_sub(droppable));
    MemoryRoom { bytes, group: group.to_owned() }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The value of `name` in a file of `name value` lines.
fn stat(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

/// The directories of this process's group and its ancestors in one hierarchy: `controller` is empty for version 2.
fn levels(controller: &str, fs_type: &str) -> Vec<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    levels_in(&groups, &mounts, controller, fs_type)
}

fn levels_in(groups: &str, mounts: &str, controller: &str, fs_type: &str) -> Vec<PathBuf> {
    // /proc/self/cgroup: "id:controller,controller:/path", version 2 is "0::/path".
    let own = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    });
    // mountinfo: "id parent dev root mountpoint options … - type source super-options".
    let mount = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        if right.next()? != fs_type {
            return None;
        }
        let options = right.nth(1).unwrap_or("");
        if !controller.is_empty() && !options.split(',').any(|name| name == controller) {
            return None;
        }
        let mut left = left.split(' ').skip(3);
        Some((left.next()?, left.next()?))
    });
    let (Some(own), Some((root, mount))) = (own, mount) else {
        return Vec::new();
    };
    // Inside a container the mount shows only a subtree, or the path leads out of it: then the mount is our group.
    let below = match Path::new(own).strip_prefix(root) {
        Ok(path) if !own.contains("..") => path,
        _ => Path::new(""),
    };
    let mount = Path::new(mount);
    mount.join(below).ancestors().take_while(|path| path.starts_with(mount)).map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_max_is_rounded_down() {
        assert_eq!(parse_cpu_max("150000 100000\n"), Some(1));
        assert_eq!(parse_cpu_max("400000 100000\n"), Some(4));
        assert_eq!(parse_cpu_max("max 100000\n"), None);
        assert_eq!(parse_cpu_max("1 0"), None);
        assert_eq!(parse_cpu_max(""), None);
    }

    #[test]
    fn levels_of_version_2_go_up_to_the_mount() {
        let mounts = "30 20 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = levels_in("0::/user.slice/job\n", mounts, "", "cgroup2");
        let expected = ["/sys/fs/cgroup/user.slice/job", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"];
        assert_eq!(found, expected.map(PathBuf::from));
    }

    #[test]
    fn levels_of_version_1_in_a_container_that_sees_a_subtree() {
        let groups = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n";
        let mounts = "40 20 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                      41 20 0:31 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n";
        assert_eq!(levels_in(groups, mounts, "memory", "cgroup"), [PathBuf::from("/sys/fs/cgroup/memory")]);
        assert_eq!(levels_in(groups, mounts, "cpu", "cgroup"), [PathBuf::from("/sys/fs/cgroup/cpu")]);
        assert!(levels_in(groups, mounts, "pids", "cgroup").is_empty());
    }

    #[test]
    fn a_path_that_leads_out_of_the_mount_is_the_mount() {
        let mounts = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(levels_in("0::/../other\n", mounts, "", "cgroup2"), [PathBuf::from("/sys/fs/cgroup")]);
    }

    #[test]
    fn droppable_cache_counts_as_room() {
        assert_eq!(room(Path::new("/g"), 100, 90, 30).bytes, 40);
        assert_eq!(room(Path::new("/g"), 100, 130, 0).bytes, 0);
    }

    #[test]
    fn this_machine_can_be_read() {
        let _ = memory_room();
        assert_ne!(cpu_quota(), Some(usize::MAX));
    }
}
