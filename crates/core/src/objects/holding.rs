//! What a guard knows of the lock that it holds.

/// Whether a guard holds its lock, whether a holder has died before it, and whether that is repaired. It is one number,
/// not three flags, so that a guard is cheap to move.
///
/// ```
/// # use farfield::toolkit::Holding;
/// let mut holding = Holding::new(true); // a holder has died
/// assert!(holding.is_held() && holding.is_poisoned() && !holding.is_repaired());
/// holding.repair(); // what it has left half-written is whole again
/// holding.end(); // the lock is released: what it was remains known
/// assert!(!holding.is_held() && holding.is_repaired());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holding(u32);

const HELD: u32 = 1;
const POISONED: u32 = 2;
const REPAIRED: u32 = 4;

impl Holding {
    /// A lock that is held.
    ///
    /// ```
    /// assert!(!farfield::toolkit::Holding::new(false).is_poisoned());
    /// ```
    #[inline]
    pub fn new(is_poisoned: bool) -> Holding {
        Holding(if is_poisoned { HELD | POISONED } else { HELD })
    }

    /// Whether the lock is still to be released.
    ///
    /// ```
    /// assert!(farfield::toolkit::Holding::new(false).is_held());
    /// ```
    #[inline]
    pub fn is_held(self) -> bool {
        self.0 & HELD != 0
    }

    /// The lock is released, or the release is left to another.
    ///
    /// ```
    /// # let mut holding = farfield::toolkit::Holding::new(false);
    /// holding.end();
    /// assert!(!holding.is_held());
    /// ```
    #[inline]
    pub fn end(&mut self) {
        self.0 &= !HELD;
    }

    /// The release was refused: the lock is still to be released.
    ///
    /// ```
    /// # let mut holding = farfield::toolkit::Holding::new(false);
    /// holding.end();
    /// holding.resume();
    /// assert!(holding.is_held());
    /// ```
    #[inline]
    pub fn resume(&mut self) {
        self.0 |= HELD;
    }

    /// Whether a holder has died: the protected data may be half-written.
    ///
    /// ```
    /// assert!(farfield::toolkit::Holding::new(true).is_poisoned());
    /// ```
    #[inline]
    pub fn is_poisoned(self) -> bool {
        self.0 & POISONED != 0
    }

    /// The data that a dead holder may have left half-written is whole. Nothing where none has died.
    ///
    /// ```
    /// # let mut holding = farfield::toolkit::Holding::new(false);
    /// holding.repair();
    /// assert!(!holding.is_repaired()); // there was nothing to repair
    /// ```
    #[inline]
    pub fn repair(&mut self) {
        self.0 |= if self.is_poisoned() { REPAIRED } else { 0 };
    }

    /// Whether a holder has died, and its data is repaired.
    ///
    /// ```
    /// # let mut holding = farfield::toolkit::Holding::new(true);
    /// holding.repair();
    /// assert!(holding.is_repaired());
    /// ```
    #[inline]
    pub fn is_repaired(self) -> bool {
        self.0 & REPAIRED != 0
    }
}
