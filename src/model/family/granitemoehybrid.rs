//! Granite 4: Mamba-2 with layers of attention between them, or attention alone; with experts beside a feed-forward of
//! all rows, or with that alone. Most do not rotate.

use super::granite::GRANITE;
use super::granitemoe::GRANITEMOE;
use super::{Defaults, ExpertDefaults, Family};
use crate::model::layers::mamba::{GateNorm, MambaDefaults};

pub(super) const GRANITEMOEHYBRID: Family = Family { dense: Some(&DENSE), ..ALL };

const ALL: Family = Family {
    gguf: &["granitehybrid"],
    hf: Some("granitemoehybrid"),
    recurrent: Some(&MambaDefaults { beside: false, norm: Some(GateNorm::AfterGate) }),
    experts: match GRANITEMOE.experts {
        Some(experts) => Some(ExpertDefaults { optional: true, ..experts }),
        None => None,
    },
    ..GRANITEMOE
};

/// Folders without experts.
const DENSE: Family = Family {
    joined: &[("shared_mlp.input_linear.weight", &["ffn_gate.weight", "ffn_up.weight"])],
    products: &[("shared_mlp.output_linear", "ffn_down")],
    experts: None,
    stateless: Some(&GRANITE),
    defaults: Defaults { ffn_key: "shared_intermediate_size", ..GRANITEMOE.defaults },
    ..ALL
};
