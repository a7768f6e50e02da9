//! Dispatch from an instruction set, chosen at run time, to code that is compiled for it.

/// Defines `fn name(isa, args..)`. Given a kernel with a family (`lanes` or `ints`) it runs `kernel::<S>(args..)`,
/// where S is the family's type for the first listed set that `isa` has. For the scalar set it runs `scalar(args..)`,
/// or the kernel itself if that is `Scalar`; without a `scalar`, callers must not pass such a set. Given a kernel alone
/// it compiles the kernel for each set; this is for loops over elements whose order is free. The kernel and all that it
/// calls must be `inline(always)`: that is how they get the instructions.
///
/// A kernel of `ints` that looks up bytes says `tables if` some condition: then it is compiled for VBMI too.
macro_rules! by_isa {
    (
        $(#[$doc:meta])*
        $vis:vis fn $name:ident $(<$g:ident: $bound:path $(, const $c:ident: usize)?>)?
            ($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)?
            = $kernel:ident $(::<$family:ident> $(, $scalar:ident)? $(tables if $tables:expr)?)?
    ) => {
        $(#[$doc])*
        $vis fn $name $(<$g: $bound $(, const $c: usize)?>)? (isa: $crate::kernels::simd::isa::Isa, $($arg: $type),*) $(-> $out)? {
            macro_rules! set {
                ($set:ident, $features:literal, $has:expr) => {{
                    #[target_feature(enable = $features)]
                    fn compiled $(<$g: $bound $(, const $c: usize)?>)? ($($arg: $type),*) $(-> $out)? {
                        $crate::kernels::simd::dispatch::call!(
                            $kernel, ($($arg),*), ($($g $(, $c)?)?) $(, $crate::kernels::simd::$family::$set)?)
                    }
                    if $has {
                        // SAFETY: such a set is passed only on a machine that has the instructions.
                        return unsafe { compiled $(::<$g $(, $c)?>)? ($($arg),*) };
                    }
                }};
            }
            $crate::kernels::simd::dispatch::of_tables!(($($($tables)?)?)
                #[cfg(target_arch = "x86_64")]
                set!(Avx512Vbmi, "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c", isa.has_vbmi());
            );
            $crate::kernels::simd::dispatch::of_ints!(($($family)?)
                // A machine with AVX-512 but without AVX-VNNI runs the same code in AVX-512's encoding.
                #[cfg(all(test, target_arch = "x86_64"))]
                set!(AvxVnniAsAvx512, "avx512f,avx512vl,avx512vnni,avx2,fma,f16c",
                    isa == $crate::kernels::simd::isa::Isa::AvxVnni
                        && !$crate::kernels::simd::isa::available().contains(&isa));
                #[cfg(target_arch = "x86_64")]
                set!(AvxVnni, "avxvnni,avx2,fma,f16c", isa == $crate::kernels::simd::isa::Isa::AvxVnni);
                #[cfg(target_arch = "aarch64")]
                set!(NeonI8mm, "neon,dotprod,i8mm", isa == $crate::kernels::simd::isa::Isa::NeonI8mm);
            );
            #[cfg(target_arch = "x86_64")]
            set!(Avx512, "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c", isa.has_avx512());
            #[cfg(target_arch = "x86_64")]
            set!(Avx2, "avx2,fma,f16c", isa.has_avx2());
            #[cfg(target_arch = "aarch64")]
            set!(Neon, "neon,dotprod", isa.has_neon());
            $crate::kernels::simd::dispatch::scalar!(
                ($($arg),*), ($($g $(, $c)?)?), $kernel $(, $family $(, $scalar)?)?)
        }
    };
}
pub(in crate::kernels) use by_isa;

/// Expands to the code only for kernels of `ints`: kernels of `lanes` gain nothing from AVX-VNNI and i8mm.
macro_rules! of_ints {
    ((ints) $($then:tt)*) => { $($then)* };
    (($($other:ident)?) $($then:tt)*) => {};
}
pub(in crate::kernels) use of_ints;

/// Expands to the set for kernels with tables only.
macro_rules! of_tables {
    (() $($then:tt)*) => {};
    (($tables:expr) #[$x86:meta] $set:ident!($name:ident, $features:literal, $has:expr);) => {
        #[$x86]
        $set!($name, $features, $tables && $has);
    };
}
pub(in crate::kernels) use of_tables;

macro_rules! call {
    ($kernel:ident, ($($arg:ident),*), ($($g:ident),*)) => {
        $kernel($($arg),*)
    };
    ($kernel:ident, ($($arg:ident),*), ($($g:ident),*), $set:ty) => {
        // SAFETY: this function has the instructions.
        unsafe { $kernel::<$set $(, $g)*>($($arg),*) }
    };
}
pub(in crate::kernels) use call;

macro_rules! scalar {
    (($($arg:ident),*), ($($g:ident),*), $kernel:ident) => {
        $kernel($($arg),*)
    };
    (($($arg:ident),*), ($($g:ident),*), $kernel:ident, $family:ident) => {
        unreachable!("the reference does it")
    };
    (($($arg:ident),*), ($($g:ident),*), $kernel:ident, $family:ident, Scalar) => {
        // SAFETY: any processor has the instructions.
        unsafe { $kernel::<$crate::kernels::simd::$family::Scalar $(, $g)*>($($arg),*) }
    };
    (($($arg:ident),*), ($($g:ident),*), $kernel:ident, $family:ident, $scalar:ident) => {
        $scalar::<$($g),*>($($arg),*)
    };
}
pub(in crate::kernels) use scalar;

/// Runs `$call` with the constant `$t` set to `$count` if that is one of the listed numbers, else `$other`.
macro_rules! by_count {
    ($count:expr, $t:ident in $($n:literal)*, $call:expr, else $other:expr) => {
        match $count {
            $($n => {
                const $t: usize = $n;
                $call
            })*
            _ => $other,
        }
    };
}
pub(in crate::kernels) use by_count;

/// As `by_count`, for up to sixteen tokens that are computed together. Odd numbers above eight are rounded up, because
/// each number takes code of its own.
macro_rules! by_tokens {
    ($count:expr, $t:ident, $call:expr) => {{
        let count: usize = $count;
        let rounded = if count > 8 { count.next_multiple_of(2) } else { count };
        $crate::kernels::simd::dispatch::by_count!(rounded, $t in 1 2 3 4 5 6 7 8 10 12 14 16, $call,
            else unreachable!("{count} tokens together"))
    }};
}
pub(in crate::kernels) use by_tokens;

/// Defines functions of a trait whose types stand for instructions. They are inlined into functions that have these
/// instructions.
macro_rules! inlined {
    ($(fn $name:ident $(<$($word:ident)+: $of:path>)? ($($args:tt)*) $(-> $out:ty)? = $body:expr;)*) => {$(
        #[inline(always)]
        #[allow(unused_unsafe)] // for bodies that need no instructions
        unsafe fn $name $(<$($word)+: $of>)? ($($args)*) $(-> $out)? {
            // SAFETY: the caller has the instructions, and the memory that pointers point to.
            unsafe { $body }
        }
    )*};
}
pub(in crate::kernels) use inlined;
