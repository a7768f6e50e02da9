//! Structs that grow: `struct_size` says how much of one the caller compiled, and no more is touched.

use crate::base::{Error, Result};
use std::ptr;

/// A C struct that only ever grows at its end. [`grown`] implements it. A caller may know any prefix of whole fields.
///
/// # Safety
/// `repr(C)`, every bit pattern is a valid value, and where `SIZED` it begins with `uint32_t
/// struct_size`.
pub unsafe trait Grown: Sized {
    const NAME: &'static str;
    /// All fields, by name and offset.
    const FIELDS: &'static [(&'static str, usize)];
    /// The smallest useful prefix. By default it is the first field.
    const LEAST: usize = Self::FIELDS[1].1;
    /// Larger sizes are garbage, not a newer header.
    const LARGEST: usize = 4096;
    /// False: the struct is only passed in arrays, whose element size is a parameter.
    const SIZED: bool = true;
    /// The values of fields that the caller's version does not have.
    fn defaults() -> Self;
}

/// Implements [`Grown`]: the struct, all its fields, and those whose default is not zero.
macro_rules! grown {
    ($name:ident { $($each:ident),* $(,)? } $(, $($field:ident).+: $value:expr)* $(; $item:ident = $is:expr)*) => {
        // Every field is named: the pattern has no `..`.
        const _: fn($name) = |$name { $($each: _),* }| ();
        grown!(fields $name, &[$((stringify!($each), std::mem::offset_of!($name, $each))),*]
            $(, $($field).+: $value)* $(; $item = $is)*);
    };
    (fields $name:ident, $fields:expr $(, $($field:ident).+: $value:expr)* $(; $item:ident = $is:expr)*) => {
        // SAFETY: repr(C), and numbers, raw pointers and nullable functions.
        unsafe impl $crate::ffi::growth::Grown for $name {
            const NAME: &'static str = stringify!($name);
            const FIELDS: &'static [(&'static str, usize)] = $fields;
            $(const $item: grown!(@ $item) = $is;)*
            #[allow(unused_mut)]
            fn defaults() -> Self {
                // SAFETY: as above.
                let mut value: Self = unsafe { std::mem::zeroed() };
                $(value.$($field).+ = $value;)*
                value
            }
        }
    };
    (@ SIZED) => { bool };
    (@ LEAST) => { usize };
    (@ LARGEST) => { usize };
}
pub(crate) use grown;

/// Whether `size` ends a whole field, or is that of a newer header's struct.
fn is_size<T: Grown>(size: usize) -> bool {
    let whole = || size >= size_of::<T>() || T::FIELDS.iter().any(|(_, at)| *at == size);
    (T::LEAST..=T::LARGEST).contains(&size) && whole()
}

fn check_size<T: Grown>(size: usize) -> Result<()> {
    if is_size::<T>(size) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{name}.struct_size is {size}; this library knows {known} (call {name}_init with sizeof)",
        name = T::NAME,
        known = size_of::<T>()
    )))
}

fn not_null<T: Grown>(pointer: *const T) -> Result<()> {
    if pointer.is_null() {
        return Err(Error::invalid(format!("the pointer to {} is NULL", T::NAME)));
    }
    Ok(())
}

/// Copies a caller's struct in.
///
/// # Safety
/// `from` is NULL or points to `struct_size` readable bytes.
pub unsafe fn read<T: Grown>(from: *const T) -> Result<T> {
    // SAFETY: the caller's promise.
    unsafe { copy_in(from, size_of_caller(from)?) }
}

/// # Safety
/// `from` points to `size` readable bytes.
unsafe fn copy_in<T: Grown>(from: *const T, size: usize) -> Result<T> {
    let bytes = from.cast::<u8>();
    let known = size.min(size_of::<T>());
    for at in known..size {
        // SAFETY: `at` lies within the caller's `struct_size` bytes.
        if unsafe { bytes.add(at).read() } != 0 {
            return Err(Error::unsupported(format!(
                "{} has a field at byte {at} that this version of bn_engine does not know",
                T::NAME
            )));
        }
    }
    let mut value = T::defaults();
    // SAFETY: `known` bytes are readable there and writable here, and by the trait's promise any bytes
    // make a valid T.
    unsafe { ptr::copy_nonoverlapping(bytes, (&raw mut value).cast::<u8>(), known) };
    Ok(value)
}

/// Writes the first `size` bytes of `value` to a caller's struct, and zeros beyond the end of
/// `value`.
///
/// # Safety
/// `to` points to `size` writable bytes.
unsafe fn put<T: Grown>(to: *mut T, size: usize, value: T, struct_size: usize) {
    let known = size.min(size_of::<T>());
    let bytes = to.cast::<u8>();
    // SAFETY: within `size` bytes, which the caller owns; source and target are different objects.
    unsafe {
        ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), bytes, known);
        ptr::write_bytes(bytes.add(known), 0, size - known);
        if T::SIZED {
            bytes.cast::<u32>().write_unaligned(struct_size as u32);
        }
    }
}

/// An array of a struct that grows, whose elements the caller says to be `stride` bytes long.
pub struct Array<T> {
    first: *mut T,
    stride: usize,
}

impl<T: Grown> Array<T> {
    /// `InvalidArgument` for NULL beside a `count` above 0, and for a `stride` that no header
    /// has.
    pub fn new(first: *mut T, stride: usize, count: usize) -> Result<Self> {
        let name = T::NAME;
        if count > 0 && first.is_null() {
            return Err(Error::invalid(format!("the array of {name} is NULL, its count {count}")));
        }
        if count > 0 && (!is_size::<T>(stride) || !stride.is_multiple_of(align_of::<T>())) {
            return Err(Error::invalid(format!("{stride} is no size of {name}: pass sizeof({name})")));
        }
        if count > isize::MAX as usize / stride.max(1) {
            return Err(Error::invalid(format!("{count} is no possible count of {name}")));
        }
        Ok(Self { first, stride })
    }

    /// Address of element `index`, of which at least `T::LEAST` bytes exist.
    pub fn at(&self, index: usize) -> *mut T {
        self.first.wrapping_byte_add(index * self.stride)
    }

    /// Copies element `index` in. Fields that the caller's version lacks get their defaults.
    ///
    /// # Safety
    /// `index` is below the count, and the elements are readable.
    pub unsafe fn read(&self, index: usize) -> Result<T> {
        // SAFETY: the caller's promise.
        unsafe { copy_in(self.at(index), self.stride) }
    }

    /// Writes element `index`, up to its `struct_size`.
    ///
    /// # Safety
    /// `index` is below the count, and the elements are writable.
    pub unsafe fn write(&self, index: usize, value: T) {
        // SAFETY: the caller's promise.
        unsafe { put(self.at(index), self.stride, value, self.stride.min(size_of::<T>())) };
    }
}

/// `bn_X_init`: the defaults, into `size` bytes.
///
/// # Safety
/// `to` is NULL or points to `size` writable bytes.
pub unsafe fn init<T: Grown>(to: *mut T, size: u32) -> Result<()> {
    not_null(to)?;
    check_size::<T>(size as usize)?;
    // SAFETY: checked above, and the caller's promise.
    unsafe { put(to, size as usize, T::defaults(), size as usize) };
    Ok(())
}

/// Fills a caller's output struct, whose `struct_size` the caller has set.
///
/// # Safety
/// `to` is NULL or points to `struct_size` writable bytes.
pub unsafe fn write<T: Grown>(to: *mut T, value: T) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let size = size_of_caller(to)?;
        put(to, size, value, size);
    }
    Ok(())
}

/// The checked `struct_size` of a caller's struct.
///
/// # Safety
/// `pointer` is NULL or points to at least four readable bytes.
pub unsafe fn size_of_caller<T: Grown>(pointer: *const T) -> Result<usize> {
    not_null(pointer)?;
    // SAFETY: the struct begins with its size; C may hand us any alignment.
    let size = unsafe { pointer.cast::<u32>().read_unaligned() } as usize;
    check_size::<T>(size).map(|()| size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Status;

    /// Version 2 of a struct that was published with `a` only.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Two {
        struct_size: u32,
        a: u32,
        b: u64,
    }
    grown!(Two { struct_size, a, b }, a: 1, b: 2);

    /// Version 3, from a header that is newer than the library.
    #[repr(C)]
    struct Three {
        two: Two,
        c: u64,
    }

    fn status<T>(result: Result<T>) -> Option<Status> {
        result.err().map(|error| error.status)
    }

    #[test]
    fn an_older_caller_gets_defaults_for_what_it_lacks() {
        let one: [u32; 2] = [8, 7];
        // SAFETY: eight bytes, as its struct_size says.
        let two = unsafe { read(one.as_ptr().cast::<Two>()) }.unwrap();
        assert_eq!((two.a, two.b), (7, 2));
    }

    #[test]
    fn a_prefix_of_whole_fields_will_do() {
        let only_the_size = 4u32;
        // SAFETY: four bytes, as it says.
        let two = unsafe { read((&raw const only_the_size).cast::<Two>()) }.unwrap();
        assert_eq!((two.a, two.b), (1, 2));
    }

    #[test]
    fn an_older_caller_is_written_no_further_than_it_is_long() {
        let mut one: [u32; 4] = [8, 0, 0xaaaa, 0xaaaa];
        // SAFETY: eight bytes of the sixteen, as its struct_size says.
        unsafe { write(one.as_mut_ptr().cast::<Two>(), Two { struct_size: 0, a: 5, b: 6 }) }.unwrap();
        assert_eq!(one, [8, 5, 0xaaaa, 0xaaaa]);
    }

    #[test]
    fn a_newer_caller_is_served_until_it_uses_what_we_lack() {
        let mut three = Three { two: Two { struct_size: 24, a: 7, b: 8 }, c: 0 };
        let pointer = (&raw mut three).cast::<Two>();
        // SAFETY: 24 bytes, as its struct_size says.
        unsafe {
            assert_eq!(read(pointer).unwrap().b, 8);
            (*pointer.cast::<Three>()).c = 1;
            assert_eq!(status(read(pointer)), Some(Status::Unsupported));
            init(pointer, 24).unwrap();
            assert_eq!(read(pointer).unwrap(), Two { struct_size: 24, a: 1, b: 2 });
        }
        assert_eq!(three.c, 0);
    }

    #[test]
    fn other_sizes_and_null_are_refused() {
        for size in [0u32, 1, 3, 5, 7, 9, 12, 15, 100_000, u32::MAX] {
            let mut two = Two { struct_size: size, a: 0, b: 0 };
            // SAFETY: nothing but struct_size is read for such sizes.
            unsafe {
                assert_eq!(status(read(&raw const two)), Some(Status::InvalidArgument));
                assert_eq!(status(write(&raw mut two, Two::defaults())), Some(Status::InvalidArgument));
                assert_eq!(status(init(&raw mut two, size)), Some(Status::InvalidArgument));
            }
        }
        // SAFETY: NULL is checked for.
        assert_eq!(status(unsafe { read(ptr::null::<Two>()) }), Some(Status::InvalidArgument));
    }

    #[test]
    fn any_alignment_will_do() {
        let mut bytes = [0u8; 32];
        let odd = bytes[1..].as_mut_ptr().cast::<Two>();
        // SAFETY: sixteen of the thirty-one bytes.
        unsafe {
            init(odd, 16).unwrap();
            assert_eq!(read(odd).unwrap(), Two { struct_size: 16, a: 1, b: 2 });
        }
    }
}
