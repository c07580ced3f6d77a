//! The network between the nodes. `tc` with its `netem` makes it lose some packets, or all of them.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::launch::FabricChoice;

/// The interfaces by which the nodes are connected: those of two RDMA devices, with one link between them, or those of
/// several hosts that are network namespaces. The nodes are on each in turn, and a cut separates the last one from the
/// others. Dropping it restores the network.
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

    /// Runs `ip` or `tc` where the interface is.
    fn run(&self, program: &str, arguments: &[&str], told: &str) -> Result<String> {
        let within = self.namespace.iter().flat_map(|namespace| ["-n", namespace]);
        run(program, &within.chain(arguments.iter().copied()).collect::<Vec<_>>(), told)
    }

    fn set(&self, state: &str) -> Result<()> {
        self.run("ip", &["link", "set", "dev", &self.interface, state], "").map(drop)
    }

    fn address(&self) -> Result<IpAddr> {
        let text = self.run("ip", &["-json", "-4", "address", "show", "dev", &self.interface], "")?;
        let interfaces: Vec<Interface> = serde_json::from_str(&text).with_context(|| format!("ip says `{text}`"))?;
        let mut addresses = interfaces.into_iter().flat_map(|interface| interface.addr_info);
        addresses.next().map(|it| it.local).with_context(|| format!("{self} has no IPv4 address"))
    }

    /// Whether a node can listen there. In another namespace nothing else does.
    fn is_free(&self, address: SocketAddr) -> bool {
        self.namespace.is_some() || TcpListener::bind(address).is_ok()
    }
}

impl Link {
    /// # Errors
    /// There is no such interface, no `tc`, or no right to use it.
    pub(super) fn new(ends: &[String], loss: f64, fabric: FabricChoice) -> Result<Link> {
        let ends: Vec<End> = ends.iter().map(|end| End::new(end)).collect();
        let are_in_namespaces = ends.iter().all(|end| end.namespace.is_some());
        match fabric {
            FabricChoice::Shm => bail!("--link: it takes --fabric verbs or ucx"),
            FabricChoice::Verbs => {
                let are_here = ends.iter().all(|end| end.namespace.is_none());
                ensure!(ends.len() == 2 && are_here, "--link: the two interfaces that the link joins");
            }
            FabricChoice::Ucx => {
                ensure!(ends.len() >= 2 && are_in_namespaces, "--link: NAMESPACE/INTERFACE of each host, two at least");
            }
        }
        ends.iter().try_for_each(|end| end.address().map(drop))?;
        let link = Link { ends, loss, is_cut: false };
        link.lose(loss)?;
        Ok(link)
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The hosts, or devices, on which the nodes are in turn.
    pub(super) fn ends(&self) -> usize {
        self.ends.len()
    }

    /// The network namespace of a place.
    pub(super) fn namespace_of(&self, place: usize) -> Option<&str> {
        self.ends[place % self.ends.len()].namespace.as_deref()
    }

    /// Separates the last end from the others. After this returns, nothing crosses the link.
    pub(super) fn cut(&mut self) -> Result<()> {
        self.is_cut = true;
        match &self.ends[..] {
            // Not every kernel has netem; and a device is not to learn of it.
            [.., last] if last.namespace.is_some() => last.set("down"),
            _ => self.lose(100.0),
        }
    }

    pub(super) fn mend(&mut self) -> Result<()> {
        self.is_cut = false;
        match &self.ends[..] {
            [.., last] if last.namespace.is_some() => last.set("up"),
            _ => self.lose(self.loss),
        }
    }

    /// Sets the share of packets that are lost, in percent.
    fn lose(&self, loss: f64) -> Result<()> {
        let line = |end: &End| format!("qdisc replace dev {} root netem loss {loss}%\n", end.interface);
        if self.namespace_of(0).is_none() {
            // At all ends at the same time.
            return run("tc", &["-batch", "-"], &self.ends.iter().map(line).collect::<String>()).map(drop);
        }
        if loss == 0.0 {
            return Ok(());
        }
        self.ends.iter().try_for_each(|end| end.run("tc", &["-batch", "-"], &line(end)).map(drop))
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
        if self.loss > 0.0 || self.namespace_of(0).is_none() {
            for end in &self.ends {
                let _ = end.run("tc", &["qdisc", "del", "dev", &end.interface, "root"], "");
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
fn run(program: &str, arguments: &[&str], told: &str) -> Result<String> {
    let mut command = Command::new(program);
    let command = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("running {program}: is iproute2 installed?"))?;
    // A program that does not read its input reports the reason itself.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(told.as_bytes()));
    let output = child.wait_with_output().with_context(|| format!("waiting for {program}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {} (to change a link takes root)", arguments.join(" "), why.trim());
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
