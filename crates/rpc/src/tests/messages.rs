//! The images of messages.

use super::*;
use crate::layout::{Image, Layout, Replies, Status};

fn message(values: &[Vec<u8>], number: u64, attempt: u64, opening: u64) -> Image {
    let values: Vec<ByteString> = values.iter().map(|value| value.as_slice().into()).collect();
    let mut image = Image::new();
    image.grow(HEADER + layout::words_of(&values));
    let mut at = HEADER;
    for value in &values {
        at += value.encode(&mut image[at..]);
    }
    layout::seal(&mut image, layout::call_word(number, attempt), opening, values.len());
    image
}

fn slot_of(image: &[u64], words: usize) -> Vec<farfield_fabric::Word> {
    let rest = core::iter::repeat_n(&0, words - image.len());
    image.iter().chain(rest).map(|word| farfield_fabric::Word::new(*word)).collect()
}

fn values() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8)
}

const SLOT: usize = HEADER + 8 * 7;

proptest! {
    /// A message is decoded, with its number, opening and values.
    #[test]
    fn messages_come_back(values in values(), number in 1u64..1 << 48, attempt in any::<u16>(), opening in any::<u64>()) {
        let image = message(&values, number, attempt.into(), opening);
        let mut copy = Image::new();
        prop_assert!(layout::read(&slot_of(&image, SLOT), &mut copy));
        prop_assert_eq!(&*copy, &*image);
        prop_assert_eq!((layout::number_of(copy[CALL]), copy[OPENING]), (number, opening));
        let decoded = layout::decode::<ByteString>(&copy[HEADER..], layout::values_of(&copy)).expect("its values");
        prop_assert!(decoded.iter().map(|value| value.to_vec()).eq(values));
    }

    /// A mixture of two messages is none, unless it is one of them.
    #[test]
    fn mixtures_are_no_messages(
        [one, two] in [values(), values()],
        numbers in [1u64..50, 1..50],
        parts in prop::collection::vec(any::<bool>(), SLOT),
    ) {
        let images = [message(&one, numbers[0], 0, 7), message(&two, numbers[1], 1, 7)];
        let [one, two] = images.each_ref().map(|image| slot_of(image, SLOT));
        let mixed: Vec<_> = parts.iter().enumerate().map(|(at, first)| {
            farfield_fabric::Word::new(if *first { one[at].load() } else { two[at].load() })
        }).collect();
        let mut copy = Image::new();
        if layout::read(&mixed, &mut copy) {
            prop_assert!(images.iter().any(|image| **image == *copy));
        }
    }

    /// Any words are a message or none.
    #[test]
    fn garbage_is_no_message_and_no_panic(words in prop::collection::vec(any::<u64>(), SLOT), shape in any::<u64>()) {
        let mut words = words;
        words[3] = shape % (1 << 39);
        prop_assert!(!layout::read(&slot_of(&words, SLOT), &mut Image::new()));
        let _ = layout::decode::<ByteString>(&words[HEADER..], shape as usize % 40);
    }

    /// Each value of a reply has its own status.
    #[test]
    fn statuses_come_back(lens in prop::collection::vec(0usize..30, 1..=32)) {
        let mut replies = Replies::new();
        for len in &lens {
            match len {
                0 => replies.push_status(Status::None),
                1 => replies.push_status(Status::Malformed),
                len => replies.push(&ByteString::from(vec![1; *len]), 16),
            }
        }
        replies.seal(layout::call_word(1, 0), 7);
        prop_assert_eq!(layout::values_of(&replies.image), lens.len());
        for (value, len) in lens.iter().enumerate() {
            let status = match len { 0 => Status::None, 1 => Status::Malformed, 2..=16 => Status::Done, _ => Status::TooLong };
            prop_assert_eq!(Status::of(&replies.image, value), status);
        }
    }

    /// No two slots share memory, and all lie in their regions.
    #[test]
    fn slots_lie_side_by_side(window in 1usize..9, batch_max in 1usize..=32, bytes in 0usize..200, places in 1usize..9) {
        let options = RpcOptions { window, batch_max, request_bytes_max: bytes, reply_bytes_max: bytes };
        let layout = Layout::new::<ByteString, ByteString>(&options, places, "rpc").expect("sizes");
        let requests = (0..places * window).map(|slot| (layout.request_at(slot), layout.request_words));
        let replies = (0..window).map(|slot| (layout.reply_at(slot), layout.reply_words));
        let ends = |slots: &mut dyn Iterator<Item = (usize, usize)>, first: usize, bytes: usize| {
            let mut end = first;
            for (at, words) in slots {
                assert!(at >= end && at.is_multiple_of(64), "{at} after {end}");
                end = at + 8 * words;
            }
            assert!(end <= bytes, "{end} of {bytes}");
        };
        ends(&mut { requests }, 0, layout.requests_bytes);
        ends(&mut { replies }, layout::REPLIES, layout.replies_bytes);
    }
}
