//! Checking a custom object: a mailbox of one letter, in the receiver's memory.
//!
//! The sender puts the letter and then a flag; the receiver waits for the flag and reads the letter. Puts to one node
//! land in their order, so the flag shows that the letter is there. A second version uses two endpoints, as two threads
//! of the sender might: the puts of two endpoints are not ordered. The checker runs both versions.
//!
//!     cargo run --release -p farfield-check --example mailbox

use farfield::fabric::{GroupKey, Region, RemotePtr};
use farfield::toolkit::ObjectBuilder;
use farfield::{Endpoint, Node, NodeId, Result};
use farfield_check::{Budget, Scenario, check, exhaust};

/// The mailbox as one node sees it: `letter` (16 bytes) and `flag`, in node 1's memory.
struct Mailbox {
    object: farfield::toolkit::Object,
    here: Region,
}

impl Mailbox {
    fn open(node: &Node) -> Result<Mailbox> {
        let here = node.alloc(GroupKey::SIGNAL, 24)?;
        let object = ObjectBuilder::new(node, "mailbox", "Mailbox").region("box", here.clone()).announce()?;
        object.wait(node.timeout())?;
        Ok(Mailbox { object, here })
    }

    /// Sends a letter: `first` puts the letter, `second` the flag.
    fn send(&self, first: &Endpoint, second: &Endpoint, letter: [u64; 2]) -> Result<()> {
        let there: RemotePtr<u64> = self.object.remote(NodeId(1), "box")?;
        first.put_value(there.cast(), letter).wait()?; // complete: not yet visible
        Ok(second.put_value(there.at(2), 1).wait()?)
    }

    async fn receive(&self, ep: &Endpoint) -> Result<[u64; 2]> {
        let flag = self.here.word(16);
        ep.wait_until(ep.deadline(), || (flag.load() == 1).then_some(())).await?;
        Ok([self.here.word(0).load(), self.here.word(8).load()])
    }
}

fn scenario(endpoints: usize) -> Scenario {
    let name = format!("mailbox/{endpoints}-endpoints");
    Scenario::new(&name, "what is received is what was sent", 2, move |cluster| {
        let mut mailboxes = cluster.on_each(Mailbox::open)?.into_iter();
        let (sender, receiver) = (mailboxes.next().expect("node 0"), mailboxes.next().expect("node 1"));
        let second = cluster.node(0).endpoint()?;
        // Evaluated after every change of memory, in every interleaving of the threads.
        let here = receiver.here.clone();
        cluster.invariant("the flag is set when the letter is there", move || {
            let [letter, more, flag] = [0, 8, 16].map(|at| here.word(at).load());
            if flag == 0 || [letter, more] == [1, 2] {
                Ok(())
            } else {
                Err(format!("the letter is [{letter}, {more}]"))
            }
        });
        cluster.thread(0, "sender", move |ep| sender.send(ep, if endpoints == 1 { ep } else { &second }, [1, 2]));
        cluster.thread(1, "receiver", move |ep| {
            assert_eq!(ep.block_on(receiver.receive(ep))?, [1, 2], "the flag came before the letter");
            Ok(())
        });
        Ok(())
    })
}

fn main() {
    let right = exhaust(&scenario(1), Budget::unlimited());
    assert!(right.is_complete && right.finding.is_none(), "{:?}", right.finding);
    println!("one endpoint: all {} executions deliver the letter ({} states)", right.executions, right.states);

    let wrong = scenario(2);
    let finding = check(&wrong, Budget::executions(10_000), 1).finding.expect("nothing orders two endpoints");
    let shrunk = finding.shrunk(&wrong);
    println!("two endpoints: execution {} fails: {}", finding.execution, shrunk.failure.message);
    println!("again: {}", shrunk.replay);
}
