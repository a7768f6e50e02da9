//! Products of int8 activations and super-blocks of 256: the integers of `scalar`, in lanes of rows, so that each row's
//! f32 sum has its order. Few tokens: rows are unpacked in registers. More tokens: rows become panels once.

#[cfg(target_arch = "x86_64")]
#[path = "few_avx2.rs"]
mod few;
#[cfg(target_arch = "aarch64")]
#[path = "few_neon.rs"]
mod few;
mod panel;

use super::{Scratch, Task};
use crate::kernels::Isa;
use crate::kernels::gemm::formats::super_blocks::{Super, with_super};

/// The dot products of `task`, whose type is one of super-blocks, with an instruction set that is not `Scalar`.
pub fn run(isa: Isa, task: &Task, scratch: &mut Scratch) {
    with_super!(task.dtype, K => {
        check::<K>(task);
        if !few_tokens::<K>(task) {
            panel::sweep::<K>(isa, task, scratch);
        }
    })
}

/// Blocks of a row, and of a token.
#[inline(always)]
fn blocks_of(task: &Task) -> usize {
    task.x.cols / 256
}

/// Panics unless the task has blocks of `K` and activations for them.
fn check<K: Super>(task: &Task) {
    let (x, blocks) = (task.x, blocks_of(task));
    let count = x.scales.len();
    assert!(x.cols == 256 * blocks && count.is_multiple_of(blocks) && x.values.len() == 256 * count);
    assert!(x.sums.len() == 16 * count && task.row_bytes == blocks * K::BYTES);
    assert!(task.packed.len() == task.rows * task.row_bytes);
}

/// The dot products of a task with few tokens, of which memory sets the time; false, and nothing done, where unpacking
/// once pays.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn few_tokens<K: Super>(task: &Task) -> bool {
    // SAFETY: every set but `Scalar` has these instructions; the lengths were checked.
    unsafe {
        match task.x.tokens() {
            0 => {}
            1 => few::few::<K, 1>(task),
            2 => few::few::<K, 2>(task),
            3 => few::few::<K, 3>(task),
            _ => return false,
        }
    }
    true
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn few_tokens<K: Super>(_: &Task) -> bool {
    unreachable!("no set but Scalar here");
}
