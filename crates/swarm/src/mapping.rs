//! A key that gets a register: by an insert (§5.3.1), or because it moves (`moving`).

use farfield_core::{Error, Result};
use farfield_fabric::Buf;

use crate::agreement::{Deciding, Payload};
use crate::buffers::UnusedBuffer;
use crate::cell::Entry;
use crate::chores::Chore;
use crate::client::Core;
use crate::errors::TimestampsUsedUp;
use crate::registers::{Doubt, UnusedRegister};
use crate::version::{Location, Version};

/// A register, and a buffer and a timestamp for its first value. No key has it.
pub(crate) struct Room<'c, 'e> {
    core: &'c Core<'e>,
    register: UnusedRegister<'c, 'e>,
    buffer: UnusedBuffer<'c, 'e>,
    version: Version,
}

/// A mapping that is under way. If it ends in the middle, a later call settles it.
pub(crate) struct Mapping<'c, 'e> {
    core: &'c Core<'e>,
    pub(crate) doubt: Doubt,
    image: Buf<'e, u64>,
    is_over: bool,
}

impl<'e> Core<'e> {
    /// Waits for a register and a buffer: outside of any section.
    pub(crate) async fn take_room<'c>(&'c self) -> Result<Room<'c, 'e>> {
        loop {
            let register = self.take_unused_register().await?;
            let buffer = self.take_unused_buffer().await?;
            let clock = self.keep_reserved(register.at).await?;
            // No other client writes the register before it is mapped, so the timestamp is fresh.
            match self.guess(register.at, clock, buffer.number) {
                Ok(version) => return Ok(Room { core: self, register, buffer, version: version.verified() }),
                Err(TimestampsUsedUp) if register.at.is_of_last_epoch() => return Err(self.used_up()),
                Err(TimestampsUsedUp) => register.renew(),
            }
        }
    }
}

impl<'c, 'e> Room<'c, 'e> {
    /// Its first value. From now on the index may get the entry `of` the register.
    pub(crate) fn fill(
        self,
        words: &[u64],
        deciding: Deciding,
        of: impl FnOnce(Location) -> Entry,
        moved: Option<(Location, Version)>,
    ) -> Result<Mapping<'c, 'e>> {
        let Room { core, version, .. } = self;
        let at = self.register.at;
        let image = core.image(at, version, words).map_err(|error| Error::from(error).of(core.shared.object.path()))?;
        let mapping = of(at);
        self.register.keep();
        self.buffer.keep();
        Ok(Mapping { core, doubt: Doubt { deciding, mapping, version, moved }, image, is_over: false })
    }
}

impl<'e> Mapping<'_, 'e> {
    /// The open questions, and the value that is stored with the mapping.
    pub(crate) fn parts(&mut self) -> (&mut Doubt, Payload<'_, 'e>) {
        let (at, version) = (self.doubt.mapping.at(), self.doubt.version);
        (&mut self.doubt, Payload { at, version, image: &self.image })
    }

    /// It is over. False if the key never had the register.
    pub(crate) async fn end(mut self, is_there: bool) -> Result<bool> {
        let (core, Doubt { mapping, version, .. }) = (self.core, self.doubt);
        if is_there {
            let register = mapping.at().register;
            core.store_in_place(core.order(register).first(), register, &self.image);
            for replica in 0..core.shared.memory_nodes {
                core.set_known(mapping.at(), replica, version);
            }
        }
        let has_had = core.end_mapping(&self.doubt, is_there).await?;
        self.is_over = true;
        Ok(has_had)
    }
}

impl Drop for Mapping<'_, '_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.core.add_chore(Chore::Settle(self.doubt));
        }
    }
}
