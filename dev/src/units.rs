//! Loops of nothing but multiply-adds on registers, one for each instruction that kernels are built of.

use bn_engine::kernels::Isa;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Int8,
    F32,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Int8 => "int8",
            Kind::F32 => "f32",
        }
    }
}

/// One way to multiply and add.
#[derive(Clone, Copy)]
pub struct Unit {
    pub kind: Kind,
    pub isa: &'static str,
    pub instructions: &'static str,
    /// Multiply-adds of one round of `spin`.
    pub per_round: u64,
    /// # Safety
    /// The machine has the instructions.
    spin: unsafe fn(u64),
}

impl Unit {
    pub fn run(&self, rounds: u64) {
        // SAFETY: `units` lists only units that the machine has.
        unsafe { (self.spin)(rounds) };
    }
}

const PORTABLE: [Unit; 2] = [
    Unit {
        kind: Kind::Int8,
        isa: "portable",
        instructions: "i32 += i8 * i8",
        per_round: 256,
        spin: portable::int8,
    },
    Unit {
        kind: Kind::F32,
        isa: "portable",
        instructions: "f32 += f32 * f32",
        per_round: 256,
        spin: portable::f32,
    },
];

/// The units that the machine has, the narrowest first.
pub fn units() -> Vec<Unit> {
    let mut units = PORTABLE.to_vec();
    #[cfg(target_arch = "x86_64")]
    units.extend(x86::units());
    units
}

/// The unit that the kernels of `isa` use, limited to those of the machine; portable code if none is listed.
/// f32 kernels use no wider set than AVX2.
pub fn of_kernels(isa: Isa, kind: Kind) -> Unit {
    let name = match (isa, kind) {
        (Isa::Scalar, _) => "portable",
        (Isa::Neon | Isa::NeonI8mm, _) => "neon",
        (Isa::Avx2, _) | (_, Kind::F32) => "avx2",
        (Isa::AvxVnni, _) => "avx-vnni",
        (Isa::Avx512Vnni | Isa::Avx512Vbmi, _) => "avx512-vnni",
        (Isa::Amx, _) => "amx",
    };
    let mine = units().into_iter().find(|unit| unit.kind == kind && unit.isa == name);
    mine.unwrap_or(PORTABLE[kind as usize])
}

mod portable {
    use std::hint::black_box;

    pub unsafe fn int8(rounds: u64) {
        let (mut sums, x, w) = ([0i32; 64], black_box([3i8; 64]), black_box([1i8; 64]));
        for _ in 0..rounds {
            for _ in 0..4 {
                for ((sum, x), w) in sums.iter_mut().zip(black_box(&x)).zip(&w) {
                    *sum = sum.wrapping_add(*x as i32 * *w as i32);
                }
            }
        }
        black_box(sums);
    }

    pub unsafe fn f32(rounds: u64) {
        let (mut sums, x, w) = ([0f32; 32], black_box([1e-3f32; 32]), black_box([1e-3f32; 32]));
        for _ in 0..rounds {
            for _ in 0..8 {
                for ((sum, x), w) in sums.iter_mut().zip(black_box(&x)).zip(&w) {
                    *sum += x * w;
                }
            }
        }
        black_box(sums);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Kind, Unit};
    use bn_engine::kernels::{Isa, available};
    use std::arch::asm;

    pub fn units() -> Vec<Unit> {
        let unit = |has, kind, isa, instructions, per_round, spin: unsafe fn(u64)| {
            let unit = Unit { kind, isa, instructions, per_round, spin };
            if has { Some(unit) } else { None }
        };
        let (avx2, fma) = (is_x86_feature_detected!("avx2"), is_x86_feature_detected!("fma"));
        let (avx512, vnni512) = (is_x86_feature_detected!("avx512f"), is_x86_feature_detected!("avx512vnni"));
        let vnni = is_x86_feature_detected!("avxvnni");
        let all = [
            unit(avx2, Kind::Int8, "avx2", "vpmaddubsw + vpaddw", 12 * 32, maddubs),
            unit(avx2 && vnni, Kind::Int8, "avx-vnni", "vpdpbusd ymm", 12 * 32, dpbusd_256),
            unit(avx512 && vnni512, Kind::Int8, "avx512-vnni", "vpdpbusd zmm", 12 * 64, dpbusd_512),
            unit(
                available().contains(&Isa::Amx) && Isa::Amx.permitted(),
                Kind::Int8,
                "amx",
                "tdpbssd",
                12 * 16 * 16 * 64,
                dpbssd_tiles,
            ),
            unit(avx2 && fma, Kind::F32, "avx2", "vfmadd231ps ymm", 12 * 8, fma_256),
            unit(avx512, Kind::F32, "avx512", "vfmadd231ps zmm", 12 * 16, fma_512),
        ];
        all.into_iter().flatten().collect()
    }

    /// Runs twelve chains of `$line`s `$rounds` times, enough to hide the latency of any of these: register
    /// `\\r` is a chain's sum, 12 and 13 hold its factors, 14 is free. `$constant` makes factors of 1.0 as
    /// f32.
    macro_rules! chains {
        ($rounds:ident, $clear:literal, $constant:literal, $($line:literal),+) => {
            // SAFETY: registers only, and each that is written is named below.
            unsafe {
                asm!(
                    ".irp r,0,1,2,3,4,5,6,7,8,9,10,11",
                    $clear,
                    ".endr",
                    ".irp r,12,13",
                    $constant,
                    ".endr",
                    "2:",
                    ".irp r,0,1,2,3,4,5,6,7,8,9,10,11",
                    $($line,)+
                    ".endr",
                    "dec {rounds}",
                    "jnz 2b",
                    rounds = inout(reg) $rounds.max(1) => _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                    out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _, out("xmm14") _,
                    options(nomem, nostack),
                );
            }
        };
    }

    macro_rules! chains_256 {
        ($rounds:ident, $($line:literal),+) => {
            chains!(
                $rounds,
                "vpxor ymm\\r, ymm\\r, ymm\\r",
                "vpcmpeqd ymm\\r, ymm\\r, ymm\\r\nvpsrld ymm\\r, ymm\\r, 25\nvpslld ymm\\r, ymm\\r, 23",
                $($line),+
            )
        };
    }

    macro_rules! chains_512 {
        ($rounds:ident, $($line:literal),+) => {
            chains!(
                $rounds,
                "vpxord zmm\\r, zmm\\r, zmm\\r",
                "vpternlogd zmm\\r, zmm\\r, zmm\\r, 255\nvpsrld zmm\\r, zmm\\r, 25\nvpslld zmm\\r, zmm\\r, 23",
                $($line),+
            )
        };
    }

    unsafe fn maddubs(rounds: u64) {
        chains_256!(rounds, "vpmaddubsw ymm14, ymm12, ymm13", "vpaddw ymm\\r, ymm\\r, ymm14");
    }

    unsafe fn dpbusd_256(rounds: u64) {
        chains_256!(rounds, "{{vex}} vpdpbusd ymm\\r, ymm12, ymm13");
    }

    unsafe fn dpbusd_512(rounds: u64) {
        chains_512!(rounds, "vpdpbusd zmm\\r, zmm12, zmm13");
    }

    /// Operand of `ldtilecfg`: eight tiles of 16 rows of 64 bytes.
    #[repr(C, align(64))]
    struct Tiles([u8; 64]);

    const TILES: Tiles = {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        let mut tile = 0;
        while tile < 8 {
            (bytes[16 + 2 * tile], bytes[48 + tile]) = (64, 16);
            tile += 1;
        }
        Tiles(bytes)
    };

    /// Four chains, two times two tiles.
    unsafe fn dpbssd_tiles(rounds: u64) {
        // SAFETY: the machine has tiles, which the system lets this process use; they are given back.
        unsafe {
            asm!(
                "ldtilecfg [{tiles}]",
                "2:",
                ".rept 3",
                "tdpbssd tmm0, tmm4, tmm6",
                "tdpbssd tmm1, tmm4, tmm7",
                "tdpbssd tmm2, tmm5, tmm6",
                "tdpbssd tmm3, tmm5, tmm7",
                ".endr",
                "dec {rounds}",
                "jnz 2b",
                "tilerelease",
                tiles = in(reg) &TILES,
                rounds = inout(reg) rounds.max(1) => _,
                options(readonly, nostack),
            );
        }
    }

    unsafe fn fma_256(rounds: u64) {
        chains_256!(rounds, "vfmadd231ps ymm\\r, ymm12, ymm13");
    }

    unsafe fn fma_512(rounds: u64) {
        chains_512!(rounds, "vfmadd231ps zmm\\r, zmm12, zmm13");
    }
}
