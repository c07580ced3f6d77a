//! Values of any type that serde can encode (feature `serde`).

use core::any::type_name;
use core::fmt;
use core::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{ErrorKind, Result};
use crate::objects::codec::{ByteString, Value};

/// A value of any type that serde can encode, for a [`KvStore`](crate::KvStore), a [`Queue`](crate::Queue) or a
/// [`Channel`](crate::Channel). It needs the feature `serde`.
///
/// It has the bytes of the value, in the format of the crate `postcard`. [`Encoded::new`] makes them, and
/// [`Encoded::value`] reads them. Their number counts for the object's limit (`value_bytes_max`); an object refuses a
/// value beyond that ([`ErrorKind::TooLarge`]).
///
/// All nodes have to use the same definition of the type. The object does not check that. Bytes of another definition
/// are an error of [`Encoded::value`], or another value.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let node = farfield::Node::builder().start()?;
/// # let ep = node.endpoint()?;
/// use farfield::{Encoded, KvOptions, KvStore};
///
/// #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
/// enum Job {
///     Copy { from: String, to: String },
///     Sleep(std::time::Duration),
/// }
///
/// let options = KvOptions { value_bytes_max: 200, ..KvOptions::default() };
/// let jobs = KvStore::<u64, Encoded<Job>>::open(&node, "jobs", options)?;
/// let job = Job::Copy { from: "a".into(), to: "b".into() };
/// ep.block_on(jobs.insert(&ep, &1, &Encoded::new(&job)?))?;
/// let found = ep.block_on(jobs.get(&ep, &1))?.expect("it was inserted");
/// assert_eq!(found.value()?, job);
/// # Ok(()) }
/// ```
pub struct Encoded<T> {
    bytes: ByteString,
    value: PhantomData<fn() -> T>,
}

impl<T: Serialize> Encoded<T> {
    /// Encodes a value.
    ///
    /// ```
    /// # use farfield::Encoded;
    /// let encoded = Encoded::new(&("seventeen", Some(17u64)))?;
    /// assert!(encoded.bytes().len() < 16);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Encoding`]: its type does not encode itself, or has a form that the format lacks, such as a
    /// sequence that does not know its length.
    pub fn new(value: &T) -> Result<Encoded<T>> {
        match postcard::to_allocvec(value) {
            Ok(bytes) => Ok(Encoded { bytes: bytes.into(), value: PhantomData }),
            Err(error) => {
                let why = format!(
                    "a value of type `{}` cannot be encoded ({error}): change how the type serializes itself",
                    type_name::<T>()
                );
                Err(ErrorKind::Encoding { why }.into())
            }
        }
    }
}

impl<T: DeserializeOwned> Encoded<T> {
    /// Decodes the value.
    ///
    /// ```
    /// # use farfield::Encoded;
    /// assert_eq!(Encoded::new(&vec![1u64, 2, 3])?.value()?, [1, 2, 3]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Encoding`]: the bytes are no value of this type. A node that has another definition of the type has
    /// written them.
    pub fn value(&self) -> Result<T> {
        let why = match postcard::take_from_bytes(&self.bytes) {
            Ok((value, [])) => return Ok(value),
            Ok((_, rest)) => format!("{} bytes are left over", rest.len()),
            Err(error) => error.to_string(),
        };
        let why = format!(
            "{} bytes are no value of type `{}` ({why}): give the type the same definition on all nodes",
            self.bytes.len(),
            type_name::<T>()
        );
        Err(ErrorKind::Encoding { why }.into())
    }
}

impl<T> Encoded<T> {
    /// The encoded bytes.
    ///
    /// ```
    /// # use farfield::Encoded;
    /// assert_eq!(Encoded::new(&7u8)?.bytes(), [7]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

// Derived, these would ask the same of `T`.
impl<T> Clone for Encoded<T> {
    fn clone(&self) -> Encoded<T> {
        Encoded { bytes: self.bytes.clone(), value: PhantomData }
    }
}

/// The encoded bytes are equal.
impl<T> PartialEq for Encoded<T> {
    fn eq(&self, other: &Encoded<T>) -> bool {
        self.bytes == other.bytes
    }
}

impl<T> Eq for Encoded<T> {}

impl<T> fmt::Debug for Encoded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Encoded<{}>({:?})", type_name::<T>(), self.bytes)
    }
}

/// In a slot, as its bytes.
impl<T: 'static> Value for Encoded<T> {
    const FIXED: bool = false;

    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn words(bytes_max: usize) -> usize {
        ByteString::words(bytes_max)
    }

    fn encode(&self, into: &mut [u64]) -> usize {
        Value::encode(&self.bytes, into)
    }

    fn decode(words: &[u64]) -> Option<(Encoded<T>, usize)> {
        let (bytes, used) = <ByteString as Value>::decode(words)?;
        Some((Encoded { bytes, value: PhantomData }, used))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::{Deserialize, Serializer};

    use super::*;

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    enum Job {
        Copy { from: String, to: Option<String> },
        All(Vec<Job>),
        Number(i64),
    }

    fn job() -> impl Strategy<Value = Job> {
        let leaf = prop_oneof![
            any::<(String, Option<String>)>().prop_map(|(from, to)| Job::Copy { from, to }),
            any::<i64>().prop_map(Job::Number),
        ];
        leaf.prop_recursive(3, 20, 4, |jobs| prop::collection::vec(jobs, 0..4).prop_map(Job::All))
    }

    fn is_encoding_error<T>(result: Result<T>) -> bool {
        result.is_err_and(|error| matches!(error.kind(), ErrorKind::Encoding { .. }))
    }

    proptest! {
        /// A value is decoded from its words, and takes as many as its length says.
        #[test]
        fn values_come_back(job in job()) {
            let encoded = Encoded::new(&job).unwrap();
            let mut words = vec![u64::MAX; Encoded::<Job>::words(Value::bytes(&encoded))];
            let used = Value::encode(&encoded, &mut words);
            prop_assert_eq!(used, words.len());
            let (back, read) = <Encoded<Job> as Value>::decode(&words).unwrap();
            prop_assert_eq!((back.value().unwrap(), read, &back), (job, used, &encoded));
        }

        /// Any bytes are a value, or an error.
        #[test]
        fn garbage_is_an_error_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let value = Encoded::<Job> { bytes: bytes.into(), value: PhantomData }.value();
            prop_assert!(value.is_ok() || is_encoding_error(value));
        }

        /// Bytes that are cut off, or have others behind them, are an error.
        #[test]
        fn other_lengths_are_errors(job in job(), more in 1..9usize) {
            let mut bytes = Encoded::new(&job).unwrap().bytes().to_vec();
            let of = |bytes: &[u8]| Encoded::<Job> { bytes: bytes.into(), value: PhantomData }.value();
            prop_assert!(is_encoding_error(of(&bytes[..bytes.len() - 1])));
            bytes.extend(vec![0; more]);
            prop_assert!(is_encoding_error(of(&bytes)));
        }
    }

    struct Refuses;

    impl Serialize for Refuses {
        fn serialize<S: Serializer>(&self, _: S) -> core::result::Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("not today"))
        }
    }

    #[test]
    fn a_type_that_does_not_encode_itself_is_an_error() {
        let error = Encoded::new(&Refuses).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Encoding { .. }), "{error}");
        assert!(error.to_string().contains("Refuses"), "{error}");
    }
}
