//! The reliable max register (appendix A, Algorithm 8) over In-n-Out (§4): the highest version of a register, which is
//! at a majority of the memory nodes when a look has found it.

use farfield_core::{Error, Result};
use farfield_fabric::{self as fabric, Buf, BufOp};

use crate::client::{Core, hash};
use crate::errors::NoMajority;
use crate::patience;
use crate::replicas::{Order, PerReplica, Replicas};
use crate::sections::Section;
use crate::version::{Location, Version};

/// The highest version that a majority has shown.
pub(crate) struct Found<'e> {
    pub(crate) version: Version,
    /// The memory nodes that have it.
    pub(crate) holders: Replicas,
    /// Its hash and value, if they were found in place or were fetched.
    pub(crate) image: Option<Buf<'e, u64>>,
}

/// What a look at a majority has found.
pub(crate) enum Look<'e> {
    Found(Found<'e>),
    /// The memory nodes that had the latest version do not answer any more.
    Gone,
    /// Its key moves to another register, or it was used again for another key.
    Moved,
}

impl<'e> Core<'e> {
    /// Reads the reliable max register (Algorithm 8, READ): the version is at a majority when this returns.
    pub(crate) async fn max_read(&self, at: Location, section: &Section<'_, 'e>) -> Result<Look<'e>> {
        self.max_read_of(self.order(at.register), at, section).await
    }

    /// [`Core::max_read`] of a majority among these memory nodes, preferably the first of them.
    pub(crate) async fn max_read_of(&self, order: Order, at: Location, section: &Section<'_, 'e>) -> Result<Look<'e>> {
        self.max_read_beside(Vec::new(), order, at, section).await
    }

    /// [`Core::max_read_of`] of a majority and of the memory nodes with known words.
    pub(crate) async fn max_read_beside(
        &self,
        shown: Vec<(usize, Buf<'e, u64>)>,
        order: Order,
        at: Location,
        section: &Section<'_, 'e>,
    ) -> Result<Look<'e>> {
        let get = |replica: usize| self.get_words(replica, at, replica == order.first());
        let mut answers = self.gather(order, self.majority(), get).await?.answers;
        for (replica, words) in shown {
            if answers.iter().all(|(answered, _)| *answered != replica) {
                answers.push((replica, words));
            }
        }
        if answers.iter().any(|(_, words)| words[0] != at.instance) {
            return Ok(Look::Moved);
        }
        let (mut found, words) = self.highest(at, answers)?;
        if found.version.is_initial() {
            return Ok(Look::Found(found));
        }
        let is_at_majority =
            found.holders.count() >= self.majority() || self.write_back(at, &mut found, &words, section).await?;
        if !is_at_majority {
            return Ok(Look::Gone);
        }
        // A move that freezes the register from now on finds the seal (`moving`).
        if found.version.is_sealed() && !self.is_current(at).await? {
            return Ok(Look::Moved);
        }
        Ok(Look::Found(found))
    }

    /// Freezes a register, and reads its highest version, which a majority need not have. A majority is frozen when the
    /// first words are read (a get is posted when all their `NAR` have completed), and the words of the same memory
    /// nodes are read.
    pub(crate) async fn freeze_and_look(&self, at: Location) -> Result<Look<'e>> {
        let freeze =
            |replica: usize| Ok(self.endpoint.cas(self.register_at(replica, at.register), at.instance, at.moving()));
        let frozen = self.gather(self.order(at.register), self.majority(), freeze).await?.answers;
        if frozen.iter().any(|(_, word)| !at.is_in(*word)) {
            return Ok(Look::Moved);
        }
        let order: Order = frozen.iter().map(|(replica, _)| *replica).collect();
        let answers = self.gather_all(order, |replica| self.get_words(replica, at, replica == order.first())).await;
        if answers.len() < order.len() {
            return Ok(Look::Gone);
        }
        if answers.iter().any(|(_, words)| words[0] != at.moving()) {
            return Ok(Look::Moved);
        }
        Ok(Look::Found(self.highest(at, answers)?.0))
    }

    /// Gets the instance and metadata words of a register, with its value in place or without.
    pub(crate) fn get_words(&self, replica: usize, at: Location, in_place: bool) -> fabric::Result<BufOp<'e, u64>> {
        self.check_counts(replica)?;
        let layout = &self.shared.layout;
        let words = if in_place { layout.register_words() } else { layout.head_words() };
        Ok(self.endpoint.get_into(self.register_at(replica, at.register), self.endpoint.buf(words)?))
    }

    /// Whether no key has moved away from this register, and it was not used again.
    async fn is_current(&self, at: Location) -> Result<bool> {
        let post = |replica: usize| Ok(self.endpoint.get(self.register_at(replica, at.register)));
        let gathered = self.gather(self.order(at.register), self.majority(), post).await?;
        Ok(gathered.answers.iter().all(|(_, word)| *word == at.instance))
    }

    /// The highest version that a majority shows, and the words of its writer that others of them have.
    fn highest(&self, at: Location, answers: PerReplica<Buf<'e, u64>>) -> Result<(Found<'e>, PerReplica<u64>)> {
        let layout = &self.shared.layout;
        let head = layout.head_words();
        let version =
            answers.iter().map(|(_, answer)| self.newest(&answer[1..head])).max_by_key(|version| version.rank());
        let version = version.unwrap_or(Version::NONE);
        let mut found = Found { version, holders: Replicas::default(), image: None };
        let mut words: PerReplica<u64> = PerReplica::new();
        if version.is_initial() {
            return Ok((found, words));
        }
        for (replica, answer) in answers {
            // A seal counts, whichever client has put it, and a version, in whichever word it is (`stale`).
            let there = self.newest(&answer[1..head]);
            if there.write() == version.write() || version.is_sealed() && there.is_sealed() {
                found.holders.add(replica);
            } else {
                words.push((replica, answer[layout.metadata_word(version.writer())]));
            }
            if answer.len() > head && hash(at, version, &answer[head + 1..]) == answer[head] {
                let mut image = self.endpoint.buf(layout.image_words()).map_err(Error::from)?;
                image.copy_from_slice(&answer[head..]);
                found.image = Some(image);
            }
        }
        Ok((found, words))
    }

    /// Writes what was found to more memory nodes, until a majority has it. `words` are those of the writer that others
    /// have. False if its value is gone.
    pub(crate) async fn write_back(
        &self,
        at: Location,
        found: &mut Found<'e>,
        words: &PerReplica<u64>,
        section: &Section<'_, 'e>,
    ) -> Result<bool> {
        let (version, holders) = (found.version, found.holders);
        if !version.is_sealed() && !self.fetch(at.register, found).await? {
            return Ok(false);
        }
        let image = found.image.as_ref().filter(|_| !version.is_sealed());
        let others = self.order(at.register);
        let others = others
            .iter()
            .filter(|replica| !holders.contains(*replica) && words.iter().all(|(answered, _)| answered != replica));
        let order: Order = words.iter().map(|(replica, _)| *replica).chain(others).collect();
        let needed = self.majority() - holders.count();
        // Those that have answered a moment ago are waited for: an operation that is still on its way when the read
        // ends keeps its section, and so the buffers of others.
        let at_least = self.shared.options.patience.max(patience::WRITE_BACK);
        let written = self
            .gather_within(at_least, false, order, needed, |replica| {
                section.puts_to(replica);
                let known = words.iter().find(|(answered, _)| *answered == replica);
                let known = known.map_or(Version::empty(at.instance), |(_, word)| self.version(*word));
                Ok(self.store(replica, at, [known, version], image))
            })
            .await?;
        for (replica, word) in &written.answers {
            section.has_landed(*replica);
            let word = self.version(*word);
            if word.write() == version.write() || version.is_sealed() && word.is_sealed() {
                found.holders.add(*replica);
            }
        }
        Ok(true)
    }

    /// Copies the value of a version. False if no memory node has it any more.
    pub(crate) async fn value(&self, at: Location, found: &mut Found<'e>, into: &mut [u64]) -> Result<bool> {
        let is_there = self.fetch(at.register, found).await?;
        if let Some(image) = &found.image {
            into.copy_from_slice(&image[1..]);
        }
        Ok(is_there)
    }

    /// Gets the value of a version from its buffer, unless it was found in place (Algorithm 6). False if the memory
    /// nodes that have it do not answer. (If a majority has it, this waits for one of them.)
    pub(crate) async fn fetch(&self, register: usize, found: &mut Found<'e>) -> Result<bool> {
        if found.image.is_some() {
            return Ok(true);
        }
        let words = self.shared.layout.image_words();
        let (holders, version) = (found.holders, found.version);
        let order = self.order(register).iter().filter(|replica| holders.contains(*replica)).collect();
        let post =
            |replica: usize| Ok(self.endpoint.get_into(self.buffer_at(replica, version), self.endpoint.buf(words)?));
        // Without them another majority may answer. If there is none, they are waited for until they fail.
        let others = self.live(register).iter().filter(|replica| !holders.contains(*replica)).count();
        let gives_up = holders.count() < self.majority() && others >= self.majority();
        match self.gather_within(patience::ATTEMPT, gives_up, order, 1, post).await {
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
}
