//! The link between RDMA devices. `tc` with its `netem` makes it lose some packets, or all of them.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// The network interfaces of the devices. The nodes alternate between them; traffic between the two crosses the link.
/// Dropping it restores the link.
pub(super) struct Link {
    ends: Vec<String>,
    /// The percentage of packets that are lost.
    loss: f64,
    is_cut: bool,
}

impl Link {
    /// # Errors
    /// There is no such interface, no `tc`, or no right to use it.
    pub(super) fn new(ends: &[String], loss: f64) -> Result<Link> {
        ensure!(ends.len() == 2, "--link: the two interfaces that the link joins");
        let link = Link { ends: ends.into(), loss, is_cut: false };
        link.lose(loss)?;
        Ok(link)
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Cuts the link. After this returns, nothing crosses it.
    pub(super) fn cut(&mut self) -> Result<()> {
        self.is_cut = true;
        self.lose(100.0)
    }

    pub(super) fn mend(&mut self) -> Result<()> {
        self.is_cut = false;
        self.lose(self.loss)
    }

    /// Sets the share of packets that are lost, in percent.
    fn lose(&self, loss: f64) -> Result<()> {
        let line = |end: &String| format!("qdisc replace dev {end} root netem loss {loss}%\n");
        run("tc", &["-batch", "-"], &self.ends.iter().map(line).collect::<String>()).map(drop)
    }

    /// The addresses on which the nodes listen, so that the connections between them cross the link, too.
    pub(super) fn hosts(&self, places: usize) -> Result<Vec<SocketAddr>> {
        let addresses: Vec<IpAddr> = self.ends.iter().map(|end| address_of(end)).collect::<Result<_>>()?;
        let mut ports: Vec<u16> = vec![farfield::PORT; addresses.len()];
        (0..places)
            .map(|place| {
                let end = place % addresses.len();
                let mut candidates = ports[end]..=u16::MAX;
                let is_free = |port: &u16| TcpListener::bind((addresses[end], *port)).is_ok();
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
        for end in &self.ends {
            let _ = run("tc", &["qdisc", "del", "dev", end, "root"], "");
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

fn address_of(end: &str) -> Result<IpAddr> {
    let text = run("ip", &["-json", "-4", "address", "show", "dev", end], "")?;
    let interfaces: Vec<Interface> = serde_json::from_str(&text).with_context(|| format!("ip says `{text}`"))?;
    let mut addresses = interfaces.into_iter().flat_map(|interface| interface.addr_info);
    addresses.next().map(|it| it.local).with_context(|| format!("{end} has no IPv4 address"))
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
        assert!(Link::new(&["lo".into()], 0.0).is_err());
        let missing = ["farfield-no-such-0".to_string(), "farfield-no-such-1".to_string()];
        assert!(Link::new(&missing, 0.0).is_err());
    }
}
