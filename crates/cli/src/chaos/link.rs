//! The network between the nodes. `tc` with its `netem` makes it lose some packets, or all of them.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::caretaker::{self, Left};
use crate::launch::FabricChoice;

/// The interfaces by which the nodes are connected: those of two RDMA devices, with one link between them, or those of
/// several hosts that are network namespaces. The nodes are on each in turn, and a cut separates the last one from the
/// others. Dropping it restores the network, but for routes beside that of the interface's own addresses.
pub(super) struct Link {
    ends: Vec<End>,
    /// The percentage of packets that are lost.
    loss: f64,
    is_cut: bool,
}

/// `INTERFACE`, or `NAMESPACE/INTERFACE`.
struct End {
    namespace: Option<String>,
    interface: String,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.namespace.iter().try_for_each(|namespace| write!(f, "{namespace}/"))?;
        f.write_str(&self.interface)
    }
}

impl End {
    fn new(text: &str) -> End {
        match text.split_once('/') {
            Some((namespace, interface)) => End { namespace: Some(namespace.into()), interface: interface.into() },
            None => End { namespace: None, interface: text.into() },
        }
    }

    /// The command line of `ip` or `tc` where the interface is.
    fn line(&self, program: &str, arguments: &[&str]) -> Vec<String> {
        let within = self.namespace.iter().flat_map(|namespace| ["-n", namespace]);
        [program].into_iter().chain(within).chain(arguments.iter().copied()).map(String::from).collect()
    }

    fn set(&self, state: &str) -> Vec<String> {
        self.line("ip", &["link", "set", "dev", &self.interface, state])
    }

    /// Takes the loss of packets back.
    fn lose_none(&self) -> Vec<String> {
        self.line("tc", &["qdisc", "del", "dev", &self.interface, "root"])
    }

    fn address(&self) -> Result<IpAddr> {
        let text = run(&self.line("ip", &["-json", "-4", "address", "show", "dev", &self.interface]), "");
        let text = text.with_context(|| format!("--link {self}: is it there? ci/ucx-hosts makes three hosts"))?;
        let interfaces: Vec<Interface> = serde_json::from_str(&text).with_context(|| format!("ip says `{text}`"))?;
        let mut addresses = interfaces.into_iter().flat_map(|interface| interface.addr_info);
        addresses.next().map(|it| it.local).with_context(|| format!("{self} has no IPv4 address"))
    }

    /// Whether a node can listen there, as far as that shows from here: not for another namespace.
    fn is_free(&self, address: SocketAddr) -> bool {
        self.namespace.is_some() || TcpListener::bind(address).is_ok()
    }
}

impl Link {
    /// # Errors
    /// There is no such interface, no `tc`, or no right to use it.
    pub(super) fn new(ends: &[String], loss: f64, fabric: FabricChoice) -> Result<Link> {
        let differ = ends.iter().enumerate().all(|(at, end)| !ends[..at].contains(end));
        let ends: Vec<End> = ends.iter().map(|end| End::new(end)).collect();
        let of_hosts = ends.iter().filter(|end| end.namespace.is_some()).count();
        match fabric {
            FabricChoice::Shm => bail!("--link: it takes --fabric verbs or ucx"),
            FabricChoice::Verbs => {
                ensure!(ends.len() == 2 && of_hosts == 0 && differ, "--link: the two interfaces that the link joins");
            }
            FabricChoice::Ucx => {
                let all = of_hosts == ends.len() && ends.len() >= 2 && differ;
                ensure!(all, "--link: NAMESPACE/INTERFACE of each host, two at least");
            }
        }
        ends.iter().try_for_each(|end| end.address().map(drop))?;
        let link = Link { ends, loss, is_cut: false };
        if link.has_loss() {
            link.ends.iter().for_each(|end| caretaker::owed(Left::Change(end.lose_none())));
            link.lose(loss)?;
        }
        Ok(link)
    }

    /// Whether the ends are those of hosts, which are network namespaces.
    fn is_of_hosts(&self) -> bool {
        self.ends[0].namespace.is_some()
    }

    /// Whether `tc` is needed. It also cuts a link between devices, which an interface that is down would show to them.
    fn has_loss(&self) -> bool {
        self.loss > 0.0 || !self.is_of_hosts()
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The number of hosts, or devices, on which the nodes are in turn.
    pub(super) fn ends(&self) -> usize {
        self.ends.len()
    }

    /// The network namespace of a place.
    pub(super) fn namespace_of(&self, place: usize) -> Option<&str> {
        self.ends[place % self.ends.len()].namespace.as_deref()
    }

    /// The last end, which a cut separates from the others, if it is that of a host.
    fn last_host(&self) -> Option<&End> {
        self.ends.last().filter(|end| end.namespace.is_some())
    }

    /// Separates the last end from the others. After this returns, nothing crosses the link.
    pub(super) fn cut(&mut self) -> Result<()> {
        self.is_cut = true;
        match self.last_host() {
            Some(host) => {
                caretaker::owed(Left::Change(host.set("up")));
                run(&host.set("down"), "").map(drop)
            }
            None => self.lose(100.0),
        }
    }

    pub(super) fn mend(&mut self) -> Result<()> {
        match self.last_host() {
            Some(host) => {
                run(&host.set("up"), "")?;
                caretaker::settled(Left::Change(host.set("up")));
            }
            None => self.lose(self.loss)?,
        }
        self.is_cut = false;
        Ok(())
    }

    /// Sets the share of packets that are lost, in percent.
    fn lose(&self, loss: f64) -> Result<()> {
        let line = |end: &End| format!("qdisc replace dev {} root netem loss {loss}%\n", end.interface);
        if !self.is_of_hosts() {
            // At both ends at the same time.
            let lines: String = self.ends.iter().map(line).collect();
            return run(&["tc", "-batch", "-"].map(String::from), &lines).map(drop);
        }
        self.ends.iter().try_for_each(|end| run(&end.line("tc", &["-batch", "-"]), &line(end)).map(drop))
    }

    /// The addresses on which the nodes listen, so that the connections between them cross the link, too.
    pub(super) fn hosts(&self, places: usize) -> Result<Vec<SocketAddr>> {
        let addresses: Vec<IpAddr> = self.ends.iter().map(End::address).collect::<Result<_>>()?;
        let mut ports: Vec<u16> = vec![farfield::PORT; addresses.len()];
        (0..places)
            .map(|place| {
                let end = place % addresses.len();
                let mut candidates = ports[end]..=u16::MAX;
                let is_free = |port: &u16| self.ends[end].is_free(SocketAddr::new(addresses[end], *port));
                let port =
                    candidates.find(is_free).with_context(|| format!("no port is free at {}", addresses[end]))?;
                ports[end] = port.saturating_add(1);
                Ok(SocketAddr::new(addresses[end], port))
            })
            .collect()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.is_cut {
            let _ = self.mend();
        }
        if self.has_loss() {
            for end in &self.ends {
                let _ = run(&end.lose_none(), "");
                caretaker::settled(Left::Change(end.lose_none()));
            }
        }
    }
}

/// An interface as `ip -json address` describes it.
#[derive(Deserialize)]
struct Interface {
    #[serde(default)]
    addr_info: Vec<AddressInfo>,
}

#[derive(Deserialize)]
struct AddressInfo {
    local: IpAddr,
}

/// Runs a program with this input. Returns its output, if it succeeded.
fn run(line: &[String], told: &str) -> Result<String> {
    let mut command = Command::new(&line[0]);
    let command = command.args(&line[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("running {}: is iproute2 installed?", line[0]))?;
    // A program that does not read its input reports the reason itself.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(told.as_bytes()));
    let output = child.wait_with_output().with_context(|| format!("waiting for {}", line[0]))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {} (to change a link takes root)", line.join(" "), why.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_the_output_of_ip() {
        let said = r#"[{},{"ifindex":3,"addr_info":[{"family":"inet","local":"10.99.0.1","prefixlen":24}]}]"#;
        let interfaces: Vec<Interface> = serde_json::from_str(said).unwrap();
        let local = interfaces.iter().flat_map(|it| &it.addr_info).map(|it| it.local).next();
        assert_eq!(local, Some(IpAddr::from([10, 99, 0, 1])));
    }

    #[test]
    fn interfaces_that_form_no_link_are_refused() {
        let missing = ["farfield-no-such-0".to_string(), "farfield-no-such-1".to_string()];
        let in_namespaces = missing.clone().map(|end| format!("farfield-none/{end}"));
        for (ends, fabric) in [
            (&["lo".into()][..], FabricChoice::Verbs),
            (&missing, FabricChoice::Verbs),
            (&missing, FabricChoice::Ucx),
            (&in_namespaces, FabricChoice::Verbs),
            (&in_namespaces, FabricChoice::Ucx),
            (&missing, FabricChoice::Shm),
        ] {
            assert!(Link::new(ends, 0.0, fabric).is_err(), "{ends:?}");
        }
    }
}
