//! Names of the types of weights in GGUF files.
use std::collections::HashMap;

/// Names of whole files, by `general.file_type`.
const FILES: &[(u64, &str)] = &[
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (21, "Q2_K_S"),
    (25, "IQ4_NL"),
    (30, "IQ4_XS"),
    (32, "BF16"),
];

/// Names of tensors' types.
const TENSORS: &[(u32, &str)] = &[
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (8, "Q8_0"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (20, "IQ4_NL"),
    (23, "IQ4_XS"),
    (30, "BF16"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "I2_S"),
    (38, "TL1"),
    (39, "MXFP4"),
    (41, "Q1_0"),
    (42, "Q2_0"),
    (134, "IQ1_BN"),
    (135, "IQ2_BN"),
    (142, "PQ2_0"),
    (143, "PTQ1_0"),
];

/// The file's type, or that of most weights. Converters of ternary files use different numbers for the same
/// type.
pub fn quantization(file: Option<u64>, sizes: &HashMap<u32, u64>) -> &'static str {
    let most = sizes.iter().max_by_key(|(kind, size)| (**size, **kind)).map(|(kind, _)| *kind);
    let file = FILES.iter().find(|(kind, _)| Some(*kind) == file).map(|(_, name)| *name);
    let tensor = || TENSORS.iter().find(|(kind, _)| Some(*kind) == most).map(|(_, name)| *name);
    file.or_else(tensor).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_most_weights_counts_where_the_files_is_not_known() {
        let sizes = |kind| HashMap::from([(0, 5), (kind, 100)]);
        assert_eq!(quantization(Some(15), &sizes(8)), "Q4_K_M");
        assert_eq!(quantization(Some(40), &sizes(36)), "I2_S");
        assert_eq!(quantization(Some(37), &sizes(36)), "I2_S");
        assert_eq!(quantization(None, &sizes(8)), "Q8_0");
        assert_eq!(quantization(None, &sizes(99)), "");
        assert_eq!(quantization(None, &HashMap::new()), "");
    }
}
