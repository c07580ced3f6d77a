//! Kinds of pages, and how much memory of each this machine has left.
//!
//! Huge pages cost fewer misses of the address translation (LOCO, appendix C.2). They come from pools that the
//! administrator has set aside, and go back there with the memory.

use std::fs;

use rustix::fs::MemfdFlags;

use super::cgroup;
use super::range::{MemoryError, STEP_BYTES};

/// One part in this many of the room is left to everybody else.
const SPARE_PART: u64 = 16;

/// Which pages the memory of a node's groups is made of.
///
/// ```
/// use farfield_fabric::HugePages;
/// assert_eq!("2M".parse(), Ok(HugePages::TwoMib));
/// assert_eq!("none".parse(), Ok(HugePages::Never));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub enum HugePages {
    /// Ordinary ones, which the kernel may put together where it is configured to.
    #[serde(rename = "none")]
    Never,
    /// Of 2 MiB as long as there are free ones, then ordinary ones.
    #[default]
    #[serde(rename = "2M")]
    TwoMib,
    /// Of 1 GiB as long as there are free ones, then of 2 MiB, then ordinary ones. Each group that grows takes a whole
    /// one, and a node has at least three groups.
    #[serde(rename = "1G")]
    OneGib,
    /// Those that are scarce, for tests.
    #[cfg(test)]
    #[serde(skip)]
    Scarce,
}

impl HugePages {
    /// The kinds of pages, in the order in which they are taken.
    pub(crate) fn kinds(self) -> &'static [Pages] {
        match self {
            HugePages::Never => &[Pages::Ordinary],
            HugePages::TwoMib => &[Pages::Huge, Pages::Ordinary],
            HugePages::OneGib => &[Pages::Gigantic, Pages::Huge, Pages::Ordinary],
            #[cfg(test)]
            HugePages::Scarce => &[Pages::Scarce(4 << 20), Pages::Scarce(2 << 20), Pages::Ordinary],
        }
    }
}

impl core::str::FromStr for HugePages {
    type Err = String;

    fn from_str(text: &str) -> Result<HugePages, String> {
        match text {
            "none" => Ok(HugePages::Never),
            "2M" => Ok(HugePages::TwoMib),
            "1G" => Ok(HugePages::OneGib),
            _ => Err(format!("`{text}` is no kind of huge pages: none, 2M, or 1G")),
        }
    }
}

/// A kind of page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pages {
    /// Of 4 KiB, taken in steps of 2 MiB.
    Ordinary,
    /// Of 2 MiB.
    Huge,
    /// Of 1 GiB.
    Gigantic,
    /// Ordinary ones, of which an arena gets so many bytes: for tests on machines without huge ones.
    #[cfg(test)]
    Scarce(usize),
}

impl Pages {
    /// The unit in which they are taken, and aligned.
    pub(crate) fn bytes(self) -> usize {
        if self == Pages::Gigantic { 1 << 30 } else { STEP_BYTES }
    }

    /// The flags of a memfd of them.
    pub(crate) fn flags(self) -> MemfdFlags {
        match self {
            Pages::Huge => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            Pages::Gigantic => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
            _ => MemfdFlags::empty(),
        }
    }

    /// Bytes in free ones of a pool, for an arena that has taken some. As many as one likes of those that are of no
    /// pool.
    pub(crate) fn free_bytes(self, #[cfg_attr(not(test), expect(unused))] taken: impl FnOnce() -> usize) -> u64 {
        match self {
            Pages::Ordinary => u64::MAX,
            Pages::Huge | Pages::Gigantic => free_in_pool(self.bytes() as u64),
            #[cfg(test)]
            Pages::Scarce(bytes) => bytes.saturating_sub(taken()) as u64,
        }
    }
}

/// Bytes in free huge pages of this size that are not reserved.
fn free_in_pool(page_bytes: u64) -> u64 {
    let read = |name: &str| -> Option<u64> {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{name}", page_bytes >> 10);
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    let free = read("free_hugepages").unwrap_or(0);
    let reserved = read("resv_hugepages").unwrap_or(0);
    free.saturating_sub(reserved).saturating_mul(page_bytes)
}

/// Whether the machine, and the control group of this process, have room for `more` bytes in ordinary pages.
pub(crate) fn check_room(more: usize) -> Result<(), MemoryError> {
    let more = more as u64;
    let exhausted =
        |available, what_limits, hint| Err(MemoryError::Exhausted { asked: more, available, what_limits, hint });
    // Where /proc is not mounted, nothing is known and the kernel decides.
    let free = meminfo_bytes("MemAvailable:").map_or(u64::MAX, |free| free - free / SPARE_PART);
    if more > free {
        let hint = "close other programs, use a larger machine, or open smaller objects";
        return exhausted(free, "memory available on this machine, less a reserve".to_owned(), hint);
    }
    if let Some(room) = cgroup::memory_room() {
        let free = room.bytes - room.bytes / SPARE_PART;
        if more > free {
            let limit = format!("memory limit of control group {}, less a reserve", room.group.display());
            let hint = "raise the limit of the container or service (memory.max), or open smaller objects";
            return exhausted(free, limit, hint);
        }
    }
    Ok(())
}

/// Bytes of a line of `/proc/meminfo`.
fn meminfo_bytes(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    parse_meminfo(&text, field)
}

fn parse_meminfo(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        assert_eq!(parse_meminfo("MemTotal:  5 kB\nMemAvailable:   12 kB\n", "MemAvailable:"), Some(12 << 10));
        assert_eq!(parse_meminfo("MemTotal:  5 kB\n", "MemAvailable:"), None);
        assert!(meminfo_bytes("MemAvailable:").is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn kinds_have_names() {
        for (text, kind) in [("none", HugePages::Never), ("2M", HugePages::TwoMib), ("1G", HugePages::OneGib)] {
            assert_eq!(text.parse(), Ok(kind));
            assert_eq!(kind.kinds().last(), Some(&Pages::Ordinary), "which there is always");
        }
        assert!("4M".parse::<HugePages>().unwrap_err().contains("none, 2M, or 1G"));
    }
}
