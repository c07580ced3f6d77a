//! Safe-Guess (§3, Algorithm 10) over In-n-Out (§4): reads and writes of a register.

use core::cell::Cell;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use farfield_core::{Error, ErrorKind, Result};
use farfield_fabric::{self as fabric, Buf, BufOp, Endpoint, Op, RemotePtr};
use smallvec::SmallVec;

use crate::buffers::UnusedBuffer;
use crate::chores::Chore;
use crate::client::{Core, Home, Unfinished, Writing};
use crate::errors::TimestampsUsedUp;
use crate::max_register::{Found, Look};
use crate::raise::Raise;
use crate::replicas::Replicas;
use crate::sections::Section;
use crate::stale::Stale;
use crate::timestamp_lock::Mode;
use crate::version::{Location, Version};

/// In the message of the timeout for a call that has looked more often than it ever has to.
pub(crate) const UNSETTLED: &str = "the memory nodes with its latest value";

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Read {
    Value,
    /// The key was deleted, by this seal or another one.
    Sealed(Version),
    /// Its key moves to another register, or it was used again for another key.
    Moved,
}

/// The result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Written {
    Done,
    /// The key was deleted before: nothing was written.
    Gone,
    /// The key moves to another register. Whether this write counts is found out there (`moving`).
    Moving(Again),
    /// The register has no timestamp left: nothing was written, and the key has to move.
    UsedUp,
}

/// The versions of a write: its guess, and its last one, which is another one if the guess was stale. Both are in one
/// buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Again {
    pub(crate) guess: Version,
    pub(crate) last: Version,
}

/// What the end of a register was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sealed {
    Now,
    /// It had ended before, or others end it at the same time.
    Before,
    /// It was used again, for another key.
    Moved,
    /// Its key moves to another register: the index decides which of the two is first.
    Moving,
    /// It has no timestamp left: it was not sealed, and its key has to move.
    UsedUp,
}

/// What a write has found beside its guess.
enum Guess<'e> {
    Fresh,
    Stale(Stale<'e>),
    Gone,
    Moving,
}

/// The latest version, or why there is none.
enum Latest {
    At(Version),
    Sealed,
    Moved,
}

/// A compare-and-swap of a write, and a get of the register's instance and metadata words beside it. In a store, the
/// instance word that it finds is the one after the compare-and-swap (`moving`).
pub(crate) struct StoreAndGet<'b> {
    endpoint: &'b Endpoint,
    at: RemotePtr<u64>,
    instance: u64,
    store: Raise<'b>,
    /// Exchanges the instance word for itself. None in an array.
    check: Option<Op<'b, u64>>,
    get: Option<BufOp<'b, u64>>,
    head: Option<Buf<'b, u64>>,
    /// Once the metadata word is stored.
    stored: Option<u64>,
}

impl<'b> Future for StoreAndGet<'b> {
    /// The writer's word, and what the get has found.
    type Output = fabric::Result<(u64, Buf<'b, u64>)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let both = &mut *self;
        if let Some(get) = &mut both.get {
            both.head = Some(ready!(Pin::new(get).poll(cx))?);
            both.get = None;
        }
        let instance = both.instance;
        let head = both.head.as_mut().expect("it was got");
        // The compare-and-swap is repeated only in the right instance: this client's section keeps it from ending now.
        if head[0] == instance {
            if both.stored.is_none() {
                both.stored = Some(ready!(Pin::new(&mut both.store).poll(cx))?);
                if both.store.is_repeated() && both.check.is_some() {
                    both.check = Some(both.endpoint.cas(both.at, instance, instance));
                }
            }
            if let Some(check) = &mut both.check {
                head[0] = ready!(Pin::new(check).poll(cx))?;
            }
        }
        Poll::Ready(Ok((both.stored.unwrap_or(0), both.head.take().expect("it was got"))))
    }
}

impl<'e> Core<'e> {
    /// Reads a register (Algorithm 10, READ).
    pub(crate) async fn read(&self, at: Location, into: &mut [u64]) -> Result<Read> {
        let section = self.enter()?;
        let read = self.read_in(&section, at, into).await;
        section.end();
        read
    }

    pub(crate) async fn read_in(&self, section: &Section<'_, 'e>, at: Location, into: &mut [u64]) -> Result<Read> {
        let mut seen: SmallVec<[Found<'e>; 2]> = SmallVec::new();
        // Each writer is seen twice at most before the read ends (lemma C.4), and in a store once more if its guess was
        // stale: a memory node that refuses its lock shows a later version, which the next look finds. One that dies
        // with the only copy that was found costs a look.
        let is_store = self.shared.index.is_some();
        let looks = (2 + usize::from(is_store)) * self.shared.layout.writers + 1 + self.shared.memory_nodes;
        // There is none on most paths, and it is moved often.
        let mut refused = Vec::new();
        for _ in 0..looks {
            let shown = core::mem::take(&mut refused);
            let mut found = match self.max_read_beside(shown, self.order(at.register), at, section).await? {
                Look::Found(found) => found,
                Look::Gone => continue,
                Look::Moved => return Ok(Read::Moved),
            };
            let version = found.version;
            if version.is_initial() {
                into.fill(0);
                return Ok(Read::Value);
            }
            if version.is_sealed() {
                return Ok(Read::Sealed(version));
            }
            if version.is_verified() {
                if self.value(at, &mut found, into).await? {
                    return Ok(Read::Value);
                }
                continue;
            }
            match seen.iter_mut().find(|earlier| earlier.version.writer() == version.writer()) {
                // Found twice: its timestamp was fresh when it was written.
                Some(earlier) if earlier.version.write() == version.write() => {
                    if self.value(at, &mut found, into).await? {
                        refused = self.lock_or_look(at, version).await?;
                        if refused.is_empty() {
                            if let Some(image) = &found.image {
                                self.verify(at, version, found.holders, image);
                            }
                            return Ok(Read::Value);
                        }
                    }
                    *earlier = found;
                }
                // It is the same write: its guess was stale.
                Some(earlier) if is_store && earlier.version.buffer() == version.buffer() => *earlier = found,
                // Its writer has begun another write, so this one has ended.
                Some(earlier) => {
                    if self.value(at, earlier, into).await? {
                        return Ok(Read::Value);
                    }
                    *earlier = found;
                }
                None => seen.push(found),
            }
        }
        Err(self.unsettled(at.register))
    }

    /// Tells readers that a timestamp is known to be fresh (Algorithm 10, lines 8 and 20), and puts the value where
    /// they find it at once. Nobody waits for it.
    fn verify(&self, at: Location, version: Version, holders: Replicas, image: &Buf<'_, u64>) {
        self.set_verified(at, version, holders);
        self.store_in_place(self.order(at.register).first(), at.register, image);
    }

    /// The memory nodes for which this was not refused. For the others, the next reader does it.
    fn set_verified(&self, at: Location, version: Version, holders: Replicas) -> Replicas {
        let mut told = Replicas::default();
        for replica in holders.iter() {
            let word = self.word_at(replica, at.register, version.writer());
            if self.endpoint.cas(word, version.0, version.verified().0).detach().is_ok() {
                told.add(replica);
            }
        }
        told
    }

    /// Writes a register (Algorithm 10, WRITE). The section is that of the write: until it ends, no version that it
    /// finds leaves its buffer, and the register is not used again.
    pub(crate) async fn write_in_section<'c>(
        &'c self,
        home: Home,
        value: &[u64],
    ) -> Result<(Written, Writing<'c, 'e>, Section<'c, 'e>)> {
        // Buffers come back when sections end: they are waited for outside.
        let unused = self.take_unused_buffer().await?;
        let writing = self.begin_write(home.at.register).await?;
        let section = self.enter()?;
        match self.write_in(&section, unused, home, value).await {
            Ok(written) => Ok((written, writing, section)),
            Err(error) => {
                section.end();
                Err(error)
            }
        }
    }

    async fn write_in(
        &self,
        section: &Section<'_, 'e>,
        unused: UnusedBuffer<'_, 'e>,
        home: Home,
        value: &[u64],
    ) -> Result<Written> {
        if self.finish(section, home.at).await? == Written::Gone {
            return Ok(Written::Gone);
        }
        let clock = self.keep_reserved(home.at).await?;
        let version = match self.guess(home.at, clock, unused.number) {
            Ok(version) => version,
            Err(TimestampsUsedUp) if self.shared.index.is_some() => return Ok(Written::UsedUp),
            Err(TimestampsUsedUp) => return Err(self.used_up()),
        };
        let image =
            self.image(home.at, version, value).map_err(|error| Error::from(error).of(self.shared.object.path()))?;
        unused.keep();
        let write = Write::new(self, home, version);
        self.end_write(section, write, &image).await
    }

    /// Ends this writer's write of the register that was dropped or found no majority. Gone if the register has ended.
    async fn finish(&self, section: &Section<'_, 'e>, at: Location) -> Result<Written> {
        let Some(unfinished) = self.take_unfinished(at.register) else {
            return Ok(Written::Done);
        };
        let Unfinished { home, version, is_earlier, is_second, .. } = unfinished;
        if home.at.instance > at.instance {
            self.with_place(|place| place.unfinished.push(unfinished));
            return Ok(Written::Gone);
        }
        if home.at != at {
            // No client reads the earlier instance any more.
            self.retire_buffer(version.buffer());
            return Ok(Written::Done);
        }
        let written = match self.image(home.at, version, &unfinished.value) {
            Ok(image) => {
                let mut write = Write::new(self, home, version);
                (write.is_earlier, write.is_second) = (is_earlier, Cell::new(is_second));
                self.end_write(section, write, &image).await?
            }
            Err(error) => {
                self.with_place(|place| place.unfinished.push(unfinished));
                return Err(Error::from(error).of(self.shared.object.path()));
            }
        };
        if let Written::Moving(_) = written {
            // It is not made again elsewhere.
            let buffer = version.buffer();
            self.add_chore(Chore::Leave { cell: home.cell, entry: home.entry, buffer });
            return Ok(Written::Gone);
        }
        Ok(written)
    }

    /// Ends a write of any register that was dropped or found no majority, for its buffers. False if there is none.
    pub(crate) async fn finish_any(&self) -> Result<bool> {
        let Some(at) = self.unfinished_register() else { return Ok(false) };
        let _writing = self.begin_write(at.register).await?;
        let section = self.enter()?;
        let finished = self.finish(&section, at).await;
        section.end();
        finished.map(|_| true)
    }

    /// Writes a version, or one that replaces it. If this ends in the middle, the write is on the list of those that
    /// are not finished.
    async fn end_write<'i>(
        &self,
        section: &Section<'_, 'e>,
        write: Write<'_, 'e, 'i>,
        image: &'i Buf<'e, u64>,
    ) -> Result<Written> {
        let (at, version) = (write.home.at, write.version.get());
        write.value.set(Some(&image[1..]));
        let mut written = Written::Done;
        if version.is_verified() {
            written = match self.settle(section, at).await? {
                Latest::At(_) => self.write_fresh(at, version, image).await.map(|_| Written::Done)?,
                Latest::Sealed | Latest::Moved => Written::Gone,
            };
        } else {
            match self.write_guessed(section, at, version, image).await? {
                Guess::Fresh => {}
                Guess::Moving => written = Written::Moving(Again { guess: version, last: version }),
                Guess::Gone => {
                    // A reader may have taken the guess before the register ended. Then this write has happened, and
                    // the delete came after it.
                    if self.try_lock(at, version, Mode::Write).await? {
                        written = Written::Gone;
                    }
                }
                // It has ended before the later one began, or it never has happened.
                Guess::Stale(_) if write.is_earlier => {}
                // It is no guess: it was later than all that had ended when the call began.
                Guess::Stale(stale) if write.is_second.get() => drop(self.set_verified(at, version, stale.posted)),
                Guess::Stale(stale) => {
                    let posted = stale.posted;
                    let mut later = self.later_than(at, stale.later, version).await?;
                    if self.shared.index.is_some() {
                        // It is verified when it has ended (`moving`).
                        later = later.unverified();
                    }
                    // Either no reader takes the guess from now on, or one has found that it was fresh.
                    if !self.lock_stale(at, version, stale, section).await? {
                        self.set_verified(at, version, posted);
                    } else {
                        // From here on the value is written at this timestamp only: at a third one it would be written
                        // twice.
                        write.version.set(later);
                        write.is_second.set(true);
                        let image = self.image(at, later, &image[1..]).map_err(Error::from)?;
                        if !self.write_fresh(at, later, &image).await? {
                            written = Written::Moving(Again { guess: version, last: later });
                        }
                    }
                }
            }
        }
        write.value.set(None);
        match written {
            Written::Done => self.hold(at, write.version.get()),
            Written::Gone | Written::UsedUp => self.retire_buffer(version.buffer()),
            // It may be the last version that counts: the move needs it.
            Written::Moving(_) => {}
        }
        Ok(written)
    }

    /// Writes a version with a guessed timestamp, and reads the register at the same time.
    async fn write_guessed(
        &self,
        section: &Section<'_, 'e>,
        at: Location,
        version: Version,
        image: &Buf<'e, u64>,
    ) -> Result<Guess<'e>> {
        let mut posted = Replicas::default();
        let post = |replica: usize| {
            posted.add(replica);
            self.store_and_get(replica, at, version, Some(image))
        };
        // A weak read (appendix A.2): what it finds need not be at a majority.
        let gathered = self.gather(self.order(at.register), self.majority(), post).await?;
        if gathered.answers.iter().any(|(_, (_, head))| head[0] != at.instance) {
            let is_moving = gathered.answers.iter().any(|(_, (_, head))| head[0] == at.moving());
            return Ok(if is_moving { Guess::Moving } else { Guess::Gone });
        }
        let mut found = version;
        for (replica, (stored, head)) in &gathered.answers {
            self.set_known(at, *replica, self.version(*stored));
            let there =
                [self.newest(&head[1..]), self.version(*stored)].into_iter().max_by_key(|version| version.rank());
            found = there.filter(|there| there.rank() > found.rank()).unwrap_or(found);
        }
        let mut stale = None;
        if !found.is_sealed() && found.write() > version.write() {
            stale = self.stale(at, [version, found], posted, &gathered.answers).await?;
        }
        drop(gathered);
        if found.is_sealed() || found.write() > version.write() && stale.is_none() {
            match self.settle(section, at).await? {
                Latest::At(settled) if settled.write() > version.write() => {
                    stale = Some(Stale { later: settled, behind: None, posted });
                }
                Latest::At(_) => {}
                Latest::Sealed => return Ok(Guess::Gone),
                Latest::Moved => return Ok(Guess::Moving),
            }
        }
        if let Some(stale) = stale {
            return Ok(Guess::Stale(stale));
        }
        self.verify_own(at, version, posted, image);
        Ok(Guess::Fresh)
    }

    /// [`Core::verify`], by the writer of a version.
    fn verify_own(&self, at: Location, version: Version, posted: Replicas, image: &Buf<'_, u64>) {
        let told = self.set_verified(at, version, posted);
        for replica in told.iter().filter(|replica| self.known(at, *replica) == version) {
            self.set_known(at, replica, version.verified());
        }
        self.store_in_place(self.order(at.register).first(), at.register, image);
    }

    pub(crate) fn store_and_get<'b>(
        &'b self,
        replica: usize,
        at: Location,
        version: Version,
        image: Option<&'b Buf<'_, u64>>,
    ) -> fabric::Result<StoreAndGet<'b>> {
        let (endpoint, instance) = (self.endpoint, at.instance);
        let head = endpoint.buf(self.shared.layout.head_words())?;
        let store = self.store(replica, at, [self.known(at, replica), version], image);
        let at = self.register_at(replica, at.register);
        let check = self.shared.index.is_some().then(|| endpoint.cas(at, instance, instance));
        let get = Some(endpoint.get_into(at, head));
        Ok(StoreAndGet { endpoint, at, instance, store, check, get, head: None, stored: None })
    }

    /// Ends an instance of a register: a majority has a seal when this returns, and no read and no write of the
    /// instance that begins later succeeds.
    async fn seal(&self, at: Location, seal: Version) -> Result<Sealed> {
        let post = |replica: usize| self.store_and_get(replica, at, seal, None);
        let gathered = self.gather(self.order(at.register), self.majority(), post).await?;
        let mut sealed = Sealed::Now;
        for (replica, (stored, head)) in &gathered.answers {
            if head[0] != at.instance {
                return Ok(if head[0] == at.moving() { Sealed::Moving } else { Sealed::Moved });
            }
            let is_other = |word: u64| self.version(word).is_sealed() && self.version(word) != seal;
            if is_other(*stored) || head[1..].iter().any(|word| is_other(*word)) {
                sealed = Sealed::Before;
            }
            self.set_known(at, *replica, self.version(*stored));
        }
        Ok(sealed)
    }

    /// Whether an instance of a register was sealed, or has ended.
    pub(crate) async fn has_ended(&self, section: &Section<'_, 'e>, at: Location) -> Result<bool> {
        for _ in 0..=self.shared.memory_nodes {
            match self.max_read(at, section).await? {
                Look::Found(found) => return Ok(found.version.is_sealed()),
                Look::Moved => return Ok(true),
                Look::Gone => {}
            }
        }
        Err(self.unsettled(at.register))
    }

    /// [`Core::seal`] in a section of its own, and the seal.
    pub(crate) async fn seal_in_section(&self, at: Location) -> Result<(Sealed, Version)> {
        let clock = self.keep_reserved(at).await?;
        let Ok(seal) = self.guess_seal(at, clock) else { return Ok((Sealed::UsedUp, Version::NONE)) };
        let section = self.enter()?;
        let sealed = self.seal(at, seal).await;
        section.end();
        Ok((sealed?, seal))
    }

    /// The latest version, which is at a majority when this returns.
    async fn settle(&self, section: &Section<'_, 'e>, at: Location) -> Result<Latest> {
        for _ in 0..=self.shared.memory_nodes {
            match self.max_read(at, section).await? {
                Look::Found(found) if found.version.is_sealed() => return Ok(Latest::Sealed),
                Look::Found(found) => return Ok(Latest::At(found.version)),
                Look::Moved => return Ok(Latest::Moved),
                Look::Gone => {}
            }
        }
        Err(self.unsettled(at.register))
    }

    #[cold]
    pub(crate) fn unsettled(&self, register: usize) -> Error {
        let what = format!("register {}: {UNSETTLED}", self.shared.number_of(register));
        let memory = self.replicas.borrow().iter().map(|replica| replica.node).collect();
        let timeout = ErrorKind::Timeout { what, waited: self.patience(self.shared.options.patience), missing: memory };
        Error::from(timeout).of(self.shared.object.path())
    }

    /// Writes a version with a timestamp that is known to be fresh. If the register ends meanwhile, this has happened
    /// before. False if its key moves.
    async fn write_fresh(&self, at: Location, version: Version, image: &Buf<'e, u64>) -> Result<bool> {
        if self.shared.index.is_some() {
            let mut posted = Replicas::default();
            let post = |replica: usize| {
                posted.add(replica);
                self.store_and_get(replica, at, version, Some(image))
            };
            let gathered = self.gather(self.order(at.register), self.majority(), post).await?;
            if !gathered.answers.iter().all(|(_, (_, head))| head[0] == at.instance) {
                return Ok(false);
            }
            for (replica, (stored, _)) in &gathered.answers {
                self.set_known(at, *replica, self.version(*stored));
            }
            drop(gathered);
            self.verify_own(at, version, posted, image);
            return Ok(true);
        }
        let post = |replica: usize| Ok(self.store(replica, at, [self.known(at, replica), version], Some(image)));
        let gathered = self.gather(self.order(at.register), self.majority(), post).await?;
        for (replica, stored) in &gathered.answers {
            self.set_known(at, *replica, self.version(*stored));
        }
        drop(gathered);
        self.store_in_place(self.order(at.register).first(), at.register, image);
        Ok(true)
    }
}

/// A write that is under way. If it ends in the middle, it is moved to the list of the unfinished ones.
struct Write<'c, 'e, 'i> {
    core: &'c Core<'e>,
    home: Home,
    version: Cell<Version>,
    /// None when it has ended.
    value: Cell<Option<&'i [u64]>>,
    /// As those of [`Unfinished`].
    is_earlier: bool,
    is_second: Cell<bool>,
}

impl<'c, 'e> Write<'c, 'e, '_> {
    fn new(core: &'c Core<'e>, home: Home, version: Version) -> Self {
        let (version, value, is_second) = (Cell::new(version), Cell::new(None), Cell::new(false));
        Write { core, home, version, value, is_earlier: false, is_second }
    }
}

impl Drop for Write<'_, '_, '_> {
    fn drop(&mut self) {
        if let Some(value) = self.value.get() {
            let (home, version, is_earlier) = (self.home, self.version.get(), self.is_earlier);
            let is_second = self.is_second.get();
            let unfinished = Unfinished { home, version, value: value.to_vec(), is_earlier, is_second };
            self.core.with_place(|place| place.unfinished.push(unfinished));
        }
    }
}
