//! The hosts of `farfield run --hosts`: a file that names them, and the process that stands for a node on each.
//!
//! A node on another host is `ssh HOST farfield __remote` here, and `__remote` with the program below it there. Its
//! instructions are passed through standard input, so that the secret is on no command line; signals follow as lines.
//! The end of that input, or of the connection, is the order to end the program: so no node outlives its launcher on
//! other hosts either.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::num::NonZeroU16;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;

use anyhow::{Context, Result, bail, ensure};
use farfield::PORT;
use farfield::fabric::check_nodes;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::{Deserialize, Serialize};

use super::{GRACE, exit_status_of, report};

/// A node's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    /// The name for ssh.
    pub(super) host: String,
    pub(super) address: SocketAddr,
    pub(super) device: Option<String>,
}

/// Reads a file of hosts.
pub(super) fn read(path: &Path) -> Result<Vec<Seat>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let seats = parse(&text, &|host| {
        let name = host.rsplit('@').next().unwrap_or(host);
        let mut found = (name, 0).to_socket_addrs().with_context(|| format!("looking for the address of {name}"))?;
        // Many hosts know themselves by an address that no other host can reach.
        let found = found.find(|found| name == "localhost" || !found.ip().is_loopback());
        Ok(found.with_context(|| format!("no address is known by which others reach {name}: say address=…"))?.ip())
    });
    seats.with_context(|| path.display().to_string())
}

fn parse(text: &str, resolve: &dyn Fn(&str) -> Result<IpAddr>) -> Result<Vec<Seat>> {
    let mut seats: Vec<Seat> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words = line.split('#').next().unwrap_or_default().split_whitespace();
        let taken: Vec<SocketAddr> = seats.iter().map(|seat| seat.address).collect();
        seats.extend(parse_line(words, &taken, resolve).with_context(|| format!("line {number}"))?);
    }
    ensure!(!seats.is_empty(), "it names no host: one in each line, as `left address=10.0.0.1`");
    check_nodes(seats.len())?;
    Ok(seats)
}

fn parse_line<'a>(
    mut words: impl Iterator<Item = &'a str>,
    taken: &[SocketAddr],
    resolve: &dyn Fn(&str) -> Result<IpAddr>,
) -> Result<Vec<Seat>> {
    let Some(host) = words.next() else { return Ok(Vec::new()) };
    ensure!(!host.starts_with('-') && !host.contains('='), "`{host}` is no host: it comes first");
    let (mut ip, mut nodes, mut port, mut devices) = (None, 1u16, PORT, Vec::new());
    for word in words {
        let (name, value) = word.split_once('=').with_context(|| format!("`{word}`: name=value is expected"))?;
        let wrong = || format!("`{word}`");
        match name {
            "address" => ip = Some(value.parse::<IpAddr>().with_context(wrong)?),
            "nodes" => nodes = value.parse().with_context(wrong)?,
            "port" => port = value.parse::<NonZeroU16>().with_context(wrong)?.get(),
            "device" => devices = value.split(',').map(String::from).collect(),
            _ => bail!("`{name}` is unknown: there are address, nodes, port and device"),
        }
    }
    ensure!(nodes > 0, "nodes=0: leave the line out");
    let ip = ip.map_or_else(|| resolve(host), Ok)?;
    let mut seats: Vec<Seat> = Vec::new();
    for node in 0..usize::from(nodes) {
        let is_free = |port: &u16| {
            let address = SocketAddr::new(ip, *port);
            !taken.contains(&address) && !seats.iter().any(|seat| seat.address == address)
        };
        let free = (port..=u16::MAX).find(is_free).context("no port is left")?;
        let device = (!devices.is_empty()).then(|| devices[node % devices.len()].clone());
        seats.push(Seat { host: host.into(), address: SocketAddr::new(ip, free), device });
    }
    Ok(seats)
}

/// The first instructions to a node on another host.
#[derive(Serialize, Deserialize)]
struct Errand {
    variables: Vec<(String, String)>,
    /// Where to work, if there is such a directory.
    directory: PathBuf,
    command: Vec<String>,
}

/// The variables of a node, beside those that all have.
pub(super) fn variables_of(seat: &Seat) -> Option<(&'static str, OsString)> {
    seat.device.as_ref().map(|device| ("FARFIELD_DEVICE", device.into()))
}

/// The process here that stands for a node on another host, not started yet.
pub(super) fn command(ssh: &[String], host: &str) -> Result<Command> {
    let own = std::env::current_exe().context("finding this program")?;
    // The same file, as on a shared file system, or the one that is installed there.
    let script = format!(
        "exec \"$(command -v {} || command -v farfield || echo farfield)\" __remote",
        quoted(&own.to_string_lossy())
    );
    let mut command = Command::new(&ssh[0]);
    command.args(&ssh[1..]).arg(host).arg(format!("sh -c {}", quoted(&script))).stdin(Stdio::piped());
    Ok(command)
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Sends a node on another host its instructions.
pub(super) fn instruct(
    to: &mut impl Write,
    variables: &[(&'static str, OsString)],
    command: &[OsString],
) -> Result<()> {
    let text =
        |word: &OsString| word.to_str().map(String::from).with_context(|| format!("{} is no text", word.display()));
    let variables =
        variables.iter().map(|(name, value)| Ok((String::from(*name), text(value)?))).collect::<Result<_>>()?;
    let command = command.iter().map(text).collect::<Result<_>>()?;
    let directory = std::env::current_dir().context("finding the working directory")?;
    let mut line = serde_json::to_vec(&Errand { variables, directory, command })?;
    line.push(b'\n');
    to.write_all(&line).and_then(|()| to.flush()).context("telling the other host what to run")
}

/// Sends a node on another host a signal.
pub(super) fn signal(to: &mut impl Write, signal: Signal) {
    // A lost connection is an order, too.
    let _ = to.write_all(format!("{}\n", signal.as_raw()).as_bytes()).and_then(|()| to.flush());
}

/// The hidden `farfield __remote`: runs a node's program, and ends it when the launcher has ended.
pub(crate) fn remote_main() -> Result<ExitCode> {
    let mut orders = BufReader::new(std::io::stdin());
    let mut line = Vec::new();
    orders.by_ref().take(1 << 20).read_until(b'\n', &mut line).context("reading what to run")?;
    let errand: Errand =
        serde_json::from_slice(&line).context("understanding what to run: is it the same build of Farfield?")?;
    if let Err(error) = std::env::set_current_dir(&errand.directory) {
        report(&format!(
            "{}: {error}; the program starts in {}",
            errand.directory.display(),
            std::env::current_dir()?.display()
        ));
    }
    let mut child = Command::new(std::env::current_exe().context("finding this program")?)
        .args(["__child", "--launcher", &std::process::id().to_string(), "--"])
        .args(&errand.command)
        .envs(errand.variables)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .context("no process (see `ulimit -u` and `ulimit -n`)")?;
    let group = Pid::from_child(&child);
    let (ended, watch) = mpsc::channel::<()>();
    // Not joined: it may wait for orders for ever. No other process gets the group's number until the process is
    // reaped, and this program ends with that.
    std::thread::spawn(move || {
        for order in orders.lines().map_while(Result::ok) {
            if let Some(signal) = order.trim().parse().ok().and_then(Signal::from_named_raw) {
                let _ = kill_process_group(group, signal);
            }
        }
        let _ = kill_process_group(group, Signal::TERM);
        if watch.recv_timeout(GRACE) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    });
    // Checked before it is reaped: until then no other process gets its group's number. The remaining processes of a
    // failed program end with it, as on the launcher's own host.
    let looked = waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    if !looked.is_ok_and(|status| status.is_some_and(|status| status.exit_status() == Some(0))) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait().context("waiting for the program")?;
    drop(ended);
    Ok(ExitCode::from(exit_status_of(status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Seat>> {
        parse(text, &|host| if host == "known" { Ok([10, 0, 0, 9].into()) } else { bail!("unknown") })
    }

    #[test]
    fn hosts_have_nodes_addresses_and_devices() {
        let text = "# two hosts\nroot@left address=10.0.0.1 nodes=3 device=a,b # three nodes\n\nknown\n\
                    left address=10.0.0.1\n";
        let seats = parsed(text).unwrap();
        let shown: Vec<_> = seats.iter().map(|seat| (seat.host.as_str(), seat.address.to_string())).collect();
        assert_eq!(
            shown.iter().map(|(host, address)| (*host, address.as_str())).collect::<Vec<_>>(),
            [
                ("root@left", "10.0.0.1:7471"),
                ("root@left", "10.0.0.1:7472"),
                ("root@left", "10.0.0.1:7473"),
                ("known", "10.0.0.9:7471"),
                ("left", "10.0.0.1:7474"),
            ]
        );
        assert_eq!(seats[2].device.as_deref(), Some("a"));
        assert_eq!(parsed("left address=fd99::2 port=9").unwrap()[0].address.to_string(), "[fd99::2]:9");
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, what) in [
            ("", "names no host"),
            ("a address=x", "line 1: `address=x`"),
            ("\nfar", "line 2: unknown"),
            ("a address=10.0.0.1 slots=3", "`slots` is unknown"),
            ("a address=10.0.0.1 nodes=0", "nodes=0"),
            ("address=10.0.0.1", "is no host"),
            ("-oProxyCommand=x address=10.0.0.1", "is no host"),
            ("a b", "`b`: name=value"),
            ("a address=10.0.0.1 nodes=200\nb address=10.0.0.2 nodes=57", "257 nodes: a session has 1 to 256 nodes"),
        ] {
            let error = format!("{:#}", parsed(text).unwrap_err());
            assert!(error.contains(what), "{text:?}: {error}");
        }
    }

    #[test]
    fn text_is_quoted_for_a_shell() {
        assert_eq!(quoted("a b'c"), r"'a b'\''c'");
    }
}
