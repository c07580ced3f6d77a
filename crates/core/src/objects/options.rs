//! Checks of options that all objects have in common.

use farfield_fabric::EndpointOptions;

use crate::Node;
use crate::error::{ErrorKind, Result};

/// The most bytes that one region of an object may have.
const REGION_BYTES_MAX: usize = 1 << 40;

/// The most bytes of one buffer of this node's endpoints. A message that an object sends from a buffer cannot be
/// longer.
///
/// ```
/// use farfield::toolkit::buf_bytes_max;
/// let node = farfield::Node::builder().pool_bytes_max(1 << 20).start()?;
/// assert_eq!(buf_bytes_max(&node), 1 << 20);
/// assert!(node.endpoint()?.buf::<u8>(buf_bytes_max(&node)).is_ok());
/// # Ok::<(), farfield::Error>(())
/// ```
pub fn buf_bytes_max(node: &Node) -> usize {
    let pool_bytes_max = node.shared().config.pool_bytes_max;
    EndpointOptions { pool_bytes_max, ..EndpointOptions::default() }.buf_bytes_max()
}

/// Checks that options, given with their names, are at least 1.
///
/// ```
/// use farfield::toolkit::at_least_one;
/// assert!(at_least_one(&[("shards", 4), ("replicas", 3)]).is_ok());
/// let error = at_least_one(&[("shards", 0)]).unwrap_err();
/// assert!(error.to_string().contains("`shards`"));
/// ```
///
/// # Errors
/// [`ErrorKind::Config`], with the name of the first that is 0.
pub fn at_least_one(options: &[(&str, usize)]) -> Result<()> {
    match options.iter().find(|option| option.1 == 0) {
        None => Ok(()),
        Some((name, _)) => Err(ErrorKind::Config { why: format!("`{name}` is 0, and has to be at least 1") }.into()),
    }
}

/// The bytes of a region of `count` records, of `words_each` words each. `options` names those that decide both, for
/// the error.
///
/// ```
/// use farfield::toolkit::region_bytes;
/// assert_eq!(region_bytes(10, 4, "`slots`")?, 320);
/// assert!(region_bytes(usize::MAX, 4, "`slots`").is_err()); // the product is not computed modulo 2^64
/// # Ok::<(), farfield::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Config`]: a region has at most 2⁴⁰ bytes.
pub fn region_bytes(count: usize, words_each: usize, options: &str) -> Result<usize> {
    match count.saturating_mul(words_each).saturating_mul(8) {
        bytes @ ..=REGION_BYTES_MAX => Ok(bytes),
        _ => {
            let why = format!(
                "{count} times {words_each} words are more than the 2^40 bytes that a region can have: reduce {options}"
            );
            Err(ErrorKind::Config { why }.into())
        }
    }
}
