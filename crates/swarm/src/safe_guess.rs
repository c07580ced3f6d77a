//! Safe-Guess (§3, Algorithm 10) over In-n-Out (§4): reads and writes of a register.

use core::cell::Cell;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::time::Duration;

use farfield_core::{Error, ErrorKind, Result};
use farfield_fabric::{self as fabric, Buf, BufOp};
use smallvec::SmallVec;

use crate::client::{Core, Section, Unfinished, hash};
use crate::errors::NoMajority;
use crate::majority::{Order, PerReplica, Replicas};
use crate::raise::Raise;
use crate::timestamp_lock::Mode;
use crate::version::Version;

/// The highest version that a majority has shown.
struct Found<'e> {
    version: Version,
    /// The memory nodes that have it.
    holders: Replicas,
    /// Its hash and value, if they were found in place or were fetched.
    image: Option<Buf<'e, u64>>,
}

/// A compare-and-swap of a write, and a get of all metadata words beside it.
struct StoreAndGet<'b> {
    store: Option<Raise<'b>>,
    get: Option<BufOp<'b, u64>>,
    stored: u64,
    words: Option<Buf<'b, u64>>,
}

impl<'b> Future for StoreAndGet<'b> {
    type Output = fabric::Result<(u64, Buf<'b, u64>)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let both = &mut *self;
        if let Some(store) = &mut both.store
            && let Poll::Ready(stored) = Pin::new(store).poll(cx)
        {
            both.stored = stored?;
            both.store = None;
        }
        if let Some(get) = &mut both.get
            && let Poll::Ready(words) = Pin::new(get).poll(cx)
        {
            both.words = Some(words?);
            both.get = None;
        }
        match both.words.take_if(|_| both.store.is_none()) {
            Some(words) => Poll::Ready(Ok((both.stored, words))),
            None => Poll::Pending,
        }
    }
}

impl<'e> Core<'e> {
    /// Reads a register (Algorithm 10, READ).
    pub(crate) async fn read(&self, register: usize, into: &mut [u64]) -> Result<()> {
        self.check(register)?;
        let section = self.enter()?;
        let read = self.read_in(&section, register, into).await;
        section.end();
        read
    }

    async fn read_in(&self, section: &Section<'_, 'e>, register: usize, into: &mut [u64]) -> Result<()> {
        let mut seen: SmallVec<[Found<'e>; 2]> = SmallVec::new();
        // Each writer is seen twice at most before the read ends (lemma C.4). A memory node that dies with the only copy
        // that was found costs a look.
        let looks = 2 * self.shared.layout.writers + 1 + self.shared.replicas.len();
        for _ in 0..looks {
            let Some(mut found) = self.max_read(register, section).await? else { continue };
            let version = found.version;
            if version.is_initial() {
                into.fill(0);
                return Ok(());
            }
            if version.is_verified() {
                if self.value(register, &mut found, into).await? {
                    return Ok(());
                }
                continue;
            }
            match seen.iter_mut().find(|earlier| earlier.version.writer() == version.writer()) {
                // Found twice: its timestamp was fresh when it was written.
                Some(earlier) if earlier.version.write() == version.write() => {
                    if self.value(register, &mut found, into).await?
                        && self.try_lock(register, version, Mode::Read).await?
                    {
                        if let Some(image) = &found.image {
                            self.verify(register, version, found.holders, image);
                        }
                        return Ok(());
                    }
                    *earlier = found;
                }
                // Its writer has begun another write, so this one has ended.
                Some(earlier) => {
                    if self.value(register, earlier, into).await? {
                        return Ok(());
                    }
                    *earlier = found;
                }
                None => seen.push(found),
            }
        }
        Err(self.unsettled(register))
    }

    /// Reads the reliable max register (Algorithm 8, READ): the version is at a majority when this returns. None if the
    /// memory nodes that had it are gone.
    async fn max_read(&self, register: usize, section: &Section<'_, 'e>) -> Result<Option<Found<'e>>> {
        let layout = &self.shared.layout;
        let order = self.order(register);
        let in_place = order[0];
        let post = |replica: usize| {
            let words = if replica == in_place { layout.register_words() } else { layout.metadata_words };
            Ok(self.endpoint.get_into(self.metadata(replica, register), self.endpoint.buf(words)?))
        };
        let answers = self.gather(order.clone(), self.majority(), post).await?.answers;
        let version = answers.iter().map(|(_, words)| newest(&words[..layout.metadata_words])).max_by_key(order_of);
        let version = version.unwrap_or(Version(0));
        let mut found = Found { version, holders: Replicas::default(), image: None };
        if version.is_initial() {
            return Ok(Some(found));
        }
        let mut words: PerReplica<u64> = PerReplica::new();
        for (replica, answer) in answers {
            let own = answer[layout.metadata_word(version.writer())];
            if Version(own).write() == version.write() {
                found.holders.add(replica);
            } else {
                words.push((replica, own));
            }
            if replica == in_place
                && hash(version, &answer[layout.metadata_words + 1..]) == answer[layout.metadata_words]
            {
                let mut image = self.endpoint.buf(layout.image_words()).map_err(Error::from)?;
                image.copy_from_slice(&answer[layout.metadata_words..]);
                found.image = Some(image);
            }
        }
        let is_at_majority =
            found.holders.count() >= self.majority() || self.write_back(register, &mut found, &words, section).await?;
        Ok(is_at_majority.then_some(found))
    }

    /// Writes what was found to more memory nodes, until a majority has it. `words` are those of the writer that others
    /// have. False if its value is gone.
    async fn write_back(
        &self,
        register: usize,
        found: &mut Found<'e>,
        words: &PerReplica<u64>,
        section: &Section<'_, 'e>,
    ) -> Result<bool> {
        if !self.fetch(register, found).await? {
            return Ok(false);
        }
        let (version, holders) = (found.version, found.holders);
        let image = found.image.as_ref().expect("it was fetched");
        let mut order: Order = words.iter().map(|(replica, _)| *replica).collect();
        order.extend(
            self.order(register)
                .into_iter()
                .filter(|replica| !holders.contains(*replica) && words.iter().all(|(answered, _)| answered != replica)),
        );
        let needed = self.majority() - holders.count();
        // Those that have answered a moment ago are waited for: what is still on its way when the read ends keeps its
        // section, and so the buffers of others.
        let patience = self.shared.options.patience.max(WRITE_BACK_PATIENCE);
        let written = self
            .gather_within(patience, false, order, needed, |replica| {
                // Until it has landed, its buffer must not be used again.
                let mut has_put = section.has_put.get();
                has_put.add(replica);
                section.has_put.set(has_put);
                let known = words.iter().find(|(answered, _)| *answered == replica).map_or(0, |(_, word)| *word);
                Ok(self.store(replica, register, [Version(known), version], image))
            })
            .await?;
        let mut has_put = section.has_put.get();
        for (replica, word) in &written.answers {
            has_put.remove(*replica);
            if Version(*word).write() == version.write() {
                found.holders.add(*replica);
            }
        }
        section.has_put.set(has_put);
        Ok(true)
    }

    /// Copies the value of a version. False if no memory node has it any more.
    async fn value(&self, register: usize, found: &mut Found<'e>, into: &mut [u64]) -> Result<bool> {
        let is_there = self.fetch(register, found).await?;
        if let Some(image) = &found.image {
            into.copy_from_slice(&image[1..]);
        }
        Ok(is_there)
    }

    /// Gets the value of a version from its buffer, unless it was found in place (Algorithm 6). False if the memory nodes that
    /// have it do not answer. (If a majority has it, this waits for one of them.)
    async fn fetch(&self, register: usize, found: &mut Found<'e>) -> Result<bool> {
        if found.image.is_some() {
            return Ok(true);
        }
        let words = self.shared.layout.image_words();
        let (holders, version) = (found.holders, found.version);
        let order = self.order(register).into_iter().filter(|replica| holders.contains(*replica)).collect();
        let post =
            |replica: usize| Ok(self.endpoint.get_into(self.buffer_at(replica, version), self.endpoint.buf(words)?));
        let gives_up = holders.count() < self.majority();
        match self.gather_within(self.shared.options.patience, gives_up, order, 1, post).await {
            Ok(mut gathered) => {
                found.image = gathered.answers.pop().map(|(_, image)| image);
                Ok(true)
            }
            Err(error) => match error.custom_ref::<NoMajority>() {
                Some(missing) if missing.failed.iter().all(|(_, error)| error.is_unreachable()) => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// Tells readers that a timestamp is known to be fresh (Algorithm 10, lines 8 and 20), and puts the value where they
    /// find it at once. Nobody waits for it.
    fn verify(&self, register: usize, version: Version, at: Replicas, image: &Buf<'_, u64>) {
        let word = self.shared.layout.metadata_word(version.writer());
        for replica in at.iter() {
            let word = self.metadata(replica, register).at(word);
            // If it is refused, the next reader does it.
            let _ = self.endpoint.cas(word, version.0, version.verified().0).detach();
        }
        self.store_in_place(self.order(register)[0], register, image);
    }

    /// Writes a register (Algorithm 10, WRITE).
    pub(crate) async fn write(&self, register: usize, value: &[u64]) -> Result<()> {
        self.check(register)?;
        let _writing = self.begin_write(register).await?;
        self.finish(register).await?;
        let buffer = self.take_buffer().await?;
        let begun = self.guess(buffer).and_then(|version| {
            let image = self.image(version, value).map_err(Error::from)?;
            Ok((version, image))
        });
        let (version, image) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                self.give_back(buffer);
                return Err(error.of(self.shared.object.path()));
            }
        };
        self.end_write(register, version, &image).await
    }

    /// Ends this writer's write of the register that was dropped or found no majority.
    async fn finish(&self, register: usize) -> Result<()> {
        let Some(Unfinished { version, value, .. }) = self.take_unfinished(register) else { return Ok(()) };
        match self.image(version, &value) {
            Ok(image) => self.end_write(register, version, &image).await,
            Err(error) => {
                self.with_place(|place| place.unfinished.push(Unfinished { register, version, value }));
                Err(Error::from(error).of(self.shared.object.path()))
            }
        }
    }

    /// Ends a write of any register that was dropped or found no majority, for its buffers. False if there is none.
    pub(crate) async fn finish_any(&self) -> Result<bool> {
        let Some(register) = self.unfinished_register() else { return Ok(false) };
        let _writing = self.begin_write(register).await?;
        self.finish(register).await?;
        Ok(true)
    }

    /// Writes a version, or one that replaces it. If this ends in the middle, the write is on the list of those that are
    /// not finished.
    async fn end_write(&self, register: usize, version: Version, image: &Buf<'e, u64>) -> Result<()> {
        let write = Write { core: self, register, version: Cell::new(version), value: Cell::new(Some(&image[1..])) };
        if version.is_verified() {
            self.write_verified(register, version, image).await?;
        } else if let Some(found) = self.write_guessed(register, version, image).await? {
            // The guess may have been stale. Either no reader takes it from now on, or one has found that it was fresh.
            let later = self.later_than(found, version);
            if self.try_lock(register, version, Mode::Write).await? {
                // From here on the value is written at this timestamp only: at a third one it would be written twice.
                write.version.set(later);
                let image = self.image(later, &image[1..]).map_err(Error::from)?;
                self.write_verified(register, later, &image).await?;
            }
        }
        write.value.set(None);
        self.hold(register, version.buffer());
        Ok(())
    }

    /// Writes a version whose timestamp is a guess, and reads the register at the same time. The result is a later version
    /// than this, if one was found.
    async fn write_guessed(&self, register: usize, version: Version, image: &Buf<'e, u64>) -> Result<Option<Version>> {
        let layout = &self.shared.layout;
        let mut posted = Replicas::default();
        let post = |replica: usize| {
            posted.add(replica);
            let words = self.endpoint.buf(layout.metadata_words)?;
            let store = Some(self.store(replica, register, [self.known(register, replica), version], image));
            let get = Some(self.endpoint.get_into(self.metadata(replica, register), words));
            Ok(StoreAndGet { store, get, stored: 0, words: None })
        };
        // A weak read (appendix A.2): what it finds need not be at a majority.
        let gathered = self.gather(self.order(register), self.majority(), post).await?;
        let (mut found, mut holders) = (Version(0), 0);
        for (replica, (stored, words)) in &gathered.answers {
            self.set_known(register, *replica, Version(*stored));
            let there = [newest(words), Version(*stored)].into_iter().max_by_key(order_of).unwrap_or(found);
            if there.write() > found.write() {
                (found, holders) = (there, 0);
            }
            holders += usize::from(there.write() == found.write());
        }
        drop(gathered);
        if found.write() > version.write() && holders < self.majority() {
            // Readers that do not get the lock go on to a later version (lemma C.4): there has to be one at a majority.
            found = self.settle(register).await?;
        }
        if found.write() > version.write() {
            return Ok(Some(found));
        }
        self.verify(register, version, posted, image);
        for replica in posted.iter() {
            if self.known(register, replica) == version {
                self.set_known(register, replica, version.verified());
            }
        }
        Ok(None)
    }

    /// The latest version, which is at a majority when this returns.
    async fn settle(&self, register: usize) -> Result<Version> {
        let section = self.enter()?;
        let mut looks = 0..=self.shared.replicas.len();
        let found = loop {
            match self.max_read(register, &section).await {
                Ok(None) if looks.next().is_some() => {}
                found => break found,
            }
        };
        section.end();
        found?.map(|found| found.version).ok_or_else(|| self.unsettled(register))
    }

    #[cold]
    fn unsettled(&self, register: usize) -> Error {
        let what = format!("register {register}: the memory nodes with its latest value");
        let memory = self.shared.replicas.iter().map(|replica| replica.node).collect();
        let timeout = ErrorKind::Timeout { what, waited: self.shared.options.patience, missing: memory };
        Error::from(timeout).of(self.shared.object.path())
    }

    async fn write_verified(&self, register: usize, version: Version, image: &Buf<'e, u64>) -> Result<()> {
        let post = |replica: usize| Ok(self.store(replica, register, [self.known(register, replica), version], image));
        let gathered = self.gather(self.order(register), self.majority(), post).await?;
        for (replica, stored) in &gathered.answers {
            self.set_known(register, *replica, Version(*stored));
        }
        drop(gathered);
        self.store_in_place(self.order(register)[0], register, image);
        Ok(())
    }
}

/// A write that is under way. If it ends in the middle, it goes on to the list of the unfinished ones.
struct Write<'c, 'e, 'i> {
    core: &'c Core<'e>,
    register: usize,
    version: Cell<Version>,
    /// None when it has ended.
    value: Cell<Option<&'i [u64]>>,
}

impl Drop for Write<'_, '_, '_> {
    fn drop(&mut self) {
        if let Some(value) = self.value.get() {
            let unfinished = Unfinished { register: self.register, version: self.version.get(), value: value.to_vec() };
            self.core.with_place(|place| place.unfinished.push(unfinished));
        }
    }
}

/// How long a read waits at least until it writes a value back to other memory nodes than those that have answered.
const WRITE_BACK_PATIENCE: Duration = Duration::from_millis(10);

/// The highest of some metadata words.
fn newest(words: &[u64]) -> Version {
    words.iter().map(|word| Version(*word)).max_by_key(order_of).unwrap_or(Version(0))
}

/// The place of a version in the order of the max register: a verified one is above the same guessed one.
fn order_of(version: &Version) -> u64 {
    version.write() << 1 | u64::from(version.is_verified())
}
