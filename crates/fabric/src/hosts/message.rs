//! The messages of fabrics between hosts by the control plane: the layout of memory, and the connections of pairs.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::layout::{ChunkInfo, GenerationInfo};

/// One message, with addresses of a carrier. Those of one node arrive in the order in which it sent them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Message<A> {
    /// The sender has one more group.
    Group { key: u8 },
    /// A part of a group's memory that is new.
    Chunk { key: u8, chunk: ChunkInfo },
    /// Memory of a group has another generation: by what pointers there are nothing is to be posted to it any more. The
    /// receiver answers with `Passed` if it has an `id` other than 0.
    Generation { id: u64, key: u8, info: GenerationInfo },
    /// The answer to `Generation`: the sender's lanes have no request under way by old pointers to the memory of this
    /// `id`.
    Passed { id: u64 },
    /// All groups that the sender had when the connection was made, and all their memory, were told.
    Told,
    /// A lane of the sender wants to reach a class of groups.
    Connect { ask: u64, lane: u32, class: u8, address: A },
    /// It does, by a target of this address.
    Accept { ask: u64, address: A },
    /// It does not.
    Decline { ask: u64, why: Declined },
    /// A lane is closed.
    Close { lane: u32 },
    /// The lanes of the sender reach a class of groups, and all of its memory that the receiver has told of in
    /// its first `heard` messages; or not all of them do, since there is no pair for some.
    Reached { class: u8, heard: u64, by_all: bool },
    /// The receiver has no right to a group any more.
    Revoke { key: u8 },
    /// It has again.
    Permit { key: u8 },
}

/// Why a lane does not reach a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Declined {
    /// It may not.
    Revoked,
    /// There is no pair for it.
    NoQueuePair(String),
}

impl<A: Serialize + DeserializeOwned> Message<A> {
    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("memory is all that it needs")
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Message<A>> {
        match postcard::take_from_bytes(bytes) {
            Ok((message, [])) => Some(message),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One of any carrier.
    type Address = (u32, Option<[u8; 16]>, Vec<u8>);

    fn address() -> impl Strategy<Value = Address> {
        any::<Address>()
    }

    fn message() -> impl Strategy<Value = Message<Address>> {
        let chunk = any::<(u64, u64, u64, u32)>().prop_map(|(first, bytes, address, rkey)| ChunkInfo {
            first,
            bytes,
            address,
            rkey,
        });
        let why = prop_oneof![Just(Declined::Revoked), ".*".prop_map(Declined::NoQueuePair)];
        prop_oneof![
            any::<u8>().prop_map(|key| Message::Group { key }),
            (any::<u8>(), chunk).prop_map(|(key, chunk)| Message::Chunk { key, chunk }),
            Just(Message::Told),
            any::<(u64, u8, (u8, u64, u64, u8))>().prop_map(|(id, key, (address_bits, first, bytes, generation))| {
                Message::Generation { id, key, info: GenerationInfo { address_bits, first, bytes, generation } }
            }),
            any::<u64>().prop_map(|id| Message::Passed { id }),
            (any::<(u64, u32, u8)>(), address()).prop_map(|((ask, lane, class), address)| Message::Connect {
                ask,
                lane,
                class,
                address
            }),
            (any::<u64>(), address()).prop_map(|(ask, address)| Message::Accept { ask, address }),
            (any::<u64>(), why).prop_map(|(ask, why)| Message::Decline { ask, why }),
            any::<u32>().prop_map(|lane| Message::Close { lane }),
            any::<(u8, u64, bool)>().prop_map(|(class, heard, by_all)| Message::Reached { class, heard, by_all }),
            any::<u8>().prop_map(|key| Message::Revoke { key }),
            any::<u8>().prop_map(|key| Message::Permit { key }),
        ]
    }

    proptest! {
        #[test]
        fn messages_survive_the_wire_and_nothing_less_is_one(message in message()) {
            let bytes = message.encode();
            for end in 0..bytes.len() {
                prop_assert_eq!(Message::<Address>::decode(&bytes[..end]), None);
            }
            let longer = [&bytes[..], &[0]].concat();
            prop_assert_eq!(Message::<Address>::decode(&longer), None);
            prop_assert_eq!(Message::decode(&bytes), Some(message));
        }

        #[test]
        fn any_bytes_are_a_message_or_none(bytes: Vec<u8>) {
            if let Some(message) = Message::<Address>::decode(&bytes) {
                prop_assert_eq!(Message::decode(&message.encode()), Some(message));
            }
        }
    }
}
