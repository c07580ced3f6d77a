//! The life of its place that a joining node begins, and the nodes that are present.
//!
//! A process that dies may be started again, at the same place. It is another node then, with a number of its own: the
//! lives of place `p` of `n` have the numbers `p`, `p + n`, `p + 2n`, … Its peers never mistake one life for another,
//! and pointers to the memory of an earlier one reach nothing.
//!
//! The session's lock file keeps the number of places, and the number of lives of each (`u16`s, little-endian), for as
//! long as any node of the session lives. When none does, the session begins anew.

use std::os::fd::OwnedFd;

use rustix::io::{Errno, pread, pwrite};

use super::card_file::{CardFile, CardMapping, State};
use super::session::{Claim, SessionDir};
use super::session_error::{SessionError, system};

/// The places of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// How many nodes it has at a time.
    pub(crate) places: u32,
    /// How many numbers of nodes there are.
    pub(crate) numbers: u32,
}

/// The state that a node finds when it joins.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) claim: Claim,
    /// The nodes that have been, and are no more.
    pub(crate) gone: Vec<u32>,
    /// The nodes that have entered before it and are neither dead nor departed: they live, or start.
    pub(crate) here: Vec<u32>,
    /// Those of them that live, with their cards.
    pub(crate) living: Vec<(u32, CardMapping)>,
}

impl SessionDir {
    /// Takes the next life of a place, with a card; see [`SessionDir::claim`].
    pub(crate) fn enter(
        &self,
        place: u32,
        of: Places,
        file: CardFile,
        is_alive: impl Fn(&CardMapping) -> bool,
    ) -> Result<Entry, SessionError> {
        let lock = self.lock()?;
        let mut here = Vec::new();
        for node in self.nodes()? {
            match self.judge(node, &is_alive)? {
                State::Taken { .. } | State::OtherVersion { .. } => here.push(node),
                // A node that is slow to start has lost its place, and finds out.
                State::Leftover => self.clear(&lock, node)?,
                State::Absent => {}
            }
        }
        // If no node is present, none remembers the earlier ones.
        let lives = if here.is_empty() { Vec::new() } else { self.lives(&lock, of)? };
        let (before, mut lives) = match lives.split_first() {
            Some((before, lives)) if *before > 0 => (u32::from(*before), lives.to_vec()),
            _ => (of.places, Vec::new()),
        };
        if before != of.places {
            return Err(SessionError::OtherPlaces { ours: of.places, theirs: before });
        }
        lives.resize(of.places as usize, 0);
        let latest = |place: u32, lives: u16| (lives > 0).then(|| place + (u32::from(lives) - 1) * of.places);
        let index = place as usize;
        let node = match latest(place, lives[index]) {
            // It runs already, which the claim reports.
            Some(node) if here.contains(&node) => node,
            Some(node) => node + of.places,
            None => place,
        };
        if node >= of.numbers {
            let incarnations = u32::from(lives[index]);
            return Err(SessionError::NoLifeLeft { rank: place, incarnations, ranks: of.places });
        }
        let claim = self.claim(&lock, node, file, &is_alive)?;
        lives[index] += 1;
        if let Err(error) = self.set_lives(&lock, of.places, &lives) {
            drop(lock); // giving the place up takes it
            return Err(error);
        }
        let gone = (0..of.places).zip(&lives).flat_map(|(place, lives)| {
            (0..u32::from(*lives)).map(move |life| place + life * of.places).filter(|node| *node != claim.node())
        });
        let gone = gone.filter(|node| !here.contains(node)).collect();
        here.retain(|node| *node < of.numbers); // another build may count further
        let mut living = Vec::new();
        for &node in &here {
            // A starting node is up later by itself, or never; so is one with an unreadable card.
            let card = self.open_peer(node).ok().flatten();
            living.extend(card.filter(|card| card.len() == file.bytes && is_alive(card)).map(|card| (node, card)));
        }
        Ok(Entry { claim, gone, here, living })
    }

    /// The number of places, and the number of lives of each; empty if it was never written.
    fn lives(&self, lock: &OwnedFd, of: Places) -> Result<Vec<u16>, SessionError> {
        let mut bytes = vec![0; 2 * (1 + of.numbers as usize)]; // no session has more places than numbers
        let mut filled = 0;
        while filled < bytes.len() {
            match pread(lock, &mut bytes[filled..], filled as u64) {
                Ok(0) => break, // no node was there before
                Ok(read) => filled += read,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(system("reading", &self.lock_path())(errno)),
            }
        }
        let numbers: Vec<u16> = bytes[..filled].as_chunks().0.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
        let places = numbers.first().map_or(0, |places| usize::from(*places));
        Ok(numbers.into_iter().take(1 + places).collect())
    }

    fn set_lives(&self, lock: &OwnedFd, places: u32, lives: &[u16]) -> Result<(), SessionError> {
        let numbers = [places as u16].into_iter().chain(lives.iter().copied());
        let bytes: Vec<u8> = numbers.flat_map(u16::to_le_bytes).collect();
        match pwrite(lock, &bytes, 0) {
            Ok(written) if written == bytes.len() => Ok(()),
            Ok(_) => Err(system("writing", &self.lock_path())(Errno::NOSPC)),
            Err(errno) => Err(system("writing", &self.lock_path())(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::session::tests::{Base, crash, is_alive, raise};

    const OF: Places = Places { places: 2, numbers: 6 };
    const CARD: CardFile = CardFile { bytes: 8192, there: 4096 };

    fn enter(session: &SessionDir, place: u32) -> Result<Entry, SessionError> {
        let entry = session.enter(place, OF, CARD, is_alive)?;
        raise(&entry.claim);
        Ok(entry)
    }

    fn living(entry: &Entry) -> Vec<u32> {
        entry.living.iter().map(|(node, _)| *node).collect()
    }

    #[test]
    fn a_returning_node_is_another_incarnation() {
        let base = Base::new();
        let session = base.open("s");
        let first = enter(&session, 0).unwrap();
        assert_eq!((first.claim.node(), living(&first), &first.gone[..]), (0, vec![], &[][..]));
        let second = enter(&session, 1).unwrap();
        assert_eq!((second.claim.node(), living(&second)), (1, vec![0]));
        assert!(matches!(enter(&session, 1), Err(SessionError::AlreadyRunning { node: 1, .. })));
        let other = session.enter(3, Places { places: 4, ..OF }, CARD, is_alive).unwrap_err();
        assert!(matches!(other, SessionError::OtherPlaces { ours: 4, theirs: 2 }), "{other}");

        // It dies, or leaves: the next life has the next number, and knows the dead.
        crash(second.claim);
        let third = enter(&session, 1).unwrap();
        assert_eq!((third.claim.node(), living(&third), &third.gone[..]), (3, vec![0], &[1][..]));
        drop(third);
        let fifth = enter(&session, 1).unwrap();
        assert_eq!((fifth.claim.node(), &fifth.gone[..]), (5, &[1, 3][..]));
        // Whether leftovers have been swept or not.
        crash(first.claim);
        session.sweep(is_alive).unwrap();
        let other = enter(&session, 0).unwrap();
        assert_eq!((other.claim.node(), living(&other), &other.gone[..]), (2, vec![5], &[0, 1, 3][..]));

        drop(fifth);
        let error = enter(&session, 1).unwrap_err();
        assert!(matches!(error, SessionError::NoLifeLeft { rank: 1, incarnations: 3, ranks: 2 }), "{error}");
        // When all have ended, the session begins anew.
        crash(other.claim);
        let anew = enter(&session, 1).unwrap();
        assert_eq!((anew.claim.node(), living(&anew), &anew.gone[..]), (1, vec![], &[][..]));
    }
}
