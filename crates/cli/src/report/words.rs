//! Names and numbers as a reader reads them.

use super::read::Setup;
use crate::output::grouped;

/// A system's name.
pub(super) fn system(name: &str) -> String {
    match name {
        "farfield" => "Farfield".into(),
        "mpi" => "MPI".into(),
        "redis" => "Redis".into(),
        "ucx" => "UCX".into(),
        other => other.into(),
    }
}

/// A bench's title.
pub(super) fn bench(name: &str) -> String {
    match name {
        "kv" => "Key-value store".into(),
        "locks" => "Locks".into(),
        "transfers" => "Transfers under two locks".into(),
        "fabric" => "Single operations".into(),
        "barrier" => "Barrier".into(),
        "broadcast" => "Broadcast".into(),
        "collectives" => "Collectives".into(),
        "queue" => "Queue".into(),
        "rome" => "Sorted maps, and whole objects".into(),
        "swarm" => "Replicated store".into(),
        "wrdt" => "Replicated data types".into(),
        "idle" => "Long waits".into(),
        other => other.into(),
    }
}

/// The name of one operation of a bench.
pub(super) fn operation(bench: &str) -> &'static str {
    match bench {
        "kv" => "look-ups and updates",
        "locks" => "acquisitions",
        "transfers" => "transfers",
        "barrier" => "waits",
        "broadcast" => "messages",
        "collectives" | "rome" | "swarm" | "wrdt" => "calls",
        "queue" => "pairs of enqueue and dequeue",
        "idle" => "waits",
        _ => "operations",
    }
}

/// A field of a setup, as the title of an axis or a column.
pub(super) fn field(name: &str) -> String {
    match name {
        "threads" => "threads of each node".into(),
        "window" => "window (operations in flight)".into(),
        "size" => "bytes of a message or value".into(),
        "local_percent" => "% local".into(),
        "update_percent" => "% updates".into(),
        "work_ns" => "work, ns".into(),
        other => other.replace(['_', '.'], " "),
    }
}

/// A field of a setup, as the title of a column.
pub(super) fn column(name: &str) -> String {
    match name {
        "size" => "size, B".into(),
        "local_percent" | "work_ns" => field(name),
        other => other.replace(['_', '.'], " "),
    }
}

/// The fields of a setup in order: those that lines are drawn over, then all others.
pub(super) fn in_order<'a>(names: impl Iterator<Item = &'a String> + Clone) -> impl Iterator<Item = &'a str> {
    const FIRST: [&str; 4] = ["nodes", "threads", "window", "size"];
    let first = FIRST.into_iter().filter_map({
        let names = names.clone();
        move |first| names.clone().find(|name| *name == first)
    });
    first.chain(names.filter(|name| !FIRST.contains(&name.as_str()))).map(String::as_str)
}

/// The fields of a setup that are `chosen`, in words: `2 nodes, 1 thread, window 128`.
pub(super) fn setup(setup: &Setup, chosen: impl Fn(&str) -> bool) -> String {
    let names = in_order(setup.keys()).filter(|name| chosen(name));
    let said: Vec<String> = names.filter_map(|name| setup.get(name).map(|value| say(name, value))).collect();
    said.join(", ")
}

fn say(name: &str, value: &str) -> String {
    let number = value.parse().ok();
    let shown = number.map_or_else(|| value.to_owned(), grouped);
    let plural = if number == Some(1) { "" } else { "s" };
    match name {
        "nodes" => format!("{shown} node{plural}"),
        "threads" => format!("{shown} thread{plural}"),
        "size" => format!("{shown} B"),
        "keys" => format!("{shown} keys"),
        "locks" => format!("{shown} lock{plural}"),
        "accounts" => format!("{shown} accounts"),
        "local_percent" => format!("{shown} % local"),
        "work_ns" => format!("{shown} ns of work"),
        "fabric" | "distribution" => shown,
        "pinned" => if value == "true" { "pinned threads" } else { "threads not pinned" }.into(),
        other => format!("{} {shown}", other.replace(['_', '.'], " ")),
    }
}

/// Between a number and its unit, which stay together.
const SPACE: char = '\u{a0}';

/// A number with three digits and a unit: `1.25 M`.
pub(super) fn short(number: f64) -> String {
    let (scaled, unit) = match number.abs() {
        n if n >= 999.5e6 => (number / 1e9, "G"),
        n if n >= 999.5e3 => (number / 1e6, "M"),
        n if n >= 999.5 => (number / 1e3, "k"),
        _ => return digits(number),
    };
    format!("{}{SPACE}{unit}", digits(scaled))
}

/// Nanoseconds with a unit: `3.1 µs`.
pub(super) fn time(ns: f64) -> String {
    let (scaled, unit) = match ns {
        0.0 => return "0".into(),
        n if n >= 999.5e6 => (ns / 1e9, "s"),
        n if n >= 999.5e3 => (ns / 1e6, "ms"),
        n if n >= 999.5 => (ns / 1e3, "µs"),
        _ => (ns, "ns"),
    };
    format!("{}{SPACE}{unit}", digits(scaled))
}

/// Three digits, without zeros at the end.
pub(super) fn digits(number: f64) -> String {
    let decimals = match number.abs() {
        n if n >= 99.95 || n == 0.0 => 0,
        n if n >= 9.995 => 1,
        n if n >= 0.9995 => 2,
        n if n >= 0.09995 => 3,
        _ => 4,
    };
    let text = format!("{number:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (number, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (1.0, "1"),
            (12.34, "12.3"),
            (999.7, "1 k"),
            (1_250_000.0, "1.25 M"),
            (99_960_000.0, "100 M"),
            (4.2e9, "4.2 G"),
        ] {
            assert_eq!(short(number), text.replace(' ', &SPACE.to_string()));
        }
        let times = [0.0, 85.0, 3100.0, 8e6, 2.5e9].map(|ns| time(ns).replace(SPACE, " "));
        assert_eq!(times, ["0", "85 ns", "3.1 µs", "8 ms", "2.5 s"]);
    }

    #[test]
    fn setups_are_said_in_order() {
        let of = [("window", "128"), ("nodes", "1"), ("keys", "500000"), ("budgets.remote", "5")];
        let of: Setup = of.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(setup(&of, |_| true), "1 node, window 128, budgets remote 5, 500,000 keys");
        assert_eq!(setup(&of, |name| name == "nodes"), "1 node");
    }
}
