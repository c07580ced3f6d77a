//! The objects of a litmus test: those that ship, opened on its nodes, and the part of each that a thread has.
//!
//! Objects are used again in later batches. The threads bring them back to the beginning in
//! [`Parts::reset`], by the same methods: copies are stored, pairs are stored and pushed, rings are read until they are
//! empty. A barrier counts on, so one is enough for all instances.

use anyhow::{Context, Result};
use farfield::{
    Barrier, BarrierThread, Endpoint, Node, NodeId, OwnedVar, OwnedWriter, RingBuffer, RingOptions, RingReceiver,
    RingSender, SharedVar, TearCheck,
};
use mowgli::litmus::Value;
use mowgli::run::{ObjectKind, Plan};

/// Of a ring. Not a multiple of a message's length, so that messages wrap around its end.
const RING_BYTES: usize = 136;

/// A value of `msw`.
pub(super) type Pair = [u64; 2];

/// An object as one node sees it.
enum Opened {
    Shared(SharedVar<u64>),
    Barrier(Barrier),
    Ring(RingBuffer),
    Owned(OwnedVar<Pair>),
    /// It is not for this node, or nothing that is opened.
    Nothing,
}

/// A node's objects, by instance.
#[derive(Default)]
pub(super) struct Objects(Vec<Vec<Opened>>);

impl Objects {
    /// Opens all objects of a plan; all its nodes do so at once. Instances of a pair are kept whole by guards and by a
    /// checksum in turns.
    pub(super) fn open(plan: &Plan, instances: usize, node: &Node) -> farfield::Result<Objects> {
        let mut all = Vec::new();
        for instance in 0..if plan.objects.is_empty() { 0 } else { instances } {
            let mut opened = Vec::new();
            for object in &plan.objects {
                let path = format!("litmus/{instance}/{}", object.name);
                opened.push(match &object.kind {
                    ObjectKind::Shared(starts) => {
                        let var = SharedVar::open(node, &path)?;
                        var.store(starts.cast_unsigned());
                        Opened::Shared(var)
                    }
                    ObjectKind::Barrier(members) if instance == 0 => {
                        let on = on_nodes(plan, members);
                        let nodes: Vec<NodeId> = on.iter().map(|(node, _)| *node).collect();
                        match on.iter().find(|(member, _)| *member == node.id()) {
                            Some((_, count)) => Opened::Barrier(Barrier::open_among(node, &path, *count, &nodes)?),
                            None => Opened::Nothing,
                        }
                    }
                    ObjectKind::Ring { writer, readers } => {
                        let (writer, readers) = (node_of(plan, *writer), on_nodes(plan, readers));
                        let is_for = writer == node.id() || readers.iter().any(|(reader, _)| *reader == node.id());
                        let options = RingOptions::new(writer, readers, RING_BYTES);
                        if is_for { Opened::Ring(RingBuffer::open(node, &path, options)?) } else { Opened::Nothing }
                    }
                    ObjectKind::Owned { owner, .. } => {
                        let wholeness = if instance % 2 == 0 { TearCheck::Guards } else { TearCheck::Checksum };
                        Opened::Owned(OwnedVar::open_with(node, &path, NodeId(*owner as u16), wholeness)?)
                    }
                    ObjectKind::Barrier(_) | ObjectKind::Fetched => Opened::Nothing,
                });
            }
            all.push(opened);
        }
        Ok(Objects(all))
    }

    /// The nearest copy of a shared variable.
    pub(super) fn shared(&self, instance: usize, object: usize) -> Result<&SharedVar<u64>> {
        match &self.0[instance][object] {
            Opened::Shared(var) => Ok(var),
            _ => wrong(),
        }
    }

    pub(super) fn pair(&self, instance: usize, object: usize) -> Result<&OwnedVar<Pair>> {
        match &self.0[instance][object] {
            Opened::Owned(var) => Ok(var),
            _ => wrong(),
        }
    }
}

fn wrong<T>() -> Result<T> {
    Err(anyhow::anyhow!("the plan calls a method that the object does not have here"))
}

fn node_of(plan: &Plan, thread: usize) -> NodeId {
    NodeId(plan.threads[thread].node as u16)
}

/// How many of these threads are on each node that has some.
fn on_nodes(plan: &Plan, threads: &[usize]) -> Vec<(NodeId, usize)> {
    let count = |node| threads.iter().filter(|thread| plan.threads[**thread].node == node).count();
    let all = (0..plan.nodes).map(|node| (NodeId(node as u16), count(node)));
    all.filter(|(_, count)| *count > 0).collect()
}

/// A thread's part of an object.
#[derive(Default)]
struct Part {
    barrier: Option<BarrierThread>,
    sender: Option<RingSender>,
    receiver: Option<RingReceiver>,
    writer: Option<OwnedWriter<Pair>>,
    /// The pair that it has fetched.
    fetched: Pair,
}

/// A thread's parts of all objects, by instance.
pub(super) struct Parts(Vec<Vec<Part>>);

impl Parts {
    /// Those of one thread of a plan.
    pub(super) fn take(plan: &Plan, thread: usize, objects: &Objects) -> farfield::Result<Parts> {
        let mut all = Vec::new();
        for opened in &objects.0 {
            let mut parts = Vec::new();
            for (opened, object) in opened.iter().zip(&plan.objects) {
                let mut part = Part::default();
                match (opened, &object.kind) {
                    (Opened::Barrier(barrier), ObjectKind::Barrier(members)) if members.contains(&thread) => {
                        part.barrier = Some(barrier.thread()?);
                    }
                    (Opened::Ring(ring), ObjectKind::Ring { writer, readers }) => {
                        part.sender = (*writer == thread).then(|| ring.sender()).transpose()?;
                        part.receiver = readers.contains(&thread).then(|| ring.receiver()).transpose()?;
                    }
                    (Opened::Owned(var), ObjectKind::Owned { writer, .. }) if *writer == Some(thread) => {
                        part.writer = Some(var.writer()?);
                    }
                    _ => {}
                }
                parts.push(part);
            }
            all.push(parts);
        }
        Ok(Parts(all))
    }

    /// Brings this thread's part of instances back to the beginning. No thread uses them now; they are at the
    /// beginning when all threads have done it, and have fenced their puts.
    pub(super) fn reset(
        &mut self,
        plan: &Plan,
        objects: &Objects,
        endpoint: &Endpoint,
        instances: usize,
    ) -> Result<()> {
        let mut message = Vec::new();
        for (instance, parts) in self.0.iter_mut().enumerate().take(instances) {
            for (at, part) in parts.iter_mut().enumerate() {
                if let (Opened::Shared(var), ObjectKind::Shared(starts)) =
                    (&objects.0[instance][at], &plan.objects[at].kind)
                {
                    var.store(starts.cast_unsigned());
                }
                if let Some(receiver) = &mut part.receiver {
                    while receiver.try_recv(endpoint, &mut message)? {}
                }
                if let Some(writer) = &mut part.writer {
                    writer.store(Pair::default());
                    endpoint.block_on(writer.push(endpoint))?;
                }
                part.fetched = Pair::default();
            }
        }
        Ok(())
    }

    /// Barriers have one instance.
    pub(super) fn barrier(&mut self, object: usize) -> Result<&mut BarrierThread> {
        self.0[0][object].barrier.as_mut().map_or_else(wrong, Ok)
    }

    pub(super) fn sender(&mut self, instance: usize, object: usize) -> Result<&mut RingSender> {
        self.0[instance][object].sender.as_mut().map_or_else(wrong, Ok)
    }

    pub(super) fn receiver(&mut self, instance: usize, object: usize) -> Result<&mut RingReceiver> {
        self.0[instance][object].receiver.as_mut().map_or_else(wrong, Ok)
    }

    pub(super) fn writer(&mut self, instance: usize, object: usize) -> Result<&mut OwnedWriter<Pair>> {
        self.0[instance][object].writer.as_mut().map_or_else(wrong, Ok)
    }

    pub(super) fn fetched(&mut self, instance: usize, object: usize) -> &mut Pair {
        &mut self.0[instance][object].fetched
    }
}

/// The value of a pair as tests have it.
pub(super) fn value_of(pair: Pair) -> Value {
    Value::Numbers(pair.iter().map(|word| word.cast_signed()).collect())
}

/// A value of so many words.
pub(super) fn words<const N: usize>(value: &Value) -> Result<[u64; N]> {
    let Value::Numbers(numbers) = value else { anyhow::bail!("an object holds numbers, not {value}") };
    let numbers: Vec<u64> = numbers.iter().map(|number| number.cast_unsigned()).collect();
    <[u64; N]>::try_from(numbers).ok().with_context(|| format!("the object holds {N} numbers, not {value}"))
}

/// A message of a ring, of as many bytes as its value takes.
pub(super) fn to_message(value: &Value) -> Result<Vec<u8>> {
    let Value::Numbers(numbers) = value else { anyhow::bail!("a message holds numbers, not {value}") };
    Ok(numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
}

/// The value of a message.
pub(super) fn of_message(message: &[u8]) -> Value {
    let number = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap_or_default());
    Value::Numbers(message.chunks(8).map(number).collect())
}
