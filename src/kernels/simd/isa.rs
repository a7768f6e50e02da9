//! The instruction sets that this machine has.

#[cfg(target_arch = "x86_64")]
use super::tiles_here;
use once_cell::race::OnceBox;

/// The instruction sets that kernels are written for. All give the same bits, except `Amx` for whole texts and
/// pictures.
///
/// Pass one to a kernel only if `available` lists it and it is `permitted`: kernels rely on that without another
/// check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Portable code, the reference.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// `Avx2`, and VNNI on its 256-bit registers (AVX-VNNI).
    AvxVnni,
    /// `Avx2`, and AVX-512 F, BW, VL and VNNI.
    Avx512Vnni,
    /// `Avx512Vnni`, and AVX-512 VBMI, which looks up bytes in registers.
    Avx512Vbmi,
    /// `Avx512Vbmi`, and AMX matrix tiles of bytes and of bf16 (AMX-TILE, AMX-INT8, AMX-BF16) that the system lets the
    /// process use.
    Amx,
    /// aarch64 with NEON and its dot products.
    Neon,
    /// `Neon`, and its products of matrices of int8 (i8mm).
    NeonI8mm,
}

impl Isa {
    pub const ALL: [Self; 8] = {
        use Isa::*;
        [Scalar, Avx2, AvxVnni, Avx512Vnni, Avx512Vbmi, Amx, Neon, NeonI8mm]
    };

    /// Whether AVX2, FMA and F16C are available, on their own or as part of a wider set.
    pub fn has_avx2(self) -> bool {
        matches!(self, Self::Avx2 | Self::AvxVnni) || self.has_avx512()
    }

    /// Whether AVX2 and AVX-512 F, BW, VL and VNNI are available.
    pub fn has_avx512(self) -> bool {
        matches!(self, Self::Avx512Vnni | Self::Avx512Vbmi | Self::Amx)
    }

    /// Whether AVX-512 VBMI is available too.
    pub fn has_vbmi(self) -> bool {
        matches!(self, Self::Avx512Vbmi | Self::Amx)
    }

    /// Whether NEON and its dot products are available.
    pub fn has_neon(self) -> bool {
        matches!(self, Self::Neon | Self::NeonI8mm)
    }

    /// The same set without AVX-512, for kernels whose time is spent on memory.
    pub fn of_256_bits(self) -> Self {
        if self.has_avx512() { Self::Avx2 } else { self }
    }

    /// The name in messages and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Avx512Vbmi => "avx512-vbmi",
            Self::Amx => "amx",
            Self::Neon => "neon",
            Self::NeonI8mm => "neon-i8mm",
        }
    }

    /// Returns the set with this `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// Whether the system lets this process use the set. Asks the system for matrix tiles, which it grants
    /// only on request. The grant is permanent and holds for the whole process.
    pub fn permitted(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => tiles_here::permitted(),
            _ => true,
        }
    }

    fn is_here(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        macro_rules! has { ($($feature:tt),*) => { true $(&& is_x86_feature_detected!($feature))* }; }
        #[cfg(target_arch = "aarch64")]
        macro_rules! has { ($($feature:tt),*) => { true $(&& std::arch::is_aarch64_feature_detected!($feature))* }; }
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => has!("avx2", "fma", "f16c"),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.is_here() && has!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => Self::Avx2.is_here() && has!("avx512f", "avx512bw", "avx512vl", "avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vbmi => Self::Avx512Vnni.is_here() && has!("avx512vbmi"),
            #[cfg(target_arch = "x86_64")]
            Self::Amx => Self::Avx512Vbmi.is_here() && tiles_here::exist(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => has!("neon", "dotprod"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => Self::Neon.is_here() && has!("i8mm"),
            _ => false,
        }
    }
}

/// A `OnceBox` has no lock to wait for: a fork during the first call leaves nothing half done in the child.
static AVAILABLE: OnceBox<Vec<Isa>> = OnceBox::new();

/// The sets of this machine, from `Scalar` to the best.
pub fn available() -> &'static [Isa] {
    AVAILABLE.get_or_init(|| Box::new(Isa::ALL.into_iter().filter(|isa| isa.is_here()).collect()))
}

/// The best set of this machine; check `permitted` before using it.
pub fn isa() -> Isa {
    available().last().copied().unwrap_or(Isa::Scalar)
}

/// The sets that tests run: all sets of this machine, and AVX-VNNI if AVX-512 can stand in for it.
#[cfg(test)]
pub fn tested() -> Vec<Isa> {
    let mut sets = available().to_vec();
    if sets.contains(&Isa::Avx512Vnni) && !sets.contains(&Isa::AvxVnni) {
        sets.push(Isa::AvxVnni);
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_read_back() {
        for isa in Isa::ALL {
            assert_eq!(Isa::named(isa.name()), Some(isa));
        }
        assert_eq!(Isa::named("AVX2"), None);
    }

    #[test]
    fn a_wider_set_has_what_it_stands_on() {
        let all = available();
        assert_eq!((all[0], all.last()), (Isa::Scalar, Some(&isa())));
        assert!(!isa().has_avx2() || all.contains(&Isa::Avx2));
        assert!(!isa().has_neon() || all.contains(&Isa::Neon));
        let avx2 = cfg!(target_arch = "x86_64") && all.iter().any(|isa| isa.has_avx2());
        assert_eq!(avx2, all.len() > 1 && all[1] == Isa::Avx2);
    }
}
