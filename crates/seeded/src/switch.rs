//! The switch of the mistakes that `farfield-sweep` puts into a copy of the sources: one of them is on at a time, in
//! the whole process. It also notes which of them were reached.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The most mistakes of one build.
pub const SITES_MAX: usize = 1 << 14;

/// The variable of the environment that switches a mistake on from the start, for test programs.
pub const VARIABLE: &str = "FARFIELD_SWEEP_SITE";

const NONE: u32 = u32::MAX;
/// The variable was not read yet.
const UNKNOWN: u32 = u32::MAX - 1;

static ON: AtomicU32 = AtomicU32::new(UNKNOWN);
static REACHED: [AtomicBool; SITES_MAX] = [const { AtomicBool::new(false) }; SITES_MAX];

/// Whether a mistake is on. Generated code calls it where the mistake would be made.
#[inline]
pub fn on(site: u32) -> bool {
    REACHED[site as usize].store(true, Ordering::Relaxed);
    match ON.load(Ordering::Relaxed) {
        UNKNOWN => from_environment() == site,
        on => on == site,
    }
}

#[cold]
fn from_environment() -> u32 {
    let site = std::env::var(VARIABLE).ok().and_then(|site| site.parse().ok()).unwrap_or(NONE);
    ON.store(site, Ordering::Relaxed);
    site
}

/// Switches one mistake on, and the others off.
pub fn enable(site: Option<u32>) {
    ON.store(site.unwrap_or(NONE), Ordering::Relaxed);
}

/// The mistakes that were reached since the last call.
pub fn take_reached() -> Vec<u32> {
    let reached = REACHED.iter().enumerate().filter(|(_, reached)| reached.swap(false, Ordering::Relaxed));
    reached.map(|(site, _)| site as u32).collect()
}
