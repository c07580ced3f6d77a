//! Every convenience in one small program: nodes count the letters of texts together.
//!
//! ```sh
//! farfield run -n 3 -- target/debug/farfield-tour
//! ```

#![forbid(unsafe_code)]

use std::time::Duration;

use farfield::zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
use farfield::{
    ByteString, Channel, ChannelOptions, Collectives, CollectivesOptions, Encoded, KvOptions, KvStore, Node, NodeId,
    Queue, QueueOptions, Result,
};
use serde::{Deserialize, Serialize};

/// The counts: plain data, which is in network memory as it is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[zerocopy(crate = "farfield::zerocopy")]
#[repr(C)]
pub struct Counts {
    /// Texts.
    pub texts: u64,
    /// Letters in them.
    pub letters: u64,
}

/// Work for a node: anything that serde can encode.
#[derive(Serialize, Deserialize)]
enum Job {
    Count { title: String, text: String },
    Skip(Option<String>),
}

const TEXTS: [(&str, &str); 4] = [
    ("fabric", "puts, gets and atomics"),
    ("objects", "locks, queues, stores"),
    ("checker", "every order of events"),
    ("empty", ""),
];

/// The node that hands out the work.
const LEADER: NodeId = NodeId(0);

/// One node's part. Returns the counts of all nodes together, and on the leader the titles, as they were reported.
///
/// # Errors
/// Those of the objects; a node that is missing or has died.
pub fn run(node: &Node) -> Result<(Counts, Vec<ByteString>)> {
    let (ep, me) = (node.endpoint()?, node.id());
    let mut everyone = Collectives::open(node, "tour/everyone", CollectivesOptions::default())?;
    let jobs = QueueOptions { value_bytes_max: 256, ..QueueOptions::new(LEADER, 16) };
    let jobs = Queue::<Encoded<Job>>::open(node, "tour/jobs", jobs)?;
    let results = KvOptions { slots_per_node: 64, ..KvOptions::default() };
    let results = KvStore::<ByteString, Counts>::open(node, "tour/results", results)?;
    // A channel from each node to the leader. The others take no part in it.
    let (mut told, mut titles) = (None, Vec::new());
    for writer in node.live_members().into_iter().filter(|writer| [*writer, LEADER].contains(&me)) {
        let options = ChannelOptions::new(writer, [(LEADER, 1)], 16);
        let channel = Channel::<ByteString>::open(node, &format!("tour/titles/{}", writer.0), options)?;
        if writer == me {
            told = Some(channel.sender()?);
        }
        if me == LEADER {
            titles.push(channel.receiver()?);
        }
    }
    let mut told = told.expect("one is this node's own");

    ep.block_on(async {
        if me == LEADER {
            for (title, text) in TEXTS {
                let title = title.to_string();
                let job = match text {
                    "" => Job::Skip(Some(title)),
                    _ => Job::Count { title, text: text.into() },
                };
                jobs.enqueue(&ep, &Encoded::new(&job)?).await?;
            }
            assert!(jobs.len(&ep).await? <= TEXTS.len()); // the others may have begun
            jobs.close(&ep).await?; // what is in it is still taken
        }
        let mut own = Counts::default();
        loop {
            let job = match jobs.dequeue(&ep).await {
                Ok(job) => job.value()?,
                Err(error) if error.is_closed() => break,
                Err(error) => return Err(error),
            };
            let Job::Count { title, text } = job else { continue };
            let counts = Counts { texts: 1, letters: text.chars().filter(|it| it.is_alphabetic()).count() as u64 };
            results.insert(&ep, &title.as_str().into(), &counts).await?;
            told.send(&ep, &title.as_str().into()).await?;
            own = own.plus(counts);
        }
        let mut sums = [own.texts, own.letters];
        everyone.all_reduce(&ep, &mut sums, |a, b| a + b).await?;
        let all = Counts { texts: sums[0], letters: sums[1] };
        // Every node sees every result by now.
        assert_eq!(results.keys().len() as u64, all.texts);
        let mut seen = Counts::default();
        for (_, counts) in results.pairs(&ep).await? {
            seen = seen.plus(counts?);
        }
        assert_eq!(seen, all);
        // A node sends its titles and then its part of the sum, with one endpoint: all titles are here.
        let mut reported = Vec::new();
        for titles in &mut titles {
            while let Some(title) = titles.try_recv(&ep)? {
                reported.push(title);
            }
        }
        // The leader removes the results when all have seen them, and says that it is done.
        let mut all_seen = if me == LEADER { vec![0; node.live_members().len()] } else { Vec::new() };
        everyone.gather(&ep, LEADER, &[seen.texts], &mut all_seen).await?;
        let (done, mut removed) = (ByteString::from("done"), [0]);
        if me == LEADER {
            assert!(all_seen.iter().all(|texts| *texts == all.texts));
            removed = [results.delete_many(&ep, &results.keys()).await? as u64];
            results.upsert_many(&ep, &[(done.clone(), all)]).await?;
        }
        everyone.broadcast(&ep, LEADER, &mut removed).await?;
        assert_eq!(removed, [all.texts]);
        let found = results.wait_change(&ep, &done, None, ep.deadline()).await?;
        assert!(found.is_some_and(|counts| counts.letters == all.letters));
        // One node of all marks it.
        let marked = Counts { texts: 0, ..all };
        let is_first = results.update_if(&ep, &done, |counts| counts.texts > 0, &marked).await?;
        let mut firsts = [u64::from(is_first)];
        everyone.all_reduce(&ep, &mut firsts, |a, b| a + b).await?;
        assert_eq!(firsts, [1]);
        // The mark is removed when its time is up. Nobody has to call anything for that.
        if me == LEADER {
            assert!(results.expire_after(&ep, &done, Duration::from_millis(1)).await?);
        }
        assert_eq!(results.wait_change(&ep, &done, Some(&marked), ep.deadline()).await?, None);
        // One that stays for an hour, unless it is removed before.
        if me == LEADER {
            let kept = ByteString::from("kept");
            assert!(results.insert_for(&ep, &kept, &all, Duration::from_secs(3600)).await?);
            assert!(results.delete_if(&ep, &kept, |counts| counts.letters == all.letters).await?);
        }
        // No node leaves while another still waits for the removal.
        everyone.all_reduce(&ep, &mut firsts, |a, b| a + b).await?;
        Ok((all, reported))
    })
}

impl Counts {
    fn plus(self, other: Counts) -> Counts {
        Counts { texts: self.texts + other.texts, letters: self.letters + other.letters }
    }
}
