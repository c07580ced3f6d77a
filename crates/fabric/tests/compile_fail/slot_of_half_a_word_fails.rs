//! Slots are made of whole words.

use farfield_fabric::Slot;

fn main() {
    let _ = Slot::new([1u32, 2, 3]);
}
