//! The nodes' output: copied line by line, each line after its node's number, without ever hanging on a pipe that
//! another process holds open.

use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The time for remaining output, from a grandchild that holds the pipe, after a node has ended.
pub(super) const DRAIN: Duration = Duration::from_secs(1);
/// The longest piece of a line that is held in memory and written as one.
const CHUNK_BYTES_MAX: usize = 64 * 1024;
/// The largest capacity that an unprivileged process may give a pipe: the most that can be left in it when a node has
/// ended.
const PIPE_BYTES_MAX: usize = 1024 * 1024;

/// The target of a node's stream.
#[derive(Clone, Copy)]
pub(super) enum Sink {
    /// Our stdout.
    Out,
    /// Our stderr.
    Err,
}

impl Sink {
    /// Writes whole lines, so that no two nodes share one.
    fn write(self, bytes: &[u8]) -> io::Result<()> {
        fn all(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
            to.write_all(bytes)?;
            to.flush()
        }
        match self {
            Sink::Out => all(io::stdout().lock(), bytes),
            Sink::Err => all(io::stderr().lock(), bytes),
        }
    }
}

/// Copies one stream of a node until its end, or until a while after the node's own end (see [`DRAIN`]).
pub(super) fn copy_lines(
    mut from: impl Read + AsFd,
    hang_up: &PipeReader,
    to: Sink,
    mut framer: Framer,
) -> io::Result<()> {
    let mut bytes = vec![0; CHUNK_BYTES_MAX];
    let mut lines = Vec::new();
    let mut deadline = None;
    let mut last_bytes = PIPE_BYTES_MAX;
    loop {
        let left = deadline.map(|at: Instant| at.saturating_duration_since(Instant::now()));
        let (readable, hung_up) = wait_readable(&from, deadline.is_none().then_some(hang_up), left)?;
        if hung_up {
            deadline = Some(Instant::now() + DRAIN);
        }
        if !readable {
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            continue;
        }
        let count = match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        framer.push(&bytes[..count], &mut lines);
        to.write(&lines)?;
        lines.clear();
        if left.is_some_and(|left| left.is_zero()) {
            // Past the deadline, the node's own output is at most one pipe full; the rest is others'.
            match last_bytes.checked_sub(count) {
                Some(rest) => last_bytes = rest,
                None => break,
            }
        }
    }
    framer.finish(&mut lines);
    to.write(&lines)
}

/// Waits until `from` has bytes or its end, or the node has hung up, or the time is over. Returns which of the first
/// two.
fn wait_readable(
    from: &impl AsFd,
    hang_up: Option<&PipeReader>,
    timeout: Option<Duration>,
) -> io::Result<(bool, bool)> {
    let mut watched = vec![PollFd::new(from, PollFlags::IN)];
    watched.extend(hang_up.map(|hang_up| PollFd::new(hang_up, PollFlags::IN)));
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    match poll(&mut watched, timeout.as_ref()) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok((false, false)),
        Err(error) => return Err(error.into()),
    }
    let ready = |index: usize| watched.get(index).is_some_and(|fd| !fd.revents().is_empty());
    Ok((ready(0), ready(1)))
}

/// Cuts a stream into lines and puts the node's prefix before each, holding at most [`CHUNK_BYTES_MAX`] bytes back.
///
/// With a prefix every piece of output ends in a newline, also the last one and the pieces of an overlong line.
/// Without one the bytes are those of the input.
pub(super) struct Framer {
    prefix: Option<Vec<u8>>,
    /// The line so far.
    pending: Vec<u8>,
    /// Part of the current line is already out.
    cut: bool,
}

impl Framer {
    /// Before the first byte.
    pub(super) fn new(prefix: Option<Vec<u8>>) -> Self {
        Self { prefix, pending: Vec::new(), cut: false }
    }

    /// Takes bytes and appends complete lines to `out`.
    fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let room = CHUNK_BYTES_MAX - self.pending.len();
            let window = &bytes[..bytes.len().min(room)];
            if let Some(end) = window.iter().position(|&byte| byte == b'\n') {
                self.pending.extend_from_slice(&window[..end]);
                self.end_line(out);
                bytes = &bytes[end + 1..];
            } else {
                self.pending.extend_from_slice(window);
                bytes = &bytes[window.len()..];
                if self.pending.len() == CHUNK_BYTES_MAX {
                    self.emit(out);
                    self.cut = true;
                }
            }
        }
    }

    /// Takes the end of the stream.
    fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            self.emit(out);
        }
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        let already_ended = self.cut && self.pending.is_empty() && self.prefix.is_some();
        if !already_ended {
            self.emit(out);
            if self.prefix.is_none() {
                out.push(b'\n');
            }
        }
        self.cut = false;
    }

    fn emit(&mut self, out: &mut Vec<u8>) {
        if let Some(prefix) = &self.prefix {
            out.extend_from_slice(prefix);
        }
        out.append(&mut self.pending);
        if self.prefix.is_some() {
            out.push(b'\n');
        }
    }
}

/// `[k] `, in a colour of the node's own on a terminal.
pub(super) fn prefix(node: usize, terminal: bool) -> Vec<u8> {
    const COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];
    if terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) {
        format!("\x1b[{}m[{node}]\x1b[0m ", COLOURS[node % COLOURS.len()]).into_bytes()
    } else {
        format!("[{node}] ").into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(prefix: Option<&[u8]>, pieces: &[&[u8]]) -> Vec<u8> {
        let (mut framer, mut out) = (Framer::new(prefix.map(<[u8]>::to_vec)), Vec::new());
        for piece in pieces {
            framer.push(piece, &mut out);
            assert!(framer.pending.len() < CHUNK_BYTES_MAX);
        }
        framer.finish(&mut out);
        out
    }

    #[test]
    fn lines_get_the_prefix_wherever_reads_cut_them() {
        let text = b"one\n\ntwo \xff\0three";
        for cut in 0..=text.len() {
            let out = framed(Some(b"[7] "), &[&text[..cut], &text[cut..]]);
            assert_eq!(out, b"[7] one\n[7] \n[7] two \xff\0three\n");
        }
    }

    #[test]
    fn without_a_prefix_the_bytes_stay_the_same() {
        let mut text = vec![b'x'; 2 * CHUNK_BYTES_MAX];
        text.extend_from_slice(b"\n\ny\nz");
        assert_eq!(framed(None, &[&text]), text);
    }

    #[test]
    fn an_overlong_line_comes_in_pieces() {
        for (len, pieces) in [(CHUNK_BYTES_MAX - 1, 1), (CHUNK_BYTES_MAX, 1), (CHUNK_BYTES_MAX + 1, 2)] {
            let mut text = vec![b'#'; len];
            text.extend_from_slice(b"\nnext\n");
            let out = framed(Some(b"> "), &[&text]);
            assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), pieces + 1, "{len} bytes");
            assert_eq!(out.iter().filter(|&&byte| byte == b'#').count(), len, "no byte may be lost");
            assert!(out.ends_with(b"> next\n"));
        }
    }
}
