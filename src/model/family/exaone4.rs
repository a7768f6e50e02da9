//! EXAONE 4.0 (arXiv 2507.11407): norms of q and k heads, and norms after attention and feed-forward, none before
//! them. In the 32B each fourth layer sees everything and does not rotate. The 1.2B has no windows and rotates in all.

use super::olmo2::OLMO2;
use super::{BASE, Defaults, Family, Rotation, Windows};

pub(super) const EXAONE4: Family = Family {
    gguf: &["exaone4"],
    hf: Some("exaone4"),
    norms: OLMO2.norms,
    windows: Windows::AllBut {
        every: 4,
        default: 4096,
        rotation: Rotation::WindowedIfAny,
        own_beside: false,
        gguf_default: None,
    },
    defaults: Defaults { rms_eps: 1e-5, ..BASE.defaults },
    ..BASE
};
