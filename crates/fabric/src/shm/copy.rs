//! Copies into, out of and within shared memory, and the fence before a read of it.

use core::arch::asm;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// From this size on the string instructions are faster than a loop over words.
pub(super) const STRING_BYTES_MIN: usize = 512;

/// Earlier stores of this thread are visible before its later loads read.
#[inline(always)]
pub(super) fn store_load_fence() {
    // SAFETY: a locked read-modify-write of the stack's top that changes nothing: a full barrier on x86 (SDM vol. 3,
    // 8.2.3.9), and cheaper than `mfence`. Not marked `nomem`, so the compiler keeps order across it too.
    unsafe { asm!("lock or dword ptr [rsp], 0", options(nostack)) };
}

/// Copies private bytes into shared memory.
///
/// # Safety
/// `to` is aligned to 8 and valid for `len` bytes accessed by atomics only; `from` is valid for `len` bytes that no
/// thread writes to.
#[inline]
pub(super) unsafe fn copy_in(to: *mut u8, from: *const u8, len: usize) {
    let words = len / 8;
    for word in 0..words {
        // SAFETY: within `len`; destination aligned by contract, source read unaligned.
        unsafe {
            let bits = from.cast::<u64>().add(word).read_unaligned();
            AtomicU64::from_ptr(to.cast::<u64>().add(word)).store(bits, Ordering::Release);
        }
    }
    for byte in words * 8..len {
        // SAFETY: within `len`.
        unsafe { AtomicU8::from_ptr(to.add(byte)).store(*from.add(byte), Ordering::Release) };
    }
}

/// Copies shared memory to a private place.
///
/// # Safety
/// `from` is aligned to 8 and valid for `len` bytes accessed by atomics only; `to` is valid for writes of `len` bytes
/// that no other thread uses.
#[inline]
pub(super) unsafe fn copy_out(to: *mut u8, from: *const u8, len: usize) {
    let words = len / 8;
    for word in 0..words {
        // SAFETY: within `len`; source aligned by contract, destination written unaligned.
        unsafe {
            let bits = AtomicU64::from_ptr(from.cast::<u64>().add(word).cast_mut()).load(Ordering::Acquire);
            to.cast::<u64>().add(word).write_unaligned(bits);
        }
    }
    for byte in words * 8..len {
        // SAFETY: within `len`.
        unsafe { *to.add(byte) = AtomicU8::from_ptr(from.add(byte).cast_mut()).load(Ordering::Acquire) };
    }
}

/// Copies between two places either of which others may access meanwhile.
///
/// # Safety
/// Both are aligned to 8 and valid for `len` bytes that are accessed by atomics only, or by no other thread; they do
/// not overlap unless they are the same.
#[inline(always)]
pub(super) unsafe fn copy_shared(to: *mut u8, from: *const u8, len: usize) {
    if len >= STRING_BYTES_MIN {
        // SAFETY: valid by contract; assembly is outside the language's rule on races, and its stores may be seen in
        // any order, as those of a long put may. The direction flag is clear by the ABI.
        unsafe {
            asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags));
        }
        return;
    }
    let words = len / 8;
    // SAFETY: only called for words within `len`; aligned by contract.
    let copy = |word: usize| unsafe {
        let bits = AtomicU64::from_ptr(from.cast::<u64>().add(word).cast_mut()).load(Ordering::Acquire);
        AtomicU64::from_ptr(to.cast::<u64>().add(word)).store(bits, Ordering::Release);
    };
    // The compiler unrolls no loop of ordered accesses.
    let mut word = 0;
    while words - word >= 4 {
        (0..4).for_each(|of_four| copy(word + of_four));
        word += 4;
    }
    (word..words).for_each(copy);
    for byte in words * 8..len {
        // SAFETY: within `len`.
        unsafe {
            let bits = AtomicU8::from_ptr(from.add(byte).cast_mut()).load(Ordering::Acquire);
            AtomicU8::from_ptr(to.add(byte)).store(bits, Ordering::Release);
        }
    }
}
