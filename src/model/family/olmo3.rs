//! OLMo 3: OLMo 2 with windows in three of four layers, which rotate without the scaling of the fourth. Its GGUF files
//! call themselves `olmo2`.

use super::olmo2::OLMO2;
use super::{Defaults, Family, Rotation, Windows};

pub(super) const OLMO3: Family = Family {
    hf: Some("olmo3"),
    windows: Windows::AllBut {
        every: 4,
        default: 4096,
        rotation: Rotation::Local { base: None },
        own_beside: false,
        gguf_default: None,
    },
    defaults: Defaults { rope_theta: 500_000.0, ..OLMO2.defaults },
    ..OLMO2
};
