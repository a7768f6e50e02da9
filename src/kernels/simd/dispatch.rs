//! From an instruction set, chosen at run time, to code that is compiled for it.

/// `fn name(isa, args..)`, which runs `kernel::<S>(args..)` with the `lanes` or `ints` of `isa` for S, or `scalar(args..)`
/// where it has none (without a `scalar` nobody asks for that); or, with a kernel alone, that compiled for each set, for
/// loops over elements whose order is free. The kernel and all that it calls are `inline(always)`: that is how they come to
/// have the instructions.
macro_rules! by_isa {
    (
        $(#[$doc:meta])*
        $vis:vis fn $name:ident $(<$g:ident: $bound:path $(, const $c:ident: usize)?>)?
            ($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)?
            = $kernel:ident $(::<$family:ident> $(, $scalar:ident)?)?
    ) => {
        $(#[$doc])*
        $vis fn $name $(<$g: $bound $(, const $c: usize)?>)? (isa: $crate::kernels::Isa, $($arg: $type),*) $(-> $out)? {
            macro_rules! of {
                ($name_of:ident, $features:literal, $set:ident) => {
                    #[target_feature(enable = $features)]
                    fn $name_of $(<$g: $bound $(, const $c: usize)?>)? ($($arg: $type),*) $(-> $out)? {
                        $crate::kernels::simd::dispatch::call!(
                            $kernel, ($($arg),*), ($($g $(, $c)?)?) $(, $crate::kernels::simd::$family::$set)?)
                    }
                };
            }
            #[cfg(target_arch = "x86_64")]
            of!(avx512, "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c", Avx512);
            #[cfg(target_arch = "x86_64")]
            of!(avx2, "avx2,fma,f16c", Avx2);
            #[cfg(target_arch = "aarch64")]
            of!(neon, "neon,dotprod", Neon);
            match isa {
                // SAFETY (of all): such a set stands for a machine that has the instructions.
                #[cfg(target_arch = "x86_64")]
                _ if isa.has_avx512() => unsafe { avx512 $(::<$g $(, $c)?>)? ($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                _ if isa.has_avx2() => unsafe { avx2 $(::<$g $(, $c)?>)? ($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                $crate::kernels::Isa::Neon => unsafe { neon $(::<$g $(, $c)?>)? ($($arg),*) },
                _ => $crate::kernels::simd::dispatch::scalar!(
                    ($($arg),*), ($($g $(, $c)?)?), $kernel $(, $family $(, $scalar)?)?),
            }
        }
    };
}
pub(in crate::kernels) use by_isa;

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
    (($($arg:ident),*), ($($g:ident),*), $kernel:ident, $family:ident, $scalar:ident) => {
        $scalar::<$($g),*>($($arg),*)
    };
}
pub(in crate::kernels) use scalar;

/// `$call` with the number for `$t`, a constant, where it is one of those; else `$other`.
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
