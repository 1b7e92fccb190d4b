//! How the few public structs grow.
//!
//! Their first field, `struct_size`, is the size the caller was compiled with. Fields are only ever added at the end:
//!
//! - smaller than the first version of the struct: an error (it was not initialised);
//! - smaller than ours: only the fields the caller knows are read or written, the others are zero;
//! - larger than ours: fine as long as the rest is zero, for a non-zero rest asks for something we do not know.
//!
//! After a call that fills a struct its `struct_size` is the number of bytes that were filled.

use crate::{Error, Result};
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;

/// A struct whose first field is `struct_size`.
///
/// # Safety
/// `#[repr(C)]`, its first field is a `u32`, it has no padding bytes, and zero is a value of every field.
pub(super) unsafe trait Sized32: Copy {
    /// Name of the C type.
    const NAME: &'static str;
    /// Size of the first released version, bytes.
    const FIRST_SIZE: usize;
}

/// Sizes above this are not a newer version but memory that was never initialised.
const LARGEST_SIZE: usize = 64 * 1024;

/// Check the caller's struct; gives the number of bytes that both sides know.
///
/// # Safety
/// Not NULL, at least 4 readable bytes, and `struct_size` readable ones.
///
/// # Errors
/// Misaligned, or a size against the rules above.
unsafe fn shared_size<T: Sized32>(place: *const T) -> Result<usize> {
    let name = T::NAME;
    if !place.is_aligned() {
        return Err(Error::invalid(format!("{name} is not aligned to {} bytes", align_of::<T>())));
    }
    // SAFETY: aligned; the first field is a u32 by the trait's contract, readable by this function's.
    let claimed = unsafe { place.cast::<u32>().read() };
    let size = usize::try_from(claimed).unwrap_or(usize::MAX);
    if size < T::FIRST_SIZE || size > LARGEST_SIZE {
        return Err(Error::invalid(format!(
            "{name}.struct_size is {size}, but must be at least {}: initialise the struct with {name}_init()",
            T::FIRST_SIZE
        )));
    }
    let shared = size.min(size_of::<T>());
    // SAFETY: `size` bytes are readable by this function's contract, `shared` is not above it.
    let rest = unsafe { slice::from_raw_parts(place.cast::<u8>().add(shared), size - shared) };
    if rest.iter().any(|&byte| byte != 0) {
        return Err(Error::Unsupported(format!(
            "{name} is {size} bytes and has values after byte {shared}, the last that this library ({}) knows",
            env!("CARGO_PKG_VERSION")
        )));
    }
    Ok(shared)
}

/// A copy of the caller's struct, for input; fields the caller does not know are zero.
///
/// # Safety
/// Not NULL means: at least 4 readable bytes, and `struct_size` readable ones.
///
/// # Errors
/// NULL, misaligned, or a size against the rules above.
pub(super) unsafe fn read<T: Sized32>(place: *const T) -> Result<T> {
    if place.is_null() {
        return Err(Error::invalid(format!("{} is NULL", T::NAME)));
    }
    // SAFETY: not NULL; readable by this function's contract.
    let shared = unsafe { shared_size(place) }?;
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `shared` bytes are readable and within both structs; zero is a value by the trait's contract.
    unsafe {
        ptr::copy_nonoverlapping(place.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), shared);
        Ok(value.assume_init())
    }
}

/// A struct of the caller's, for output.
pub(super) struct OutStruct<T> {
    place: *mut T,
    /// Bytes that both sides know.
    shared: usize,
}

impl<T: Sized32> OutStruct<T> {
    /// Check the caller's struct. NULL: the caller does not want it.
    ///
    /// # Safety
    /// Not NULL means: at least 4 readable bytes, and `struct_size` readable and writable ones, until the
    /// [`OutStruct`] is gone.
    ///
    /// # Errors
    /// Misaligned, or a size against the rules above.
    pub(super) unsafe fn new(place: *mut T) -> Result<Option<Self>> {
        if place.is_null() {
            return Ok(None);
        }
        // SAFETY: not NULL; readable by this function's contract.
        let shared = unsafe { shared_size(place) }?;
        Ok(Some(OutStruct { place, shared }))
    }

    /// Fill the caller's struct; its `struct_size` becomes the number of bytes filled.
    pub(super) fn write(self, value: T) {
        let filled = u32::try_from(self.shared).unwrap_or(u32::MAX);
        // SAFETY: `shared` bytes are writable (contract of `new`) and within both structs; the first field is a u32.
        unsafe {
            ptr::copy_nonoverlapping(ptr::from_ref(&value).cast::<u8>(), self.place.cast::<u8>(), self.shared);
            self.place.cast::<u32>().write(filled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Old {
        struct_size: u32,
        first: u32,
    }

    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Now {
        struct_size: u32,
        first: u32,
        second: u64,
    }

    // SAFETY: repr(C), u32 first, 4 + 4 + 8 bytes without padding, integers.
    unsafe impl Sized32 for Now {
        const NAME: &'static str = "now";
        const FIRST_SIZE: usize = size_of::<Old>();
    }

    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Newer {
        now: Now,
        third: u64,
    }

    fn fill<T>(place: &mut T) -> Result<()> {
        let value = Now { struct_size: 0, first: 1, second: 2 };
        // SAFETY: a live struct whose first field is its own size.
        let out = unsafe { OutStruct::new(ptr::from_mut(place).cast::<Now>()) }?;
        if let Some(out) = out {
            out.write(value);
        }
        Ok(())
    }

    #[test]
    fn an_old_caller_gets_what_it_knows() {
        #[repr(C, align(8))]
        struct Guarded(Old, u64);
        let mut old = Guarded(Old { struct_size: 8, first: 0 }, 77);
        assert!(fill(&mut old).is_ok());
        assert_eq!((old.0.struct_size, old.0.first, old.1), (8, 1, 77), "nothing behind the old struct is touched");
    }

    #[test]
    fn a_new_caller_is_fine_while_the_rest_is_zero() {
        let mut newer = Newer { now: Now { struct_size: 24, first: 0, second: 0 }, third: 0 };
        assert!(fill(&mut newer).is_ok());
        assert_eq!((newer.now.struct_size, newer.now.second, newer.third), (16, 2, 0));
        let mut newer = Newer { now: Now { struct_size: 24, first: 0, second: 0 }, third: 1 };
        let error = fill(&mut newer).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("values after byte 16"), "{error}");
    }

    #[test]
    fn an_old_callers_struct_is_read_with_zeros_behind_it() {
        #[repr(C, align(8))]
        struct Guarded(Old, u64);
        let old = Guarded(Old { struct_size: 8, first: 5 }, 77);
        // SAFETY: a live struct whose first field is its own size.
        let found = unsafe { read(ptr::from_ref(&old).cast::<Now>()) };
        assert!(found.is_ok_and(|now| (now.first, now.second) == (5, 0)));
        // SAFETY: as above.
        let unset = unsafe { read(&Now { struct_size: 0, first: 9, second: 9 }) };
        assert!(unset.is_err());
        // SAFETY: NULL is refused.
        assert!(unsafe { read(ptr::null::<Now>()) }.is_err());
    }

    #[test]
    fn an_uninitialised_size_is_an_error() {
        for size in [0, 4, 7, 70_000, u32::MAX] {
            let mut now = Now { struct_size: size, first: 9, second: 9 };
            assert!(fill(&mut now).is_err(), "{size}");
            assert_eq!(now.first, 9, "untouched");
        }
    }
}
