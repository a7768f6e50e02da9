use super::*;

/// Three hidden states of four elements.
const ROWS: [[f32; 4]; 3] = [[1.0, 2.0, 3.0, -4.0], [0.5, -0.5, 1.0, 0.0], [3.0, 0.0, 4.0, 0.0]];

/// The prompt in chunks of `chunk` rows.
fn pooled(pooling: Pooling, normalize: bool, chunk: usize) -> Vec<f32> {
    let params = EmbeddingParams { pooling: Some(pooling), normalize };
    let mut pooler = Pooler::new(&params, Pooling::Last, 4);
    pooler.admit().unwrap();
    for start in (0..ROWS.len()).step_by(chunk) {
        let end = (start + chunk).min(ROWS.len());
        let wanted = pooler.wanted(start as u32, (end - start) as u32, end == ROWS.len());
        let wanted = &ROWS[start..end][wanted.start as usize..wanted.end as usize];
        pooler.add(wanted.as_flattened());
    }
    let embedding = pooler.finish().unwrap();
    assert_eq!(embedding.pooling, pooling);
    embedding.values
}

#[test]
fn poolings_in_any_chunks() {
    for chunk in 1..=4 {
        assert_eq!(pooled(Pooling::Last, false, chunk), ROWS[2]);
        assert_eq!(pooled(Pooling::Last, true, chunk), [0.6, 0.0, 0.8, 0.0]);
        assert_eq!(pooled(Pooling::First, false, chunk), ROWS[0]);
        assert_eq!(
            pooled(Pooling::Mean, false, chunk),
            [1.5, 0.5, (8.0f64 / 3.0) as f32, (-4.0f64 / 3.0) as f32]
        );
    }
}

fn of(row: &[f32]) -> Result<Embedding> {
    let params = EmbeddingParams::default();
    let mut pooler = Pooler::new(&params, Pooling::First, row.len());
    pooler.admit()?;
    pooler.add(row);
    pooler.finish()
}

#[test]
fn the_models_pooling_is_the_default_and_lengths_are_one() {
    let embedding = of(&[1e30, -2e30, 2e30]).unwrap();
    assert_eq!(embedding.pooling, Pooling::First);
    assert_eq!(embedding.values, [1.0 / 3.0, -2.0 / 3.0, 2.0 / 3.0]);
}

#[test]
fn zeros_stay_zeros_and_nan_is_an_error() {
    assert_eq!(of(&[0.0, 0.0]).unwrap().values, [0.0, 0.0]);
    for bad in [f32::NAN, f32::INFINITY] {
        assert!(of(&[1.0, bad]).unwrap_err().message.contains("NaN"));
    }
}
