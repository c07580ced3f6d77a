//! Values as persons read them.

/// A value as a person reads it: small numbers in decimal, others in hexadecimal.
pub(crate) fn number(value: u64) -> String {
    if value < 10_000_000 { value.to_string() } else { format!("0x{value:x}") }
}
