//! The writer's end: it stores here, and sends to all others.

use farfield_fabric::{self as fabric, Endpoint, Plain, RemotePtr};
use zerocopy::IntoBytes;

use super::{Image, OwnedWriter, PUSH, Peer, checksum, put_words};
use crate::error::{ErrorContext, Missed, Result};

impl<T: Plain> OwnedWriter<T> {
    /// Writes the owner's copy; threads of this node see it at once.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (ep, owner) = (nodes[0].endpoint()?, nodes[0].id());
    /// # let vars = farfield::on_each(&nodes, |node| farfield::OwnedVar::<[u64; 4]>::open(node, "setpoint", owner))?;
    /// let mut writer = vars[0].writer()?;
    /// writer.store([1; 4]);
    /// assert_eq!(vars[0].try_load(), Some([1; 4]));
    /// assert_eq!(vars[1].try_load(), Some([0; 4])); // nothing was pushed
    /// # Ok(()) }
    /// ```
    pub fn store(&mut self, value: T) {
        self.value = value;
        self.version += 1;
        let copy = &self.var.copy;
        match self.var.image {
            Image::Word => put_words(copy.words(0, 1), value),
            Image::Guards { words } => {
                // Stores stay in order, so the readers' argument holds for those on this node too.
                copy.word(0).store(self.version);
                put_words(copy.words(8, words), value);
                copy.word(8 + words * 8).store(self.version);
            }
            Image::Checksum { words } => {
                put_words(copy.words(0, words), value);
                copy.word(words * 8).store(checksum(&value));
            }
        }
    }

    /// The value that was stored last.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (ep, owner) = (nodes[0].endpoint()?, nodes[0].id());
    /// # let vars = farfield::on_each(&nodes, |node| farfield::OwnedVar::<[u64; 4]>::open(node, "setpoint", owner))?;
    /// let mut writer = vars[0].writer()?;
    /// writer.store(writer.value().map(|part| part + 1));
    /// assert_eq!(writer.value(), [1; 4]);
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn value(&self) -> T {
        self.value
    }

    /// Sends the last stored value to all other nodes. Pass the same endpoint each time: the puts of two endpoints to
    /// a node have no order.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, owner) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let vars = farfield::on_each(&nodes, |node| farfield::OwnedVar::<[u64; 4]>::open(node, "setpoint", owner))?;
    /// # let mut writer = vars[0].writer()?;
    /// writer.store([1; 4]);
    /// a.block_on(writer.push(&a))?; // under way to all other nodes; a fence tells when it is visible there
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Missed`](crate::ErrorKind::Missed) names every node that does not have it, with the reason: it is
    /// dead or has left, or a put was refused. All others have it. The next push, of this value or another, includes
    /// those nodes.
    pub async fn push(&mut self, endpoint: &Endpoint) -> Result<()> {
        if self.var.object.is_plain() {
            return self.send(endpoint);
        }
        let meter = self.var.object.meter();
        meter.measure_now(endpoint, PUSH, || {
            self.var.object.check_current()?;
            self.send(endpoint)
        })
    }

    /// [`OwnedWriter::push`] without a future, for an object that sends from outside of any, or in a drop. It does not
    /// check that the variable is current ([`ErrorKind::Reopened`](crate::ErrorKind::Reopened)): the object does so,
    /// when its own call begins.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, owner) = (nodes[0].endpoint()?, nodes[0].id());
    /// # let vars = farfield::on_each(&nodes, |node| farfield::OwnedVar::<u64>::open(node, "progress", owner))?;
    /// # let mut writer = vars[0].writer()?;
    /// writer.store(7);
    /// writer.send(&a)?; // under way
    /// a.block_on(a.global_fence(nodes[0].others()))?;
    /// assert_eq!(vars[1].try_load(), Some(7));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Missed`](crate::ErrorKind::Missed), as with `push`.
    pub fn send(&mut self, endpoint: &Endpoint) -> Result<()> {
        let mut missed = Missed::default();
        for at in 0..self.peers.len() {
            let sent = self.send_to(endpoint, at);
            let node = self.peers[at].copy.node();
            missed.note(node, sent.and_then(|()| endpoint.check_alive(node)));
        }
        missed.end().of(self.var.object.path())
    }

    /// The copies on the other nodes.
    #[inline]
    pub(in crate::objects) fn copies(&self) -> impl Iterator<Item = RemotePtr<u64>> + '_ {
        self.peers.iter().map(|peer| peer.copy)
    }

    /// Sends the last stored value to one node.
    fn send_to(&mut self, endpoint: &Endpoint, at: usize) -> fabric::Result<()> {
        let Peer { copy, whole } = &mut self.peers[at];
        let (copy, version) = (*copy, self.version);
        // Puts to one node land in order: lead, value, trail. They carry copies, so nothing has to be waited for before
        // the next store.
        match self.var.image {
            Image::Word => endpoint.put_value(copy.cast(), self.value).detach(),
            Image::Guards { words } => {
                endpoint.put_value(copy, version).detach()?;
                let before = core::mem::take(whole);
                if let Err(error) = endpoint.put_value(copy.at(1).cast(), self.value).detach() {
                    // The old value is still there, whole: only its lead has to be put back.
                    *whole = before.filter(|before| endpoint.put_value(copy, *before).detach().is_ok());
                    return Err(error);
                }
                endpoint.put_value(copy.at(1 + words), version).detach()?;
                *whole = Some(version);
                Ok(())
            }
            Image::Checksum { words } => {
                // One put: a reader that sees a mixture of versions sees a wrong sum.
                let mut image = endpoint.buf::<u64>(words + 1)?;
                image[..words].as_mut_bytes().copy_from_slice(self.value.as_bytes());
                image[words] = checksum(&self.value);
                endpoint.put(copy, &image).detach()
            }
        }
    }
}

impl OwnedWriter<u64> {
    /// [`OwnedWriter::store`] of a word.
    #[inline(always)]
    pub(in crate::objects) fn store_word(&mut self, value: u64) {
        self.value = value;
        self.version += 1;
        self.var.copy.word(0).store(value);
    }
}
