//! Signals to the launcher, as events.

use std::sync::mpsc::Sender;
use std::thread;

use anyhow::Context;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Event;

/// Turns the signals that matter into events.
pub(super) fn forward_signals_as_events(events: &Sender<Event>) -> anyhow::Result<()> {
    // A signal that is ignored at our start (nohup, `&` in a script) is ignored for the nodes, too.
    let ignored = ignored_signals();
    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|number| ignored & (1 << (number - 1)) == 0);
    let mut signals = Signals::new(wanted.chain([SIGCHLD])).context("cannot handle signals")?;
    let events = events.clone();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for number in signals.forever() {
                if events.send(Event::Signal(number)).is_err() {
                    break;
                }
            }
        })
        .context("no thread (see `ulimit -u`)")?;
    Ok(())
}

/// The set of signals that this process was told to ignore: bit n - 1 for signal n.
fn ignored_signals() -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        })
        .unwrap_or(0)
}
