//! The options of replicated memory.

use std::time::Duration;

use farfield_core::toolkit::{Participants, at_least_one};
use farfield_core::{Error, ErrorKind, Result};
use farfield_fabric::NodeId;

use crate::layout::{Layout, REPLICAS_MAX};
use crate::version::{BUFFERS_MAX, TIMESTAMP_MAX, WRITERS_MAX};

/// How an array of replicated registers is laid out. The same on all nodes, but for `patience`.
///
/// ```
/// # use farfield::swarm::SwarmOptions;
/// let mut options = SwarmOptions::default();
/// options.clients_per_node = 4;
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SwarmOptions {
    /// The memory nodes, each with a copy of every register: an odd number of participants, at most 7. Default (none): the
    /// first three, or the first one if there are fewer.
    pub memory: Vec<NodeId>,
    /// Clients that a node may have ([`SwarmArray::client`](crate::SwarmArray::client)). There are at most 128 in all.
    /// Default: 1.
    pub clients_per_node: usize,
    /// Metadata words of each register (§4.4): each serves every so-many-th client. With fewer than there are clients, a
    /// read is shorter, and a write repeats its compare-and-swap more often. Default: 0, one for each client.
    pub metadata_words: usize,
    /// Spare buffers of each client on each memory node, beside one for each register: values that were replaced, and
    /// that slow readers may still read. More of them are given back less often. Default: 32.
    pub spare_buffers: usize,
    /// How long a call waits for the majority that it has asked before it asks the other memory nodes, too. Default: 100 µs.
    pub patience: Duration,
    /// Where the clocks start, in microseconds. It is for tests: they need not wait until the clocks end. Default: 1.
    pub first_timestamp: u64,
}

impl Default for SwarmOptions {
    fn default() -> SwarmOptions {
        SwarmOptions {
            memory: Vec::new(),
            clients_per_node: 1,
            metadata_words: 0,
            spare_buffers: 32,
            patience: Duration::from_micros(100),
            first_timestamp: 1,
        }
    }
}

impl SwarmOptions {
    /// The fewest spare buffers: one to write while another is given back.
    const SPARE_BUFFERS_MIN: usize = 2;

    /// The memory nodes, and where everything lies in their memory.
    pub(crate) fn layout(
        &self,
        registers: usize,
        value_words: usize,
        participants: &Participants,
    ) -> Result<(Vec<NodeId>, Layout)> {
        at_least_one(&[
            ("registers", registers),
            ("clients_per_node", self.clients_per_node),
            ("first_timestamp", self.first_timestamp as usize),
        ])?;
        if self.first_timestamp > TIMESTAMP_MAX {
            let why = format!("`first_timestamp` is {}, and timestamps end at {TIMESTAMP_MAX}", self.first_timestamp);
            return Err(ErrorKind::Config { why }.into());
        }
        let memory = match &self.memory[..] {
            [] => participants.iter().take(if participants.count() < 3 { 1 } else { 3 }).collect(),
            chosen => chosen.to_vec(),
        };
        let config = |why| Err(Error::from(ErrorKind::Config { why }));
        if memory.len() % 2 == 0 || memory.len() > REPLICAS_MAX {
            return config(format!(
                "`memory` names {} nodes: it has to be an odd number, at most {REPLICAS_MAX}",
                memory.len()
            ));
        }
        for (at, node) in memory.iter().enumerate() {
            if participants.rank_of(*node).is_none() {
                return config(format!("`memory` names {node}, which does not take part"));
            }
            if memory[..at].contains(node) {
                return config(format!("`memory` names {node} twice"));
            }
        }
        let writers = participants.count().saturating_mul(self.clients_per_node);
        if writers > WRITERS_MAX {
            return config(format!(
                "{} nodes with {} clients each are more than {WRITERS_MAX}: reduce `clients_per_node`",
                participants.count(),
                self.clients_per_node
            ));
        }
        let metadata_words = if self.metadata_words == 0 { writers } else { self.metadata_words };
        if metadata_words > writers {
            return config(format!("`metadata_words` is {metadata_words}, and there are only {writers} clients"));
        }
        let spare = self.spare_buffers;
        let buffers = registers.saturating_add(spare);
        if spare < Self::SPARE_BUFFERS_MIN || buffers > BUFFERS_MAX {
            return config(format!(
                "`spare_buffers` is {spare}: it has to be at least {}, and at most {BUFFERS_MAX} together with the {registers} \
                 registers; more registers need several arrays",
                Self::SPARE_BUFFERS_MIN
            ));
        }
        Ok((memory, Layout::new(registers, value_words, writers, metadata_words, buffers)?))
    }
}
